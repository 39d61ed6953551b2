"""`python -m bench` that begins when it is told to, and takes drivers for dead that are silent for ten seconds."""

from __future__ import annotations

import sys

import bench.commands.tune  # noqa: F401  so that two that are started together begin together
from bench.cli import app
from bench.tuning import storage

if __name__ == "__main__":
    storage.HEARTBEAT, storage.GRACE = 1, 10  # a test does not wait for two minutes
    print("ready", flush=True)
    sys.stdin.readline()
    app()
