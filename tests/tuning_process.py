"""A tuning driver as a process of its own, on the ring with imagined trainings: data, results, storage, trials."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tuning_toys import Imagined, drive, ring_search

from bench.tuning import storage
from bench.tuning.study import Budget
from bench.worker import Job


def leisurely(job: Job) -> str:
    print(job.cell.labels["trial"], flush=True)
    time.sleep(0.3)
    return "ok"


if __name__ == "__main__":
    data, results, url, trials = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    storage.HEARTBEAT, storage.GRACE = 1, 4  # a test does not wait for two minutes
    search, stored = ring_search(data, sampler="grid")  # no two trials alike
    found = drive(search, stored, results, Budget(trials=trials), Imagined(leisurely), url=url)
    print("done", len(found))
