"""Passports: present, missing, damaged, generated, and files that are not what they should be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from raw_files import write_grandplus_arrays, write_npz

from bench.datasets.catalogue import datasets
from bench.datasets.passports import describe, passport
from bench.datasets.store import open_dataset


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BENCH_DATA", raising=False)


def test_missing_says_what_to_do(tmp_path: Path) -> None:
    found = describe(datasets()["reddit"], None, tmp_path / "cache")
    assert found.status == "missing" and found.fingerprint == ""
    assert "reddit/reddit_adj.npz" in found.lines[0] and "large-twin" in found.lines[0]
    assert "11,606,919 edges (each undirected edge once)" in found.lines[1]


def test_present_digits_are_as_recorded(tmp_path: Path) -> None:
    found = describe(datasets()["digits"], None, tmp_path / "cache")
    assert found.status == "present" and found.warning == ""
    assert found.fingerprint == datasets()["digits"].fingerprint
    assert "1,797 nodes" in found.lines[0] and "as recorded" in found.lines[1]


def test_other_counts_than_the_papers_explain_themselves(tmp_path: Path) -> None:
    write_grandplus_arrays(tmp_path / "data" / "reddit", "reddit", classes=41)
    found = describe(datasets()["reddit"], tmp_path / "data", tmp_path / "cache")
    assert found.status == "present"
    assert "60 nodes instead of 232,965" in found.warning and "90 edges instead of 11,606,919" in found.warning
    assert found.warning in found.lines


def test_other_content_under_the_right_counts_is_said(tmp_path: Path) -> None:
    stored = open_dataset(datasets()["digits"], None, tmp_path / "cache")
    other = replace(datasets()["digits"], fingerprint="0" * 32)
    assert "content is not that of the files" in passport(other, stored).warning
    unknown = replace(datasets()["digits"], fingerprint=None)
    assert passport(unknown, stored).warning == "" and "nobody" in passport(unknown, stored).lines[1]


def test_a_damaged_file_is_bad_and_does_not_stop_the_listing(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "data" / "Photo" / "raw" / "amazon_electronics_photo.npz", labels=np.full(60, 9))
    found = describe(datasets()["photo"], tmp_path / "data", tmp_path / "cache")
    assert found.status == "bad" and path.name in found.lines[0]


def test_a_twin_is_not_generated_for_its_passport(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.datasets.twins.generate_twin", lambda name: pytest.fail("generated"))
    found = describe(datasets()["amazon2m-twin"], None, tmp_path / "cache")
    assert found.status == "on demand" and "on demand" in str(found)
