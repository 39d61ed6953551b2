"""What the fork server imports once so that every worker starts with it. It must run nothing: see bench/worker.py."""

import atexit
import os

import numba  # noqa: F401
import scipy.sparse.linalg  # noqa: F401
import torch
import torch._dynamo  # noqa: F401  the first optimiser would import it: seconds, in every cell
from numba.core.registry import cpu_target

import bench.executors.local  # noqa: F401

# The first compiled function would import all that numba knows: 0.4 s in every cell, and under a tight memory limit
# the interpreter was seen to try that for ever.
cpu_target.target_context.refresh()

# A server whose parent was killed must go at once, because its workers go when it does; tearing down all these
# modules would take it a second or more.
atexit.register(os._exit, 0)
