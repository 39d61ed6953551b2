"""From what was typed to cells: names, settings and splits are checked, datasets opened, and nothing is run yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from bench.cells import Cell, Protocol, make_cells
from bench.console import say, waiting_for, warn
from bench.datasets.catalogue import Dataset, resolve
from bench.datasets.passports import passport
from bench.datasets.store import Stored, cache_root, expected_size, find_root, find_stored, open_dataset, spelled_out
from bench.environment import usable_processors
from bench.errors import EXIT_FAILED_CELLS, EXIT_MISSING_DATA, EXIT_OK, EXIT_USER_ERROR, BadData, MissingData, UserError
from bench.executors import LOCAL
from bench.executors.devices import resolve_devices
from bench.files import free_space
from bench.lanes import Winners, find_winners, warning_lines
from bench.metrics import find_metric
from bench.model import Model
from bench.plugins import load_plugins
from bench.records import COST, parse_statuses
from bench.reference import OWN
from bench.registry import resolve_models, scan
from bench.runner import RunOptions
from bench.settings import DEFAULT_LANE, check_lane, parse_overrides, resolve_settings
from bench.sizes import format_size, parse_duration, parse_size
from bench.splits import draw_split, rule_for
from bench.studies import Study

USUAL_TRIALS = 10


@dataclass(frozen=True, kw_only=True)
class Typed:
    """What `run` and `tune` both take, word for word as it was typed."""

    seed: int = 0
    overrides: tuple[str, ...] = ()
    max_epochs: int | None = None
    jobs: int | None = None  # and threads: None is for what suits the cells
    threads: int | None = None
    device: str = "auto"
    executor: str = LOCAL
    data: Path | None = None
    results: Path = OWN
    memory_limit: str | None = None
    time_limit: str | None = None
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request(Typed):
    """What `run` takes beside. With a study, None leaves models, datasets or trials to it."""

    models: str | None = "all"
    datasets: str | None = "digits"
    trials: int | None = 10
    split: str = "fresh"
    split_ratio: str | None = None
    settings: str = "author"
    reuse_reference: bool = False
    retry: str | None = None
    redo: bool = False
    dry_run: bool = False
    pilots: bool = False  # of a dry run, as the next two
    pilot_limit: str = "10m"
    budget: str | None = None
    study: str | None = None


@dataclass(frozen=True)
class TuneRequest(Typed):
    """What `tune` takes beside."""

    models: str
    datasets: str = "small"
    trials: int | None = None
    hours: float | None = None
    space: str = "wide"
    sampler: str = "tpe"
    objective: str = "accuracy"
    prune: bool | None = None
    name: str | None = None
    storage: str | None = None


AnyRequest = TypeVar("AnyRequest", Request, TuneRequest)


@dataclass
class Plan:
    """What the request means on this machine."""

    models: list[type[Model]] = field(default_factory=list)
    datasets: list[Dataset] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    stored: dict[str, Stored] = field(default_factory=dict)  # by dataset name
    missing: list[str] = field(default_factory=list)  # one line per dataset that is not here
    bad: list[str] = field(default_factory=list)  # one line per dataset or plug-in that cannot be used
    paths: tuple[str, ...] = ()  # where workers find the models of plug-ins
    purpose: str | None = None  # of the records, where that is not accuracy
    winners: Winners = field(default_factory=dict)  # where tuned settings come from


def make_options(request: Request | TuneRequest) -> RunOptions:
    """How cells are run."""
    options = RunOptions(
        memory_limit=None if request.memory_limit is None else parse_size(request.memory_limit),
        time_limit=None if request.time_limit is None else parse_duration(request.time_limit),
        threads=request.threads or max(1, usable_processors() // (request.jobs or 1)),
        device=resolve_devices(request.device)[0],
        executor=request.executor,
        cache_folder=cache_root() / "prepared",
    )
    if isinstance(request, TuneRequest):
        return replace(options, progress_interval=0.0)  # pruning must not depend on the clock
    retry = frozenset() if request.retry is None else parse_statuses(request.retry)
    return replace(options, retry=retry, redo=request.redo, private_arrays=request.redo)


def make_plan(request: Request, console: Console, errors: Console, study: Study | None = None) -> Plan:
    """The cells that were asked for, with their datasets opened; what is in the way is said and noted."""
    check_results(request.results)
    plan = Plan()
    request = use_plugins(request, plan, errors)
    if study is not None and study.purpose == COST and (request.jobs or 1) > 1:
        raise UserError(f"the study {study.name} runs one cell at a time; leave out --jobs")
    conditions = _conditions(request, study)
    warn(errors, *scan().broken.values())  # known now that the models have been imported
    plan.models = list({model.name: model for model, _, _ in conditions}.values())
    plan.datasets = list({dataset.name: dataset for _, dataset, _ in conditions}.values())
    trials = request.trials or (study.trials if study else None) or USUAL_TRIALS
    protocol = Protocol(trials, request.seed, request.split)
    check_lane(request.settings, plan.models)
    overrides, notes = parse_overrides(request.overrides, plan.models)
    _check_overrides(request, study)
    plan.winners = find_winners(request.results, request.settings, conditions)
    resolved = [
        (
            model,
            dataset,
            resolve_settings(
                model,
                dataset.settings_name,
                request.settings,
                {**overrides[model.name], **settings},
                request.max_epochs,
                winner.settings if (winner := plan.winners.get((model.name, dataset.name))) else None,
            ),
        )
        for model, dataset, settings in conditions
    ]
    for dataset in plan.datasets:
        add_dataset(plan, dataset, request.data, partial(rule_for, mode=request.split), console, errors)
    for model, dataset, settings in resolved:
        if dataset.name in plan.stored:
            fingerprint = plan.stored[dataset.name].graph.fingerprint
            plan.cells += make_cells(
                model, spelled_out(dataset, plan.stored[dataset.name]), fingerprint, settings, protocol
            )
    plan.purpose = study.purpose if study else None
    plan.cells = in_turn(plan.cells)
    for line in [*notes, *fallback_lines(plan.cells, request.settings)]:
        say(console, line)
    warn(errors, *warning_lines(plan.winners, plan.cells, plan.stored, plan.models))
    return plan


def _conditions(request: Request, study: Study | None) -> list[tuple[type[Model], Dataset, Mapping[str, Any]]]:
    """Return model, dataset and the study's settings of each condition: cells that differ in nothing but the trial."""
    if study is not None:
        found = study.combinations(request.datasets or study.everywhere, request.models, request.split_ratio)
        return [(model, dataset, variant.settings) for model, dataset, variant in found]
    models = resolve_models("all" if request.models is None else request.models)
    return [
        (model, dataset, {}) for dataset in resolve(request.datasets or "", request.split_ratio) for model in models
    ]


