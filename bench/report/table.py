"""A table before it has a form, and its forms: Markdown, LaTeX, CSV. The page has its own."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, replace

from tabulate import tabulate

_LATEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"}
_LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
_LATEX |= {"±": r"$\pm$", "−": "$-$", "≥": r"$\geq$", "≤": r"$\leq$", "→": r"$\rightarrow$", "·": r"$\cdot$"}
_LATEX |= {"×": r"$\times$", "τ": r"$\tau$", "α": r"$\alpha$", "γ": r"$\gamma$", "<": "$<$", ">": "$>$", "|": "$|$"}
_LATEX |= {"†": r"\dag{}", "…": r"\dots{}", "–": r"{\textendash}", "`": "'"}
_LONG = 48  # letters: a longer text is broken into lines


@dataclass(frozen=True)
class Entry:
    """One place of a table: what it says, and the records it rests on."""

    text: str = ""
    keys: tuple[str, ...] = ()  # bench.records.address of each
    bold: bool = False
    note: str = ""  # more, for a page that can show it: the command that would fill it, an interval
    value: float | None = None  # what it is sorted by
    mark_keys: tuple[str, ...] = ()  # the records on which it rests whether it is bold, or has a mark


@dataclass(frozen=True)
class Table:
    """Rows of entries under a header; the first column names the row."""

    name: str  # of its files
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    caption: tuple[str, ...] = ()  # sentences that a reader must know


def entry(text: str) -> Entry:
    """An entry that rests on no record, such as a name."""
    return Entry(text)


def without_empty(table: Table) -> Table:
    """The same table without columns that say nothing in any row."""
    kept = [at for at in range(len(table.header)) if not table.rows or any(row[at].text for row in table.rows)]
    rows = tuple(tuple(row[at] for at in kept) for row in table.rows)
    return replace(table, header=tuple(table.header[at] for at in kept), rows=rows)


def without_constants(table: Table, keep: int = 1) -> Table:
    """The same table with the columns that say the same in every row as a line below; the first ones are names."""
    if len(table.rows) < 2:
        return table
    said = [{row[at].text for row in table.rows} for at in range(len(table.header))]
    moved = [at for at, texts in enumerate(said) if at >= keep and len(texts) == 1 and texts != {""}]
    if not moved:
        return table
    line = "; ".join(f"{table.header[at]} {table.rows[0][at].text}" for at in moved)
    kept = [at for at in range(len(table.header)) if at not in moved]
    return replace(
        table,
        header=tuple(table.header[at] for at in kept),
        rows=tuple(tuple(row[at] for at in kept) for row in table.rows),
        caption=(f"In every row: {line}.", *table.caption),
    )


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
    """Plain text; what stands between two backticks is a command and stays one."""
    parts = re.split(r"(`[^`]*`)", text)  # commands are the odd ones
    escaped = [
        part.replace("|", r"\|") if at % 2 else re.sub(r"([\\|*_<>`])", r"\\\1", part) for at, part in enumerate(parts)
    ]
    return " ".join("".join(escaped).split())


def to_latex(table: Table) -> str:
    """A document of its own with one booktabs table, the title above it and the caption below, as wide as the table."""
    lines = [
        r"\documentclass[border=6pt]{standalone}",
        r"\usepackage[T1]{fontenc}",
        r"\usepackage{array,booktabs}",
        r"\newsavebox{\body}",
        r"\begin{document}",
        rf"\begin{{lrbox}}{{\body}}\begin{{tabular}}{{{''.join(_latex_columns(table))}}}",
        r"\toprule",
        " & ".join(escape_latex(text) for text in table.header) + r" \\",
        r"\midrule",
        *(" & ".join(map(_latex, row)) + r" \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}\end{lrbox}",
        r"\begin{minipage}{\wd\body}",
        rf"\textbf{{{escape_latex(table.title)}}}\par\medskip",
        r"\usebox{\body}\par\medskip",
        r"\footnotesize\raggedright",
        *(rf"{escape_latex(line)}\par" for line in table.caption),
        r"\end{minipage}",
        r"\end{document}",
    ]
    return "\n".join(lines) + "\n"


def _latex_columns(table: Table) -> list[str]:
    """Names to the left, numbers centred; a column of sentences is broken into lines."""
    longest = [max((len(row[at].text) for row in table.rows), default=0) for at in range(len(table.header))]
    return [
        r">{\raggedright\arraybackslash}p{6cm}" if length > _LONG else "l" if at == 0 else "c"
        for at, length in enumerate(longest)
    ]


def _latex(item: Entry) -> str:
    text = escape_latex(item.text)
    if text.startswith(("[", "*")):
        text = "{}" + text  # the end of the row above would take these for its own options
    return rf"\textbf{{{text}}}" if item.bold and text else text


def escape_latex(text: str) -> str:
    """Text as LaTeX prints it; what it cannot print becomes a question mark."""
    written = (_LATEX.get(character, character) for character in " ".join(text.split()))
    return "".join(part if part.isascii() else "?" for part in written).replace("--", "-{}-")


def to_csv(table: Table) -> str:
    """One line per row; what rests on records is followed by their keys."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*table.header, "records"])
    for row in table.rows:
        keys = dict.fromkeys(key for item in row for key in item.keys)
        writer.writerow([*(item.text for item in row), " ".join(keys)])
    return buffer.getvalue()
