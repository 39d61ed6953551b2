"""Table 6: what training and inference cost, beside the paper's and divided by its own model's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bench.datasets.catalogue import Dataset, datasets
from bench.paper.numbers import model_order, published
from bench.paper.trial_index import TrialIndex
from bench.records import (
    Record,
    machine_of,
    memory_used,
    peak,
    preparation_seconds,
    seconds_per_epoch,
    under_load,
)
from bench.report.costs import (
    CLEAN,
    COSTS,
    MEANING,
    Cost,
    comparable,
    is_bound,
    medians,
    nodes_of,
    place,
    whole_inference,
)
from bench.report.entries import MISSING, accuracy_entry, setting_lines
from bench.report.evidence import Trials
from bench.report.results import model_title
from bench.report.table import Entry, Table, entry, without_empty
from bench.sizes import megabytes
from bench.studies import Study

TRAIN_AND_INFER, PIPELINE, MEMORY_LATER, EPOCHS = "train + infer s", "whole pipeline s", "train + infer MB", "epochs"
AT_MOST = "≤ "
BOUNDS = {(False, False): "", (True, False): AT_MOST, (False, True): "≥ ", (True, True): "~ "}  # by both sides
PRINTED = {"paper: GPU MB": "memory_mb", "paper: s": "seconds"}
# what is divided by the reference model's: how the column is called -> our cost, and what the paper prints of it
RATIOS = {"time": (TRAIN_AND_INFER, "seconds"), "memory": (MEMORY_LATER, "memory_mb"), "whole pipeline": (PIPELINE, "")}


def _train_and_infer(record: Record) -> float | None:
    """All epochs at the rate of the later ones, and inference over all nodes of the graph."""
    inference = whole_inference(record)
    return None if inference is None else float(record["training"]["epochs"] * seconds_per_epoch(record) + inference)


MEASURED: dict[str, Cost] = {  # of a fixed number of epochs and a sample of the nodes
    "preprocess s": COSTS["preprocess s"],
    "s per epoch": COSTS["s per epoch"],
    "infer s per 1,000 nodes": COSTS["per 1,000 nodes"],
    TRAIN_AND_INFER: _train_and_infer,
    PIPELINE: lambda record: None if (rest := _train_and_infer(record)) is None else preparation_seconds(record) + rest,
    "preprocess MB": lambda record: megabytes(memory_used(record, ("preprocess",))),
    MEMORY_LATER: lambda record: megabytes(memory_used(record, ("train", "infer"))),
    # beside what is reserved, which is what the columns before have on a GPU
    "GPU allocated MB": lambda record: megabytes(peak(record, "peak_allocated")),
    "GPU used by all MB": lambda record: megabytes(peak(record, "device_used")),
    "disk MB": COSTS["disk MB"],
    EPOCHS: COSTS[EPOCHS],
}


def cost_study_table(index: TrialIndex, study: Study) -> Table:
    """A row per dataset, model, machine and whether others were busy on it; twins stand under their own names."""
    rows: list[tuple[Entry, ...]] = []
    shown: list[Trials] = []
    for dataset in index.columns(study):
        beside = _Beside(index, study, dataset)
        for model in model_order("tab:cost"):
            trials = index.trials(study.name, model, dataset.name)
            if trials is not None and (trials.records or beside.stands_alone(model)):
                rows += _rows(trials, dataset, beside)
                shown.append(trials)
    by = model_title(study.reference)
    ratios = (f"{what} × {by}" + (", ours / paper" if printed else "") for what, (_, printed) in RATIOS.items())
    table = Table(
        study.name,
        f"{study.shows}: {study.about}",
        ("Dataset", "Method", *MEASURED, "n", "disturbed", "machine", *PRINTED, *ratios),
        tuple(rows),
        (
            MEANING,
            *_caption(shown, by),
            *setting_lines(index.setting, shown, marked=False, fill=index.fill_command(study.name)),
        ),
    )
    return without_empty(table)


def _rows(trials: Trials, dataset: Dataset, beside: _Beside) -> Iterator[tuple[Entry, ...]]:
    """A row per machine, or one that says what is missing."""
    names = (entry(dataset.title), entry(model_title(trials.model)))
    if not trials.good:
        empty = [entry("")] * (len(MEASURED) + 2)
        yield (*names, accuracy_entry(trials), *empty, *beside.entries(trials.model, {}, ""))
    for records in comparable(trials):
        costs, (count, disturbed, machine) = _medians(records), place(trials, records)
        clean = machine.text if disturbed.text == CLEAN else ""
        yield (*names, *costs.values(), count, disturbed, machine, *beside.entries(trials.model, costs, clean))


def _medians(records: Sequence[Record]) -> dict[str, Entry]:
    found = medians(records, MEASURED)
    if any(map(is_bound, records)):
        for name in (TRAIN_AND_INFER, PIPELINE):
            found[name] = replace(found[name], text=f"{AT_MOST}{found[name].text}")
    return found


class _Beside:
    """What stands beside the measured costs of one dataset: the paper's, and both divided by the reference model's."""

    def __init__(self, index: TrialIndex, study: Study, dataset: Dataset) -> None:
        self._dataset, self._name = dataset, study.reference
        self._index, self._study = index, study.name
        self._paper = published("tab:cost").set_index(["row", "column", "measure"])["mean"]
        reference = index.trials(study.name, study.reference, dataset.name)
        self._reference = {
            machine_of(records[0]): _medians(records)
            for records in (comparable(reference) if reference else ())
            if under_load(records[0]) is False
        }

    def stands_alone(self, model: str) -> bool:
        """Whether the paper's numbers need a separate row: where the twin was run, they stand in its row."""
        twin = self._index.trials(self._study, model, f"{self._dataset.name}-twin")
        return not self._dataset.is_twin and not (twin and twin.records)

    def entries(self, model: str, costs: Mapping[str, Entry], machine: str) -> list[Entry]:
        """`machine` is where the costs were measured undisturbed: elsewhere nothing is divided."""
        absolute = [self._printed(model, what) for what in PRINTED.values()]
        return absolute + [self._ratio(model, costs, machine, *chosen) for chosen in RATIOS.values()]

    def _printed(self, model: str, what: str) -> Entry:
        value = self._of_paper(model, what)
        return entry("") if value is None else Entry(f"{value:,g}", note="Table 6 of the paper", value=value)

    def _of_paper(self, model: str, what: str) -> float | None:
        value = self._paper.get((model, self._dataset.settings_name, what))
        return None if value is None else float(value)

    def _ratio(self, model: str, costs: Mapping[str, Entry], machine: str, cost: str, what: str) -> Entry:
        reference = self._reference.get(machine, {})
        ours, by = costs.get(cost, Entry()), reference.get(cost, Entry())
        same_length = bool(reference) and costs[EPOCHS].value == reference[EPOCHS].value
        measured = ours.value / by.value if same_length and ours.value and by.value else None
        theirs, by_theirs = self._of_paper(model, what), self._of_paper(self._name, what)
        printed = theirs / by_theirs if theirs and by_theirs else None
        if measured is None and printed is None:
            return entry("")
        sides = (measured, printed) if what else (measured,)
        text = " / ".join(MISSING if ratio is None else f"{ratio:.3g}" for ratio in sides)
        if measured is not None and model != self._name:
            text = BOUNDS[ours.text.startswith(AT_MOST), by.text.startswith(AT_MOST)] + text
        note = "" if printed is None else f"Table 6 of the paper: {theirs:,g} against {by_theirs:,g}"
        return Entry(text, () if measured is None else (*ours.keys, *by.keys), note=note, value=measured)


