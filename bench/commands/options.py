"""How the options that several verbs share are typed, and what a mistake in any option gives."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from bench.errors import EXIT_USER_ERROR
from bench.executors import EXECUTORS
from bench.text import nearest

Data = Annotated[
    Path | None, typer.Option(help="Folder with raw data files; then BENCH_DATA and a per-user cache are searched.")
]
Results = Annotated[Path, typer.Option(help="Folder of your results; ours are in results/reference.")]
ReadResults = Annotated[
    Path | None,
    typer.Option(help="Folder of the results.", show_default="results/own if there are any, else results/reference"),
]
ReuseReference = Annotated[bool, typer.Option("--reuse-reference", help="Count the reference's trials as done.")]
Reports = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the report.", show_default="reports for results/reference, reports/own for any other results"
    ),
]
_SPLIT_DEFAULT = "fresh; sealed with tuned settings"
Mode = Annotated[
    str | None, typer.Option(help="Which trials: fresh, frozen or sealed splits.", show_default=_SPLIT_DEFAULT)
]
Lane = Annotated[
    str, typer.Option(help="Which settings: author, default, tuned or another lane that `list models` shows.")
]
Plugin = Annotated[
    list[str] | None,
    typer.Option("--plugin", metavar="MODULE", help="A module with models or datasets of your own; may be repeated."),
]
StudyName = Annotated[
    str | None, typer.Option("--study", metavar="NAME", help="One of the paper's studies; `list studies` shows them.")
]

MODELS = "Models, aliases or groups, separated by commas."
Models = Annotated[str, typer.Option("--models", "--model", help=MODELS)]
Datasets = Annotated[str, typer.Option(help="Datasets, groups or .npz files, separated by commas.")]
Trials = Annotated[int, typer.Option(min=1, help="Trials per model and dataset.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the first trial; trial i adds i.")]
Split = Annotated[
    str | None,
    typer.Option(
        help="fresh: a new split per trial; frozen: one split; sealed: one test set for ever.",
        show_default=_SPLIT_DEFAULT,
    ),
]
SplitRatio = Annotated[
    str | None, typer.Option(metavar="A/B/C", help="Train/val/test in per cent instead of the dataset's own rule.")
]
Settings = Annotated[
    str,
    typer.Option(
        metavar="LANE",
        help="A lane is a named choice of settings per dataset: author (what the model's authors published), default "
        "(one for all), tuned (what `tune` found), or another that `list models` shows.",
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated.")
]
MaxEpochs = Annotated[int | None, typer.Option(min=1, help="Cap on training; records say so.")]
_AT_ONCE = "one per processor on small graphs if memory allows, else 1; 1 with --threads"
Jobs = Annotated[int | None, typer.Option(min=1, help="Cells that run at the same time.", show_default=_AT_ONCE)]
TrialJobs = Annotated[int, typer.Option("--jobs", min=1, help="Trials that run at the same time.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads per cell.", show_default="all cores / jobs")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, or a list such as cuda:0,cuda:1.")]


def _known_executor(name: str) -> str:
    if name not in EXECUTORS:
        raise typer.BadParameter(f"there is no executor '{name}'.{nearest(name, EXECUTORS)}")
    return name


ExecutorName = Annotated[
    str, typer.Option("--executor", callback=_known_executor, help=f"What runs cells: {', '.join(EXECUTORS)}.")
]
UNITS = "with a unit: MB, GB, TB or MiB, GiB, TiB"
MemoryLimit = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help=f"Per cell, above what a worker has at its start, such as 11GB; {UNITS}."),
]
TimeLimit = Annotated[
    str | None, typer.Option(metavar="TIME", help="Per cell, such as 90s, 20m or 1h30m; a bare number is seconds.")
]


# Newer versions of typer bring their own click: both call a mistake in the options by the base of BadParameter.
_MISTYPED: Any = typer.BadParameter.__base__


VERBS = {
    "Results": ("run", "tune", "report", "compare"),
    "What there is": ("list", "data", "status", "why"),
    "Housekeeping": ("verify", "pack", "cache"),
}


class VerbGroup(typer.core.TyperGroup):
    """The verbs by what they are for; a mistake in the options is one line, not usage, hint and message."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section per group of VERBS, and what belongs to none at the end."""
        grouped = [name for names in VERBS.values() for name in names]
        rest = {"More": tuple(name for name in self.list_commands(ctx) if name not in grouped)}
        for title, names in {**VERBS, **rest}.items():
            commands = [(name, command) for name in names if (command := self.get_command(ctx, name))]
            if commands:
                with formatter.section(title):
                    formatter.write_dl([(name, command.get_short_help_str(100)) for name, command in commands])

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except _MISTYPED as error:
            command = error.ctx.command_path if error.ctx else "python -m bench"
            typer.echo(f"error: {_in_one_line(error)} (`{command} --help` shows what is allowed)", err=True)
            code = EXIT_USER_ERROR
        if standalone_mode:
            sys.exit(code)
        return code


def _in_one_line(error: Any) -> str:
    message = " ".join(error.format_message().split()).rstrip(".")
    # Where typer asks pydantic, the message does not name the value; click's does.
    refused: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    return f"{message}, not '{refused[0]['input']}'" if refused else message
