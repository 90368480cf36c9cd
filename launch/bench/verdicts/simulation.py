"""Simulates tables whose true differences are known, and judges them as a report does.

A table has K rows of n runs in M metrics, and row 0 is the base. It is judged on the scale
that is printed: perplexities, BLEU and percent. Row i has the standard deviation
σ_i = e^(spread · z) over seeds, in units of a usual run's. A true difference is 4 standard
deviations of a run, on the scale on which rows are compared: of row and base together,
4 √((σ_i² + σ_0²) / 2).

How wide intervals are is said in units of those of somebody who knows all σ_i.
"""

import dataclasses
import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from experiments.evaluation.metrics import ACCURACY, BLEU, EXACT_MATCH, PERPLEXITY
from experiments.stats.contrasts import LEVEL, Contrasts, contrast, edges
from experiments.stats.least_squares import Column, Pairs
from experiments.stats.resampling import Runs, column_of

SIZE = 4.0
"""A true difference, in standard deviations of a run."""
SHARE = 0.4
"""The share of rows that have one, in tables that are not null."""
CORRELATION = 0.8
"""Of the metrics of a run."""
DRAWS = 2_000
"""Draws of a table's errors: a tenth of a report's, which makes limits vary by 2 %."""
SENTENCES = 500
REAL = 4
"""For so many tables without differences there is one with: each has many rows that differ."""
REPEATED = 8
"""Of so many tables one is run again, to see whether what would have shown does."""


class Scale(NamedTuple):
    """Holds where the base stands in a metric, and how much its runs vary."""

    metric: object
    base: float
    """In the metric's own units."""
    run: float
    """The standard deviation of a run, on the scale of the metric's link."""


SCALES = (
    # ± 0.06, ± 0.5 and ± 1.5 %.
    Scale(PERPLEXITY, 5.0, 0.0047),
    Scale(BLEU, 25.0, 0.0058),
    Scale(EXACT_MATCH, 0.5, 0.015),
)


@dataclasses.dataclass(frozen=True)
class Bound:
    """Holds rows near a metric's bound, and how their runs come about."""

    metric: object
    base: float
    near: float
    """The true score of every second row, in the metric's units."""
    into: Callable
    """The scale on which runs vary, which is not that of the report."""
    out_of: Callable
    run: float
    """The standard deviation of a run on that scale."""
    answers: int | None = None
    """Of how many answers a score is the share."""


def _log_log(values):
    return np.log(np.log(values))


def _perplexity(values):
    return np.exp(np.exp(values))


def _logit_of(largest):
    return (
        lambda values: special.logit(np.asarray(values) / largest),
        lambda values: largest * special.expit(values),
    )


