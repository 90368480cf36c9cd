"""Gives all pictures one style: colours, lines, scales, legends, and the SVG itself."""

import contextlib
import contextvars
import dataclasses
import io
import logging
import math
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

# absl shows what libraries only note: every glyph of a PDF, and that a cache was made.
for _library in ("fontTools", "matplotlib"):
    logging.getLogger(_library).setLevel(logging.WARNING)

# Okabe and Ito's colours, told apart with any colour vision; their yellow is left out, as
# too faint on white.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")

DASHES = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))
"""Patterns (ink, gap, ...) in line widths, () solid; colours repeat with the next one."""

LINES = len(COLOURS) * len(DASHES)
"""How many rows have a line style of their own."""

LONGEST_LABEL = 48

COLUMNS = 2
"""Panels beside each other."""

_STYLE = {
    # Text stays text, so that a page's style sheet can set the font.
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#808080",
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "axes.linewidth": 0.8,
    "legend.frameon": False,
    # Labels are users' texts, in which a $ begins no formula.
    "text.parse_math": False,
}


_PRINTED = {"font.size": 7.5, "axes.titlesize": 7.5, "lines.markersize": 4}

_NARROWEST_PANEL = 2.4
"""Inches of a panel in print; narrower ones stand below each other."""

_width: contextvars.ContextVar[float | None] = contextvars.ContextVar(
    "width", default=None
)


@contextlib.contextmanager
def printed(width: float | None) -> Iterator[None]:
    """Draws figures `width` inches wide, as for a column of print; None for the page's."""
    token = _width.set(width)
    try:
        yield
    finally:
        _width.reset(token)


def printed_width() -> float | None:
    """Returns the inches that `printed` figures are wide; None for those of the page."""
    return _width.get()


def columns_for(count: int, usual: int = COLUMNS) -> int:
    """Returns how many of `count` panels stand beside each other; `usual` of them on a page."""
    width = _width.get()
    return min(count, max(1, int(width / _NARROWEST_PANEL)) if width else usual)


def new_figure(width: float, height: float) -> Figure:
    """Returns a figure of these inches, or as wide as print asks, and as high for that."""
    if of_print := _width.get():
        # Text is smaller there, but not by as much.
        height *= max(of_print / width, 0.62)
        width = of_print
    return Figure(figsize=(width, height), layout="constrained")


@contextlib.contextmanager
def styled(**changes: Any) -> Iterator[None]:
    """Draws in our style, with `changes` such as axes__grid=False on top of it."""
    options = {key.replace("__", "."): value for key, value in changes.items()}
    own = _PRINTED if _width.get() else {}
    with matplotlib.rc_context(_STYLE | own | options):
        yield


def line_style(row: int) -> tuple[str, tuple[float, ...]]:
    """Returns (colour, dashes) of a table row's lines."""
    return COLOURS[row % len(COLOURS)], DASHES[row // len(COLOURS) % len(DASHES)]


def styled_line(xs: Sequence, ys: Sequence, row: int, **options: Any) -> Line2D:
    """Returns a line through points in a table row's style."""
    colour, dashes = line_style(row)
    pattern = (0, dashes) if dashes else "-"
    return Line2D(xs, ys, color=colour, linestyle=pattern, **options)


def add_legend(figure: Figure, labels: Sequence[str]) -> None:
    """Adds the labels of a table's rows, with their lines, to the right of the axes."""
    handles = [styled_line([], [], row, linewidth=1.8) for row in range(len(labels))]
    shown = [textwrap.fill(label, LONGEST_LABEL) for label in labels]
    if width := _width.get():
        columns = max(1, int(width / (0.6 + 0.06 * max(map(len, shown)))))
        below = dict(loc="outside lower left", ncols=min(columns, len(labels)))
        figure.legend(handles, shown, handlelength=2.0, **below)
    else:
        figure.legend(handles, shown, loc="outside right upper", handlelength=2.4)


def legend_height(rows: float) -> float:
    """Returns the inches that the legend of this number of rows needs, at least those of axes."""
    return max(3.9, 0.9 + 0.21 * rows)


def panel_lines(count: int, columns: int = COLUMNS) -> int:
    """Returns the number of lines that `count` panels take, so many in each."""
    return -(-count // columns)


def add_panels(figure: Figure, count: int, columns: int = COLUMNS) -> list[Axes]:
    """Adds `count` panels, so many in each line."""
    lines = panel_lines(count, columns)
    grid = figure.subplots(lines, min(count, columns), squeeze=False).flatten()
    # The last line may have room for more.
    for axes in grid[count:]:
        axes.set_visible(False)
    return list(grid[:count])


def use_log_scale(axes: Axes, name: str) -> None:
    """Sets a log scale for the axis "x" or "y" if its values span a factor of 2 or more.

    Ticks are plain numbers in any case.
    """
    axis = getattr(axes, f"{name}axis")
    low, high = getattr(axes.dataLim, f"interval{name}")
    # On so short a range a log scale has too few round numbers for ticks.
    if high < 2 * low:
        axis.set_major_locator(MaxNLocator(6))
    else:
        getattr(axes, f"set_{name}scale")("log")
        ticks = (1, 2, 5) if high / low > 5 else (1, 1.2, 1.5, 2, 3, 5, 7)
        axis.set_major_locator(LogLocator(subs=ticks))
        axis.set_minor_formatter(NullFormatter())
    # Comes last, because setting the scale sets a formatter of its own.
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))


