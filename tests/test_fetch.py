"""Downloads, against a server on this machine: checked before they are moved into place, and never tried for long."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from raw_files import write_npz

from bench.datasets import fetch as fetching
from bench.datasets.catalogue import Dataset, PaperStatistics, datasets
from bench.datasets.fetch import fetch
from bench.datasets.npz import read_graph_npz
from bench.datasets.sources import Layout, load_files, stamp_files
from bench.datasets.store import open_dataset
from bench.errors import MissingData
from bench.graph import graph_fingerprint

PAPER = PaperStatistics(60, 181, 5, 3, "each edge twice and the loop once")


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), Answer)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data/"


class Answer(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        content = self.server.files.get(self.path.rsplit("/", 1)[1])
        self.send_response(200 if content is not None else 404)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        # a file called short.npz breaks off in the middle
        self.wfile.write((content or b"")[: 100 if "short" in self.path else None])

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv("BENCH_OFFLINE", raising=False)
    monkeypatch.delenv("BENCH_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(fetching, "_unreachable", set())
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def dataset_at(url: str, file: str = "ring.npz", sha256: str = "", fingerprint: str | None = None) -> Dataset:
    layouts = (Layout(("Ring/raw",), (file,), read_graph_npz, url, (sha256,) if sha256 else ()),)
    return replace(
        datasets()["photo"],
        name="ring",
        layouts=layouts,
        load=partial(load_files, "ring", layouts, 3),
        stamp=partial(stamp_files, layouts),
        paper=PAPER,
        fingerprint=fingerprint,
    )


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    return write_npz(tmp_path / "made" / "ring.npz").read_bytes()


def left_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_download_is_moved_into_place_and_used_from_there(server: Server, content: bytes, tmp_path: Path) -> None:
    server.files["ring.npz"] = content
    dataset = dataset_at(server.url, sha256=hashlib.sha256(content).hexdigest())
    for _ in range(2):
        assert open_dataset(dataset, None, tmp_path / "cache").graph.num_nodes == 60
    assert server.asked == ["/data/ring.npz"]
    assert left_below(tmp_path / "cache" / "raw") == ["Ring/raw/ring.npz"]


def test_without_a_digest_the_papers_counts_decide(server: Server, content: bytes, tmp_path: Path) -> None:
    server.files["ring.npz"] = content
    assert fetch(dataset_at(server.url), tmp_path / "raw") == tmp_path / "raw"
    server.files["ring.npz"] = write_npz(
        tmp_path / "other.npz", attr_data=None, attr_matrix=np.ones((60, 4))
    ).read_bytes()
    with pytest.raises(MissingData, match="4 features instead of 5"):
        fetch(dataset_at(server.url), tmp_path / "again")
    assert left_below(tmp_path / "again") == []


def test_a_repacked_file_is_known_by_its_content(server: Server, content: bytes, tmp_path: Path) -> None:
    server.files["ring.npz"] = content
    graph = dataset_at("").load(fetch(dataset_at(server.url), tmp_path / "raw"))
    repacked = dataset_at(server.url, sha256="0" * 64, fingerprint=graph_fingerprint(graph))
    fetch(repacked, tmp_path / "again")
    assert left_below(tmp_path / "again") == ["Ring/raw/ring.npz"]
    with pytest.raises(MissingData, match="content is not the one that was checked"):
        fetch(replace(repacked, fingerprint="f" * 32), tmp_path / "third")


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"\n<!DOCTYPE html><html><body>Sign in</body></html>", "sent a web page instead of ring.npz"),
        (b"garbage", "is not an npz archive"),
        (b"", "is not an npz archive"),
        (None, "404"),
    ],
)
def test_what_is_not_the_file_is_not_kept(server: Server, tmp_path: Path, sent: bytes | None, says: str) -> None:
    if sent is not None:
        server.files["ring.npz"] = sent
    with pytest.raises(MissingData, match=says) as caught:
        fetch(dataset_at(server.url), tmp_path / "raw")
    assert "\n" not in str(caught.value) and left_below(tmp_path / "raw") == []


def test_a_download_that_breaks_off_is_not_kept(server: Server, content: bytes, tmp_path: Path) -> None:
    server.files["short.npz"] = content
    with pytest.raises(MissingData, match=r"short\.npz"):
        fetch(dataset_at(server.url, "short.npz"), tmp_path / "raw")
    assert left_below(tmp_path / "raw") == []


def test_offline_means_no_attempt(
    server: Server, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["ring.npz"] = content
    monkeypatch.setenv("BENCH_OFFLINE", "1")
    with pytest.raises(MissingData, match="BENCH_OFFLINE is set"):
        fetch(dataset_at(server.url), tmp_path / "raw")
    assert server.asked == []


def test_a_host_that_does_not_answer_is_asked_once(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:  # bound but not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        for _ in range(2):
            with pytest.raises(MissingData, match="cannot be reached"):
                fetch(dataset_at(url), tmp_path / "raw")
            monkeypatch.setattr(fetching, "_answers", lambda url: pytest.fail("asked again"))


def test_a_name_server_that_hangs_costs_seconds_not_minutes(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_CONNECT_SECONDS", 0.1)
    give_up, answered = threading.Event(), threading.Event()

    def hang(*args: object, **options: object) -> None:
        give_up.wait(60)
        answered.set()
        raise OSError("no answer")

    monkeypatch.setattr(socket, "create_connection", hang)
    with pytest.raises(MissingData, match="cannot be reached"):
        fetch(dataset_at("http://hangs.invalid/"), tmp_path / "raw")
    assert not answered.is_set()  # it was not waited for
    give_up.set()


@pytest.mark.parametrize("name", ["aminer", "reddit", "amazon2m"])
def test_the_large_sets_say_where_to_get_them_and_what_stands_in(name: str, tmp_path: Path) -> None:
    with pytest.raises(MissingData) as caught:
        fetch(datasets()[name], tmp_path / "raw")
    message = str(caught.value)
    assert datasets()[name].layouts[0].files[0] in message and "THUDM/GRAND-plus" in message
    assert "--datasets large-twin" in message and "\n" not in message
