"""Graphs in: `catalogue` knows the names, `store` opens a graph by its entry.

Behind them `entries` (its data), `sources` and the readers, `canonical` (one form for every graph), `fetch`,
`twins`, `passports`. May import the spine's nouns (graph, splits, metrics), never models, executors or reports.
"""
