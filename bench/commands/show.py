"""`list` and `data`: what can be named, and what is known about a model and about the datasets here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from bench.commands.paper import studies
from bench.console import say, show_table, waiting_for, warn
from bench.errors import EXIT_OK, EXIT_USER_ERROR, UserError
from bench.text import nearest

if TYPE_CHECKING:
    from bench.cards import Card
    from bench.datasets.catalogue import Dataset
    from bench.studies import Study

KINDS = ("models", "datasets", "both", "studies", "all")


def list_names(what: str, plugins: Sequence[str] = ()) -> int:
    """Names, aliases and groups, those of plug-ins included, or what one of them stands for; returns the exit code."""
    from bench.datasets.catalogue import datasets
    from bench.registry import scan

    console, broken = Console(), _broken(plugins)
    if what in ("models", "both", "all"):
        _list_models(console, scan().cards.values())
    if what in ("both", "all"):
        say(console, "")
    if what in ("datasets", "both", "all"):
        _list_datasets(console, datasets().values())
    if what == "all":
        say(console, "")
    if what in ("studies", "all"):
        _list_studies(console, list(studies().values()))
    if what not in KINDS:
        _list_one(console, what)
    warn(Console(stderr=True), *broken)
    return EXIT_USER_ERROR if broken else EXIT_OK


def _list_one(console: Console, word: str) -> None:
    """A model with its settings, or the rows of a group, a dataset or a study."""
    from bench.datasets.catalogue import GROUPS, datasets
    from bench.registry import scan, simplify

    registry, lower = scan(), word.lower()
    graphs = [item for item in datasets().values() if lower in (item.name, *item.aliases, *item.groups)]
    if simplify(word) in registry.names:
        from bench.commands.model_card import show_model

        show_model(console, registry.find(word))
    elif simplify(word) in registry.groups:
        _list_models(console, registry.groups[simplify(word)])
    elif graphs:
        _list_datasets(console, graphs)
        say(console, f"`data {lower}` shows what is known about it.")
    elif lower in studies():
        _list_studies(console, [studies()[lower]])
    else:
        aliases = [*registry.names, *(alias for item in datasets().values() for alias in item.aliases)]
        known = [*KINDS, *registry.cards, *datasets(), *aliases, *registry.groups, *GROUPS, *studies()]
        raise UserError(
            f"list can show {', '.join(KINDS)}, a model, a dataset or a study, not '{word}'.{nearest(word, known)}"
        )


def _broken(plugins: Sequence[str]) -> list[str]:
    """A line for each plug-in that cannot be used; the others are known from now on."""
    if not plugins:
        return []  # and torch is not imported
    from bench.plugins import load_plugins

    return load_plugins(plugins).broken


def _list_models(console: Console, models: Iterable[Card]) -> None:
    from bench.registry import scan

    registry = scan()
    rows = [(model.name, ", ".join(model.aliases), model.group, _lanes(model), model.paper) for model in models]
    show_table(console, ["model", "aliases", "group", "settings", "paper"], rows)
    say(console, "Settings: lane (datasets it has settings for); all other cells use the model's defaults.")
    say(console, f"Groups of models: {', '.join(registry.groups)}. `list MODEL` shows a model's settings.")
    warn(Console(stderr=True), *registry.broken.values())


def _lanes(model: Card) -> str:
    """Which datasets have settings, lane by lane."""
    return "; ".join(f"{lane} ({', '.join(datasets)})" for lane, datasets in model.settings.items() if datasets) or "-"


def _list_datasets(console: Console, datasets: Iterable[Dataset]) -> None:
    from bench.datasets.catalogue import GROUPS

    rows = [
        (item.name, item.title, ", ".join(item.aliases), ", ".join(item.groups), item.split_rule) for item in datasets
    ]
    show_table(console, ["dataset", "title", "aliases", "groups", "split rule"], rows)
    say(console, f"Groups of datasets: {', '.join(GROUPS)}. A graph of your own is named by the path of its .npz file.")


def _list_studies(console: Console, studies: Sequence[Study]) -> None:
    rows = [
        (
            study.name,
            study.shows,
            study.about,
            ", ".join(dict.fromkeys(variant.models for variant in study.variants)),
            study.datasets + (f"; here also {study.extra}" if study.extra else ""),
            str(study.columns),
        )
        for study in studies
    ]
    show_table(console, ["study", "in the paper", "what it asks", "models", "datasets", "columns"], rows)
    say(console, "A column is one model with one setting on one dataset, to be run as often as there are trials.")
    say(console, "`run --study NAME` runs one (with `--dry-run` it says what that will take), `report` draws it.")


def show_passports(names: str, data: Path | None) -> None:
    """The passport of each dataset, and a last line that sums up."""
    from bench.datasets.catalogue import resolve
    from bench.datasets.passports import describe
    from bench.datasets.store import cache_root

    console = Console()
    by_status: dict[str, list[str]] = {}
    for dataset in resolve(names):
        with waiting_for(console, f"opening {dataset.title}"):
            found = describe(dataset, data, cache_root())
        say(console, f"{found}\n")
        by_status.setdefault(found.status, []).append(found.name)
    say(console, "; ".join(f"{status}: {', '.join(names)}" for status, names in by_status.items()))
