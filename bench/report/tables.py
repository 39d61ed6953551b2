"""The tables that every ledger has: scores by dataset, what lies behind the best, every condition, the machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

from bench.metrics import titled
from bench.records import address, metric_of
from bench.reference import Reference
from bench.report.entries import SCORES, accuracy_entry, gain_entry, reasons, setting_lines
from bench.report.evidence import Evidence, Trials
from bench.report.results import Results, Setting, dataset_title, model_title
from bench.report.statistics import MINIMUM_TRIALS, Refusal, minimum_detectable_difference, pooled_spread
from bench.report.table import Entry, Table, entry, without_empty
from bench.table import scores_in_words

LIBRARIES = ("python", "torch", "numpy", "scipy", "numba", "torch_geometric", "dgl")
Printed = Callable[[str, str], str]  # model, dataset -> what a paper prints, "" where nothing


def accuracy_table(
    name: str,
    title: str,
    results: Sequence[Results],
    setting: Setting,
    models: Sequence[str],
    remark: Printed = lambda model, dataset: "",
    fill: str = "",
) -> Table:
    """Rows are models, columns datasets; bold are those that are not worse than the best.

    `remark` goes into the notes; `fill` is the command that runs what is missing.
    """
    rows = []
    for model in models:
        if any(model in each.trials for each in results):
            rows.append((entry(model_title(model)), *(_accuracy(each, model, remark) for each in results)))
    shown = [trials for each in results for trials in each.trials.values()]
    twins = any(each.dataset.is_twin for each in results)
    return Table(
        name,
        title,
        ("Method", *(each.title for each in results)),
        tuple(rows),
        (
            SCORES,
            *(["Twin: a generated graph; its scores say nothing of the dataset."] if twins else []),
            *(["[setting=value]: the model was run with no others."] if any(t.variant for t in shown) else []),
            *setting_lines(setting, shown, fill=fill),
            *_detectable(results),
            *filter(None, map(_lead, results)),
        ),
    )


def _accuracy(results: Results, model: str, remark: Printed) -> Entry:
    trials, leaders = results.trials.get(model), results.leaders
    bold = not isinstance(leaders, Refusal) and model in leaders.members
    found = accuracy_entry(trials, bold, remark(model, results.dataset.name), results.keys)
    return replace(found, text=f"{found.text} [{trials.variant}]") if trials and trials.variant else found


def _lead(results: Results) -> str:
    """How many models lead, or why it is not known."""
    if not results.good:
        return ""
    if isinstance(results.leaders, Refusal):
        return f"{results.title}: undecided, {results.leaders.reason}."
    assert not isinstance(results.aligned, Refusal)  # or there would be no leaders
    return f"{results.title}: {len(results.leaders.members)} of {len(results.aligned)} models lead (bold)."


def _detectable(results: Sequence[Results]) -> list[str]:
    """The smallest true difference of two models that ten trials would show, with the spread of those seen."""
    parts = []
    for each in results:
        if isinstance(each.aligned, Refusal) or isinstance(each.sizes, Refusal):
            continue
        std = pooled_spread([first - second for first, second in combinations(each.aligned.values(), 2)])
        if std is not None and not (each.sizes and each.sizes.test > each.sizes.train):
            parts.append(f"{each.title} {minimum_detectable_difference(std, MINIMUM_TRIALS, each.sizes):.2f}")
    if not parts:
        return []
    return [
        f"A difference of two models that {MINIMUM_TRIALS} trials show in four of five cases, before any correction "
        f"for many comparisons: {', '.join(parts)}."
    ]


def behind_best_table(results: Sequence[Results], models: Sequence[str]) -> Table:
    """The model with the highest mean minus every other, pair by pair."""
    results = [each for each in results if len(each.good) > 1]
    best = {each.title: max(each.good, key=lambda t: sum(t.accuracies) / len(t.accuracies)) for each in results}
    rows = []
    for model in models:
        found = [
            Entry("highest mean") if trials is best[each.title] else gain_entry(best[each.title], trials, each.sizes)
            for each in results
            for trials in [each.trials.get(model)]
        ]
        if any(item.text for item in found):
            rows.append((entry(model_title(model)), *found))
    return Table(
        "behind-best",
        "How far behind: the model with the highest mean minus each other",
        ("Method", *(f"{each.title}: {model_title(best[each.title].model)} minus" for each in results)),
        tuple(rows),
        (
            "Points: mean of paired differences [95 % interval] (n pairs). The same trials chose the best, which makes "
            "it look a little too good here; the bold group of the table of scores allows for that.",
        ),
    )


def conditions_table(evidence: Evidence, printed: Printed) -> Table:
    """A row per condition that was run, whatever model, settings or graph; the user's own beside the reference's."""
    archive = Reference(evidence.reference)
    rows = [
        _condition(trials, archive, printed)
        for trials in evidence.conditions()
        if not (evidence.reference and trials.reference)
    ]
    own = "yours (n)" if evidence.reference else "trials (n)"
    table = Table(
        "conditions",
        "Your results, condition by condition" if evidence.reference else "Every condition that was run",
        ("Dataset", "Method", "Settings", "Splits", own, "reference (n)", "paper", "failed"),
        tuple(rows),
        (
            "Test accuracy, or the metric named beside the dataset, in %: mean ± sample standard deviation (n trials). "
            "The reference has the same configuration and splits, and no cap on epochs where it has such trials.",
        ),
    )
    return without_empty(table)


def _condition(trials: Trials, archive: Reference, printed: Printed) -> tuple[Entry, ...]:
    first = trials.records[0]
    failures = ", ".join(f"{count} {status}" for status, count in sorted(trials.failures.items()))
    theirs = archive.trials_like(first)
    return (
        entry(titled(dataset_title(trials.dataset), metric_of(first))),
        entry(model_title(trials.model)),
        entry(f"{trials.lane} {trials.variant}".strip()),
        entry(trials.mode),
        Entry(scores_in_words(trials.good) + " [capped]" * bool(trials.capped), trials.keys),
        Entry(scores_in_words(theirs), tuple(map(address, theirs))),
        entry("" if trials.variant else printed(trials.model, trials.dataset)),
        Entry(failures, trials.keys if failures else (), note=reasons(trials)),
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
