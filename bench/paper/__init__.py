"""This paper: `numbers` it prints, `claims`, `slips`, `studies`, and its sections of a report; it uses bench/report.

Only bench/commands may import it (bench/commands/paper.py is the one door), so that it can be deleted: `run`, `tune`
and a plain `report` work without it.
"""
