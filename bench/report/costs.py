"""Seconds and memory: timings of two machines, or of an idle and a busy one, never share a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from bench.datasets.catalogue import Dataset, datasets
from bench.paper import published
from bench.records import (
    LOADED,
    Record,
    address,
    inference_seconds,
    is_at_most,
    machine_of,
    memory_used,
    peak,
    preparation_seconds,
    prepared_bytes,
    seconds_per_epoch,
    seconds_per_thousand_nodes,
    under_load,
)
from bench.report.entries import MISSING, accuracy_entry, median_entry, setting_lines
from bench.report.evidence import Evidence, Trials
from bench.report.findings import Findings, model_title
from bench.report.table import Entry, Table, entry, without_constants, without_empty
from bench.sizes import megabytes
from bench.studies import Study

LIBRARIES = ("python", "torch", "numpy", "scipy", "numba", "torch_geometric", "dgl")
TRAIN_AND_INFER, PIPELINE, MEMORY, EPOCHS = "train + infer s", "whole pipeline s", "memory MB", "epochs"
MEMORY_BEFORE, MEMORY_LATER = "preprocess MB", "train + infer MB"
PAPER_MEMORY, PAPER_SECONDS = "paper: GPU MB", "paper: s"
AT_MOST = "≤ "
BOUNDS = {(False, False): "", (True, False): AT_MOST, (False, True): "≥ ", (True, True): "~ "}  # by both sides
COSTS: dict[str, Callable[[Record], float | None]] = {  # of whole trainings
    "preprocess s": preparation_seconds,
    "train s": lambda record: record["phases"]["train"]["seconds"],
    "s per epoch": seconds_per_epoch,
    "infer s": lambda record: record["phases"]["infer"]["seconds"],
    "per 1,000 nodes": seconds_per_thousand_nodes,
    MEMORY: lambda record: megabytes(memory_used(record)),
    "disk MB": lambda record: megabytes(prepared_bytes(record)),
    EPOCHS: lambda record: record["training"]["epochs"],
}
MEASURED: dict[str, Callable[[Record], float | None]] = {  # of a fixed number of epochs and a sample of the nodes
    "preprocess s": COSTS["preprocess s"],
    "s per epoch": COSTS["s per epoch"],
    "infer s per 1,000 nodes": COSTS["per 1,000 nodes"],
    TRAIN_AND_INFER: lambda record: _train_and_infer(record),
    PIPELINE: lambda record: None if (rest := _train_and_infer(record)) is None else preparation_seconds(record) + rest,
    MEMORY_BEFORE: lambda record: megabytes(memory_used(record, ("preprocess",))),
    MEMORY_LATER: lambda record: megabytes(memory_used(record, ("train", "infer"))),
    # beside what is reserved, which is what the columns before have on a GPU
    "GPU allocated MB": lambda record: megabytes(peak(record, "peak_allocated")),
    "GPU used by all MB": lambda record: megabytes(peak(record, "device_used")),
    "disk MB": COSTS["disk MB"],
    EPOCHS: COSTS[EPOCHS],
}
# what is divided by the reference model's: how the column is called -> our cost, and what the paper prints of it
RATIOS = {"time": (TRAIN_AND_INFER, "seconds"), "memory": (MEMORY_LATER, "memory_mb"), "whole pipeline": (PIPELINE, "")}
CLEAN = "no"
DISTURBED = {True: "yes", False: CLEAN, None: "unknown"}


def _train_and_infer(record: Record) -> float | None:
    """All epochs at the rate of the later ones, and inference over all nodes of the graph."""
    inference = whole_inference(record)
    return None if inference is None else float(record["training"]["epochs"] * seconds_per_epoch(record) + inference)


def whole_inference(record: Record) -> float | None:
    """Seconds of inference over all nodes of the graph, from those that were measured."""
    nodes = _nodes(record)
    return None if nodes is None else inference_seconds(record, nodes)


def is_bound(record: Record) -> bool:
    """Whether that is only known not to be longer."""
    return is_at_most(record, _nodes(record) or 0)


def _nodes(record: Record) -> int | None:
    """Of the graph; one that the paper does not have is small enough for the sample to be all of it."""
    paper = datasets()[record["dataset"]].paper
    return paper.nodes if paper else record["phases"]["infer"].get("nodes")


def by_machine(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Machine -> its records."""
    return _grouped(records, machine_of)


