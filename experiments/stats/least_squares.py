"""Fits a metric's scores by least squares: the rows of a table, and what copies add to them.

See `experiments.stats.contrasts` for the model. K rows, J seeds, P pairs of rows.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

_FEWEST_ROWS = 4
"""Rows from which on the effects of seeds are taken out."""

_FITS = 4
"""Times that they are, with the weights that the time before gave."""

_LEAST_FREEDOM = 1.9
"""Degrees of freedom below which a table does not show spreads: two runs of one row."""


class Pairs(NamedTuple):
    """Holds which rows are compared: each with the base at the same place, (P,) each.

    A row that is its own base is compared with nothing.
    """

    rows: np.ndarray
    bases: np.ndarray

    @classmethod
    def against(cls, base: int, count: int) -> "Pairs":
        """Returns the pairs of all of `count` rows with one of them, in their order."""
        return cls(np.arange(count), np.full(count, base))

    @property
    def differ(self) -> np.ndarray:
        return self.rows != self.bases


@dataclasses.dataclass(frozen=True)
class Column:
    """Holds one metric of a table, on its scale."""

    values: np.ndarray
    """(K, J): the score of each row and seed; NaN where there is none."""
    own: np.ndarray
    """(K,): the variance of a run's score that its sentences alone give, those of its row's
    other runs not sharing it; 0 where it is not known. No row's variance is less."""
    shared: np.ndarray
    """(P,): the variance of row − base that sentences give to all seeds alike."""
    at_bound: np.ndarray
    """(K,) bool: rows whose runs are all at the metric's bound, where spread shows nothing."""
    level: np.ndarray | float = 0.0
    """(P,): the variance of the base's score that sentences give to all seeds alike."""
    cross: np.ndarray | float = 0.0
    """(P,): its covariance with row − base, by sentences too."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """Holds the least squares of a column."""

    column: Column
    means: np.ndarray
    """(K,) μ̂ up to a constant."""
    residuals: np.ndarray
    """(K, J), NaN where there is no run."""
    variances: np.ndarray
    freedom: np.ndarray
    estimates: np.ndarray
    """(K, K, J): how much each run adds to each row's mean."""
    runs: np.ndarray
    """(K,) numbers of runs."""
    known: np.ndarray
    """(K,) bool: the rows that can be compared."""
    errors_of: np.ndarray
    """(K,) the row whose errors each has: of a copy its original, beside its own errors."""
    of_seeds: float = 0.0
    """The variance of the mean effect that the seeds have on all rows alike."""

    @property
    def total(self) -> float:
        """Degrees of freedom, 0 where nothing varies."""
        known = self.variances > 0
        return float(self.freedom[known].sum())


def fit_rows(column: Column, originals: np.ndarray) -> Fit | None:
    """Fits the rows of a column that are no copies; None where none can be compared."""
    is_copy = originals != np.arange(len(originals))
    values = np.where(is_copy[:, None], np.nan, np.asarray(column.values, float))
    runs = np.isfinite(values).sum(1)
    is_bad = np.isinf(values).any(1) | (runs == 0)
    known = ~is_bad
    if not known.any() or (known.sum() < 2 and not is_copy.any()):
        return None
    present = np.isfinite(values) & ~is_bad[:, None]
    blocks = present.any(1).sum() >= _FEWEST_ROWS
    weights = present.any(1).astype(float)
    # Then rows that vary less count more in the effects of seeds.
    for fit in range(_FITS if blocks else 1):
        solution = _least_squares(values, present, weights, blocks)
        means, residuals, leverages = solution[:3]
        freedom = np.where(present, 1 - leverages, 0).sum(1)
        if blocks and fit == 0:
            # What a row that varies much more has given to all others is their median.
            has_runs = present.any(0)
            residuals[:, has_runs] -= np.nanmedian(residuals[:, has_runs], 0)
        squares = np.nansum(residuals**2, 1)
        freedom = np.where(
            (runs > 1) & (freedom > 1e-9) & ~column.at_bound, freedom, 0.0
        )
        variances = np.where(freedom > 0, squares / np.maximum(freedom, 1e-9), 0.0)
        # Towards the median, which a row that varies much more does not move.
        usual = np.median(variances[freedom > 0]) if (freedom > 0).any() else 0.0
        moderated = (freedom * variances + 4 * usual) / (freedom + 4)
        weights = np.where(present.any(1), 1 / np.maximum(moderated, 1e-300), 0.0)
    if freedom.sum() < _LEAST_FREEDOM:
        if not is_copy.any():
            return None
        # A row's copies can be compared with it all the same.
        known[:] = False
        freedom[:] = 0
    variances = _without_rounding(variances, values)
    return Fit(
        column,
        means,
        residuals,
        variances,
        freedom,
        solution[3][originals],
        np.where(is_bad, 0, runs),
        known,
        originals,
        _variance_of_seeds(values - residuals - means[:, None]),
    )


def _variance_of_seeds(effects):
    """Returns the variance of the mean of seeds' effects (K, J), NaN where there is no run."""
    present = np.isfinite(effects)
    known = present.any(0)
    if known.sum() < 2:
        return 0.0
    means = np.where(present, effects, 0.0).sum(0)[known] / present.sum(0)[known]
    return float(means.var(ddof=1)) / len(means)


