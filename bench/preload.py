"""What the fork server imports once so that every worker starts with it. It must run nothing: see bench/worker.py."""

import numba  # noqa: F401
import scipy.sparse.linalg  # noqa: F401
import torch  # noqa: F401

import bench.executors.local  # noqa: F401