def _check_overrides(request: Request, study: Study | None) -> None:
    """What a study varies or fixes is not the user's to set."""
    own = {key for variant in study.variants for key in variant.settings} if study else set()
    for item in request.overrides:
        key = item.partition("=")[0].strip()
        if key == "metric":
            raise UserError("--set metric: the dataset names its metric; a plug-in's dataset sets `metric`")
        if study and key in own:
            raise UserError(f"--set {key}: the study {study.name} sets it itself; run it without the study instead")


def use_plugins(request: AnyRequest, plan: Plan, errors: Console) -> AnyRequest:
    """Load the plug-ins; return the request without the names that may be a broken one's, and say which."""
    plugins = load_plugins(request.plugins)
    plan.paths = plugins.paths
    plan.bad += plugins.broken
    warn(errors, *plugins.broken)

    def known(names: str | None, find: Callable[[str], object]) -> str | None:
        if names is None:  # the study's own, which no plug-in has a part in
            return None
        kept, left_out = plugins.known(names, find)
        plan.bad += left_out
        for line in left_out:
            say(errors, line)
        return kept

    names: dict[str, Any] = {
        "models": known(request.models, resolve_models),
        "datasets": known(request.datasets, resolve),
    }
    return replace(request, **names)


def in_turn(cells: Sequence[Cell]) -> list[Cell]:
    """Dataset by dataset, and there every model once before any a second time.

    So a slow hour hits all of them alike, a run that is stopped leaves them with the same number of trials, and of two
    cells at the same time neither computes what the other will keep.
    """
    order = list(dict.fromkeys(cell.dataset for cell in cells))
    return sorted(cells, key=lambda cell: (order.index(cell.dataset), cell.labels["trial"]))


