"""What workers find imported."""

from __future__ import annotations

import subprocess
import sys

FIRST_CALL = """
import sys
import bench.executors.preload
import numpy, scipy.sparse
from models.kernels.propagation import sparse_dense
before = set(sys.modules)
identity = scipy.sparse.eye_array(3, format="csr", dtype="float32")
print(sparse_dense(identity, numpy.ones((3, 2), "float32")).sum())
print(*sorted(name for name in set(sys.modules) - before if name.startswith("numba")), flush=True)
"""


THREADS = {"numba.np.ufunc.omppool", "numba.np.ufunc.tbbpool", "numba.np.ufunc.workqueue"}  # each worker starts its own


def test_the_first_compiled_function_of_a_cell_imports_nothing_of_numba_but_threads() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_CALL], capture_output=True, text=True, timeout=120)
    total, imported = done.stdout.splitlines()
    assert total == "6.0" and set(imported.split()) <= THREADS, done.stderr
