"""Raw files from the network: to a temporary place, checked, then moved into place. Fails fast without a network."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from bench.datasets.catalogue import Dataset
from bench.datasets.counts import count, differences
from bench.datasets.sources import Layout
from bench.datasets.store import cannot_keep
from bench.errors import BadData, MissingData
from bench.graph import graph_fingerprint
from bench.text import shown

_CONNECT_SECONDS = 3.0
_READ_SECONDS = 60.0
_unreachable: set[str] = set()  # hosts that did not answer this process


def fetch(dataset: Dataset, folder: Path) -> Path:
    """Download the dataset's files below `folder` and return it; MissingData where that is not possible."""
    layout = next((layout for layout in dataset.layouts if layout.url), None)
    if layout is None:
        raise MissingData(how_to_get(dataset, "is not downloaded automatically"))
    if is_offline():
        raise MissingData(how_to_get(dataset, "BENCH_OFFLINE is set"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft = Path(mkdtemp(prefix=".download-", dir=folder))
    except OSError as error:
        raise cannot_keep(dataset, error) from error
    try:
        for place in layout.places:
            _download(dataset, layout.url + Path(place).name, draft / place)
        _check(dataset, layout, draft)
        for place in layout.places:
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (draft / place).replace(folder / place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def is_offline() -> bool:
    """Whether the user forbids network access by BENCH_OFFLINE=1."""
    return os.environ.get("BENCH_OFFLINE", "") not in ("", "0")


def how_to_get(dataset: Dataset, why: str) -> str:
    """One line: which file is missing, where to get it, what could stand in for it."""
    layout = next((layout for layout in dataset.layouts if layout.url), dataset.layouts[0])
    others = f" (and {len(layout.files) - 1} files beside it)" if len(layout.files) > 1 else ""
    source = dataset.obtain or (layout.url if others else layout.url + layout.files[0])
    return (
        f"{dataset.name}: {layout.places[0]}{others} is missing and {why}: get {source}, put it into the folder of "
        f"--data or BENCH_DATA, or run the generated stand-in: --datasets {dataset.twin}"
    )


def _download(dataset: Dataset, url: str, target: Path) -> None:
    import pooch

    host = urlsplit(url).netloc
    if host in _unreachable or not _answers(url):
        _unreachable.add(host)
        raise MissingData(how_to_get(dataset, f"{host} cannot be reached"))
    target.parent.mkdir(parents=True, exist_ok=True)
    download = pooch.HTTPDownloader(timeout=(_CONNECT_SECONDS, _READ_SECONDS))
    try:
        download(url, str(target), None)
    except OSError as error:  # what the network does wrong is an OSError too, but only the system's own have a number
        if error.errno is not None:
            raise cannot_keep(dataset, error) from error
        if getattr(error, "response", None) is not None:
            raise MissingData(how_to_get(dataset, f"{host} answered: {error}")) from error
        _unreachable.add(host)
        raise MissingData(how_to_get(dataset, f"{host} broke off the download")) from error
    with target.open("rb") as file:
        if file.read(512).lstrip().lower().startswith((b"<!doctype", b"<html")):
            raise MissingData(how_to_get(dataset, f"{host} sent a web page instead of {target.name}"))


def _answers(url: str) -> bool:
    """Whether the host takes a connection within seconds; looking up its name may hang, so a thread does it."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme in getproxies() and not proxy_bypass(host):
        return True  # the proxy does the connecting
    answered: list[bool] = []

    def connect() -> None:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
        except OSError:
            return
        answered.append(True)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_CONNECT_SECONDS)
    return bool(answered)


def _check(dataset: Dataset, layout: Layout, draft: Path) -> None:
    """By the files' digests where they are known, otherwise (or if the host has repacked them) by their content."""
    import pooch

    digests = tuple(pooch.file_hash(str(draft / place)) for place in layout.places)
    if digests == layout.sha256:
        return
    try:
        graph = dataset.load(draft)
        problem = "; ".join(differences(dataset.paper, count(graph))) if dataset.paper else ""
        if not problem and dataset.fingerprint not in (None, graph_fingerprint(graph)):
            problem = "its content is not the one that was checked"
    except BadData as error:
        problem = str(error).replace(f"{shown(draft)}/", "")  # which is about to vanish
    if problem:
        host = urlsplit(layout.url).netloc
        raise MissingData(how_to_get(dataset, f"what {host} sent is not the dataset ({problem})"))
