"""Graphs in. `catalogue` knows the names, `store` opens a graph by its entry, `splits` divides its nodes.

Behind them: `entries` (the catalogue's data), `sources` and the readers (`npz`, `planetoid`, `grandplus`, `copies`,
`pickles`), `canonical` (one form for every graph, and its checks), `fetch`, `twins`, `digits`, `counts`, `passports`.
"""
