"""`report`, `verify`, `compare` and `pack`: from the ledger to what a reader or a reviewer wants to see."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bench.commands.paper import paper_sections, published_accuracy
from bench.commands.stored import check_predictions
from bench.console import say, show_table, waiting_for, warn
from bench.datasets.catalogue import Dataset, resolve
from bench.errors import EXIT_FAILED_CELLS, EXIT_OK, UserError
from bench.files import failing_clearly
from bench.ledger import Ledger
from bench.model import Model
from bench.records import FRONTIER
from bench.reference import folder_to_read, is_reference, open_reference
from bench.registry import find_model, models
from bench.report.comparisons import PairedComparison, probability_of_outperforming
from bench.report.entries import SEALED, brackets
from bench.report.evidence import Evidence, Trials
from bench.report.report import CONTENTS, DRAWN_BY, Report, make_report
from bench.report.results import Setting, compare_pairs, paired, split_sizes
from bench.report.sections import plain_sections
from bench.report.statistics import ALPHA, MINIMUM_TRIALS, Refusal
from bench.settings import AUTHOR_LANE, TUNED_LANES, check_lane, parse_overrides

_PICTURE = re.compile(rb"data:image/png;base64,[A-Za-z0-9+/=]*")


def write_report(named: Path | None, folder: Path | None, setting: Setting) -> int:
    """Build everything and write what has changed; what the last report wrote and this one has not is removed."""
    console, errors = Console(), Console(stderr=True)
    results, reports = _folders(named, folder)
    report = _build(results, setting, console, errors)
    outdated = [path for path in _left_over(reports, report) if path in _written_before(reports)]
    written = 0
    for name, content in report.files.items():
        path = reports / name
        if path.is_file() and path.read_bytes() == content:
            continue
        with failing_clearly(f"{path} cannot be written", "; choose another folder with --reports"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        written += 1
    for path in outdated:
        path.unlink()
    say(console, f"{len(report.files)} files, {written} of them new or changed. Open {reports / 'index.html'}")
    return EXIT_OK


def _folders(named: Path | None, folder: Path | None) -> tuple[Path, Path]:
    """The results to read and where their report is: that of the reference in reports/, any other in reports/own/."""
    results = folder_to_read(named)
    return results, folder or (Path("reports") if is_reference(results) else Path("reports") / "own")


def _build(results: Path, setting: Setting, console: Console, errors: Console) -> Report:
    check_lane(setting.lane, models().values())
    with waiting_for(console, "building the report"):
        reference, reason = open_reference(results)
        report = build_report(results, setting, reference)
    if reason:
        say(errors, f"note: {reason}")
    warn(errors, *report.warnings)
    return report


def build_report(results: Path, setting: Setting | None = None, reference: Ledger | None = None) -> Report:
    """Read the ledger and make every file of the report; a reference stands in for what the user's own results lack."""
    evidence, setting = Evidence(Ledger(results), reference), setting or Setting()
    sections = plain_sections(evidence, setting, published_accuracy) + paper_sections(evidence, setting)
    return make_report(evidence, sections, setting)


def _left_over(reports: Path, report: Report) -> list[Path]:
    """Files of the kinds that a report has, which this one does not have."""
    patterns = ("tables/*.csv", "tables/*.tex", "figures/*.png", "figures/*.svg")
    known = {reports / name for name in report.files}
    return sorted(path for pattern in patterns for path in reports.glob(pattern) if path not in known)


def _written_before(reports: Path) -> set[Path]:
    """What the report that is there says it consists of: whatever else is in the folder is the user's."""
    contents = reports / CONTENTS
    if not contents.is_file():
        return set()
    return {reports / name for name in contents.read_text(encoding="utf-8", errors="replace").splitlines()}


# -- verify -----------------------------------------------------------------------------------------------------------


def verify(named: Path | None, folder: Path | None, setting: Setting, data: Path | None = None) -> int:
    """Rebuild the report and compare it byte by byte; check stored predictions against their hashes and records."""
    console, errors = Console(), Console(stderr=True)
    results, reports = _folders(named, folder)
    report = _build(results, setting, console, errors)
    here = {name: (reports / name).read_bytes() for name in report.files if (reports / name).is_file()}
    pictures = here.get(DRAWN_BY) == report.files[DRAWN_BY]
    if not pictures and DRAWN_BY in here:
        say(errors, "note: other versions drew the pictures (drawn-by.json); all but the pictures is compared")
    problems = [
        f"{name}: {'differs from' if name in here else 'is missing beside'} what the ledger gives"
        for name, content in report.files.items()
        if name not in here or _comparable(name, here[name], pictures) != _comparable(name, content, pictures)
    ]
    problems += [f"{path.relative_to(reports)}: the ledger gives no such file" for path in _left_over(reports, report)]
    checked = check_predictions(results, data)
    problems += checked.wrong
    for problem in problems:
        say(errors, f"wrong: {problem}")
    say(
        console,
        f"{len(report.files)} files and {checked.count} stored predictions checked, {checked.against_labels} of these "
        f"against the labels; {len(problems)} wrong",
    )
    return EXIT_FAILED_CELLS if problems else EXIT_OK


def _comparable(name: str, content: bytes, pictures: bool) -> bytes:
    """What of a file must be the same: everything, or all but the pictures."""
    if pictures:
        return content
    return b"" if name.startswith("figures/") or name == DRAWN_BY else _PICTURE.sub(b"", content)


