"""The paper's sections of a report: its tables and figures filled from the ledger, its claims, its slips."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from bench.paper.audit import audit, audit_table, claim_counts
from bench.paper.figures import scorecard_drawing, study_figures
from bench.paper.headlines import counts, headlines
from bench.paper.numbers import citation
from bench.paper.rivals import across_table, control_table
from bench.paper.scorecard import VERDICTS, differences, scorecard, scores, totals, without_not_run
from bench.paper.slips import slip_table
from bench.paper.studies import studies
from bench.paper.tables import dataset_table, study_tables
from bench.paper.trial_index import ACCURACY_STUDIES, TrialIndex
from bench.report.costs import in_brief
from bench.report.evidence import Evidence
from bench.report.results import Setting
from bench.report.sections import Part, Section


def paper_sections(evidence: Evidence, setting: Setting) -> list[Section]:
    """Return the scorecard, the paper's tables and figures in the order of its studies, and what is said in words."""
    index = TrialIndex(evidence, setting)
    found, audited = scores(index), audit(index)
    card, tables, figures = scorecard(index, found), study_tables(index), study_figures(index)
    tables["cost"] = replace(tables["cost"], brief=in_brief(tables["cost"]))
    parts: list[Part] = [dataset_table()]
    for name in studies():
        parts += [part for part in (figures.get(name), tables.get(name)) if part is not None]
        if name == ACCURACY_STUDIES[0]:
            parts += [control_table(index), across_table(index)]
    verdicts = Counter(score.verdict for score in found)
    return [
        Section(
            "Beside the paper",
            [*scorecard_drawing(found), replace(card, brief=without_not_run(card, index))],
            about=(f"Paper: {citation()}.",),
            headlines=tuple(headlines(found, tables)),
            counts=(
                " ".join([f"{len(found)} published accuracies: {totals(found)}.", *differences(found)]),
                f"{claim_counts(audited)}.",
                *counts(index),
            ),
            chips=tuple((verdict, str(verdicts[verdict])) for verdict in VERDICTS if verdicts[verdict]),
        ),
        Section("The paper's tables and figures", parts),
        Section("The paper's words", [audit_table(audited, setting), slip_table()]),
    ]
