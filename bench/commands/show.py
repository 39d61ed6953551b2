"""`list` and `data`: what can be named, and what is known about the datasets here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from bench.console import say, show_table, waiting_for
from bench.errors import UserError
from bench.text import nearest

if TYPE_CHECKING:
    from bench.model import Model

KINDS = ("models", "datasets", "both")


def list_names(what: str) -> None:
    """Names, aliases and groups."""
    if what not in KINDS:
        raise UserError(f"list can show {', '.join(KINDS)}, not '{what}'.{nearest(what, KINDS)}")
    console = Console()
    if what != "datasets":
        _list_models(console)
    if what == "both":
        say(console, "")
    if what != "models":
        _list_datasets(console)


def _list_models(console: Console) -> None:
    from bench.registry import scan

    registry = scan()
    rows = [
        (model.name, ", ".join(model.aliases), model.group, _lanes(model), model.paper)
        for model in registry.models.values()
    ]
    show_table(console, ["model", "aliases", "group", "settings", "paper"], rows)
    say(console, "Settings: lane (datasets it has settings for); all other cells use the model's defaults.")
    say(console, f"Groups of models: {', '.join(registry.groups)}.")
    for reason in registry.broken.values():
        say(Console(stderr=True), f"warning: {reason}")


def _lanes(model: type[Model]) -> str:
    """Which datasets have settings of their own, lane by lane."""
    return "; ".join(f"{lane} ({', '.join(datasets)})" for lane, datasets in model.settings.items() if datasets) or "-"


def _list_datasets(console: Console) -> None:
    from bench.data.catalogue import GROUPS, datasets

    rows = [
        (item.name, item.title, ", ".join(item.aliases), ", ".join(item.groups), item.split_rule)
        for item in datasets().values()
    ]
    show_table(console, ["dataset", "title", "aliases", "groups", "split rule"], rows)
    say(console, f"Groups of datasets: {', '.join(GROUPS)}. A graph of your own is named by the path of its .npz file.")


def show_passports(names: str, data: Path | None) -> None:
    """The passport of each dataset, and a last line that sums up."""
    from bench.data.catalogue import resolve
    from bench.data.passports import describe
    from bench.data.store import cache_root

    console = Console()
    by_status: dict[str, list[str]] = {}
    for dataset in resolve(names):
        with waiting_for(console, f"opening {dataset.title}"):
            found = describe(dataset, data, cache_root())
        say(console, f"{found}\n")
        by_status.setdefault(found.status, []).append(found.name)
    say(console, "; ".join(f"{status}: {', '.join(names)}" for status, names in by_status.items()))