BOUNDS = (
    Bound(PERPLEXITY, 5.0, 1.0001, _log_log, _perplexity, 0.1),
    Bound(ACCURACY, 0.5, 0.999, *_logit_of(1.0), 0.15, SENTENCES),
    Bound(BLEU, 0.0, 0.2, *_logit_of(100.0), 0.3),
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """Holds what kind of tables are simulated."""

    rows: int
    seeds: int
    spread: float = 0.4
    """Rows' standard deviations vary by a factor of e to this."""
    metrics: int = 3
    kind: str = "plain"
    """"blocks": each seed adds to all rows what a run varies by. "sentences": half of a
    difference's variance is of sentences that all seeds share. "tails": errors are Student's
    t of 5 degrees. "odd": one row varies ten times as much. "copies": every second row scores
    the models of the one before in another way, which varies a tenth as much. "bound": every
    second row is near a bound, as BOUNDS says, and has no chance to be null."""

    @property
    def name(self) -> str:
        kind = f"{self.kind}-{self.metrics}"
        return f"{self.rows}-rows-{self.seeds}-seeds-e{self.spread:g}-{kind}"


BINS = np.geomspace(0.1, 100.0, 121)
"""Bounds of the counts of widths; a bin is 6 % wide."""


@dataclasses.dataclass
class Counts:
    """Holds what was seen in the tables of a cell."""

    nulls: int = 0
    """Tables without any true difference."""
    false: int = 0
    """Of these, tables with any verdict of better or worse that is none."""
    tables: int = 0
    """Tables with true differences."""
    false_among: int = 0
    """Of these, tables with a verdict for a row without a difference."""
    covered: int = 0
    """Tables of both kinds all of whose printed intervals hold the truth."""
    intervals: int = 0
    intervals_covered: int = 0
    real: int = 0
    """Rows with a true difference."""
    shown: int = 0
    """Of these, rows whose difference is shown in the first metric."""
    shown_in_any: int = 0
    claims: int = 0
    """Undecided rows of tables that were run again with the difference that would show."""
    claims_true: int = 0
    """Of these, rows that showed it."""
    widths: tuple[int, ...] = (0,) * (len(BINS) + 1)
    """Intervals by BINS of their width, in units of that of known spreads."""

    def __add__(self, other: "Counts") -> "Counts":
        sums = {}
        for field in dataclasses.fields(self):
            ours, theirs = getattr(self, field.name), getattr(other, field.name)
            if field.name == "widths":
                sums[field.name] = tuple(map(sum, zip(ours, theirs, strict=True)))
            else:
                sums[field.name] = ours + theirs
        return Counts(**sums)

    def median_width(self) -> float:
        """Returns the median width, NaN where there is none."""
        counts = np.array(self.widths, float)
        if not counts.sum():
            return np.nan
        place = int(np.searchsorted(np.cumsum(counts), counts.sum() / 2))
        # The middle of its bin, but for what is beyond all.
        edges_of = BINS[max(place - 1, 0)], BINS[min(place, len(BINS) - 1)]
        return float(np.sqrt(np.prod(edges_of)))


def simulate(cell: Cell, tables: int, part: int = 0) -> Counts:
    """Simulates `tables` null tables and a quarter as many with differences.

    `part` numbers calls for one cell, which draw other tables.
    """
    rng = np.random.default_rng([zlib.crc32(cell.name.encode()), part])
    counts = Counts()
    for i in range(tables):
        again = i % REPEATED == 0
        for is_null in (True, False) if i % REAL == 0 else (True,):
            _judge(make_table(cell, is_null, rng), is_null, again, counts, rng)
    return counts


class Known(NamedTuple):
    """Holds what is known of one metric of a table, on the scale of its link."""

    score: float
    """The base's true score."""
    differences: np.ndarray
    """(K,) true."""
    variances: np.ndarray
    """(K,): of a row's mean, by its seeds."""
    level: float
    """What else the base's score varies by."""
    hidden: float
    """The part of that which is in every difference too."""
    shared: np.ndarray
    """(K,): what else differences vary by."""


@dataclasses.dataclass(frozen=True)
class Table:
    """Holds the truth of a table."""

    cell: Cell
    spreads: np.ndarray
    """(K,) σ_i."""
    true: np.ndarray
    """(K,) true differences to base, in units of a usual run's standard deviation."""

    @property
    def scales(self):
        kinds = BOUNDS if self.cell.kind == "bound" else SCALES
        return kinds[: self.cell.metrics]

    def columns(self, rng, true=None) -> list[Column]:
        """Draws the runs of a table with these spreads; `true` (K, M) differences."""
        if self.cell.kind == "bound":
            return [self._near(bound, rng) for bound in self.scales]
        values = self._units(rng, self.true[:, None] if true is None else true)
        estimated = self._shared() * rng.chisquare(SENTENCES - 1, self.cell.rows)
        estimated /= SENTENCES - 1
        nothing = np.zeros(self.cell.rows)
        columns = []
        for i, scale in enumerate(self.scales):
            start = scale.metric.link.forward(scale.base)
            of_sentences = estimated * scale.run**2
            columns.append(
                Column(
                    start + scale.run * values[..., i],
                    nothing,
                    2 * of_sentences,
                    nothing > 0,
                    of_sentences[0],
                    -of_sentences,
                )
            )
        return columns

    def _units(self, rng, true):
        """Draws runs (K, n, M), in units of a usual run's standard deviation."""
        cell = self.cell
        size = (cell.rows, cell.seeds, cell.metrics)
        errors = _correlated(size, cell.metrics, rng)
        if cell.kind == "tails":
            # One scale a run for all its metrics; the variance stays 1.
            errors *= np.sqrt(3 / rng.chisquare(5, (*size[:2], 1)))
        if cell.kind == "copies":
            own = errors[1::2]
            errors[1::2] = errors[:-1:2] + own / 10
        values = errors * self.spreads[:, None, None]
        if cell.kind == "blocks":
            values = values + _correlated(size[1:], cell.metrics, rng)
        # The base's sentences are in every difference, so each side has half.
        of_sentences = _correlated(size[::2], cell.metrics, rng)[:, None]
        values = values + of_sentences * np.sqrt(self._shared())
        return values + true[:, None]

    def _near(self, bound, rng):
        """Draws the column of a metric in which every second row is near a bound."""
        shape = (self.cell.rows, self.cell.seeds)
        errors = bound.run * self.spreads[:, None] * rng.standard_normal(shape)
        scores = np.full(self.cell.rows, bound.base)
        scores[1::2] = bound.near
        with np.errstate(divide="ignore"):
            values = bound.out_of(bound.into(scores)[:, None] + errors)
        if bound.answers:
            values = rng.binomial(bound.answers, values) / bound.answers
        runs = [
            Runs(dict(enumerate(row.tolist())), {}, SENTENCES, SENTENCES)
            for row in values
        ]
        pairs = Pairs.against(0, self.cell.rows)
        return column_of(runs, pairs, bound.metric.link, self.originals)

    def known(self) -> list[Known]:
        """Returns what is true of each metric, as somebody knows who knows all spreads."""
        if self.cell.kind == "bound":
            return [self._known_near(bound) for bound in self.scales]
        known = []
        for scale in self.scales:
            unit = scale.run**2
            shared = unit * self._shared()
            variances = unit * self.spreads**2 / self.cell.seeds
            block = unit / self.cell.seeds if self.cell.kind == "blocks" else 0.0
            known.append(
                Known(
                    float(scale.metric.link.forward(scale.base)),
                    scale.run * self.true,
                    variances,
                    shared + block,
                    shared,
                    _but_base(np.full(self.cell.rows, 2 * shared)),
                )
            )
        return known

    def _known_near(self, bound):
        link = bound.metric.link
        scores = np.full(self.cell.rows, bound.base)
        scores[1::2] = bound.near
        step = 1e-4
        with np.errstate(divide="ignore"):
            ends = bound.into(scores)[:, None] + [-step, step]
        slopes = np.diff(link.forward(bound.out_of(ends)))[:, 0] / (2 * step)
        variances = (slopes * bound.run * self.spreads) ** 2
        if bound.answers:
            variances += link.variance_of_one / bound.answers
        # What nobody knows of scores that are 0 in all runs.
        hidden = np.where(variances == 0, link.variance_of_one / SENTENCES, 0.0)
        on_scale = link.forward(scores)
        return Known(
            float(on_scale[0]),
            on_scale - on_scale[0],
            variances / self.cell.seeds,
            hidden[0],
            hidden[0],
            _but_base(hidden + hidden[0]),
        )

    @property
    def originals(self) -> np.ndarray:
        """Returns for each row that of which it is a copy, itself for one that is none."""
        rows = np.arange(self.cell.rows)
        return rows - rows % 2 if self.cell.kind == "copies" else rows

    def judge(self, columns: list[Column]) -> list[Contrasts]:
        """Judges columns as a report does, in less time."""
        pairs = Pairs.against(0, self.cell.rows)
        return contrast(columns, pairs, draws=DRAWS, originals=self.originals)

    def _shared(self):
        """Returns the variance of a row's mean that its sentences give, in units."""
        if self.cell.kind != "sentences":
            return 0.0
        return float(np.mean(self.spreads**2)) / self.cell.seeds


def _but_base(values):
    """Returns values (K,) with 0 for the base, which has no difference."""
    values[0] = 0.0
    return values


def _correlated(size, metrics, rng):
    correlation = np.full((metrics, metrics), CORRELATION)
    np.fill_diagonal(correlation, 1)
    return rng.standard_normal(size) @ np.linalg.cholesky(correlation).T


def make_table(cell: Cell, is_null: bool, rng: np.random.Generator) -> Table:
    """Draws the spreads and the true differences of a table."""
    spreads = np.exp(cell.spread * rng.standard_normal(cell.rows))
    if cell.kind == "odd":
        spreads[-1] *= 10
    if cell.kind == "copies":
        spreads[1::2] = spreads[:-1:2]
    real = np.zeros(cell.rows)
    if not is_null:
        count = round(SHARE * (cell.rows - 1))
        real[1 : 1 + count] = rng.choice([-1.0, 1.0], count)
    sizes = np.sqrt((spreads**2 + spreads[0] ** 2) / 2)
    return Table(cell, spreads, SIZE * real * sizes)


def of_known_spreads(
    table: Table, known: list[Known], rng: np.random.Generator
) -> list[np.ndarray]:
    """Returns the widths (K,) of the joint intervals of somebody who knows all spreads."""
    metrics = len(known)
    runs = _correlated((DRAWS, table.cell.rows, metrics), metrics, rng)
    sentences = _correlated((DRAWS, table.cell.rows, metrics), metrics, rng)
    largest = 0.0
    sizes = []
    for i, one in enumerate(known):
        errors = runs[..., i] * np.sqrt(one.variances)
        errors = errors - errors[:, :1] + sentences[..., i] * np.sqrt(one.shared)
        size = np.sqrt(_but_base(one.variances + one.variances[0] + one.shared))
        sizes.append(size)
        largest = np.maximum(largest, np.abs(errors / np.maximum(size, 1e-150)).max(1))
    critical = np.quantile(largest, 1 - LEVEL)
    widths = []
    for scale, one, size in zip(table.scales, known, sizes, strict=True):
        level = one.variances[0] + one.level
        cross = np.full(len(size), -one.variances[0] - one.hidden)
        around = edges(one.score, one.differences, level, cross, size, critical)
        _, low, high = _printed(around, one, scale.metric.link)
        widths.append(high - low)
    return widths


def _printed(around, known, link):
    """Returns true differences (K,) as they are printed, and the ends of intervals."""
    scores, differences = np.moveaxis(around, -1, 0)
    moved = link.inverse(scores + differences) - link.inverse(scores)
    base = link.inverse(known.score)
    true = link.inverse(known.score + known.differences) - base
    return true, moved.min(1), moved.max(1)


def _judge(table, is_null, again, counts, rng):
    results = table.judge(table.columns(rng))
    known = table.known()
    widths = of_known_spreads(table, known, rng)
    holds = []
    ratios = []
    for result, one, scale, width in zip(
        results, known, table.scales, widths, strict=True
    ):
        true, low, high = _printed(result.edge, one, scale.metric.link)
        tested = result.tested
        # What is not compared says nothing that could be wrong.
        within = (low <= true) & (true <= high)
        holds.append(np.where(tested, within, True)[1:])
        known_to_vary = tested & (width > 0)
        ratios += ((high - low) / np.maximum(width, 1e-300))[known_to_vary].tolist()
    holds = np.stack(holds)
    shown = np.stack([result.p[1:] for result in results]) < LEVEL
    is_real = np.stack([one.differences[1:] != 0 for one in known])
    counts.covered += bool(holds.all())
    counts.intervals += holds.size
    counts.intervals_covered += int(holds.sum())
    places = np.searchsorted(BINS, ratios)
    added = np.bincount(places, minlength=len(counts.widths))
    counts.widths = tuple(map(int, np.add(counts.widths, added)))
    if is_null:
        counts.nulls += 1
        counts.false += bool(shown[~is_real].any())
    else:
        counts.tables += 1
        counts.false_among += bool(shown[~is_real].any())
        # A verdict for the wrong side is none.
        means = np.stack([result.mean[1:] for result in results])
        true = np.stack([one.differences[1:] for one in known])
        right = shown & (np.sign(means) == np.sign(true))
        rows = is_real.any(0)
        counts.real += int(rows.sum())
        counts.shown += int((right & is_real)[0].sum())
        counts.shown_in_any += int((right & is_real).any(0).sum())
    if again and table.cell.kind != "bound":
        _run_again(table, results, shown, counts, rng)


def _run_again(table, results, shown, counts, rng):
    """Runs the table again with just the differences that the first says would show."""
    runs = np.array([scale.run for scale in table.scales])
    claimed = np.stack([np.nan_to_num(result.detectable) for result in results], axis=1)
    repeated = table.judge(table.columns(rng, claimed / runs))
    again = np.stack([result.low[1:] > 0 for result in repeated])
    counts.claims += int((~shown).sum())
    counts.claims_true += int(again[~shown].sum())
