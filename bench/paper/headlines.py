"""The paper's first lines of a report: its own models beside its numbers, what each part adds, what is not run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from bench.paper.numbers import proposed
from bench.paper.scorecard import NOT_SHOWN, Score
from bench.paper.studies import studies
from bench.paper.tables import GAIN, PAPER_TABLES
from bench.paper.trial_index import ACCURACY_STUDIES, TrialIndex
from bench.report.entries import brackets
from bench.report.evidence import Trials
from bench.report.results import dataset_title, model_title
from bench.report.table import Table
from bench.studies import Study
from bench.text import counted


def headlines(found: Sequence[Score], tables: Mapping[str, Table]) -> list[str]:
    """What a reader should take away, each with its interval; `tables` by study."""
    return [*_own_models(found), *_gains(tables)]


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


def _gains(tables: Mapping[str, Table]) -> Iterator[str]:
    """Per ablation and graph: what each part adds, where there are pairs enough for an interval."""
    for study in (studies()[name] for name in PAPER_TABLES):
        table = tables[study.name]
        for at, dataset in enumerate(table.header[1:], start=1):
            gains = [(row[0].text, row[at].text) for row in table.rows if row[0].text.endswith(GAIN)]
            said = [f"{part.removesuffix(GAIN)} {text}" for part, text in gains if "[" in text]
            if said:
                about = f"{study.shows} on {dataset} ({study.about})"
                yield f"{about}, gain [95 % interval] (n pairs); then the paper's: {', '.join(said)}."


def counts(index: TrialIndex) -> Iterator[str]:
    """Where the studies beyond accuracy were run, and the commands that run the others."""
    ran, missing = [], []
    for study in studies().values():
        if study.name in ACCURACY_STUDIES:
            continue
        by_dataset: dict[str, list[Trials]] = defaultdict(list)
        for trials in index.of_study(study.name):
            by_dataset[trials.dataset].append(trials)
        where = [
            dataset_title(name) + ("" if all(each.good for each in several) else " in part")
            for name, several in by_dataset.items()
            if _tells_more(study, several)
        ]
        if where:
            ran.append(f"{study.shows} ({study.name}) on {', '.join(where)}")
        else:
            missing.append(f"{study.shows} (`{index.fill_command(study.name)}`)")
    yield from (f"{word}: {'; '.join(parts)}." for word, parts in (("Run", ran), ("Not run", missing)) if parts)


def _tells_more(study: Study, trials: Sequence[Trials]) -> bool:
    """Whether more of it was run than the models as they are, which every study shares."""
    ran = {(each.model, each.variant) for each in trials if each.good}
    return bool(ran) and (len(study.variants) == 1 or len(ran) > len({model for model, _ in ran}))
