"""The counts of the report: how many numbers and claims came out how, which studies are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.report.audit import Audited, claim_counts
from bench.report.entries import fill_command
from bench.report.evidence import Trials
from bench.report.findings import ACCURACY_STUDIES, Findings, dataset_title
from bench.report.scorecard import Score, differences, totals
from bench.studies import Study, studies


def glance(findings: Findings, found: Sequence[Score], audited: Sequence[Audited]) -> list[str]:
    """What a reader should know before the first table."""
    return [
        " ".join([f"{len(found)} published accuracies: {totals(found)}.", *differences(found)]),
        f"{claim_counts(audited)}.",
        *_states(findings),
    ]


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
