"""Where a dataset's raw files may lie and how they become a graph.

A dataset may be shipped in several ways (GRAND+'s own files, a PyG or an OGB copy of the same graph); each is a Layout.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import MissingData
from bench.text import shown

if TYPE_CHECKING:
    from bench.datasets.canonical import RawGraph
    from bench.graph import Graph

REVISION = 1  # raised whenever the same raw files may give other arrays than before


@dataclass(frozen=True)
class Layout:
    """One way of shipping a dataset: its files, all in one folder, and who reads them."""

    folders: tuple[str, ...]  # below the data folder, tried in this order; "" is the data folder itself
    files: tuple[str, ...]
    read: Callable[[list[Path]], RawGraph]
    url: str = ""  # the address of a file without its name; "" where nothing is downloaded automatically
    sha256: tuple[str, ...] = ()  # of the files, in their order; () where no copy was checked

    def find(self, root: Path) -> list[Path] | None:
        """The files below a data folder, or None unless all are there."""
        for folder in self.folders:
            paths = [root / folder / name for name in self.files]
            if all(path.is_file() for path in paths):
                return paths
        return None

    @property
    def places(self) -> list[str]:
        """Where the files are expected first, relative to the data folder."""
        return [f"{self.folders[0]}/{name}".lstrip("/") for name in self.files]


def find_files(layouts: tuple[Layout, ...], root: Path | None) -> tuple[Layout, list[Path]] | None:
    """The first layout that is complete below `root`, with its files."""
    if root is None:
        return None
    for layout in layouts:
        paths = layout.find(root)
        if paths is not None:
            return layout, paths
    return None


def load_files(name: str, layouts: tuple[Layout, ...], classes: int, root: Path | None) -> Graph:
    """Read, bring into canonical form, check."""
    from bench.datasets.canonical import canonical_graph

    found = find_files(layouts, root)
    if found is None:
        raise MissingData(f"{name}: {layouts[0].places[0]} is missing")
    layout, paths = found
    where = shown(paths[0]) if len(paths) == 1 else f"{name} ({shown(paths[0])} and its companions)"
    return canonical_graph(name, layout.read(paths), where, classes)


def stamp_files(layouts: tuple[Layout, ...], root: Path | None) -> str | None:
    """A cheap identity of the files that would be read: place, size and time of change, not content."""
    found = find_files(layouts, root)
    return None if found is None else stamp_paths(found[1])


def stamp_paths(paths: list[Path]) -> str:
    facts = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]
    return f"files r{REVISION} " + hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
