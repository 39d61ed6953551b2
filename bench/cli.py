"""The verbs and their options. What they do is in bench/commands, imported only when a verb is used."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from bench.errors import EXIT_MISSING_DATA, EXIT_USER_ERROR, MissingData, UserError

EXIT_INTERRUPTED = 130
P = ParamSpec("P")

app = typer.Typer(
    help="Train node-classification models under one protocol, and keep every result.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Data = Annotated[
    Path | None, typer.Option(help="Folder with raw data files; then BENCH_DATA and a per-user cache are searched.")
]
Results = Annotated[Path, typer.Option(help="Folder of the ledger.")]
Reports = Annotated[Path, typer.Option(help="Folder that the report is written to.")]
Mode = Annotated[str, typer.Option(help="Which trials: fresh, frozen or sealed splits.")]
Lane = Annotated[str, typer.Option(help="Which settings: author, default or another lane.")]


def main() -> None:
    """Entry of `python -m bench`."""
    app(prog_name="python -m bench")


def guarded(verb: Callable[P, int | None]) -> Callable[P, None]:
    """Expected failures become one line and an exit code; anything else keeps its traceback."""

    @functools.wraps(verb)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = verb(*args, **kwargs)
        except (UserError, MissingData) as error:
            typer.echo(f"error: {error}", err=True)
            code = EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_MISSING_DATA
        except KeyboardInterrupt:
            typer.echo("interrupted; finished records are kept, the same command goes on from here", err=True)
            code = EXIT_INTERRUPTED
        raise typer.Exit(code or 0)

    return call


@app.callback(invoke_without_command=True)
def show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
@guarded
def run(
    models: Annotated[str, typer.Option(help="Models, aliases or groups, separated by commas.")] = "all",
    datasets: Annotated[str, typer.Option(help="Datasets, groups or .npz files, separated by commas.")] = "digits",
    trials: Annotated[int, typer.Option(min=1, help="Trials per model and dataset.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first trial; trial i adds i.")] = 0,
    split: Annotated[
        str, typer.Option(help="fresh: a new split per trial; frozen: one split; sealed: one test set for ever.")
    ] = "fresh",
    split_ratio: Annotated[
        str | None, typer.Option(metavar="A/B/C", help="Train/val/test in per cent instead of the dataset's own rule.")
    ] = None,
    settings: Annotated[str, typer.Option(help="author, default, or another lane that a model declares.")] = "author",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated.")
    ] = None,
    max_epochs: Annotated[int | None, typer.Option(min=1, help="Cap on training; records say so.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Cells that run at the same time.")] = 1,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads per cell.", show_default="all cores / jobs")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, or a list such as cuda:0,cuda:1.")] = "auto",
    data: Data = None,
    results: Results = Path("results"),
    memory_limit: Annotated[str | None, typer.Option(metavar="SIZE", help="Per cell, such as 11GB.")] = None,
    time_limit: Annotated[str | None, typer.Option(metavar="TIME", help="Per cell, such as 20m.")] = None,
    retry: Annotated[
        str | None, typer.Option(metavar="STATUS", help="Run failed cells again, such as oom,error.")
    ] = None,
    stale: Annotated[bool, typer.Option("--stale", help="Redo cells whose model has changed since.")] = False,
    redo: Annotated[bool, typer.Option("--redo", help="Run every cell again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the cells and estimate the time.")] = False,
) -> int:
    """Run what is missing, then show the table."""
    from bench.commands.run import Request, run_request

    return run_request(
        Request(
            models=models,
            datasets=datasets,
            trials=trials,
            seed=seed,
            split=split,
            split_ratio=split_ratio,
            settings=settings,
            overrides=tuple(set_ or ()),
            max_epochs=max_epochs,
            jobs=jobs,
            threads=threads,
            device=device,
            data=data,
            results=results,
            memory_limit=memory_limit,
            time_limit=time_limit,
            retry=retry,
            stale=stale,
            redo=redo,
            dry_run=dry_run,
        )
    )


@app.command("list")
@guarded
def list_(what: Annotated[str, typer.Argument(help="models, datasets, or both.")] = "both") -> None:
    """List the models and the datasets that can be named."""
    from bench.commands.show import list_names

    list_names(what)


@app.command()
@guarded
def data(
    names: Annotated[str, typer.Argument(help="Datasets or groups, separated by commas.")] = "all",
    data: Data = None,
) -> None:
    """Show what is known about each dataset, or missing."""
    from bench.commands.show import show_passports

    show_passports(names, data)


@app.command()
@guarded
def status(results: Results = Path("results")) -> None:
    """Show what is done, running and failed."""
    from bench.commands.ledgers import show_status

    show_status(results)


@app.command()
@guarded
def why(
    model: Annotated[str, typer.Argument(help="A model.")],
    dataset: Annotated[str, typer.Argument(help="A dataset.")],
    results: Results = Path("results"),
) -> None:
    """Show why cells failed, with the end of their logs."""
    from bench.commands.ledgers import show_failures

    show_failures(model, dataset, results)


@app.command()
@guarded
def report(
    results: Results = Path("results"),
    reports: Reports = Path("reports"),
    split: Mode = "fresh",
    settings: Lane = "author",
) -> int:
    """Write tables, figures, scorecard and claims from the ledger; never trains."""
    from bench.commands.reports import write_report
    from bench.report.tables import Setting

    return write_report(results, reports, Setting(split, settings))


@app.command()
@guarded
def verify(
    results: Results = Path("results"),
    reports: Reports = Path("reports"),
    split: Mode = "fresh",
    settings: Lane = "author",
) -> int:
    """Rebuild the report in memory and check it, and the stored predictions, against what is there."""
    from bench.commands.reports import verify as check
    from bench.report.tables import Setting

    return check(results, reports, Setting(split, settings))


@app.command()
@guarded
def compare(
    first: Annotated[str, typer.Argument(help="MODEL, MODEL:LANE or MODEL:KEY=VALUE,...")],
    second: Annotated[str, typer.Argument(help="The same for the other side.")],
    datasets: Annotated[str, typer.Option(help="Datasets or groups, separated by commas.")] = "all,digits",
    results: Results = Path("results"),
    split: Mode = "fresh",
) -> int:
    """Compare two models, or two settings, trial by trial."""
    from bench.commands.reports import compare as show

    return show(first, second, datasets, results, split)


@app.command()
@guarded
def pack(
    archive: Annotated[Path, typer.Argument(help="The archive to write.")] = Path("bench-results.tar.gz"),
    results: Results = Path("results"),
    reports: Reports = Path("reports"),
) -> int:
    """Write one archive with ledger, predictions, passports and reports."""
    from bench.commands.reports import pack as write

    return write(results, reports, archive)


@app.command()
@guarded
def cache(action: Annotated[str, typer.Argument(help="show or clear.")] = "show") -> None:
    """Show or clear prepared arrays and stored graphs."""
    from bench.commands.cache import clear_cache, show_cache
    from bench.errors import UserError

    if action not in ("show", "clear"):
        raise UserError(f"cache can show or clear, not '{action}'")
    (clear_cache if action == "clear" else show_cache)()