def _without_rounding(variances, values):
    """Returns variances with 0 for what rounding leaves where runs are equal."""
    finite = np.abs(values[np.isfinite(values)])
    magnitude = finite.max(initial=0.0) + 1e-300
    return np.where(variances < (1e-12 * magnitude) ** 2, 0.0, variances)


def fit_gaps(column: Column, originals: np.ndarray, fit: Fit) -> Fit | None:
    """Fits what copies score more than their originals; returns None without copies.

    `fit` is that of the other rows.
    """
    rows = np.arange(len(originals))
    is_copy = originals != rows
    if not is_copy.any():
        return None
    values = np.asarray(column.values, float)
    is_bad = np.isinf(values).any(1)
    is_bad |= is_bad[originals]
    values = np.where((is_copy & ~is_bad)[:, None], values, np.nan)
    gaps = (
        values - np.where(np.isfinite(column.values), column.values, np.nan)[originals]
    )
    present = np.isfinite(gaps)
    runs = present.sum(1)
    freedom = np.where((runs > 1) & ~column.at_bound, runs - 1.0, 0.0)
    if freedom.sum() < _LEAST_FREEDOM:
        present[:] = False
        runs[:] = 0
        freedom[:] = 0
    means = np.where(present, gaps, 0.0).sum(1) / np.maximum(runs, 1)
    residuals = np.where(present, gaps - means[:, None], np.nan)
    variances = np.nansum(residuals**2, 1) / np.maximum(freedom, 1)
    estimates = np.zeros((len(rows), *present.shape))
    estimates[rows, rows] = present / np.maximum(runs, 1)[:, None]
    column = dataclasses.replace(column, own=np.zeros(len(rows)))
    if fit.total:
        # What sentences give to a difference is drawn once, with the rows if these vary.
        nothing = np.zeros_like(column.shared)
        column = dataclasses.replace(column, shared=nothing, level=0.0, cross=0.0)
    return Fit(
        column,
        means,
        residuals,
        _without_rounding(variances, column.values),
        freedom,
        estimates,
        runs,
        runs > 0,
        rows,
    )


def with_copies(fit: Fit, gap: Fit) -> Fit:
    """Returns the fit of a column with its copies."""
    return dataclasses.replace(
        fit,
        means=fit.means[fit.errors_of] + gap.means,
        runs=np.where(gap.known, gap.runs, fit.runs),
        known=np.where(gap.known, fit.known[fit.errors_of], fit.known),
    )


def tested(fit: Fit, gap: Fit | None, pairs: Pairs) -> np.ndarray:
    """Returns (P,) bool: the pairs whose difference is known, of a fit with its copies.

    A copy is compared with its original, and with another copy of that, by their runs in
    pairs, whatever is known of the original itself.
    """
    rows, bases = pairs
    known = fit.known[rows] & fit.known[bases]
    if gap is not None:
        is_paired = fit.errors_of[rows] == fit.errors_of[bases]
        has_gaps = gap.known | (fit.errors_of == np.arange(len(fit.errors_of)))
        known = np.where(is_paired, has_gaps[rows] & has_gaps[bases], known)
    return known & pairs.differ


def _least_squares(values, present, weights, blocks):
    """Returns means (K,), residuals (K, J), leverages (K, J), and contrasts' weights.

    The last, (K, K, J), say how much each run adds to each row's mean.
    """
    if present[present.any(1)].all():
        return _balanced_least_squares(values, present, weights * blocks)
    rows, seeds = present.shape
    row_of, seed_of = np.nonzero(present)
    design = np.zeros((len(row_of), rows + seeds * blocks))
    design[np.arange(len(row_of)), row_of] = 1
    if blocks:
        design[np.arange(len(row_of)), rows + seed_of] = 1
    # Scaled so that the weights' unit does not matter to what counts as 0.
    root = np.sqrt(weights[row_of] / weights.max())
    inverse = np.linalg.pinv(root[:, None] * design, rcond=1e-7) * root
    coefficients = inverse @ values[present]
    residuals = np.full(values.shape, np.nan)
    residuals[present] = values[present] - design @ coefficients
    leverages = np.zeros(values.shape)
    leverages[present] = (design * inverse.T).sum(1)
    estimates = np.zeros((rows, rows, seeds))
    estimates[:, row_of, seed_of] = inverse[:rows]
    return coefficients[:rows], residuals, leverages, estimates


def _balanced_least_squares(values, present, weights):
    """Returns the same for rows that all have the same seeds; weights of 0 for no blocks."""
    seeds = present.shape[1]
    used = present.any(1)
    means = np.where(used, np.where(present, values, 0.0).mean(1), 0.0)
    residuals = np.where(present, values - means[:, None], np.nan)
    shares = np.where(used, weights, 0.0)
    shares = shares / max(shares.sum(), 1e-300)
    residuals -= shares[used] @ residuals[used]
    leverages = np.where(present, 1 / seeds + shares[:, None] * (1 - 1 / seeds), 0.0)
    estimates = np.repeat(np.diag(used / seeds)[..., None], seeds, axis=-1)
    return means, residuals, leverages, estimates
