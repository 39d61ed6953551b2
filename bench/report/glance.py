"""The first lines of the report: what has been run, what came of it, what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from bench.report.audit import OURS, PAPER
from bench.report.entries import fill_command
from bench.report.evidence import Trials
from bench.report.findings import ACCURACY_STUDIES, Findings, dataset_title
from bench.report.scorecard import Score, totals
from bench.report.statistics import MINIMUM_TRIALS
from bench.report.table import Table
from bench.studies import Study, studies


def glance(findings: Findings, found: Sequence[Score], claims: Table) -> list[str]:
    """What a reader should know before the first number."""
    return [
        f"Accuracy was run on {_run_so_far(findings)}.",
        f"{len(found)} published accuracies: {totals(found)}.",
        f"{len(claims.rows)} claims, by the paper's own numbers: {_verdicts(claims, PAPER)}; by our trials: "
        f"{_verdicts(claims, OURS)}.",
        *_states(findings),
    ]


def _run_so_far(findings: Findings) -> str:
    """Per graph: how many models, and how many of these with enough trials for a verdict."""
    parts = []
    for study in ACCURACY_STUDIES:
        for dataset in findings.columns(studies()[study]):
            trials = [each for each in findings.of_study(study, dataset.name) if each.good]
            enough = sum(len(each.good) >= MINIMUM_TRIALS for each in trials)
            parts += (
                [f"{dataset.title} ({len(trials)} models, {enough} with {MINIMUM_TRIALS} trials)"] if trials else []
            )
    return ", ".join(parts) or "nothing yet"


def _verdicts(claims: Table, column: str) -> str:
    at = claims.header.index(column)
    counts = Counter(row[at].text.partition(" (")[0] for row in claims.rows)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())


def _states(findings: Findings) -> Iterator[str]:
    """Where the studies beyond accuracy were run, and the commands that run the others."""
    ran, missing = [], []
    for study in studies().values():
        if study.name in ACCURACY_STUDIES:
            continue
        where = [
            dataset_title(name) + ("" if all(each.good for each in trials) else " in part")
            for name, trials in _by_dataset(findings, study).items()
            if _tells_more(study, trials)
        ]
        if where:
            ran.append(f"{study.shows} ({study.name}) on {', '.join(where)}")
        else:
            missing.append(f"{study.shows} (`{fill_command(findings.setting, study.name)}`)")
    yield from (f"{word}: {'; '.join(parts)}." for word, parts in (("Run", ran), ("Not run", missing)) if parts)


def _by_dataset(findings: Findings, study: Study) -> dict[str, list[Trials]]:
    found: dict[str, list[Trials]] = {}
    for trials in findings.of_study(study.name):
        found.setdefault(trials.dataset, []).append(trials)
    return found


def _tells_more(study: Study, trials: Sequence[Trials]) -> bool:
    """Whether more of it was run than the models as they are, which every study shares."""
    ran = {(each.model, each.variant) for each in trials if each.good}
    return bool(ran) and (len(study.variants) == 1 or len(ran) > len({model for model, _ in ran}))
