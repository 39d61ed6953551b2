"""`python -m perf`: run the cases one after another, show the table and say on what machine it was measured."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.environment import environment, usable_processors
from bench.errors import EXIT_FAILED_CELLS, EXIT_OK, EXIT_USER_ERROR, BadData, MissingData, UserError
from bench.text import nearest
from perf.cases import NAGPHORMER_CASES, Case, Options, Skipped
from perf.edges import EdgeAttention
from perf.full_batch import FullBatch
from perf.kernels import Kernels
from perf.large import Inference, Preparation, Scaling
from perf.measure import Failed
from perf.push import Push
from perf.report import BigReport
from perf.table import Row, format_table

CASES: tuple[Case, ...] = (
    *NAGPHORMER_CASES,
    Preparation(),
    Inference(),
    Scaling(),
    Push(),
    FullBatch(),
    EdgeAttention(),
    Kernels(),
    BigReport(),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code. A missed target is for the reader to judge and no failure of the run."""
    asked = _parser().parse_args(arguments)
    if asked.list:
        for case in CASES:
            print(f"{case.name:20} {case.about}")
        return EXIT_OK
    try:
        if asked.output is not None and not asked.output.resolve().parent.is_dir():
            raise UserError(f"the folder of {asked.output} does not exist")
        cases = _choose(asked.cases)
        options = Options(asked.data, asked.threads, asked.epochs, asked.rounds, _say)
        machine = _machine(asked.threads)  # now: later, the load is our own
        rows, remarks, failed = _run(cases, options)
        report = "\n\n".join(filter(None, [format_table(rows) if rows else "", "\n".join(remarks), machine]))
        print(report)
        if asked.output is not None:
            _write(asked.output, report)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    return EXIT_FAILED_CELLS if failed else EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="case", help="what to measure (see --list); all of it by default")
    parser.add_argument(
        "--data", type=Path, help="folder with raw data files; then BENCH_DATA and the cache are searched"
    )
    parser.add_argument("--epochs", type=_positive, help="instead of each case's own number")
    parser.add_argument("--rounds", type=_positive, help="how often reference and ours take turns, for every case")
    parser.add_argument("--threads", type=_positive, default=usable_processors(), help="for both (default: all)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table to this file as well")
    parser.add_argument("--list", action="store_true", help="only list the cases")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above zero")
    return int(text)


def _choose(names: Sequence[str]) -> list[Case]:
    known = {case.name: case for case in CASES}
    for name in names:
        if name not in known:
            raise UserError(f"there is no case '{name}'; there are {', '.join(known)}.{nearest(name, known)}")
    return [known[name] for name in dict.fromkeys(names)] or list(CASES)


def _run(cases: Sequence[Case], options: Options) -> tuple[list[Row], list[str], bool]:
    """All rows, a line for each case that gave none, and whether one of them broke."""
    rows: list[Row] = []
    remarks: list[str] = []
    failed = False
    for case in cases:
        try:
            rows += case.run(options)
        except (Skipped, MissingData, BadData) as reason:
            remarks.append(f"skipped {case.name}: {reason}")
        except Failed as reason:
            remarks.append(f"failed {case.name}: {reason}")
            failed = True
    return rows, remarks, failed


def _machine(threads: int) -> str:
    facts = environment(threads, "cpu", None)
    libraries = ", ".join(f"{name} {facts[name]}" for name in ("python", "torch", "numpy", "scipy", "numba"))
    load = f"load average before the run {facts['load_average']}"
    return f"{facts['processor']}, {threads} threads, {load}; {libraries}; code {facts['code']}"


def _write(path: Path, report: str) -> None:
    try:
        path.write_text(report + "\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror})") from error


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
