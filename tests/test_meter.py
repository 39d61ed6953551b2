from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from pathlib import Path

import numba
import numpy as np
import pytest

from bench.executors import meter as meter_module
from bench.executors.meter import Meter, read_memory

MB = 1_000_000


@pytest.fixture
def meter() -> Iterator[Meter]:
    meter = Meter()
    yield meter
    meter.close()


class Clock:
    """Time that passes only when somebody lets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("bench.executors.meter.time.perf_counter", lambda: self.now)


def test_seconds_of_a_phase_and_only_of_it(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with meter.phase("first"):
        clock.now += 0.25
    clock.now += 8
    with meter.phase("second"):
        pass
    assert meter.phases["first"]["seconds"] == 0.25 and meter.phases["second"]["seconds"] == 0.0
    assert meter.phases["first"]["compile_seconds"] == 0


def test_a_phase_that_raises_is_measured_and_stays_the_current_one(meter: Meter) -> None:
    with pytest.raises(KeyError), meter.phase("train"):
        time.sleep(0.05)
        raise KeyError
    assert meter.phases["train"]["seconds"] >= 0.05
    assert meter.current == "train"


def test_phases_are_announced_and_reported() -> None:
    heard = []
    meter = Meter(on_phase=lambda name, measured: heard.append((name, measured is None)))
    with meter.phase("load"):
        heard.append(("inside", False))
    meter.close()
    assert heard == [("load", True), ("inside", False), ("load", False)]


def test_facts_about_a_phase_are_part_of_its_report() -> None:
    heard = []
    reporting = Meter(on_phase=lambda name, measured: heard.append(measured))
    with pytest.raises(KeyError), reporting.phase("preprocess") as facts:
        facts["source"] = "reused"
        raise KeyError
    reporting.close()
    assert heard[-1] == reporting.phases["preprocess"]
    assert heard[-1]["source"] == "reused" and heard[-1]["seconds"] >= 0


def test_data_counts_address_space_that_was_asked_for_and_never_touched(meter: Meter) -> None:
    with meter.phase("reserves"):
        reserved = mmap.mmap(-1, 300 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        time.sleep(0.2)
        reserved.close()
    with meter.phase("after"):
        pass
    # the rest of the process may have given a little back since the meter's start, from which peaks are counted
    assert 295 * MB < meter.phases["reserves"]["peak_data"] < 360 * MB
    assert meter.phases["after"]["peak_data"] < 60 * MB
    assert meter.phases["reserves"]["peak_anonymous"] - meter.baseline_anonymous < 60 * MB


def test_anonymous_peak_sees_memory_that_is_freed_again_and_starts_afresh(meter: Meter) -> None:
    assert meter.baseline_anonymous is not None
    with meter.phase("big"):
        np.ones(200 * MB, dtype=np.uint8)
    with meter.phase("small"):
        pass
    big, small = (meter.phases[name]["peak_anonymous"] - meter.baseline_anonymous for name in ("big", "small"))
    assert 195 * MB < big < 260 * MB
    assert small < 60 * MB
    assert meter.phases["big"]["peak_resident"] - meter.phases["small"]["peak_resident"] > 150 * MB


def test_pages_of_a_mapped_file_are_resident_but_not_anonymous(meter: Meter, tmp_path: Path) -> None:
    np.save(tmp_path / "big.npy", np.ones(150 * MB, dtype=np.uint8))
    with meter.phase("before"):
        pass
    with meter.phase("mapped"):
        mapped = np.load(tmp_path / "big.npy", mmap_mode="r")
        assert int(mapped[::4096].sum()) > 0
        time.sleep(0.05)
    before, mapped_phase = meter.phases["before"], meter.phases["mapped"]
    assert mapped_phase["peak_resident"] - before["peak_resident"] > 120 * MB
    assert mapped_phase["peak_anonymous"] - before["peak_anonymous"] < 30 * MB


def test_compilation_by_numba_is_counted_once_and_apart(meter: Meter) -> None:
    @numba.njit
    def inner(x: float) -> float:
        return np.sin(x) + 1

    @numba.njit
    def outer(x: float) -> float:
        return inner(x) * 2

    start = time.perf_counter()
    with meter.phase("preprocess"):
        outer(0.5)
        time.sleep(0.05)
    elapsed = time.perf_counter() - start
    measured = meter.phases["preprocess"]
    assert measured["compile_seconds"] > 0
    assert measured["seconds"] >= 0.05
    # were the inner compilation counted twice, the sum could not stay within the time that passed
    assert measured["seconds"] + measured["compile_seconds"] <= elapsed
    with meter.phase("again"):
        outer(0.5)
    assert meter.phases["again"]["compile_seconds"] == 0


class FakeCuda:
    """Kernels run behind the caller's back: what was queued takes its time in `synchronize`."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.calls: list[str] = []
        self.queued = 0.0
        self.peak = 0

    def synchronize(self) -> None:
        self.calls.append("synchronize")
        self.clock.now += self.queued
        self.queued = 0.0

    def reset_peak_memory_stats(self) -> None:
        self.calls.append("reset")
        self.peak = 0

    def max_memory_allocated(self) -> int:
        return self.peak

    def mem_get_info(self) -> tuple[int, int]:
        return 300, 1000  # free, in all

    def max_memory_reserved(self) -> int:
        return 2 * self.peak


