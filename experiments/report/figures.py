"""Pictures for the report, as SVG text that stands in an HTML page: equal input gives equal bytes.

Text stays text and ink is pure black, so that a page's style sheet sets the font and can turn both for a dark
page; backgrounds are transparent. Attention maps are too many to draw here: `packed_weights` packs them for the
page's own script.
"""

import base64
import io
import re
import warnings
import zlib
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from experiments.report.results import DRAWN, KINDS, Example, Trial
from experiments.report.statistics import Difference, Summary

# Okabe and Ito's colours, told apart with any colour vision; their yellow is left out, too faint on white.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")


DASHES = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))
"""Where the colours run out they begin again, with the next pattern: (ink, gap, ...) in line widths, () solid."""


LINES = len(COLOURS) * len(DASHES)
"""How many rows have a line style of their own."""


_STYLE = {
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
    "text.parse_math": False,
}


_VERDICTS = {"better": "#0072B2", "worse": "#D55E00"}


_LONGEST = 48


def line_style(row: int) -> tuple[str, tuple[float, ...]]:
    """(colour, dashes) of a table row's lines."""
    return COLOURS[row % len(COLOURS)], DASHES[row // len(COLOURS) % len(DASHES)]


def training_curves(rows: Sequence[tuple[str, Sequence[Trial]]]) -> str | None:
    """SVG: validation perplexity and training loss over steps, a colour for each row.

    A line is the mean over the seeds that logged a step, its band goes from their lowest to their highest value.
    `rows` are (label, trials) in the table's order. None where no trial has logged anything.
    """
    if not any(
        len(trial.curve(*what)[0])
        for _, trials in rows
        for trial in trials
        for what in _PANELS
    ):
        return None
    with matplotlib.rc_context(_STYLE):
        figure = Figure(
            figsize=(11.8, max(3.9, 0.9 + 0.21 * len(rows))), layout="constrained"
        )
        for axes, (what, title) in zip(
            figure.subplots(1, 2), _PANELS.items(), strict=True
        ):
            _draw_curves(axes, rows, what)
            axes.set(title=title, xlabel="step")
        _legend(figure, rows)
        return _svg(figure, "training curves")


_PANELS = {
    ("validation", "perplexity"): "validation perplexity, per token (log scale)",
    ("train", "loss"): "training loss, nats per token",
}


def _draw_curves(axes, rows, what):
    for row, (_, trials) in enumerate(rows):
        steps, mean, low, high = over_seeds([trial.curve(*what) for trial in trials])
        # Evaluations are few and each is a dot; a curve of one point would otherwise not show at all.
        dot = 2 if what[0] == "validation" or len(steps) == 1 else 0
        axes.add_line(
            _line(steps, mean, row, linewidth=1.1, marker="o", markersize=dot)
        )
        if np.any(high > low):
            axes.fill_between(
                steps,
                low,
                high,
                color=line_style(row)[0],
                alpha=min(0.15, 1 / len(rows)),
                linewidth=0,
            )
    axes.autoscale_view()
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if what[1] == "perplexity":
        _log_scale(axes, "y")


def over_seeds(curves):
    """(steps, mean, lowest, highest) of curves [(steps, values), …], at each step over those that have it."""
    found = {}
    for steps, values in curves:
        for step, value in zip(steps, values, strict=True):
            found.setdefault(step, []).append(value)
    steps = sorted(found)
    return (
        np.array(steps),
        *(
            np.array([of(found[step]) for step in steps], float)
            for of in (np.mean, min, max)
        ),
    )


def forest(
    rows: Sequence[tuple[str, Difference, str, str]], metric: str, scale: float = 1.0
) -> str | None:
    """SVG: each row's difference to base as a dot with its 95 % interval, filled where the verdict takes a side.

    `rows` are (label, difference, verdict, text at the right) from top to bottom; values are those of `metric` times
    `scale`. A row far outside of the others ends in an arrow at the edge. None without finite differences.
    """
    drawn = [
        (label, scale * np.array([d.low, d.mean, d.high]), verdict, text)
        for label, d, verdict, text in rows
        if np.isfinite([d.low, d.mean, d.high]).all()
    ]
    if not drawn:
        return None
    reach = np.array([max(np.abs(values).max(), 1e-12) for _, values, _, _ in drawn])
    edge = 1.08 * reach[reach <= 8 * np.median(reach)].max()
    with matplotlib.rc_context(_STYLE | {"axes.spines.left": False}):
        figure = Figure(figsize=(9.2, 0.9 + 0.24 * len(drawn)), layout="constrained")
        axes = figure.subplots()
        axes.axvline(0, color="#808080", linewidth=0.8)
        for y, (_, values, verdict, text) in enumerate(drawn):
            _draw_interval(axes, y, values, edge, verdict)
            axes.text(
                1.02,
                y,
                text,
                transform=axes.get_yaxis_transform(),
                va="center",
                fontsize=8,
            )
        axes.set(
            xlabel=f"{metric}, difference to base",
            xlim=(-edge, edge),
            ylim=(len(drawn) - 0.4, -0.6),
            yticks=range(len(drawn)),
            yticklabels=[_short(label) for label, *_ in drawn],
        )
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        return _svg(figure, f"forest {metric}")


def _draw_interval(axes, y, values, edge, verdict):
    low, mean, high = np.clip(values, -edge, edge)
    colour = _VERDICTS.get(verdict, "#000000")
    axes.add_line(Line2D([low, high], [y, y], color=colour, linewidth=1.4))
    for end, marker in ((-edge, "<"), (edge, ">")):
        if values[0] < end == -edge or values[2] > end == edge:
            axes.add_line(
                Line2D(
                    [end], [y], color=colour, marker=marker, markersize=5, clip_on=False
                )
            )
    if abs(values[1]) <= edge:
        axes.add_line(
            Line2D(
                [mean],
                [y],
                color=colour,
                marker="o",
                markersize=5.5,
                markeredgecolor=colour,
                markerfacecolor=colour if verdict in _VERDICTS else "#ffffff",
            )
        )


def size_and_perplexity(
    rows: Sequence[tuple[str, Summary | None, Summary | None]],
) -> str | None:
    """SVG: perplexity over parameters, a point for each row with ± its spread over seeds, and the row's label.

    `rows` are (label, parameters, perplexity). None where fewer than two rows have both.
    """
    points = [
        (row, label, size.mean, perplexity.mean, perplexity.spread or 0.0)
        for row, (label, size, perplexity) in enumerate(rows)
        if size
        and perplexity
        and 0 < perplexity.mean < DRAWN
        and np.isfinite(perplexity.spread or 0.0)
        and 0 < size.mean < DRAWN
    ]
    if len(points) < 2:
        return None
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9.2, 5.2), layout="constrained")
        axes = figure.subplots()
        for row, _, x, y, spread in points:
            colour = line_style(row)[0]
            axes.add_line(
                Line2D(
                    [x, x],
                    [max(y - spread, 1.0), y + spread],
                    color=colour,
                    linewidth=0.9,
                )
            )
            axes.add_line(Line2D([x], [y], color=colour, marker="o", markersize=4))
        axes.set(title="validation perplexity, per token", xlabel="parameters")
        axes.margins(0.12, 0.08)
        axes.autoscale_view()
        for name in "xy":
            _log_scale(axes, name)
        _label_points(figure, axes, points)
        return _svg(figure, "size and perplexity")