def add_colour_bar(figure: Figure, image, **options: Any) -> None:
    """Adds the scale of a heat map, as one image instead of a path for each colour."""
    bar = figure.colorbar(image, **options)
    bar.outline.set_visible(False)
    bar.solids.set_rasterized(True)


def short_label(label: str) -> str:
    """Cuts a label at LONGEST_LABEL characters."""
    return label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"


class Spot(NamedTuple):
    """Holds the text that a page shows where the reader points at a figure."""

    axes: Axes
    x: float
    y: float
    text: str


@dataclasses.dataclass(frozen=True)
class Picture:
    """Holds a drawn figure: as SVG for the page, and ready to be written as PDF."""

    name: str
    svg: str
    """The <svg> element alone."""
    spots: tuple[tuple[float, float, str], ...]
    """(x, y, text) in the SVG's units."""
    figure: Figure = dataclasses.field(repr=False, compare=False)

    def labelled_by(self, name: str) -> str:
        """Returns the SVG as an image that the element `name` describes."""
        return self.svg.replace(
            "<svg ", f'<svg role="img" aria-labelledby="{name}" ', 1
        )

    def pdf(self) -> bytes:
        """Returns the figure as a PDF file, with text that can be searched and edited."""
        # The date would make other bytes of the same figure.
        undated = dict.fromkeys(("CreationDate", "Creator", "Producer"))
        return _saved(self.figure, self.name, "pdf", undated)


def finished(figure: Figure, name: str, spots: Sequence[Spot] = ()) -> Picture:
    """Returns the drawn `figure`.

    `name` keeps the ids of one figure apart from those of others on the page.
    """
    undated = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    text = _saved(figure, name, "svg", undated).decode()
    # A page takes the element, but no XML declaration and no doctype.
    svg = text[text.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    # Names of groups, to which nothing refers, are the same in all figures of a page.
    svg = re.sub(r'<g id="[\w.]+_\d+"', "<g", svg)
    # Places are known now only: drawing has laid the axes out.
    points_per_pixel = 72 / figure.dpi
    height = 72 * float(figure.get_figheight())
    placed = []
    for axes, x, y, text in spots:
        across, up = points_per_pixel * axes.transData.transform((x, y))
        if math.isfinite(across) and math.isfinite(up):
            placed.append((round(float(across), 1), round(height - float(up), 1), text))
    return Picture(name, svg, tuple(placed), figure)


def thinned(count: int, most: int = 40) -> list[int]:
    """Returns the places of at most about `most` of `count` points, both ends among them."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, most))})


def _saved(figure, name, kind, metadata):
    buffer = io.BytesIO()
    # Without a salt, matplotlib makes ids at random. Type 42 keeps text as text in a PDF.
    options = {"svg.hashsalt": name, "pdf.fonttype": 42}
    with styled(), matplotlib.rc_context(options), warnings.catch_warnings():
        # Text stays text: the browser has the glyphs that the font for measuring lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(buffer, format=kind, transparent=True, metadata=metadata)
    return buffer.getvalue()
