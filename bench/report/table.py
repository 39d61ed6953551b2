"""A table before it has a form, and its forms: Markdown, LaTeX, CSV. The page has its own."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace

from tabulate import tabulate

_LATEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"}
_LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
_LATEX |= {"±": r"$\pm$", "−": "$-$", "≥": r"$\geq$", "≤": r"$\leq$", "→": r"$\rightarrow$", "–": "--", "·": r"$\cdot$"}
_LATEX |= {"×": r"$\times$", "τ": r"$\tau$", "α": r"$\alpha$", "γ": r"$\gamma$", "<": "$<$", ">": "$>$", "|": "$|$"}


@dataclass(frozen=True)
class Entry:
    """One place of a table: what it says, and the records it rests on."""

    text: str = ""
    keys: tuple[str, ...] = ()
    bold: bool = False
    note: str = ""  # more, for a page that can show it: the command that would fill it, an interval
    value: float | None = None  # what it is sorted by


@dataclass(frozen=True)
class Table:
    """Rows of entries under a header; the first column names the row."""

    name: str  # of its files
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    caption: tuple[str, ...] = ()  # sentences that a reader must know

    def named(self, name: str) -> Table:
        return replace(self, name=name)


def entry(text: str) -> Entry:
    """An entry that rests on no record, such as a name."""
    return Entry(text)


def to_markdown(table: Table) -> str:
    """A heading, the table, and the caption below it."""
    rows = [[_markdown(item) for item in row] for row in table.rows]
    header = [_escape_markdown(text) for text in table.header]
    body = tabulate(rows, headers=header, tablefmt="github", disable_numparse=True)
    caption = "\n".join(f"{_escape_markdown(line)}  " for line in table.caption)
    return f"### {_escape_markdown(table.title)}\n\n{body}\n\n{caption}\n"


def _markdown(item: Entry) -> str:
    text = _escape_markdown(item.text)
    return f"**{text}**" if item.bold and text else text


def _escape_markdown(text: str) -> str:
    for character in "\\|*_<>`":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())


def to_latex(table: Table) -> str:
    """A document of its own with one booktabs table."""
    columns = "l" + "c" * (len(table.header) - 1)
    lines = [
        r"\documentclass{standalone}",
        r"\usepackage[T1]{fontenc}",
        r"\usepackage{booktabs}",
        r"\begin{document}",
        *(f"% {' '.join(line.split())}" for line in (table.title, *table.caption)),
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(escape_latex(text) for text in table.header) + r" \\",
        r"\midrule",
        *(" & ".join(map(_latex, row)) + r" \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{document}",
    ]
    return "\n".join(lines) + "\n"


def _latex(item: Entry) -> str:
    text = escape_latex(item.text)
    return rf"\textbf{{{text}}}" if item.bold and text else text


def escape_latex(text: str) -> str:
    """Text as LaTeX prints it; what it cannot print becomes a question mark."""
    written = (_LATEX.get(character, character) for character in " ".join(text.split()))
    return "".join(part if part.isascii() else "?" for part in written)


def to_csv(table: Table) -> str:
    """One line per row; what rests on records is followed by their keys."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*table.header, "records"])
    for row in table.rows:
        keys = dict.fromkeys(key for item in row for key in item.keys)
        writer.writerow([*(item.text for item in row), " ".join(keys)])
    return buffer.getvalue()