def _label_points(figure, axes, points):
    """Writes each label beside its point, where there is room for it: above or below, to the right or the left."""
    figure.draw_without_rendering()  # the layout must stand before room can be measured
    spots = axes.transData.transform([(x, y) for _, _, x, y, _ in points])
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in spots]
    for (_, label, x, y, _), (left, bottom) in zip(points, spots, strict=True):
        label = _short(label)
        width, height = 6.2 * len(label), 11.0  # about what 7.5 points take, in pixels
        places = [
            (side, lift) for lift in (0, 11, -11, 22, -22, 33, -33) for side in (1, -1)
        ]
        boxes = [
            (
                left + (6 if side > 0 else -6 - width),
                bottom + lift - height / 2,
                left + (6 + width if side > 0 else -6),
                bottom + lift + height / 2,
            )
            for side, lift in places
        ]
        free = [not any(_overlap(box, other) for other in taken) for box in boxes]
        best = free.index(True) if True in free else 0
        side, lift = places[best]
        taken.append(boxes[best])
        points_per_pixel = 72 / figure.dpi
        axes.annotate(
            label,
            (x, y),
            (6 * side * points_per_pixel, lift * points_per_pixel),
            fontsize=7.5,
            va="center",
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            annotation_clip=False,
        )


def _overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def by_length(
    rows: Sequence[tuple[str, Sequence[Mapping[str, np.ndarray]]]],
    trained: int | None = None,
) -> str | None:
    """SVG: validation perplexity and exact match on the test set in buckets of source length, a line for each row, the
    mean over seeds.

    `rows` are (label, what `ledger.sentences` gives for each seed). The buckets are the same for all rows: about as
    many sentences in each; or, where there are sentences beyond `trained`, the tokens of the longest in training, parts
    and multiples of that. None where no trial kept its sentences.
    """
    rows = [
        (label, [found for found in seeds if "validation_nll" in found])
        for label, seeds in rows
    ]
    lengths = [found["validation_source"] for _, seeds in rows for found in seeds[:1]]
    if not lengths or not (
        edges := length_buckets(np.concatenate(lengths), trained=trained)
    ):
        return None
    panels = [("validation perplexity, per token", bucket_perplexities)]
    if all("test_exact" in found for _, seeds in rows for found in seeds):
        panels.append(("exact match on the test set, %", bucket_exact))
    with matplotlib.rc_context(_STYLE):
        figure = Figure(
            figsize=(5.4 * len(panels) + 1, max(3.9, 0.9 + 0.21 * len(rows))),
            layout="constrained",
        )
        for axes, (title, value) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            for row, (_, seeds) in enumerate(rows):
                if seeds:
                    values = np.mean([value(found, edges) for found in seeds], axis=0)
                    axes.add_line(
                        _line(
                            range(len(edges)),
                            values,
                            row,
                            linewidth=1.1,
                            marker="o",
                            markersize=3,
                        )
                    )
            axes.autoscale_view()
            if value is bucket_perplexities:
                _log_scale(axes, "y")
            longer = [
                i
                for i, (_, longest) in enumerate(edges)
                if trained and longest > trained
            ]
            if longer:
                axes.axvline(longer[0] - 0.5, color="0.6", linewidth=0.8, linestyle=":")
            axes.set(
                title=title,
                xlabel="tokens of the source, end mark included",
                xticks=range(len(edges)),
                xticklabels=[f"{a}–{b}" if a < b else str(a) for a, b in edges],
            )
        _legend(figure, rows)
        return _svg(figure, "by length")