def test_cuda_timers_wait_for_the_device_and_peaks_are_per_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(Clock(monkeypatch))
    meter = Meter("cuda", cuda)
    cuda.queued = 0.5  # left over from before: not this phase's time
    with meter.phase("train"):
        cuda.queued = 0.25
        cuda.peak = 7 * MB
    with meter.phase("infer"):
        cuda.peak = 3 * MB
    meter.close()
    assert cuda.calls == ["synchronize", "reset", "synchronize"] * 2
    assert meter.phases["train"]["seconds"] == 0.25 and meter.phases["infer"]["seconds"] == 0.0
    assert (meter.phases["train"]["peak_allocated"], meter.phases["train"]["peak_reserved"]) == (7 * MB, 14 * MB)
    assert (meter.phases["infer"]["peak_allocated"], meter.phases["infer"]["peak_reserved"]) == (3 * MB, 6 * MB)
    assert meter.phases["infer"]["device_used"] == 700


def test_on_the_processor_cuda_is_never_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(Clock(monkeypatch))
    meter = Meter("cpu", cuda)
    with meter.phase("train"):
        pass
    meter.close()
    assert cuda.calls == []
    assert "peak_allocated" not in meter.phases["train"]


def test_without_proc_the_peaks_are_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(meter_module, "STATUS_FILE", str(tmp_path / "absent"))
    monkeypatch.setattr(meter_module, "RESET_FILE", str(tmp_path / "none" / "absent"))
    meter = Meter()
    with meter.phase("train"):
        time.sleep(0.01)
    meter.close()
    assert meter.baseline_anonymous is None
    assert meter.phases["train"]["seconds"] >= 0.01
    assert meter.phases["train"]["peak_resident"] is None
    assert meter.phases["train"]["peak_anonymous"] is None
    assert meter.phases["train"]["peak_data"] is None


def test_where_the_peak_cannot_be_reset_it_is_not_passed_off_as_the_phases_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(meter_module, "RESET_FILE", str(tmp_path / "none" / "absent"))
    meter = Meter()
    with meter.phase("train"):
        pass
    meter.close()
    assert meter.phases["train"]["peak_resident"] is None
    assert meter.phases["train"]["peak_anonymous"] > MB


def test_status_lines_become_bytes(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text(
        "Name:\tpython\nVmHWM:\t   300 kB\nVmData:\t   700 kB\nRssAnon:\t   100 kB\nRssFile:\t    20 kB\n"
        "RssShmem:\t     3 kB\n"
    )
    memory = read_memory(str(status))
    assert memory is not None
    assert (memory.resident_peak, memory.anonymous, memory.file_backed, memory.data) == (307200, 102400, 23552, 716800)
    status.write_text("Name:\tpython\nState:\tZ (zombie)\n")
    assert read_memory(str(status)) is None
