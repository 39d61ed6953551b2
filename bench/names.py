"""The first second: mistyped names are refused, and what takes long is named, before anything slow is imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from bench.datasets.catalogue import resolve
from bench.registry import select_cards
from bench.settings import check_keys, check_lane


def check_names(models: str | None, datasets: str | None, lane: str, overrides: Sequence[str] = ()) -> None:
    """Refuse models, datasets, a lane of settings or keys of `--set` that do not exist, then say what is being loaded.

    Plug-ins must have been loaded. None stands for what a study chooses.
    """
    cards = select_cards("all" if models is None else models)
    if datasets is not None:
        resolve(datasets)
    check_lane(lane, cards)
    check_keys(overrides, {card.name: card.keys for card in cards})
    if "torch" not in sys.modules:
        which = ", ".join(card.name for card in cards) if len(cards) < 4 else f"{len(cards)} models"
        typer.echo(f"loading torch and {which} ...", err=True)