PARTS = (0.5, 1, 1.5, 2, 3, 4)
"""Ends of buckets, in longest training sentences."""


def length_buckets(
    lengths: np.ndarray, most: int = 6, trained: int | None = None
) -> list[tuple[int, int]]:
    """At most `most` buckets (shortest, longest), both within, about as many of `lengths` in each; or, where some are
    above `trained`, buckets that end at PARTS of that, without those that are empty."""
    if not len(lengths):
        return []
    if trained and lengths.max() > trained:
        ends = np.unique([max(1, int(part * trained)) for part in PARTS])
        ends = np.unique([*ends, max(lengths.max(), ends[-1])])
        edges = zip([1, *(ends[:-1] + 1)], ends, strict=True)
        return [
            (int(a), int(b))
            for a, b in edges
            if ((lengths >= a) & (lengths <= b)).any()
        ]
    ends = np.unique(
        np.quantile(lengths, np.arange(1, most + 1) / most, method="inverted_cdf")
    )
    return [
        (int(a), int(b))
        for a, b in zip([lengths.min(), *(ends[:-1] + 1)], ends, strict=True)
    ]


def bucket_perplexities(found, edges):
    nll, tokens = (
        _in_buckets(found["validation_source"], found[f"validation_{name}"], edges)
        for name in ("nll", "tokens")
    )
    return np.exp(
        np.divide(nll, tokens, out=np.full(len(edges), np.nan), where=tokens > 0)
    )


