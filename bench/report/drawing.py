"""How a figure looks and becomes a file: the same bytes for the same data, readable in grey and by the colour-blind."""

from __future__ import annotations

import io
import itertools
import platform
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import matplotlib as mpl
import seaborn as sns
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# No dates, no random ids, no version of the drawing program; text as paths, so that every viewer shows the same.
STYLE: Any = {
    "svg.hashsalt": "nagphormer-bench",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titleweight": "bold",
    "axes.titlesize": 9.5,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.dpi": 100,
}
FORMS = ("png", "svg")
MARKERS = "osD^vP*X<>pdhH"  # told apart in grey, where colours are not
COLOURS = 8  # of the palette: its grey and its yellow are hard to see as thin lines
PANEL = 3.4  # inches across
_STEPS = ((4, (1, 1.5, 2, 2.5, 3, 4, 5, 7)), (12, (1, 2, 3, 5)), (300, (1, 3)), (float("inf"), (1,)))  # of log axes


@dataclass(frozen=True)
class Drawing:
    """A figure with what stands below it."""

    name: str  # of its files
    title: str
    files: dict[str, bytes]  # form -> content


def drawn_by() -> dict[str, str]:
    """What the bytes of a picture depend on besides the data."""
    libraries = {name: version(name) for name in ("matplotlib", "numpy", "pillow")}
    return {**libraries, "zlib": zlib.ZLIB_RUNTIME_VERSION, "machine": platform.machine()}


def as_files(figure: Figure) -> dict[str, bytes]:
    """Every form of a figure; the layout is worked out once for all of them."""
    with mpl.rc_context(STYLE):
        engine = figure.get_layout_engine()
        if engine is not None:
            engine.execute(figure)
            figure.set_layout_engine(None)  # or every form would be laid out again
        return {form: _as_bytes(figure, form) for form in FORMS}


def _as_bytes(figure: Figure, form: str) -> bytes:
    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
    figure.savefig(buffer, format=form, dpi=150, metadata=metadata)
    return buffer.getvalue()


def panels(count: int, height: float = 2.6, across: int = 3, width: float = PANEL) -> tuple[Figure, list[Axes]]:
    """A figure with this many panels, `across` in a row; sizes are inches of a panel."""
    across = min(across, count)
    down = -(-count // across)
    figure = Figure(figsize=(max(width * across, 1.5 * PANEL), height * down), layout="constrained")
    return figure, [figure.add_subplot(down, across, at + 1) for at in range(count)]


def looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A colour and a marker for each name."""
    palette = [colour for at, colour in enumerate(sns.color_palette("colorblind", 10)) if at not in (7, 8)]
    colours = itertools.cycle(palette[:COLOURS])
    return {
        name: {"color": colour, "marker": MARKERS[at % len(MARKERS)]}
        for at, (name, colour) in enumerate(zip(names, colours, strict=False))
    }


def legend_below(figure: Figure, axes: Sequence[Axes], across: int = 5) -> None:
    """One legend for all panels, below them."""
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    columns = min(across, len(handles))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=8)


def logarithmic(axis: Axes, values: Sequence[float]) -> None:
    """A logarithmic x axis with plain numbers on it, at least a factor of two wide."""
    axis.set_xscale("log")
    low, high = min(values), max(values)
    margin = max(1.15, (2 * low / high) ** 0.5)
    axis.set_xlim(low / margin, high * margin)
    steps = next(steps for below, steps in _STEPS if high / low * margin**2 < below)
    axis.xaxis.set_major_locator(ticker.LogLocator(subs=steps, numticks=20))
    axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.xaxis.set_minor_locator(ticker.NullLocator())
