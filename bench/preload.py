"""What the fork server imports once so that every worker starts with it. It must run nothing: see bench/worker.py."""

import atexit
import os

import numba  # noqa: F401
import scipy.sparse.linalg  # noqa: F401
import torch
import torch._dynamo  # noqa: F401  the first optimiser would import it: seconds, in every cell

import bench.executors.local  # noqa: F401

# A server whose parent was killed must go at once, because its workers go when it does; tearing down all these
# modules would take it a second or more.
atexit.register(os._exit, 0)
