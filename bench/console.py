"""Output in the form that suits where it goes: drawn on a terminal, plain whole lines in a file or a pipe."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tabulate import tabulate

PATIENCE = 2.0  # seconds of silence before a line says what is being waited for


def say(console: Console, text: str) -> None:
    """One line as it is: no markup, no colours of rich's own, and never broken where it goes to a file."""
    console.print(escape(text), highlight=False, soft_wrap=True)


def warn(console: Console, *lines: str) -> None:
    """Say what the user should know, one line each."""
    for line in lines:
        say(console, f"warning: {line}")


@contextlib.contextmanager
def waiting_for(console: Console, what: str) -> Iterator[None]:
    """Say what takes so long: at once on a terminal, elsewhere only when it does."""
    if console.is_terminal:
        with console.status(escape(what)):
            yield
        return
    timer = threading.Timer(PATIENCE, say, (console, f"{what} ..."))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def show_table(console: Console, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table of texts: drawn on a terminal, in plain characters elsewhere."""
    if console.is_terminal:
        table = Table(*headers)
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)
    else:
        say(console, tabulate(list(rows), headers=headers, tablefmt="github", disable_numparse=True))
