"""Draws heat maps of heads, position tables and two settings, and packs attention maps.

Attention maps are too many to draw here: `packed_weights` packs them for the page's script.
"""

import base64
import itertools
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from experiments.evaluation.metrics import Metric
from experiments.report.figures.style import (
    Picture,
    Spot,
    add_colour_bar,
    add_panels,
    columns_for,
    finished,
    new_figure,
    panel_lines,
    short_label,
    styled,
)
from experiments.report.trial_outputs import KINDS, Example

_MOST_NUMBERS = 80
"""Cells of a map that have their number written in them."""


def head_entropies(rows: Sequence[tuple[str, Sequence[Example]]]) -> Picture | None:
    """Draws how widely each head looks: −Σ w ln w in nats, see `heads`.

    It is the mean over queries, then over examples; 0 for a head that always looks at one
    token. `rows` are (label, examples). None without examples.
    """
    entropies = []
    for label, examples in rows:
        if not examples:
            continue
        maps = {kind: [] for kind in KINDS}
        for example in examples:
            for kind, weights in example.attention.items():
                maps[kind].append(weights)
        means = {kind: mean_entropy(weights) for kind, weights in maps.items()}
        entropies.append((label, means))
    return heads(entropies, "head entropies", "nats")


def heads(
    rows: Sequence[tuple[str, Mapping[str, np.ndarray]]],
    name: str,
    unit: str,
    signed: bool = False,
) -> Picture | None:
    """Draws a number of each head as heat maps, layer × head, for each kind of attention.

    `rows` are (label, {kind: (layers, heads)}) and stand one above the other; `signed`
    numbers have colours on both sides of 0. None without rows.
    """
    if not rows:
        return None
    nothing = np.zeros((0, 0), np.float32)
    labels = [label for label, _ in rows]
    columns = {}
    for kind in KINDS:
        columns[kind] = [maps.get(kind, nothing) for _, maps in rows]
    layers = [max(map(len, maps)) for maps in zip(*columns.values(), strict=True)]
    # A line above each row's layers holds its label.
    tops = np.cumsum([1, *(count + 1 for count in layers)])
    # All maps share one scale, so that rows can be compared.
    largest = map(_largest, itertools.chain(*columns.values()))
    # All zeros would give a scale of no width.
    highest = max(largest) or 1.0
    with styled(axes__grid=False, axes__spines__left=False, axes__spines__bottom=False):
        figure = new_figure(11.8, 0.8 + 0.19 * tops[-1])
        panels = figure.subplots(1, len(KINDS), sharey=True)
        for axes, kind in zip(panels, KINDS, strict=True):
            image = _draw_heads(axes, columns[kind], tops, highest, signed)
            axes.set(title=kind, xlabel="head")
        _label_layers(panels[0], labels, layers, tops)
        # The bar has the same width however many rows make the figure high.
        aspect = 8 * figure.get_figheight()
        options = dict(ax=panels, aspect=aspect, pad=0.01, label=unit)
        add_colour_bar(figure, image, **options)
        return finished(figure, name)


def mean_entropy(weights: Sequence[np.ndarray]) -> np.ndarray:
    """Computes −Σ_j w_ij ln w_ij of weights [(N, h, n, m), …], as (N, h).

    It is the mean over queries i, then over the maps; NaN where a layer has no such head.
    """
    if not weights:
        return np.zeros((0, 0), np.float32)
    entropies = []
    for w in weights:
        # A diverged model's weights may be NaN, which would leave the picture empty.
        known = np.nan_to_num(np.asarray(w, np.float32))
        entropy = -(known * np.log(np.where(known > 0, known, 1))).sum(-1).mean(-1)
        entropies.append(np.where(is_head(w), entropy, np.nan))
    return np.mean(entropies, axis=0)


def is_head(weights: np.ndarray) -> np.ndarray:
    """Returns (N, h), which heads there are: a layer may lack some, whose weights are NaN.

    Where all are NaN, as of a diverged model, that says nothing.
    """
    is_there = ~np.isnan(weights).all((-2, -1))
    return is_there if is_there.any() else np.ones_like(is_there)


def position_table(table: np.ndarray, title: str, name: str) -> Picture:
    """Draws a position encoding (L, d_model): positions down, dimensions across, 0 white."""
    table = np.nan_to_num(np.asarray(table, np.float32))
    with styled(axes__grid=False):
        figure = new_figure(4.8, 3.6)
        axes = figure.subplots()
        # The same on both sides of 0, so that 0 is the white in the middle.
        limit = float(np.abs(table).max(initial=0)) or 1.0
        colours = dict(cmap="RdBu_r", vmin=-limit, vmax=limit)
        image = axes.imshow(table, aspect="auto", interpolation="none", **colours)
        axes.set(title=short_label(title), xlabel="dimension", ylabel="position")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))
        add_colour_bar(figure, image, ax=axes, aspect=30, pad=0.02)
        return finished(figure, name)