def bucket_exact(found, edges):
    """In per cent."""
    right, there = (
        _in_buckets(found["test_source"], values, edges)
        for values in (found["test_exact"], np.ones(len(found["test_exact"])))
    )
    return 100 * np.divide(
        right, there, out=np.full(len(edges), np.nan), where=there > 0
    )


def _in_buckets(lengths, values, edges):
    """Sums of `values`; what is beyond the last bucket is in it."""
    place = np.searchsorted([b for _, b in edges], lengths).clip(max=len(edges) - 1)
    return np.bincount(place, values.astype(float), len(edges))


def head_entropies(rows: Sequence[tuple[str, Sequence[Example]]]) -> str | None:
    """SVG: how widely each head looks, see `heads`: −Σ w ln w in nats, the mean over queries, then over examples, 0 for
    a head that always looks at one token. None without examples."""
    return heads(
        [
            (
                label,
                {
                    kind: mean_entropy(
                        [e.attention[kind] for e in examples if kind in e.attention]
                    )
                    for kind in KINDS
                },
            )
            for label, examples in rows
            if examples
        ],
        "head entropies",
        "nats",
    )


def heads(
    rows: Sequence[tuple[str, Mapping[str, np.ndarray]]],
    name: str,
    unit: str,
    signed: bool = False,
) -> str | None:
    """SVG: a number of each head, a heat map layer × head for each kind of attention, one row above the other.

    `rows` are (label, {kind: (layers, heads)}); `signed` numbers have colours on both sides of 0. None without rows.
    """
    rows = [
        (label, {kind: kinds.get(kind, np.zeros((0, 0), np.float32)) for kind in KINDS})
        for label, kinds in rows
    ]
    if not rows:
        return None
    layers = [max(len(found) for found in kinds.values()) for _, kinds in rows]
    tops = np.cumsum(
        [1, *(n + 1 for n in layers)]
    )  # a line above each row's layers is its label's
    highest = (
        max(
            float(np.nanmax(np.abs(found), initial=0.0))
            for _, kinds in rows
            for found in kinds.values()
        )
        or 1.0
    )
    with matplotlib.rc_context(
        _STYLE
        | {"axes.grid": False, "axes.spines.left": False, "axes.spines.bottom": False}
    ):
        figure = Figure(figsize=(11.8, 0.8 + 0.19 * tops[-1]), layout="constrained")
        panels = figure.subplots(1, len(KINDS), sharey=True)
        for axes, kind in zip(panels, KINDS, strict=True):
            image = _draw_heads(
                axes, [kinds[kind] for _, kinds in rows], tops, highest, signed
            )
            axes.set(title=kind, xlabel="head")
        for (label, _), top in zip(rows, tops[:-1], strict=True):
            panels[0].text(
                0,
                top - 1,
                _short(label),
                transform=panels[0].get_yaxis_transform(),
                va="center",
            )
        panels[0].set(
            yticks=[
                top + i
                for top, n in zip(tops[:-1], layers, strict=True)
                for i in range(n)
            ],
            yticklabels=[str(i + 1) for n in layers for i in range(n)],
            ylabel="layer",
        )
        bar = figure.colorbar(
            image, ax=panels, aspect=8 * figure.get_figheight(), pad=0.01, label=unit
        )
        bar.outline.set_visible(False)
        bar.solids.set_rasterized(True)
        return _svg(figure, name)


