"""The findings on top of the report: the paper's own models beside its numbers, who leads, what each part adds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bench.paper import proposed
from bench.report.comparisons import best_group
from bench.report.entries import brackets
from bench.report.evidence import Trials
from bench.report.findings import ACCURACY_STUDIES, Findings, compare_pairs, dataset_title, model_title, paired
from bench.report.scorecard import NOT_SHOWN, Score
from bench.report.statistics import MINIMUM_TRIALS, Interval, Refusal
from bench.report.tables import ABLATIONS, Line, Place, Printed, printed
from bench.studies import Study, studies
from bench.text import counted


def highlights(findings: Findings, found: Sequence[Score]) -> list[str]:
    """What a reader should take away, each with its interval."""
    return [_runs(findings), *_own_models(found), *_leaders(findings), *_gains(findings)]


def _runs(findings: Findings) -> str:
    """Per graph: how many models with how many trials."""
    ran, missing = [], []
    for study in ACCURACY_STUDIES:
        for dataset in findings.columns(studies()[study]):
            counts = [len(trials.good) for trials in findings.of_study(study, dataset.name) if trials.good]
            if not counts:
                missing.append(dataset.title)
                continue
            each = str(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
            enough = sum(count >= MINIMUM_TRIALS for count in counts)
            trials = f"{each} trial{'' if each == '1' else 's'}, {enough} with {MINIMUM_TRIALS} or more"
            ran.append(f"{dataset.title} ({counted(len(counts), 'model')} of {trials})")
    left = f" Not run on {', '.join(missing)}." if ran and missing else ""
    return f"Accuracy was run on {', '.join(ran) or 'nothing yet'}.{left}"


def _own_models(found: Sequence[Score]) -> Iterator[str]:
    """The paper's own models: ours minus its numbers."""
    for model in proposed():
        own = [score for score in found if score.trials.model == model and not score.trials.variant and score.result]
        if own:
            yield f"{model_title(model)}, ours minus the paper's [95 % interval]: {'; '.join(map(_beside, own))}."


def _beside(score: Score) -> str:
    assert score.result is not None
    interval = f" {brackets(score.result.wide)}" if score.result.wide else ""
    words = {"": "too few to tell", NOT_SHOWN: "no difference shown"}
    said = f"{counted(len(score.trials.good), 'trial')}, {words.get(score.difference, score.difference)}"
    return f"{dataset_title(score.trials.dataset)} {score.result.difference:+.2f}{interval} ({said})"


def _leaders(findings: Findings) -> Iterator[str]:
    """Per graph: who has the highest mean, and who cannot be told from it."""
    for study in ACCURACY_STUDIES:
        for dataset in findings.columns(studies()[study]):
            scores = findings.aligned(study, dataset.name)
            group = scores if isinstance(scores, Refusal) else best_group(scores, findings.sizes(dataset.name))
            if isinstance(scores, Refusal) or isinstance(group, Refusal):
                continue
            names = ", ".join(map(model_title, group.members))
            yield (
                f"{dataset.title}: {model_title(group.best)} has the highest mean, {np.mean(scores[group.best]):.2f}; "
                f"{len(group.members)} of {len(scores)} models with {MINIMUM_TRIALS} trials are tied for best, that "
                f"is, no other is significantly better (5 %): {names}."
            )


def _gains(findings: Findings) -> Iterator[str]:
    """Per ablation and graph: what each part adds, beside the paper's."""
    for name, (paper_table, lines_of) in ABLATIONS.items():
        study, paper = studies()[name], printed(paper_table)
        for dataset in findings.columns(study):
            lines = [line for line in lines_of(study) if line.over]
            said = [text for line in lines if (text := _gain(findings, study, line, dataset.name, paper))]
            if said:
                yield f"{study.shows} on {dataset.title} ({study.about}), gain [95 % interval]: {'; '.join(said)}."


def _gain(findings: Findings, study: Study, line: Line, dataset: str, paper: dict[Place, Printed]) -> str:
    """Nothing below ten pairs."""
    assert line.over is not None
    trials = findings.trials(study.name, line.model, dataset, line.variant)
    other = findings.trials(study.name, line.over[0], dataset, line.over[1])
    found = _interval(findings, trials, other)
    if found is None:
        return ""
    difference, interval = found
    text = f"{line.title.removesuffix(', gain')} {difference:+.2f} {brackets(interval)}"
    theirs, over = paper.get((line.model, line.variant, dataset)), paper.get((*line.over, dataset))
    if theirs is None or over is None:
        return text
    gain = theirs.mean - over.mean
    where = "inside" if interval.low <= gain <= interval.high else "outside"
    return f"{text}, the paper's {gain:+.2f} is {where}"


def _interval(findings: Findings, trials: Trials | None, other: Trials | None) -> tuple[float, Interval] | None:
    if trials is None or other is None:
        return None
    ours, theirs = paired(trials, other)
    if len(ours) < MINIMUM_TRIALS:
        return None
    compared = compare_pairs(ours, theirs, findings.sizes(trials.dataset))
    if isinstance(compared, Refusal) or compared.interval is None:
        return None
    return compared.difference, compared.interval
