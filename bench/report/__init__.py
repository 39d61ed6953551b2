"""From any ledger to tables, figures, a page: `evidence` (records), `results` (by dataset), `sections`, `report`.

Never trains and knows no paper. May import the spine, bench/datasets and what bench/tuning found, never bench/paper
or bench/commands; a paper's sections come from outside, as `sections.Section`.
"""
