"""Canonical graphs on disk: raw files are parsed once, after that every process maps the same arrays.

<cache>/graphs/<name>-<fingerprint>/   adjacency and features, without labels: all that a worker is given
<cache>/labels/<fingerprint>.npy       all labels, for the parent only
<cache>/stamps/<name>-<hash>.json      which input led to which graph, so that nothing is parsed or hashed twice
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import platformdirs
import scipy.sparse as sp

from bench.datasets.catalogue import Dataset
from bench.datasets.counts import Counts, count
from bench.datasets.twin_specs import TWINS
from bench.errors import BadData, UserError
from bench.files import force_to_disk, locked, new_folder, replace_file
from bench.graph import UNKNOWN_LABEL, Graph, graph_fingerprint
from bench.splits import MASKS, masks_rule

_FORMAT = 1


@dataclass(frozen=True)
class Stored:
    """A graph in the store."""

    graph: Graph  # memory-mapped, with all labels: for the parent process only
    folder: Path  # the arrays without labels: what a worker gets
    counts: Counts


def cache_root() -> Path:
    """BENCH_CACHE, or the user's cache folder."""
    chosen = os.environ.get("BENCH_CACHE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("nagphormer-bench"))


def data_roots(option: Path | None) -> list[Path]:
    """Folders that may hold raw files: `--data`, BENCH_DATA, the cache; in this order."""
    chosen = [option, os.environ.get("BENCH_DATA") or None, cache_root() / "raw"]
    return list(dict.fromkeys(Path(folder).expanduser() for folder in chosen if folder is not None))


def open_dataset(dataset: Dataset, data: Path | None, cache: Path) -> Stored:
    """The dataset's canonical graph; fetched, parsed and written on the first call, mapped on every later one."""
    from bench.datasets.fetch import fetch

    root = find_root(dataset, data, cache)
    if root is None and dataset.layouts:
        root = fetch(dataset, cache / "raw")
    found = find_stored(dataset, root, cache)
    if found is None:
        try:
            with locked(cache / "graphs" / f".{dataset.name}.lock"):  # one process at a time parses or generates it
                found = find_stored(dataset, root, cache) or _parse_and_keep(dataset, root, cache)
        except OSError as error:
            raise cannot_keep(dataset, error) from error
    return found


def find_root(dataset: Dataset, data: Path | None, cache: Path) -> Path | None:
    """The first data folder that holds all of the dataset's files."""
    if data is not None and not data.expanduser().is_dir():
        raise UserError(f"the data folder {data} does not exist")
    roots = [*data_roots(data), cache / "raw"]
    return next((root for root in roots if dataset.layouts and dataset.stamp(root) is not None), None)


def find_stored(dataset: Dataset, root: Path | None, cache: Path) -> Stored | None:
    """The graph that this very input gave before, if it is still in the store."""
    stamp = dataset.stamp(root)
    if stamp is None:
        return None
    try:
        known = json.loads(_stamp_path(cache, dataset.name, stamp).read_text())
        folder = cache / "graphs" / known["folder"]
        graph, counts = _open(folder)
        labels = np.load(_labels_path(cache, graph.fingerprint), allow_pickle=False)
    except (OSError, EOFError, ValueError, KeyError, BadData):
        return None  # never written, cleared, or written by another version: the raw files are read again
    return Stored(graph.with_labels(labels), folder, counts)


def spelled_out(dataset: Dataset, stored: Stored) -> Dataset:
    """The dataset with the split rule that names its public masks by their content, where it has any."""
    masks = stored.graph.masks
    if dataset.split_rule != MASKS or masks is None:
        return dataset
    return replace(dataset, split_rule=masks_rule(masks))


def open_arrays(folder: Path) -> Graph:
    """What a worker sees: the graph with every label unknown."""
    return _open(folder)[0]


def _parse_and_keep(dataset: Dataset, root: Path | None, cache: Path) -> Stored:
    stamp = dataset.stamp(root)  # before reading: a file that changes meanwhile is read again next time
    graph = dataset.load(root)
    graph = replace(graph, fingerprint=graph_fingerprint(graph))
    public = "" if graph.masks is None else f"-{masks_rule(graph.masks)}"
    folder = cache / "graphs" / f"{dataset.name}-{graph.fingerprint[:12]}{public}"
    labels = np.array(graph.labels)
    replace_file(_labels_path(cache, graph.fingerprint), lambda file: np.save(file, labels, allow_pickle=False))
    _write_folder(folder, graph)
    note = json.dumps({"folder": folder.name, "fingerprint": graph.fingerprint})
    if stamp is not None:
        replace_file(_stamp_path(cache, dataset.name, stamp), lambda file: file.write(note.encode()))
    del graph  # from here on the mapped copy serves
    opened, counts = _open(folder)
    return Stored(opened.with_labels(labels), folder, counts)


def _open(folder: Path) -> tuple[Graph, Counts]:
    try:
        facts = json.loads((folder / "graph.json").read_text())
        if facts["format"] != _FORMAT:
            raise BadData(f"{folder.name} was written by another version")
        counts = Counts(**facts["counts"])
        features: np.ndarray | sp.csr_array
        if facts["sparse"]:
            parts = [_map(folder / f"features_{part}.npy") for part in ("data", "indices", "indptr")]
            features = sp.csr_array((parts[0], parts[1], parts[2]), shape=(counts.nodes, counts.features))
            features.has_canonical_format = True  # the arrays are read-only: scipy must not try to sort them
        else:
            features = _map(folder / "features.npy")
        indptr, indices = _map(folder / "indptr.npy"), _map(folder / "indices.npy")
        masks = _map(folder / "masks.npy") if (folder / "masks.npy").exists() else None
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise BadData(f"the stored graph {folder.name} cannot be opened: {error}") from error
    unknown = np.full(counts.nodes, UNKNOWN_LABEL, dtype=np.int64)
    return Graph(facts["name"], indptr, indices, features, unknown, counts.classes, facts["fingerprint"], masks), counts


def _map(path: Path) -> np.ndarray:
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _write_folder(folder: Path, graph: Graph) -> None:
    if folder.exists():
        try:
            _open(folder)
            return  # the same arrays from another copy of the files
        except BadData:
            shutil.rmtree(folder)  # another version's, or damaged; under the lock no other process writes it
    arrays = {"indptr": graph.indptr, "indices": graph.indices}
    if graph.masks is not None:
        arrays["masks"] = graph.masks
    if isinstance(graph.features, np.ndarray):
        arrays["features"] = graph.features
    else:
        arrays |= {f"features_{part}": getattr(graph.features, part) for part in ("data", "indices", "indptr")}
    facts = {"format": _FORMAT, "name": graph.name, "fingerprint": graph.fingerprint}
    facts |= {"sparse": sp.issparse(graph.features), "counts": asdict(count(graph))}
    with new_folder(folder) as draft:
        for name, array in arrays.items():
            np.save(draft / f"{name}.npy", array, allow_pickle=False)
        (draft / "graph.json").write_text(json.dumps(facts, indent=1))
        for path in [*draft.iterdir(), draft]:
            force_to_disk(path)
    force_to_disk(folder.parent)


def _labels_path(cache: Path, fingerprint: str) -> Path:
    return cache / "labels" / f"{fingerprint}.npy"


def _stamp_path(cache: Path, name: str, stamp: str) -> Path:
    return cache / "stamps" / f"{name}-{hashlib.sha256(stamp.encode()).hexdigest()[:12]}.json"


def cannot_keep(dataset: Dataset, error: OSError) -> BadData:
    """What to say of a dataset for which the disk has no room; another may be smaller, or kept already."""
    return BadData(
        f"{dataset.title} cannot be kept, the cache folder cannot be written ({error.strerror or error}); "
        "free some space or set BENCH_CACHE to another folder"
    )


def expected_size(dataset: Dataset) -> int | None:
    """Bytes of a catalogued graph in the store, before it is there; None where it is unknown its shape."""
    shape = TWINS.get(dataset.name if dataset.is_twin else f"{dataset.name}-twin")
    if shape is None:
        return None
    values = shape.features if shape.words is None else 2 * shape.words.per_row  # a sparse one has its column beside it
    return round(4 * (shape.num_entries + shape.nodes * (values + 3)))  # row pointers; labels take 8 bytes