def map_of_two(
    maps: Mapping[Metric, np.ndarray],
    rows: tuple[str, Sequence[str]],
    columns: tuple[str, Sequence[str]],
    name: str,
) -> Picture | None:
    """Draws each metric as a map: `rows` and `columns` are (setting, its values).

    NaN is drawn as nothing. None without any map.
    """
    if not maps:
        return None
    beside = columns_for(len(maps))
    height = panel_lines(len(maps), beside) * (1.1 + 0.34 * len(rows[1]))
    size = (5.6 * beside, max(height, 2.4))
    with styled(axes__grid=False, axes__spines__left=False, axes__spines__bottom=False):
        figure = new_figure(*size)
        grid = add_panels(figure, len(maps), beside)
        spots = []
        for axes, (metric, values) in zip(grid, maps.items(), strict=True):
            spots += _draw_map(figure, axes, metric, values, rows, columns)
        return finished(figure, name, spots)


def _draw_map(figure, axes, metric, values, rows, columns):
    """Draws a map with its numbers, and returns its spots."""
    values = metric.scale * values
    # Light is good, whichever way the metric goes.
    colours = "cividis" if metric.higher_is_better else "cividis_r"
    image = axes.imshow(values, aspect="auto", interpolation="none", cmap=colours)
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    spots = []
    for i, j in np.ndindex(values.shape):
        if not np.isfinite(values[i, j]):
            continue
        number = f"{values[i, j]:.{metric.decimals}f}"
        text = f"{rows[0]}={rows[1][i]}, {columns[0]}={columns[1][j]}: {number}"
        spots.append(Spot(axes, j, i, text))
        if values.size <= _MOST_NUMBERS:
            is_light = (values[i, j] >= middle) == metric.higher_is_better
            # Not pure black and white, which the page turns for a dark background.
            ink = "#101010" if is_light else "#f8f8f8"
            place = dict(ha="center", va="center", fontsize=8)
            axes.text(j, i, number, color=ink, **place)
    axes.set_xticks(range(len(columns[1])), columns[1])
    axes.set_yticks(range(len(rows[1])), rows[1])
    axes.tick_params(length=0)
    unit = f", {metric.unit}" if metric.unit else ""
    axes.set(title=f"{metric.name}{unit}", xlabel=columns[0], ylabel=rows[0])
    add_colour_bar(figure, image, ax=axes, aspect=30, pad=0.02)
    return spots


def packed_weights(weights: np.ndarray) -> str:
    """Packs attention weights in [0, 1] as bytes round(255 · weight), in row-major order.

    They are compressed by zlib, then written in base64.
    """
    weights = np.nan_to_num(np.asarray(weights, np.float32))
    # A byte each: the page draws a weight as one of 256 shades.
    levels = np.rint(np.clip(weights, 0, 1) * 255).astype(np.uint8)
    return base64.b64encode(zlib.compress(levels.tobytes(), 9)).decode("ascii")


def _largest(array):
    return float(np.nanmax(np.abs(array), initial=0.0))


def _draw_heads(axes, arrays, tops, highest, signed):
    heads = max(array.shape[1] for array in arrays)
    # NaN is drawn as nothing: rows may have different numbers of layers and heads.
    canvas = np.full((tops[-1], max(heads, 1)), np.nan, np.float32)
    for array, top in zip(arrays, tops[:-1], strict=True):
        canvas[top : top + array.shape[0], : array.shape[1]] = array
    axes.tick_params(length=0)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    lowest = -highest if signed else 0
    return axes.imshow(
        canvas,
        cmap="RdBu_r" if signed else "viridis",
        vmin=lowest,
        vmax=highest,
        aspect="auto",
        interpolation="none",
        extent=(0.5, canvas.shape[1] + 0.5, len(canvas) - 0.5, -0.5),
    )


def _label_layers(axes, labels, layers, tops):
    """Writes each row's label above its layers, and the layers' numbers beside them."""
    ticks = []
    numbers = []
    for label, count, top in zip(labels, layers, tops[:-1], strict=True):
        options = dict(transform=axes.get_yaxis_transform(), va="center")
        axes.text(0, top - 1, short_label(label), **options)
        ticks += range(top, top + count)
        numbers += [str(layer + 1) for layer in range(count)]
    axes.set(yticks=ticks, yticklabels=numbers, ylabel="layer")