def _grouped(records: Iterable[Record], what: Callable[[Record], str]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(what(record), []).append(record)
    return dict(sorted(found.items()))


def cost_table(findings: Findings, study: Study, order: Sequence[str], paper_table: str | None = None) -> Table:
    """A row per model, dataset, machine and whether others were busy on it; twins stand under their own names.

    With a `paper_table`, for a study that measures costs: beside the paper's, and divided by its reference model's.
    """
    columns = MEASURED if paper_table else COSTS
    rows, shown = [], []
    for dataset in findings.columns(study):
        beside = _Beside(findings, study, dataset, paper_table) if paper_table else None
        for model in order:
            trials = findings.trials(study.name, model, dataset.name)
            if trials is not None and (trials.records or (beside and beside.stands_alone(model))):
                rows += _cost_rows(trials, dataset, columns, beside)
                shown.append(trials)
    table = Table(
        study.name if paper_table else f"{study.name}-cost",
        f"{study.shows}: {study.about}" if paper_table else f"Cost of {study.shows}: seconds and memory of its trials",
        ("Dataset", "Method", *columns, "n", "disturbed", "machine", *(_Beside.header(study) if paper_table else ())),
        tuple(rows),
        (
            *_caption(shown, study if paper_table else None),
            *setting_lines(findings, shown, study.name if paper_table else "", marked=False),
        ),
    )
    return without_empty(table)


def in_brief(table: Table) -> Table:
    """A cost table as a reader gets it: one clean row where there is one, and what never changes below the table.

    Of several machines the one with the most clean rows of the dataset, so that its rows can be compared.
    """
    if not {"disturbed", "machine", "n"} <= set(table.header):
        return table  # nothing was measured
    disturbed, machine, number = (table.header.index(name) for name in ("disturbed", "machine", "n"))
    clean = [row for row in table.rows if row[disturbed].text == CLEAN]
    there = Counter((row[0].text, row[machine].text) for row in clean)
    best: dict[tuple[str, str], tuple[Entry, ...]] = {}
    for row in sorted(clean, key=lambda row: (there[row[0].text, row[machine].text], row[number].value or 0)):
        best[row[0].text, row[1].text] = row
    rows = tuple(row for row in table.rows if best.get((row[0].text, row[1].text), row) is row)
    left_out = len(table.rows) - len(rows)
    if left_out:
        line = (
            f"{left_out} more rows stand in {table.name}.csv only: measurements that others disturbed, or of another "
            "machine, of models that have a clean one here."
        )
        table = replace(table, rows=rows, caption=(line, *table.caption))
    return without_constants(table, keep=2)


def _cost_rows(
    trials: Trials, dataset: Dataset, columns: Mapping[str, Callable[[Record], float | None]], beside: _Beside | None
) -> list[tuple[Entry, ...]]:
    names = (entry(dataset.title), entry(model_title(trials.model)))
    if not trials.good:
        more = beside.entries(trials.model, {}, "") if beside else []
        return [(*names, accuracy_entry(trials), *[entry("")] * (len(columns) + 2), *more)]
    rows = []
    for machine, disturbed, records in _comparable(trials):
        keys = tuple(map(address, records))
        costs = _medians(records, columns)
        count = Entry(_count_and_marks(trials, machine, records), keys, value=float(len(records)))
        more = beside.entries(trials.model, costs, machine if disturbed == CLEAN else "") if beside else []
        rows.append((*names, *costs.values(), count, Entry(disturbed, keys), Entry(machine, keys), *more))
    return rows


def _count_and_marks(trials: Trials, machine: str, records: Sequence[Record]) -> str:
    """How many records a row rests on, what is to be said of them, and what failed on the same machine."""
    row = replace(trials, records=tuple(records))
    there = replace(trials, records=tuple(record for record in trials.records if machine_of(record) == machine))
    marks = [f"{count} {status}" for status, count in sorted(there.failures.items())]
    marks += ["capped"] if row.capped else []
    marks += ["reference"] if trials.reference else []
    return " ".join([str(len(records)), *(f"[{mark}]" for mark in marks)])


def _comparable(trials: Trials) -> Iterator[tuple[str, str, list[Record]]]:
    """Machine, whether others disturbed it, and the records that may therefore share a row."""
    for machine, several in by_machine(trials.good).items():
        for disturbed, records in _grouped(several, lambda record: DISTURBED[under_load(record)]).items():
            yield machine, disturbed, records


def _medians(records: Sequence[Record], columns: Mapping[str, Callable[[Record], float | None]]) -> dict[str, Entry]:
    keys = tuple(map(address, records))
    found = {name: median_entry([cost(record) for record in records], keys) for name, cost in columns.items()}
    if any(is_bound(record) for record in records):
        for name in found.keys() & {TRAIN_AND_INFER, PIPELINE}:
            found[name] = replace(found[name], text=f"{AT_MOST}{found[name].text}")
    return found


class _Beside:
    """What stands beside the measured costs of one dataset: the paper's, and both divided by the reference model's."""

    def __init__(self, findings: Findings, study: Study, dataset: Dataset, paper_table: str) -> None:
        self._dataset, self._name = dataset, study.reference
        self._findings, self._study = findings, study.name
        self._paper = published(paper_table).set_index(["row", "column", "measure"])["mean"]
        reference = findings.trials(study.name, study.reference, dataset.name)
        self._reference = {  # by machine
            machine: _medians(records, MEASURED)
            for machine, disturbed, records in (_comparable(reference) if reference else ())
            if disturbed == CLEAN
        }

    def stands_alone(self, model: str) -> bool:
        """Whether the paper's numbers need a row of their own: where the twin was run, they stand in its row."""
        twin = self._findings.trials(self._study, model, f"{self._dataset.name}-twin")
        return not self._dataset.is_twin and not (twin and twin.records)

    @staticmethod
    def header(study: Study) -> list[str]:
        by = model_title(study.reference)
        return [
            PAPER_MEMORY,
            PAPER_SECONDS,
            *(f"{what} × {by}" + (", ours / paper" if printed else "") for what, (_, printed) in RATIOS.items()),
        ]

    def entries(self, model: str, costs: Mapping[str, Entry], machine: str) -> list[Entry]:
        """`machine` is where the costs were measured undisturbed: elsewhere nothing is divided."""
        absolute = [self._printed(model, what) for what in ("memory_mb", "seconds")]
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


def _caption(shown: Sequence[Trials], study: Study | None) -> Iterator[str]:
    """What the columns are; `study` where it is one that measures cost."""
    yield (
        "Medians over n trials. Memory: the peak above the start, of private writable memory (on a GPU: reserved); the "
        "largest of any phase unless phases are named. Disk: prepared arrays. "
        f"Disturbed: whether others used more than {LOADED:.0%} of the cell's number of processors meanwhile, "
        "so that the seconds are too many; older records do not say."
    )
    if study is None:
        return
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
        datasets()[record["dataset"]].title: f"{record['phases']['infer']['nodes']:,} of {_nodes(record):,} nodes"
        for trials in shown
        for record in trials.good
        if record["phases"]["infer"].get("nodes")
    }
    if measured:
        yield f"Inference was measured on {', '.join(f'{nodes} of {name}' for name, nodes in measured.items())}."
    by = model_title(study.reference)
    yield (
        f"× {by}: divided by what {by} takes on the same graph; ours on the same machine, with as many epochs and only "
        "where nobody disturbed either. The paper's seconds and megabytes are those of "
        "training and inference on an RTX 2080 Ti, its own trainings from beginning to end."
    )
    if any(datasets()[trials.dataset].is_twin for trials in shown):
        yield (
            "A twin is a generated graph of the dataset's shape: its costs stand for the dataset, so the paper's for "
            "the dataset are beside them; accuracies do not."
        )


def machine_table(evidence: Evidence) -> Table:
    """Where the records were made: machine, threads and library versions."""
    found: dict[tuple[str, ...], list[str]] = {}
    for record in evidence.records:
        environment = record["environment"]
        libraries = (str(environment.get(name) or "–") for name in LIBRARIES)
        threads = f"{environment['threads']} on {environment.get('device', '–')}"
        kind = (str(environment["gpu"] or environment["processor"]), threads, *libraries)
        found.setdefault(kind, []).append(address(record))
    rows = tuple(
        (entry(kind[0]), *(Entry(text, tuple(keys)) for text in (str(len(keys)), *kind[1:])))
        for kind, keys in sorted(found.items())
    )
    return Table(
        "machines",
        "Machines: where the records were made",
        ("Machine", "Cells", "Threads", *LIBRARIES),
        rows,
        ("A record also names the code version, the data's fingerprint and the load; the ledger has all of it.",),
    )