def _draw_heads(axes, found, tops, highest, signed):
    heads = max(one.shape[1] for one in found)
    canvas = np.full((tops[-1], max(heads, 1)), np.nan, np.float32)
    for one, top in zip(found, tops[:-1], strict=True):
        canvas[top : top + one.shape[0], : one.shape[1]] = one
    axes.tick_params(length=0)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    colours = (
        dict(cmap="RdBu_r", vmin=-highest) if signed else dict(cmap="viridis", vmin=0)
    )
    return axes.imshow(
        canvas,
        **colours,
        vmax=highest,
        aspect="auto",
        interpolation="none",
        extent=(0.5, canvas.shape[1] + 0.5, len(canvas) - 0.5, -0.5),
    )


def mean_entropy(weights: Sequence[np.ndarray]) -> np.ndarray:
    """−Σ_j w_ij ln w_ij of weights (N, h, n, m), [(N, h, n, m), …] → (N, h): the mean over i, then over the maps."""
    if not weights:
        return np.zeros((0, 0), np.float32)
    each = []
    for w in weights:
        w = np.nan_to_num(np.asarray(w, np.float32))
        each.append(-(w * np.log(np.where(w > 0, w, 1))).sum(-1).mean(-1))
    return np.mean(each, axis=0)


def position_table(table: np.ndarray, title: str) -> str:
    """SVG: a position encoding (L, d_model) as a heat map, positions down, dimensions across, white at 0."""
    table = np.nan_to_num(np.asarray(table, np.float32))
    with matplotlib.rc_context(_STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(4.8, 3.6), layout="constrained")
        axes = figure.subplots()
        limit = float(np.abs(table).max(initial=0)) or 1.0
        image = axes.imshow(
            table,
            cmap="RdBu_r",
            vmin=-limit,
            vmax=limit,
            aspect="auto",
            interpolation="none",
        )
        axes.set(title=_short(title), xlabel="dimension", ylabel="position")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))
        bar = figure.colorbar(image, ax=axes, aspect=30, pad=0.02)
        bar.outline.set_visible(False)
        bar.solids.set_rasterized(True)
        return _svg(figure, title)


def packed_weights(weights: np.ndarray) -> str:
    """Attention weights in [0, 1] as bytes round(255 · weight), in row-major order: zlib, then base64."""
    levels = np.rint(
        np.clip(np.nan_to_num(np.asarray(weights, np.float32)), 0, 1) * 255
    )
    return base64.b64encode(zlib.compress(levels.astype(np.uint8).tobytes(), 9)).decode(
        "ascii"
    )


def _legend(figure, rows):
    handles = [_line([], [], row, linewidth=1.8) for row in range(len(rows))]
    figure.legend(
        handles,
        [_short(label) for label, _ in rows],
        loc="outside right upper",
        handlelength=2.4,
    )


def _line(steps, values, row, **options):
    colour, dashes = line_style(row)
    return Line2D(
        steps, values, color=colour, linestyle=(0, dashes) if dashes else "-", **options
    )


def _log_scale(axes, name):
    """A log scale where the values span a factor of 2 or more; ticks are plain numbers in any case."""
    axis = getattr(axes, f"{name}axis")
    low, high = getattr(axes.dataLim, f"interval{name}")
    if high < 2 * low:
        axis.set_major_locator(MaxNLocator(6))
    else:
        getattr(axes, f"set_{name}scale")("log")
        axis.set_major_locator(
            LogLocator(subs=(1, 2, 5) if high / low > 5 else (1, 1.2, 1.5, 2, 3, 5, 7))
        )
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.12g}")
    )  # the scale has set its own


def _short(label):
    return label if len(label) <= _LONGEST else label[: _LONGEST - 1] + "…"


def _svg(figure, salt):
    """The <svg> element alone; `salt` keeps the ids of one figure apart from those of others on the page."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": salt}), warnings.catch_warnings():
        # Text stays text: the browser has the glyphs that the font for measuring lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(
            buffer,
            format="svg",
            transparent=True,
            metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
        )
    text = buffer.getvalue()
    return re.sub(
        r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], flags=re.DOTALL
    )
