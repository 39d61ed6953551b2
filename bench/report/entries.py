"""The entries that several tables share: an accuracy, a gain, a median."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from bench.report.evidence import Trials
from bench.report.results import Setting, Sizes, compare_pairs, each_once, model_title, paired
from bench.report.statistics import Interval, Refusal, summarise, summarise_times
from bench.report.table import Entry

MISSING, NO_SETTINGS = "–", "†"
SEALED = (
    "Sealed: all trials are judged on the same fifth of the nodes, so spreads, intervals and tests speak of these test "
    "nodes only; on other ones a difference may be smaller than its interval allows."
)


SCORES = "Test accuracy in %: mean ± sample standard deviation (n trials)."


def accuracy_entry(
    trials: Trials | None, bold: bool = False, remark: str = "", mark_keys: tuple[str, ...] = ()
) -> Entry:
    """Mean ± spread (n), then whatever a reader must know about it; a remark goes into the note."""
    if trials is None:
        return Entry("")
    marks = [f"{count} {status}" for status, count in trials.failures.items()]
    if not trials.good:
        text = ", ".join(status if count == 1 else f"{count} {status}" for status, count in trials.failures.items())
        return Entry(text or MISSING, trials.keys, note=_notes(reasons(trials) if text else trials.command, remark))
    summary = summarise(trials.accuracies)
    text = f"{summary.mean:.2f}" + (f" ± {summary.std:.2f}" if summary.std is not None else "") + f" ({summary.n})"
    text += NO_SETTINGS if trials.lane == "default" else ""
    if trials.capped:
        marks.append("capped")
    if trials.reference:
        marks.append("reference")
    interval = f"95 % interval {summary.interval.low:.2f} to {summary.interval.high:.2f}" if summary.interval else ""
    note = _notes(interval, reasons(trials), remark)
    return Entry(" ".join([text, *(f"[{mark}]" for mark in marks)]), trials.keys, bold, note, summary.mean, mark_keys)


def _notes(*lines: str) -> str:
    return "\n".join(line for line in lines if line)


def reasons(trials: Trials) -> str:
    """Why cells failed, each reason once."""
    return "; ".join(dict.fromkeys(str(record["reason"]) for record in trials.records if record["reason"]))


def gain_entry(trials: Trials | None, other: Trials | None, sizes: Sizes) -> Entry:
    """The mean paired difference with its interval."""
    if trials is None or other is None:
        return Entry("")
    ours, theirs = paired(trials, other)
    if not len(ours):
        missing = [found.command for found in (trials, other) if not found.records]
        return Entry(MISSING, (*trials.keys, *other.keys), note="\n".join(missing))
    compared = compare_pairs(ours, theirs, sizes)
    difference, keys = float(np.mean(ours - theirs)), (*trials.keys, *other.keys)
    if isinstance(compared, Refusal) or compared.interval is None:
        note = compared.reason if isinstance(compared, Refusal) else "one pair has no spread"
        return Entry(f"{difference:+.2f} ({len(ours)})", keys, note=note, value=difference)
    text = f"{difference:+.2f} {brackets(compared.interval)} ({len(ours)})"
    return Entry(text, keys, note=f"{compared.test}: p = {compared.p:.3g}", value=difference)


def brackets(interval: Interval) -> str:
    return f"[{interval.low:+.2f}, {interval.high:+.2f}]"


def median_entry(values: Sequence[float | None], keys: tuple[str, ...]) -> Entry:
    """The median of what was measured; how far the values lie apart is in the note."""
    known = [value for value in values if value is not None]
    if not known:
        return Entry("")
    summary = summarise_times(known)
    note = f"{min(known):.4g} to {max(known):.4g}, median deviation {summary.mad:.3g}" if summary.n > 1 else ""
    text = f"{summary.median:,.0f}" if summary.median >= 100 else f"{summary.median:.3g}"
    return Entry(text, keys, note=note, value=summary.median)


def setting_lines(setting: Setting, shown: Iterable[Trials], marked: bool = True, fill: str = "") -> list[str]:
    """Say the split mode and the lane, where the latter does not hold, what is missing, and what the marks mean.

    `marked` says that a dagger stands where a model had no settings of the lane; otherwise such models are named.
    `fill` is the command that runs what is missing.
    """
    shown = list(shown)
    lines = [
        f"Splits: {setting.mode}. Settings: {setting.lane}, nothing set by hand but what a row names; the table of "
        "models says where they come from."
    ]
    if setting.mode == "sealed":
        lines.append(SEALED)
    without = [trials for trials in shown if trials.good and trials.lane == "default" != setting.lane]
    if without and marked:
        lines.append(f"{NO_SETTINGS}: the model has no {setting.lane} settings for this graph; its defaults.")
    elif without:
        names = ", ".join(each_once(model_title(trials.model) for trials in without))
        lines.append(f"With their defaults, for lack of {setting.lane} settings for a graph: {names}.")
    if fill and any(not trials.records for trials in shown):
        lines.append(f"{MISSING}: not run yet; `{fill}` runs it.")
    return lines + mark_lines(shown)


def mark_lines(shown: Iterable[Trials]) -> list[str]:
    """What [capped], [reference] and a failure mean, where they occur."""
    shown = list(shown)
    lines = []
    if any(trials.capped for trials in shown):
        lines.append("capped: a limit on epochs ended training before the model's own rule would have.")
    if any(trials.reference for trials in shown):
        lines.append("reference: not your trials but the archive's (results/reference).")
    if any(trials.failures for trials in shown):
        lines.append("oom, timeout, …: the cell ended so; `python -m bench why MODEL DATASET` tells the reason.")
    return lines
