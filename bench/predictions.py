"""Predicted classes, kept beside the ledger under a hash of their bytes."""

from __future__ import annotations

import contextlib
import hashlib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.errors import UserError
from bench.files import locked, replace_file


@dataclass(frozen=True, eq=False)
class Predictions:
    """Arg-max classes of the validation and the test nodes, in the split's order, and scores where these matter."""

    val: np.ndarray
    test: np.ndarray
    val_margins: np.ndarray | None = None  # float32, of two classes, where the metric needs more than classes
    test_margins: np.ndarray | None = None

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """What there is, by name."""
        return {name: array for name, array in vars(self).items() if array is not None}

    @property
    def hash(self) -> str:
        digest = hashlib.sha256()
        for array in self.arrays.values():
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:32]


class PredictionStore:
    """results/predictions: small compressed files, named by content."""

    def __init__(self, results: Path, also: Path | None = None) -> None:
        """`also` is another results folder, in which to look for what this one lacks."""
        self.folder = results / "predictions"
        self._also = None if also is None else PredictionStore(also)

    def path(self, name: str) -> Path:
        return self.folder / name[:2] / f"{name}.npz"

    def _found(self, name: str) -> Path:
        path = self.path(name)
        return path if self._also is None or path.exists() else self._also.path(name)

    def save(self, predictions: Predictions, key: str, curve: list[tuple[float, float, float]]) -> str:
        """Keep predictions and the training curve; returns the hash. Cells with equal predictions share a file."""
        path = self.path(predictions.hash)
        rows = np.asarray(curve, dtype=np.float32).reshape(-1, 3)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self.folder):  # another cell with the same predictions may be adding its curve
                self._add(path, predictions, _curve(key), rows)
        except OSError as error:
            raise UserError(
                f"predictions cannot be written ({error.strerror}); make room and run again: finished records are safe"
            ) from error
        return predictions.hash

    def _add(self, path: Path, predictions: Predictions, curve: str, rows: np.ndarray) -> None:
        arrays = predictions.arrays
        if path.exists():
            try:
                arrays = self._load(path)
            except UserError:  # a damaged file must not cost what was just computed
                self._put_aside(path)
        known = arrays.get(curve)
        if known is None or not np.array_equal(known, rows, equal_nan=True):
            arrays[curve] = rows
            replace_file(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]

    def has(self, name: str, key: str) -> bool:
        """Whether predictions and the curve of this cell can be read; a damaged file is put aside."""
        try:
            return _curve(key) in self._load(self.path(name))  # the file may be of another cell with equal predictions
        except UserError:
            self._put_aside(self.path(name))
            return False

    def _put_aside(self, path: Path) -> None:
        """Out of the way with a damaged file, so that it can be written again."""
        with contextlib.suppress(OSError):  # it is missing, or the next writer will complain
            path.rename(path.with_suffix(".damaged"))

    def load(self, name: str) -> Predictions:
        arrays = self._load(self._found(name))
        return Predictions(*map(arrays.get, ("val", "test", "val_margins", "test_margins")))  # type: ignore[arg-type]

    def curve(self, name: str, key: str) -> np.ndarray:
        """Rows of (train loss, validation loss, validation accuracy), one per evaluation of this cell."""
        arrays = self._load(self._found(name))
        if _curve(key) not in arrays:
            raise UserError(f"predictions/{name[:2]}/{name}.npz holds no training curve of cell {key}; redo that cell")
        return arrays[_curve(key)]

    def _load(self, path: Path) -> dict[str, np.ndarray]:
        try:
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(
                f"predictions/{path.parent.name}/{path.name} cannot be read ({error}); remove it and redo its cell"
            ) from error


def _curve(key: str) -> str:
    return f"curve_{key}"