def _caption(shown: Sequence[Trials], by: str) -> Iterator[str]:
    """What the columns are; `by` is the reference model."""
    yield (
        f"{TRAIN_AND_INFER}: epochs × s per epoch, a fixed number of epochs and no whole training, and inference over "
        f"all nodes of the graph, from what a part of the nodes and a tenth of that part took. {PIPELINE}: preprocess "
        f"s + {TRAIN_AND_INFER}."
    )
    if any(is_bound(record) for trials in shown for record in trials.good):
        yield (
            f"{AT_MOST.strip()}: only one part was measured and taken in proportion, which is too much for a model "
            "that computes the whole graph whatever is asked; a ratio of two such numbers (~) may be off either way."
        )
    measured = {
        datasets()[record["dataset"]].title: f"{record['phases']['infer']['nodes']:,} of {nodes_of(record):,} nodes"
        for trials in shown
        for record in trials.good
        if record["phases"]["infer"].get("nodes")
    }
    if measured:
        yield f"Inference was measured on {', '.join(f'{nodes} of {name}' for name, nodes in measured.items())}."
    yield (
        f"× {by}: divided by what {by} takes on the same graph; ours on the same machine, with as many epochs and only "
        "where nothing disturbed either. The paper's seconds and megabytes are those of "
        "training and inference on an RTX 2080 Ti, its own trainings from beginning to end."
    )
    if any(datasets()[trials.dataset].is_twin for trials in shown):
        yield (
            "A twin is a generated graph of the dataset's shape: its costs stand for the dataset, so the paper's for "
            "the dataset are beside them; accuracies do not."
        )
