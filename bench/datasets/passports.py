"""What is known about a dataset on this machine: where it stands, its counts, its fingerprint, what was done to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.datasets.catalogue import Dataset
from bench.datasets.counts import differences, explain_edges
from bench.datasets.fetch import how_to_get, is_offline
from bench.datasets.store import Stored, find_root, find_stored, open_dataset
from bench.errors import BadData


@dataclass(frozen=True)
class Passport:
    """One dataset's papers, ready to print."""

    name: str
    title: str
    status: str  # "present", "missing", "bad" (a file is damaged), "on demand" (generated when first used)
    lines: tuple[str, ...]
    fingerprint: str = ""
    warning: str = ""  # one line where the files are not the ones that were checked

    def __str__(self) -> str:
        return "\n".join([f"{self.title} ({self.name}): {self.status}", *(f"  {line}" for line in self.lines)])


def describe(dataset: Dataset, data: Path | None, cache: Path) -> Passport:
    """The passport as far as this machine allows; nothing is downloaded and no twin is generated for it."""
    root = find_root(dataset, data, cache)
    if dataset.layouts and root is None:
        return Passport(dataset.name, dataset.title, "missing", _missing(dataset))
    if dataset.is_twin and find_stored(dataset, None, cache) is None:
        lines = ("generated and kept in the cache when it is first used", *_conventions(dataset))
        return Passport(dataset.name, dataset.title, "on demand", lines)
    try:
        return passport(dataset, open_dataset(dataset, data, cache))
    except BadData as error:
        return Passport(dataset.name, dataset.title, "bad", (str(error),))


def passport(dataset: Dataset, stored: Stored) -> Passport:
    """The passport of a dataset that is open."""
    fingerprint = stored.graph.fingerprint
    problems = differences(dataset.paper, stored.counts) if dataset.paper else []
    lines = [str(stored.counts)]
    if dataset.paper and not problems:
        lines.append(explain_edges(dataset.paper, stored.counts))
    warning = ""
    if problems:
        warning = f"{dataset.name}: these files are not what the paper describes: {'; '.join(problems)}"
    elif dataset.fingerprint not in (None, fingerprint):
        warning = (
            f"{dataset.name}: the counts agree with the paper, but the content is not that of the files which were "
            f"checked ({dataset.fingerprint}): other edges, features, labels or another order of the nodes"
        )
    lines += [warning] if warning else []
    lines.append(f"fingerprint {fingerprint}: {_verdict(dataset, fingerprint)}")
    lines += _conventions(dataset)
    return Passport(dataset.name, dataset.title, "present", tuple(lines), fingerprint, warning)


def _verdict(dataset: Dataset, fingerprint: str) -> str:
    if dataset.fingerprint is None:
        return "nobody has recorded one to compare with"
    return "as recorded" if dataset.fingerprint == fingerprint else "not the one recorded"


def _conventions(dataset: Dataset) -> list[str]:
    return [*(f"convention: {sentence}" for sentence in dataset.conventions), f"checked: {dataset.checked}"]


def _missing(dataset: Dataset) -> tuple[str, ...]:
    if not any(layout.url for layout in dataset.layouts):
        why = "is not downloaded automatically"
    else:
        why = "BENCH_OFFLINE is set" if is_offline() else "would be downloaded on first use"
    lines = [how_to_get(dataset, why)]
    if dataset.paper:
        paper = dataset.paper
        lines.append(
            f"in the paper: {paper.nodes:,} nodes, {paper.edges:,} edges ({paper.edges_mean}), "
            f"{paper.features:,} features, {paper.classes} classes"
        )
    return (*lines, *_conventions(dataset))
