"""Pictures for the report, as SVG text that stands in an HTML page: equal input gives equal bytes.

Text stays text and ink is pure black, so that a page's style sheet sets the font and can turn both for a dark
page; backgrounds are transparent. Attention maps are too many to draw here: `packed_weights` packs them for the
page's own script.
"""

import base64
import io
import re
import zlib
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from experiments.ledger import Trial

# Okabe and Ito's colours, told apart with any colour vision; their yellow is left out, too faint on white.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))
"""Where the colours run out they begin again, with the next pattern: (ink, gap, ...) in line widths, () solid."""

_STYLE = {"svg.fonttype": "none", "font.size": 9, "axes.titlesize": 9, "axes.titleweight": "bold",
          "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False,
          "axes.grid": True, "grid.color": "#808080", "grid.alpha": 0.25, "grid.linewidth": 0.6,
          "axes.linewidth": 0.8, "legend.frameon": False, "text.parse_math": False}


def line_style(row: int) -> tuple[str, tuple[float, ...]]:
    """(colour, dashes) of a table row's lines."""
    return COLOURS[row % len(COLOURS)], DASHES[row // len(COLOURS) % len(DASHES)]


def training_curves(rows: Sequence[tuple[str, Sequence[Trial]]]) -> str | None:
    """SVG: validation perplexity and training loss over steps, a colour for each row, a thin line for each seed.

    `rows` are (label, trials) in the table's order. None where no trial has logged anything.
    """
    if not any(len(trial.curve(*what)[0]) for _, trials in rows for trial in trials for what in _PANELS):
        return None
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(11.8, max(3.9, 0.9 + 0.21 * len(rows))), layout="constrained")
        for axes, (what, title) in zip(figure.subplots(1, 2), _PANELS.items(), strict=True):
            _draw_curves(axes, rows, what)
            axes.set(title=title, xlabel="step")
        handles = [_line([], [], row, linewidth=1.8) for row in range(len(rows))]
        figure.legend(handles, [label for label, _ in rows], loc="outside right upper", handlelength=2.4)
        return _svg(figure, "training curves")


_PANELS = {("validation", "perplexity"): "validation perplexity, per word piece (log scale)",
           ("train", "loss"): "training loss, nats per word piece"}


def _draw_curves(axes, rows, what):
    for row, (_, trials) in enumerate(rows):
        for trial in trials:
            steps, values = trial.curve(*what)
            # Evaluations are few and each is a dot; a curve of one point would otherwise not show at all.
            dot = 2 if what[0] == "validation" or len(steps) == 1 else 0
            axes.add_line(_line(steps, values, row, linewidth=0.9, marker="o", markersize=dot))
    axes.autoscale_view()
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if what[1] == "perplexity":
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low > 5 else (1, 1.2, 1.5, 2, 3, 5, 7)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _line(steps, values, row, **options):
    colour, dashes = line_style(row)
    return Line2D(steps, values, color=colour, linestyle=(0, dashes) if dashes else "-", **options)


def position_table(table: np.ndarray, title: str) -> str:
    """SVG: a position encoding (L, d_model) as a heat map, positions down, dimensions across, white at 0."""
    table = np.nan_to_num(np.asarray(table, np.float32))
    with matplotlib.rc_context(_STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(4.8, 3.6), layout="constrained")
        axes = figure.subplots()
        limit = float(np.abs(table).max(initial=0)) or 1.0
        image = axes.imshow(table, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="none")
        axes.set(title=title, xlabel="dimension", ylabel="position")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))
        bar = figure.colorbar(image, ax=axes, aspect=30, pad=0.02)
        bar.outline.set_visible(False)
        bar.solids.set_rasterized(True)
        return _svg(figure, title)


def packed_weights(weights: np.ndarray) -> str:
    """Attention weights in [0, 1] as bytes round(255 · weight), in row-major order: zlib, then base64."""
    levels = np.rint(np.clip(np.nan_to_num(np.asarray(weights, np.float32)), 0, 1) * 255)
    return base64.b64encode(zlib.compress(levels.astype(np.uint8).tobytes(), 9)).decode("ascii")


def _svg(figure, salt):
    """The <svg> element alone; `salt` keeps the ids of one figure apart from those of others on the page."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": salt}):
        figure.savefig(buffer, format="svg", transparent=True,
                       metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = buffer.getvalue()
    return re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg"):], flags=re.DOTALL)