def add_dataset(
    plan: Plan,
    dataset: Dataset,
    data: Path | None,
    rule_of: Callable[[str], str],
    console: Console,
    errors: Console,
    advice: str = "name a larger graph or another --split-ratio",
) -> None:
    """Open a dataset that `rule_of` its split rule can divide, or note in one line why it stays out."""
    try:
        stored = open_here(dataset, data, console, errors)
        check_split(dataset, stored, rule_of(spelled_out(dataset, stored).split_rule), advice)
        plan.stored[dataset.name] = stored
    except MissingData as error:
        plan.missing.append(f"missing: {error}")
        say(errors, plan.missing[-1])
    except BadData as error:
        plan.bad.append(f"bad data: {error}")
        say(errors, plan.bad[-1])


def open_here(dataset: Dataset, data: Path | None, console: Console, errors: Console) -> Stored:
    """The dataset, with a word on what its passport warns of; MissingData or BadData says why it stays out."""
    check_room(dataset, data)
    try:
        with waiting_for(console, f"opening {dataset.title}"):
            stored = open_dataset(dataset, data, cache_root())
    except MemoryError:
        raise BadData(f"{dataset.title} takes more memory than there is") from None
    warning = passport(dataset, stored).warning
    if warning:
        warn(errors, warning)
    return stored


def check_split(dataset: Dataset, stored: Stored, rule: str, advice: str) -> None:
    """Refuse a graph that this rule cannot divide, with which seed makes no difference, or its metric cannot judge."""
    graph = stored.graph
    try:
        find_metric(dataset.metric, graph.num_classes)
    except UserError as error:
        raise BadData(f"{dataset.title}: {error}") from None
    try:
        draw_split(rule, graph.labels, graph.num_classes, seed=0, masks=graph.masks)
    except UserError as error:
        advice = "" if "--split-ratio" in str(error) else f"; {advice}"  # some errors bring their own
        raise BadData(f"{dataset.title}: {error}{advice}") from None


def check_results(results: Path) -> None:
    """Refuse a results folder that is, or lies below, a file; whether it can be written is found out before a run."""
    there = next((path for path in (results, *results.parents) if path.exists()), None)
    if there is not None and not there.is_dir():
        raise UserError(
            f"the results folder '{results}' cannot be written ({there} is a file); choose another with --results"
        )


def check_room(dataset: Dataset, data: Path | None) -> None:
    """Say before hours are spent that the graph will not fit into the cache folder."""
    cache, size = cache_root(), expected_size(dataset)
    if size is None:
        return
    free = free_space(cache)
    if size > free and find_stored(dataset, find_root(dataset, data, cache), cache) is None:
        raise BadData(
            f"{dataset.title} takes about {format_size(size)} in the cache folder, where {format_size(free)} are free; "
            "make room or set BENCH_CACHE to another folder"
        )


def fallback_lines(cells: Sequence[Cell], lane: str) -> list[str]:
    """Say once which models have nothing in the lane asked for; models that lack the same datasets share a line."""
    datasets_of: dict[str, dict[str, None]] = defaultdict(dict)  # dicts as ordered sets
    for cell in cells:
        if lane != DEFAULT_LANE and cell.labels["settings"] == DEFAULT_LANE:
            datasets_of[cell.model][cell.dataset] = None
    models_without: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for model, datasets in datasets_of.items():
        models_without[tuple(datasets)].append(model)
    return [
        f"{', '.join(datasets)} {'has' if len(datasets) == 1 else 'have'} no {lane} settings: {', '.join(models)} "
        f"{'uses its' if len(models) == 1 else 'use their'} defaults (marked 'default')"
        for datasets, models in models_without.items()
    ]


# -- how it ends ----------------------------------------------------------------------------------------------------


def exit_code(plan: Plan, failed: bool) -> int:
    """What `python -m bench` ends with; `failed` is what came of that which could be run."""
    if plan.bad:
        return EXIT_USER_ERROR
    if plan.missing:
        return EXIT_MISSING_DATA
    return EXIT_FAILED_CELLS if failed else EXIT_OK
