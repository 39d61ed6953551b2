"""The verbs and their options. What they do is in bench/commands, imported only when a verb is used."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from bench.commands.options import (
    MODELS,
    Data,
    Datasets,
    Device,
    ExecutorName,
    Jobs,
    Lane,
    MaxEpochs,
    MemoryLimit,
    Mode,
    Models,
    Overrides,
    Plugin,
    ReadResults,
    Reports,
    Results,
    ReuseReference,
    Seed,
    Settings,
    Split,
    SplitRatio,
    StudyName,
    Threads,
    TimeLimit,
    TrialJobs,
    Trials,
    VerbGroup,
)
from bench.errors import EXIT_MISSING_DATA, EXIT_USER_ERROR, MissingData, UserError
from bench.reference import OWN, folder_to_read

if TYPE_CHECKING:
    from bench.request import Request

EXIT_INTERRUPTED = 130
P = ParamSpec("P")

app = typer.Typer(
    cls=VerbGroup,
    help="Train node-classification models under one protocol, and keep every result.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def typed(context: typer.Context) -> dict[str, Any]:
    """Return the options as requests name them; repeated ones become tuples."""
    values = {name.rstrip("_"): value for name, value in context.params.items()}
    for name, field in (("set", "overrides"), ("plugin", "plugins")):
        values[field] = tuple(values.pop(name) or ())
    return values


def request_from(context: typer.Context) -> Request:
    """Return what was typed; with a study, what was not typed is left to it."""
    values = typed(context)
    if values.get("study"):
        for name in ("models", "datasets", "trials"):
            source = context.get_parameter_source(name)
            if source is not None and source.name == "DEFAULT":
                values[name] = None
    refuse_mistyped(values, values["settings"])
    from bench.request import Request  # imports torch: from here on it takes seconds

    return Request(**{**values, "split": chosen_split(values["split"], values["settings"])})


def refuse_mistyped(values: dict[str, Any], lane: str) -> None:
    """Refuse names that do not exist at once, unless plug-ins may bring them."""
    from bench.names import check_names

    if not values["plugins"]:
        check_names(values["models"], values["datasets"], lane, values["overrides"])


def use_plugins(names: list[str] | None) -> None:
    """Make the models and datasets of plug-ins known, for verbs that only read records."""
    if not names:
        return  # and torch is not imported
    from bench.plugins import load_plugins

    for reason in load_plugins(names).broken:
        raise UserError(reason)


def chosen_split(split: str | None, *lanes: str) -> str:
    """The split mode; where none was typed, what was tuned is judged on nodes that tuning never saw."""
    from bench.settings import TUNED_LANES

    return split or ("sealed" if any(lane in TUNED_LANES for lane in lanes) else "fresh")


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
    context: typer.Context,
    study: StudyName = None,
    models: Models = "all",
    datasets: Datasets = "digits",
    trials: Trials = 10,
    seed: Seed = 0,
    split: Split = None,
    split_ratio: SplitRatio = None,
    settings: Settings = "author",
    set_: Overrides = None,
    max_epochs: MaxEpochs = None,
    jobs: Jobs = None,
    threads: Threads = None,
    device: Device = "auto",
    executor: ExecutorName = "local",
    data: Data = None,
    results: Results = OWN,
    memory_limit: MemoryLimit = None,
    time_limit: TimeLimit = None,
    retry: Annotated[
        str | None, typer.Option(metavar="STATUS", help="Run failed cells again, such as oom,error.")
    ] = None,
    redo: Annotated[bool, typer.Option("--redo", help="Run every cell again.")] = False,
    reuse_reference: ReuseReference = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is missing and what it will take.")] = False,
    pilots: Annotated[
        bool, typer.Option("--pilots", help="With --dry-run: run a few epochs of what has no record on this machine.")
    ] = False,
    pilot_limit: Annotated[str, typer.Option(metavar="TIME", help="Per pilot.")] = "10m",
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --dry-run: pick what fits into it, such as 3h.")
    ] = None,
    plugin: Plugin = None,
) -> int:
    """Run what is missing, then show the table."""
    request = request_from(context)
    from bench.commands.run import run_request

    return run_request(request)


@app.command()
@guarded
def tune(
    context: typer.Context,
    models: Annotated[str, typer.Option("--model", "--models", help=f"{MODELS} Each has the budget.")],
    datasets: Datasets = "small",
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials per study that end by themselves: complete, pruned or failed.")
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(help="Hours per study, summed over its trials; the one that runs then is finished."),
    ] = None,
    space: Annotated[str, typer.Option(help="What is searched: wide, paper, or another that a model has.")] = "wide",
    sampler: Annotated[str, typer.Option(help="tpe, random or grid.")] = "tpe",
    objective: Annotated[str, typer.Option(help="accuracy, or accuracy,seconds for the front of both.")] = "accuracy",
    prune: Annotated[
        bool | None,
        typer.Option(
            "--prune/--no-prune",
            help="End trials below the median early.",
            show_default="yes; no with random, whose curves need whole trials, and with two objectives",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the sampler, the split and the training.")] = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Fix a setting; may be repeated.")
    ] = None,
    max_epochs: MaxEpochs = None,
    name: Annotated[
        str | None, typer.Option(help="Of the study.", show_default="model, dataset, space, sampler and seed")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A database, such as postgresql://…", show_default="a file in the results"),
    ] = None,
    jobs: TrialJobs = 1,
    threads: Threads = None,
    device: Device = "auto",
    executor: ExecutorName = "local",
    data: Data = None,
    results: Results = OWN,
    memory_limit: MemoryLimit = None,
    time_limit: TimeLimit = None,
    plugin: Plugin = None,
) -> int:
    """Find settings under a budget; `run --settings tuned` uses them."""
    values = typed(context)
    refuse_mistyped(values, "author")
    from bench.commands.tune import tune_request
    from bench.request import TuneRequest

    return tune_request(TuneRequest(**values))


@app.command("list")
@guarded
def list_(
    what: Annotated[
        str,
        typer.Argument(
            help="models, datasets, both (models and datasets), studies, all, or a name: of a model with its settings, "
            "a dataset, a study or a group."
        ),
    ] = "all",
    plugin: Plugin = None,
) -> int:
    """List the models, the datasets and the studies that can be named, or the settings of a model."""
    from bench.commands.show import list_names

    return list_names(what, tuple(plugin or ()))


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
def status(results: ReadResults = None) -> None:
    """Show what is done, running and failed."""
    from bench.commands.ledgers import show_status

    show_status(folder_to_read(results))


@app.command()
@guarded
def why(
    model: Annotated[str, typer.Argument(help="A model.")],
    dataset: Annotated[str, typer.Argument(help="A dataset.")],
    tuning: Annotated[bool, typer.Option("--tuning", help="Trials of `tune` too.")] = False,
    results: ReadResults = None,
    plugin: Plugin = None,
) -> None:
    """Show why cells failed, with the end of their logs."""
    from bench.commands.ledgers import show_failures

    use_plugins(plugin)
    show_failures(model, dataset, folder_to_read(results), tuning)


@app.command()
@guarded
def report(
    results: ReadResults = None,
    reports: Reports = None,
    split: Mode = None,
    settings: Lane = "author",
    plugin: Plugin = None,
) -> int:
    """Write tables, figures, scorecard and claims from the ledger; never trains."""
    from bench.commands.reports import write_report
    from bench.report.results import Setting

    use_plugins(plugin)
    return write_report(results, reports, Setting(chosen_split(split, settings), settings))


@app.command()
@guarded
def verify(
    results: ReadResults = None,
    reports: Reports = None,
    split: Mode = None,
    settings: Lane = "author",
    data: Data = None,
    plugin: Plugin = None,
) -> int:
    """Rebuild the report in memory and check it, and the stored predictions, against what is there."""
    from bench.commands.reports import verify as check
    from bench.report.results import Setting

    use_plugins(plugin)
    return check(results, reports, Setting(chosen_split(split, settings), settings), data)


@app.command()
@guarded
def compare(
    first: Annotated[str, typer.Argument(help="MODEL, MODEL:LANE or MODEL:KEY=VALUE,...")],
    second: Annotated[str, typer.Argument(help="The same for the other side.")],
    datasets: Annotated[str, typer.Option(help="Datasets or groups, separated by commas.")] = "all,digits",
    results: ReadResults = None,
    split: Mode = None,
    plugin: Plugin = None,
) -> int:
    """Compare two models, or two settings, trial by trial."""
    from bench.commands.reports import compare as show

    use_plugins(plugin)
    lanes = [part for side in (first, second) for part in side.partition(":")[2].split(",")]
    return show(first, second, datasets, results, chosen_split(split, *lanes))


@app.command()
@guarded
def pack(
    archive: Annotated[Path, typer.Argument(help="The archive to write.")] = Path("bench-results.tar.gz"),
    results: ReadResults = None,
    reports: Reports = None,
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
