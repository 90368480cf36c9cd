"""Simulates tables whose true differences are known, and judges them as a report does.

A table has K rows of n runs in M metrics that are correlated by 0.8, and row 0 is the base.
Row i has the standard deviation σ_i = e^(spread · z) over seeds. A true difference is 4
standard deviations of a run: of row and base together, 4 √((σ_i² + σ_0²) / 2).
"""

import dataclasses
import zlib

import numpy as np

from experiments.report.contrasts import LEVEL, Contrasts, contrast
from experiments.report.fits import Column

SIZE = 4.0
"""A true difference, in standard deviations of a run."""
SHARE = 0.4
"""The share of rows that have one, in tables that are not null."""
CORRELATION = 0.8
DRAWS = 2_000
"""Draws of a table's errors: a tenth of a report's, which makes limits vary by 2 %."""
SENTENCES = 500
REAL = 4
"""For so many tables without differences there is one with: each has many rows that differ."""
REPEATED = 8
"""Of so many tables one is run again, to see whether what would have shown does."""


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
    the models of the one before in another way, which varies a tenth as much."""

    @property
    def name(self) -> str:
        kind = f"{self.kind}-{self.metrics}"
        return f"{self.rows}-rows-{self.seeds}-seeds-e{self.spread:g}-{kind}"


@dataclasses.dataclass
class Counts:
    """Holds what was seen in the tables of a cell."""

    nulls: int = 0
    """Tables without any true difference."""
    false: int = 0
    """Of these, tables with any verdict of better or worse."""
    tables: int = 0
    """Tables with true differences."""
    false_among: int = 0
    """Of these, tables with a verdict for a row without a difference."""
    covered: int = 0
    """Tables of both kinds all of whose intervals hold the truth."""
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

    def __add__(self, other: "Counts") -> "Counts":
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Counts(*(ours + theirs for ours, theirs in pairs))


def simulate(cell: Cell, tables: int, part: int = 0) -> Counts:
    """Simulates `tables` null tables and a quarter as many with differences.

    `part` numbers calls for one cell, which draw other tables.
    """
    rng = np.random.default_rng([zlib.crc32(cell.name.encode()), part])
    counts = Counts()
    for i in range(tables):
        again = i % REPEATED == 0
        for is_null in (True, False) if i % REAL == 0 else (True,):
            _judge(_table(cell, is_null, rng), is_null, again, counts, rng)
    return counts


@dataclasses.dataclass(frozen=True)
class _Table:
    cell: Cell
    spreads: np.ndarray
    """(K,) σ_i."""
    true: np.ndarray
    """(K,) true differences to base."""

    def columns(self, rng, true=None) -> list[Column]:
        """Draws the runs of a table with these spreads; `true` (K, M) differences."""
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
        shared = self._shared()
        # The base's sentences are in every difference, so each side has half.
        values = values + _correlated(size[::2], cell.metrics, rng)[:, None] * np.sqrt(
            shared
        )
        true = self.true[:, None] if true is None else true
        values = values + true[:, None]
        variances = 2 * shared * np.ones(cell.rows)
        estimated = (
            variances * rng.chisquare(SENTENCES - 1, cell.rows) / (SENTENCES - 1)
        )
        nothing = np.zeros(cell.rows)
        columns = []
        for metric in range(cell.metrics):
            columns.append(Column(values[..., metric], nothing, estimated, nothing > 0))
        return columns

    @property
    def originals(self) -> np.ndarray:
        """Returns for each row that of which it is a copy, itself for one that is none."""
        rows = np.arange(self.cell.rows)
        return rows - rows % 2 if self.cell.kind == "copies" else rows

    def judge(self, columns: list[Column]) -> list[Contrasts]:
        """Judges columns as a report does, in less time."""
        return contrast(columns, base=0, draws=DRAWS, originals=self.originals)

    def _shared(self):
        """Returns the variance of a row's mean that its sentences give."""
        if self.cell.kind != "sentences":
            return 0.0
        return float(np.mean(self.spreads**2)) / self.cell.seeds


def _correlated(size, metrics, rng):
    correlation = np.full((metrics, metrics), CORRELATION)
    np.fill_diagonal(correlation, 1)
    return rng.standard_normal(size) @ np.linalg.cholesky(correlation).T


def _table(cell, is_null, rng):
    spreads = np.exp(cell.spread * rng.standard_normal(cell.rows))
    if cell.kind == "odd":
        spreads[-1] *= 10
    if cell.kind == "copies":
        spreads[1::2] = spreads[:-1:2]
    real = np.zeros(cell.rows)
    if not is_null:
        count = round(SHARE * (cell.rows - 1))
        real[1 : 1 + count] = rng.choice([-1.0, 1.0], count)
    return _Table(
        cell, spreads, SIZE * real * np.sqrt((spreads**2 + spreads[0] ** 2) / 2)
    )


def _judge(table, is_null, again, counts, rng):
    results = table.judge(table.columns(rng))
    low = np.stack([result.low[1:] for result in results])
    high = np.stack([result.high[1:] for result in results])
    shown = np.stack([result.p[1:] for result in results]) < LEVEL
    true = table.true[1:]
    holds = (low <= true) & (true <= high)
    is_real = true != 0
    counts.covered += bool(holds.all())
    counts.intervals += holds.size
    counts.intervals_covered += int(holds.sum())
    if is_null:
        counts.nulls += 1
        counts.false += bool(shown.any())
    else:
        counts.tables += 1
        counts.false_among += bool(shown[:, ~is_real].any())
        # A verdict for the wrong side is none.
        right = shown & (np.sign(low + high) == np.sign(true))
        counts.real += int(is_real.sum())
        counts.shown += int(right[0, is_real].sum())
        counts.shown_in_any += int(right[:, is_real].any(0).sum())
    if again:
        _run_again(table, results, shown, counts, rng)


def _run_again(table, results, shown, counts, rng):
    """Runs the table again with just the differences that the first says would show."""
    claimed = np.stack([np.nan_to_num(result.detectable) for result in results], axis=1)
    repeated = table.judge(table.columns(rng, claimed))
    again = np.stack([result.low[1:] > 0 for result in repeated])
    counts.claims += int((~shown).sum())
    counts.claims_true += int(again[~shown].sum())