# -- compare ----------------------------------------------------------------------------------------------------------


def compare(first: str, second: str, names: str, named: Path | None, mode: str) -> int:
    """The paired comparison of two models, or of one model under two settings, dataset by dataset."""
    console, results = Console(), folder_to_read(named)
    evidence = Evidence(Ledger(results), open_reference(results)[0])
    sides = [_side(text) for text in (first, second)]
    rows = []
    for dataset in resolve(names):
        pair = [evidence.trials(model, dataset, settings, mode=mode, lane=lane) for model, settings, lane in sides]
        if any(trials.records for trials in pair):
            rows.append(_comparison_row(dataset, pair[0], pair[1], mode))
    if not rows:
        raise UserError(f"neither {first} nor {second} has records on these datasets with {mode} splits")
    show_table(
        console, ["dataset", first, second, "difference", "95 % interval", "p", "P(first better)", "verdict"], rows
    )
    say(console, f"Splits: {mode}; trials are paired by their seeds. Below {MINIMUM_TRIALS} pairs nothing is decided.")
    if mode == "sealed":
        say(console, SEALED)
    return EXIT_OK


def _side(text: str) -> tuple[type[Model], dict[str, Any], str]:
    """`nagphormer`, `gcn:tunedgnn` (a lane) or `nagphormer:hops=5,layers=1` (settings)."""
    name, _, rest = text.partition(":")
    model = find_model(name)
    parts = [part for part in rest.split(",") if part]
    lane = next((part for part in parts if "=" not in part), AUTHOR_LANE)
    check_lane(lane, [model])
    overrides, _ = parse_overrides([part for part in parts if "=" in part], [model])
    return model, overrides[model.name], lane


def _comparison_row(dataset: Dataset, first: Trials, second: Trials, mode: str) -> tuple[str, ...]:
    a, b = paired(first, second)
    means = [f"{np.mean(t.accuracies):.2f} ({len(t.good)})" if t.good else "not run" for t in (first, second)]
    if not len(a):
        return (dataset.title, *means, "", "", "", "", "no common trials")
    result = compare_pairs(a, b, None if mode == "frozen" else split_sizes(dataset))
    difference = f"{np.mean(a - b):+.2f}"
    if isinstance(result, Refusal):
        return (dataset.title, *means, difference, "", "", "", result.reason)
    interval = "" if result.interval is None else brackets(result.interval)
    outperforming = probability_of_outperforming(a, b).probability.value
    return (dataset.title, *means, difference, interval, f"{result.p:.3g}", f"{outperforming:.2f}", _verdict(result))


def _verdict(result: PairedComparison) -> str:
    if result.n < MINIMUM_TRIALS:
        return f"undecided, {result.n} pairs"
    if result.p >= ALPHA:
        return "no difference shown"
    return "first is better" if result.difference > 0 else "second is better"


# -- pack -------------------------------------------------------------------------------------------------------------


def pack(named: Path | None, folder: Path | None, archive: Path) -> int:
    """One archive for a reviewer: ledger, predictions, tuned settings, memory frontiers, passports, reports."""
    console, (results, reports) = Console(), _folders(named, folder)
    parts = ("ledger", "predictions", "tuning", *TUNED_LANES, FRONTIER)
    members = {f"results/{name}": path for name, path in _files(results, parts)}
    if reports.is_dir():
        members |= {f"reports/{name}": path for name, path in _files(reports, ("",))}
    contents = {"passports.json": _passports(results), "environments.json": _environments(results)}
    with failing_clearly(f"{archive} cannot be written"), tarfile.open(archive, "w:gz") as file:
        for name, path in sorted(members.items()):
            file.add(path, name, filter=_anonymous)
        for name, text in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            file.addfile(info, io.BytesIO(text))
    say(console, f"{len(members) + len(contents)} files in {archive}")
    return EXIT_OK


def _files(folder: Path, parts: tuple[str, ...]) -> list[tuple[str, Path]]:
    """Name and path of every file; logs (they name folders and users) and what begins with a dot stay here."""
    found = [path for part in parts for path in (folder / part).rglob("*") if path.is_file()]
    inside = [(path.relative_to(folder), path) for path in found]
    return [
        (name.as_posix(), path)
        for name, path in inside
        if "logs" not in name.parts and not any(part.startswith(".") for part in name.parts)
    ]


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nothing about who packed it."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def _passports(results: Path) -> bytes:
    """Which contents the records are about, and what was done to the raw files of each."""
    known = {dataset.name: dataset for dataset in resolve("all,all-twin,digits")}
    found: dict[str, Any] = {}
    for record in Ledger(results):
        entry = found.setdefault(record["dataset"], {"fingerprints": []})
        if record["data"] not in entry["fingerprints"]:
            entry["fingerprints"].append(record["data"])
        dataset = known.get(record["dataset"])
        if dataset is not None:
            entry |= {"conventions": dataset.conventions, "checked": dataset.checked, "split_rule": dataset.split_rule}
    return json.dumps(found, indent=1, sort_keys=True).encode()


def _environments(results: Path) -> bytes:
    """The distinct machines and library versions that records name."""
    texts = {
        json.dumps({k: v for k, v in r["environment"].items() if k != "load_average"}, sort_keys=True)
        for r in Ledger(results)
    }
    return json.dumps([json.loads(text) for text in sorted(texts)], indent=1).encode()
