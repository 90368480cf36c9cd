"""Compares rows of a table with bases among them, all pairs and metrics as one family.

A run of row i with seed j scores, on its metric's scale (`variance_stabilising`),

    y_ij = μ_i + b_j + e_ij,   e_ij ~ Normal(0, σ²_i):

b_j is what a seed does to every row alike (the same order of batches), which is taken out by
weighted least squares where there are 4 rows or more; σ_i is learned from the whole table
(`spreads`). All runs are scored on one test set, and on another the
sentences would favour other rows: that adds to every difference a variance that more seeds
do not reduce, estimated on resampled test sets.

The errors Z of all differences row − base, of every pair and metric, are drawn many times
from this model, with a base's error shared by its rows, and the metrics of one run as
correlated as their residuals are. With SE the standard deviation of each difference's
errors, let c be the 95 % quantile of max |Z| / SE over pairs and metrics. Then

    d̂ ± c · SE

are intervals that all hold at once with a probability of 95 %, p = P(max |Z| / SE ≥ |d̂| / SE)
is corrected for all that a reader sees, and a difference is shown where its interval leaves 0
out. For one metric, one base, rows of one true spread and τ = 0 this is Dunnett's test (1955,
"A multiple comparison procedure for comparing several treatments with a control"); for all
pairs it is Tukey's.

What is printed is a difference on the metric's own scale, g(b + d) − g(b) for the base's score
b, the row's difference d and the inverse g of the link: it depends on both, and near a bound
mostly on b. Let Σ be the covariance of the errors of (b, d), of base and row together. The
interval that is printed has the least and the largest g(b + d) − g(b) over the ellipse

    {(b̂ + x, d̂ + y): (x, y) Σ⁻¹ (x, y)ᵀ ≤ c²}.

Its extent along d is d̂ ± c · SE, so it leaves 0 out where that does, and where g is a straight
line it is g's slope times that.

A row may be a copy of another, i of l: the same trained models, scored in another way. Its
runs say nothing more of spreads between models, and have their errors,

    y_ij = y_lj + γ_i + g_ij,   g_ij ~ Normal(0, ρ²_i):

so it is compared with its original, or another copy of that, seed by seed, and with other
rows through it. The ρ_i are learned from all copies, as the σ_i are from the other rows.

K rows, J seeds, P pairs, R draws.
"""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from experiments.stats.least_squares import (
    Column,
    Pairs,
    fit_gaps,
    fit_rows,
    tested,
    with_copies,
)
from experiments.stats.spreads import USUAL_TAU, draw_spreads, oddness_of
from experiments.stats.summary import LEVEL

# The usual convention: a real difference is missed once in five.
POWER = 0.8

DRAWS = 20_000
"""Draws of each difference's error, and fewer in tables of more than 50 rows."""

_NUMBERS = 4_000_000
"""Numbers that are drawn, as long as each difference has FEWEST_DRAWS."""

FEWEST_DRAWS = 4_000

EDGE = 64
"""Points around an ellipse; between two of them it bulges by a thousandth of its width."""

_CHUNK = 2_000


@dataclasses.dataclass(frozen=True)
class Contrasts:
    """Holds the differences of one metric, row − base, (P,) each; NaN where there is none."""

    base: np.ndarray
    """The bases' estimated scores."""
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray
    d: np.ndarray
    """The difference in standard deviations of a run (of row and base together); for a copy of
    the base, in those of the differences between its runs and the base's."""
    detectable: np.ndarray
    """The true difference that such a table shows with probability POWER."""
    from_seeds: np.ndarray
    """The share of each difference's variance that falls with the number of seeds."""
    edge: np.ndarray
    """(P, E, 2): points around the ellipse of (base's score, row's difference)."""

    def printed(self, pair: int, inverse: Callable) -> tuple[float, float, float]:
        """Returns the difference on the metric's own scale, and the ends of its interval."""
        scores, differences = self.edge[pair].T
        around = inverse(scores + differences) - inverse(scores)
        base = self.base[pair]
        mean = inverse(base + self.mean[pair]) - inverse(base)
        return float(mean), float(around.min()), float(around.max())

    @property
    def tested(self) -> np.ndarray:
        return np.isfinite(self.mean)


def contrast(
    columns: Sequence[Column],
    pairs: Pairs,
    draws: int | None = None,
    level: float = LEVEL,
    usual_tau: float = USUAL_TAU,
    originals: Sequence[int] | None = None,
    families: np.ndarray | None = None,
) -> list[Contrasts]:
    """Compares the rows of each pair in each of `columns`.

    Pairs of one number in `families` (P,) are one family; without it all are.

    `originals` has for each row that of which it is a copy, itself for one that is none;
    without it no row is a copy. A pair with a run that is not finite has no difference.
    Where nothing varies at all, an interval is one point, and p 0 or 1.
    """
    if originals is None:
        originals = range(max((len(column.values) for column in columns), default=0))
    fits, gaps, whole = _fitted(columns, np.asarray(originals, int))
    count = len(pairs.rows)
    are_tested = [
        np.zeros(count, bool) if fit is None else tested(fit, gap, pairs)
        for fit, gap in zip(whole, gaps, strict=True)
    ]
    for some in (fits, gaps):
        # A metric without a difference says nothing of the others.
        some[:] = [
            x if t.any() else None for x, t in zip(some, are_tested, strict=True)
        ]
    if draws is None:
        differences = len(columns) * count
        draws = min(DRAWS, max(FEWEST_DRAWS, _NUMBERS // max(differences, 1)))
    errors = _draw_varying(fits, gaps, pairs, draws, usual_tau)
    families = np.zeros(count, int) if families is None else families
    largest = _largest(errors, are_tested, families)
    critical = _critical(largest, families, level)
    results = []
    for i, (fit, is_tested) in enumerate(zip(whole, are_tested, strict=True)):
        if fit is None or not is_tested.any():
            results.append(_nothing(count))
        elif i in errors:
            known = fit, pairs, is_tested, errors[i]
            results.append(_contrasts(*known, families, largest, critical))
        else:
            results.append(_without_chance(fit, pairs, is_tested))
    return results


def odd_rows(
    columns: Sequence[Column], originals: Sequence[int] | None = None
) -> dict[int, float]:
    """Returns {row: how many times as much as the others it varies over seeds} of odd rows.

    Those are rows that are more likely odd than not (`spreads`), in the metric that says it
    most.
    """
    if originals is None:
        originals = range(max((len(column.values) for column in columns), default=0))
    fits = [f for f in _fitted(columns, np.asarray(originals, int))[0] if f is not None]
    fits = [fit for fit in fits if fit.total > 0]
    if not fits:
        return {}
    oddness = _oddness(
        fits, _correlation([_standardised(fit) for fit in fits]), USUAL_TAU
    )
    factors = {}
    for one in oddness:
        for row in np.flatnonzero((one.seen > 0.5) & (one.factor > 1)):
            known = factors.get(int(row), 0.0)
            factors[int(row)] = max(known, float(one.factor[row]))
    return dict(sorted(factors.items()))


def _oddness(fits, correlation, usual_tau):
    variances = np.stack([fit.variances for fit in fits])
    freedom = np.stack([fit.freedom for fit in fits])
    return oddness_of(variances, freedom, correlation, usual_tau)


def _fitted(columns, originals) -> tuple[list, list, list]:
    """Returns the Fit of each column's rows, of its copies, and of both; None for none."""
    fits = [fit_rows(column, originals) for column in columns]
    gaps = [
        None if fit is None else fit_gaps(column, originals, fit)
        for column, fit in zip(columns, fits, strict=True)
    ]
    whole = [
        fit if gap is None else with_copies(fit, gap)
        for fit, gap in zip(fits, gaps, strict=True)
    ]
    return fits, gaps, whole


def _largest(errors, are_tested, families) -> dict[int, np.ndarray]:
    """Returns the largest of each draw's errors (R,) in units of SE, sorted, by family."""
    found = {}
    for i, error in errors.items():
        scaled = np.abs(error.draws / _above_0(error.size))
        for family in np.unique(families[are_tested[i]]):
            own = scaled[:, are_tested[i] & (families == family)].max(1)
            found[family] = np.maximum(found.get(family, own), own)
    for largest in found.values():
        largest.sort()
    return found


def _critical(largest, families, level) -> np.ndarray:
    """Returns for each pair (P,) the smallest size that leaves a p of the level."""
    critical = np.zeros(len(families))
    for family, sizes in largest.items():
        # As `_contrasts` counts it.
        critical[families == family] = sizes[-max(int(level * (len(sizes) + 1)), 1)]
    return critical


class _Errors(NamedTuple):
    """Holds drawn errors of one metric's differences: of runs, of copies, or of both."""

    draws: np.ndarray
    """(R, P)"""
    squares: np.ndarray
    """(P,) SE²; 0 for a base, which has no error against itself,
    and for a copy that never scores otherwise than its original."""
    level: np.ndarray
    """(P,): the variance of the base's score."""
    cross: np.ndarray
    """(P,): its covariance with the difference."""
    now: np.ndarray
    """(P,): the variance that seeds give to each difference."""
    then: np.ndarray
    """(R, P): the same of the same table run again."""

    @property
    def size(self) -> np.ndarray:
        """(P,) SE."""
        return np.sqrt(self.squares)

    def joined(self, other: "_Errors") -> "_Errors":
        return _Errors(*map(operator.add, self, other))

    def repeated(self, shared: np.ndarray) -> np.ndarray:
        """Returns (R, P): SE of the same table run again, in units of this one's.

        `shared` (P,) are the variances that sentences give to the differences.
        """
        return np.sqrt((self.then + shared) / np.maximum(self.now + shared, 1e-300))


def _draw_varying(fits, gaps, pairs, draws, usual_tau) -> dict[int, _Errors]:
    """Draws the errors of columns in which anything varies, of rows and of copies, by place."""
    # A fixed seed, so that the same files give the same report.
    rng = np.random.default_rng(0)
    drawn = {}
    for some in (fits, gaps):
        varying = [i for i, fit in enumerate(some) if fit is not None and fit.total > 0]
        if varying:
            parts = _draw([some[i] for i in varying], pairs, draws, usual_tau, rng)
            for i, part in zip(varying, parts, strict=True):
                drawn[i] = drawn[i].joined(part) if i in drawn else part
    return drawn


def _draw(fits, pairs, draws, usual_tau, rng) -> list[_Errors]:
    """Draws the errors of all fits together."""
    rows, seeds = fits[0].residuals.shape
    correlation = _correlation([_standardised(fit) for fit in fits])
    of_runs = np.linalg.cholesky(correlation)
    spreads = _draw_spreads(fits, correlation, draws, usual_tau, rng)
    compared = len(pairs.rows)
    loads = [fit.estimates[pairs.rows] - fit.estimates[pairs.bases] for fit in fits]
    errors = [np.empty((draws, compared)) for _ in fits]
    is_balanced = all(_is_balanced(fit) for fit in fits)
    for start in range(0, draws, _CHUNK):
        chunk = slice(start, min(start + _CHUNK, draws))
        count = chunk.stop - start
        # In a balanced table a row's runs come in by their mean alone.
        shape = (count, rows) if is_balanced else (count, rows, seeds)
        of_run = _correlated(shape, of_runs, rng)
        of_sentences = _correlated((count, compared), of_runs, rng)
        for i, fit in enumerate(fits):
            sigmas = spreads[i][0][chunk]
            if is_balanced:
                error = sigmas * of_run[..., i] / np.sqrt(np.maximum(fit.runs, 1))
                error *= fit.runs > 0
                error = error[:, fit.errors_of]
                error = error[:, pairs.rows] - error[:, pairs.bases]
            else:
                scaled = (sigmas[..., None] * of_run[..., i]).reshape(count, -1)
                error = scaled @ loads[i].reshape(compared, -1).T
            errors[i][chunk] = error + np.sqrt(fit.column.shared) * of_sentences[..., i]
    results = []
    for i, fit in enumerate(fits):
        squared = (loads[i] ** 2).sum(-1)
        sizes = _sizes(fit, pairs, loads[i], squared, (spreads[i][0] ** 2).mean(0))
        variances = _repeated(fit, squared, *spreads[i], rng)
        results.append(_Errors(errors[i], *sizes, *variances))
    return results


def _sizes(fit, pairs, loads, squared, variances):
    """Returns the variances (P,) of differences, those of bases' scores, and their
    covariances (P,) with the differences.

    `loads` (P, K, J) are the weights with which runs enter the differences, and `squared`
    (P, K) their squares; `variances` (K,) are the rows' over seeds. What a seed does to all
    rows is part of a score, and of no difference.
    """
    column = fit.column
    own = fit.estimates[pairs.bases]
    level = (own**2).sum(-1) @ variances + column.level + fit.of_seeds
    cross = (loads * own).sum(-1) @ variances + column.cross
    return squared @ variances + column.shared, level, cross


def _draw_spreads(fits, correlation, draws, usual_tau, rng):
    """Draws (standard deviations (R, K), m (R,), τ (R,)) of each fit."""
    rows = len(fits[0].residuals)
    # Variances of correlated numbers are correlated by the square.
    of_spreads = np.linalg.cholesky(correlation**2)
    uniforms = special.ndtr(_correlated((draws, rows), of_spreads, rng))
    oddness = _oddness(fits, correlation, usual_tau)
    results = []
    for i, fit in enumerate(fits):
        known = fit.variances, fit.freedom, uniforms[..., i]
        sigmas, m, tau = draw_spreads(*known, rng, usual_tau, oddness[i])
        results.append((np.maximum(sigmas, np.sqrt(fit.column.own)), m, tau))
    return results


def _correlated(shape, root, rng):
    """Draws normal numbers (*shape, M) of the covariance root · rootᵀ."""
    # One product of two matrices, which is quicker than one for each run.
    normals = rng.standard_normal((np.prod(shape), len(root)))
    return (normals @ root.T).reshape(*shape, -1)


def _is_balanced(fit):
    present = np.isfinite(fit.residuals)
    in_model = present.any(1)
    return bool(present[in_model].all())


def _standardised(fit):
    """Returns residuals in units of their row's spread; NaN where there are none."""
    pooled = (fit.freedom * fit.variances).sum() / max(fit.freedom.sum(), 1e-9)
    variances = (fit.freedom * fit.variances + 4 * pooled) / (fit.freedom + 4)
    known = np.where((fit.freedom > 0) & (fit.runs > 1), variances, np.nan)
    return fit.residuals / np.sqrt(known)[:, None]


def _correlation(residuals):
    """Returns the correlation (M, M) of M metrics' residuals, drawn a little towards none."""
    metrics = len(residuals)
    correlation = np.eye(metrics)
    for i in range(metrics):
        for j in range(i):
            both = np.isfinite(residuals[i]) & np.isfinite(residuals[j])
            x = residuals[i][both]
            y = residuals[j][both]
            size = np.sqrt((x * x).sum() * (y * y).sum())
            if size > 0:
                # Few pairs say little, and less correlation is the safer side.
                trust = both.sum() / (both.sum() + 5)
                correlation[i, j] = correlation[j, i] = trust * (x * y).sum() / size
    values, vectors = np.linalg.eigh(correlation)
    correlation = (vectors * np.maximum(values, 1e-3)) @ vectors.T
    scale = np.sqrt(np.diag(correlation))
    return correlation / scale / scale[:, None]


def _repeated(fit, loads, sigmas, m, tau, rng):
    """Returns the variance (P,) that seeds give to each difference, and (R, P) the same of
    the same table run again.

    A row's spread is taken for a mean, in logs, of its own estimate and the table's. `loads`
    (P, K) are the squared weights with which the rows' variances enter.
    """
    freedom = np.maximum(fit.freedom, 1e-3)
    chance = special.polygamma(1, freedom / 2) / 4
    weight = tau[:, None] ** 2 / (tau[:, None] ** 2 + chance)
    bias = (special.digamma(freedom / 2) - np.log(freedom / 2)) / 2
    again = sigmas**2 * rng.chisquare(freedom, sigmas.shape) / freedom
    floor = np.maximum(fit.column.own, 1e-300)

    def moderated(variances, m):
        logs = 0.5 * np.log(np.maximum(variances, 1e-300)) - bias
        return np.maximum(np.exp(2 * (weight * logs + (1 - weight) * m)), floor)

    pooled = (fit.freedom * fit.variances).sum() / max(fit.freedom.sum(), 1e-9)
    now = moderated(np.maximum(fit.variances, 1e-4 * pooled), m.mean())
    # The repeated table estimates its m anew.
    error = rng.standard_normal((len(m), 1)) / np.sqrt(2 * fit.freedom.sum())
    then = moderated(again, m[:, None] + error)
    return now @ loads.T, then @ loads.T


def _contrasts(fit, pairs, is_tested, errors, families, largest, critical):
    rows, bases = pairs
    deviations = errors.size
    mean = np.where(is_tested, fit.means[rows] - fit.means[bases], np.nan)
    reach = critical * deviations
    # The draws beyond, and this table itself.
    in_errors = np.abs(mean) / _above_0(deviations)
    p = np.full(len(mean), np.nan)
    for family, sizes in largest.items():
        own = families == family
        beyond = len(sizes) - np.searchsorted(sizes, in_errors[own])
        p[own] = (beyond + 1) / (len(sizes) + 1)
    repeated = errors.repeated(fit.column.shared)
    again = np.abs(reach * repeated + errors.draws)
    detectable = np.quantile(again, POWER, axis=0)
    seeds = np.clip(1 - fit.column.shared / _above_0(deviations) ** 2, 0, 1)
    of_runs = np.sqrt(np.maximum(deviations**2 * seeds, 1e-300))
    runs = np.maximum(fit.runs, 1)
    harmonic = 1 / (1 / runs[rows] + 1 / runs[bases])
    certain = np.where(mean == 0, 0.0, np.copysign(np.inf, mean))
    # Runs of a copy are paired with the base's, and of_runs is that of their differences.
    is_paired = fit.errors_of[rows] == fit.errors_of[bases]
    d = mean / (of_runs * np.sqrt(np.where(is_paired, 2, 1) * harmonic))
    score = fit.means[bases] + _mean_seed(fit)
    return Contrasts(
        base=score,
        mean=mean,
        low=mean - reach,
        high=mean + reach,
        p=np.where(is_tested, np.minimum(p, 1.0), np.nan),
        d=np.where(is_tested & (deviations == 0), certain, d),
        detectable=np.where(is_tested, detectable, np.nan),
        from_seeds=seeds,
        edge=edges(score, mean, errors.level, errors.cross, errors.size, critical),
    )


def edges(
    score: np.ndarray | float,
    mean: np.ndarray,
    level: np.ndarray | float,
    cross: np.ndarray,
    size: np.ndarray,
    critical: np.ndarray | float,
) -> np.ndarray:
    """Returns points (P, EDGE, 2) around the ellipses of bases' scores and differences.

    `score` and `mean` (P,) are their centres, `level` the variances of the scores, `cross`
    their covariances with the differences, and `size` the differences' standard deviations.
    """
    angles = np.linspace(0, 2 * np.pi, EDGE, endpoint=False)
    score, level = (np.broadcast_to(x, mean.shape) for x in (score, level))
    # Cholesky's factor of [[level, cross], [cross, size²]].
    root = np.sqrt(level)
    slope = cross / _above_0(root)
    rest = np.sqrt(np.maximum(size**2 - slope**2, 0.0))
    x = root[:, None] * np.cos(angles)
    critical = np.broadcast_to(critical, mean.shape)[:, None]
    y = slope[:, None] * np.cos(angles) + rest[:, None] * np.sin(angles)
    return np.stack([score[:, None] + critical * x, mean[:, None] + critical * y], -1)


def _above_0(size):
    """Returns sizes to divide by, where what is divided may be 0 as well."""
    return np.maximum(size, 1e-150)


def _mean_seed(fit):
    """Returns the mean effect of seeds, so that a base's score is on the metric's scale."""
    present = np.isfinite(fit.residuals)
    fitted = np.where(
        present, fit.column.values - fit.residuals - fit.means[:, None], np.nan
    )
    return float(np.nanmean(fitted))


def _without_chance(fit, pairs, is_tested):
    """Returns contrasts of runs that do not vary at all."""
    rows, bases = pairs
    mean = np.where(is_tested, fit.means[rows] - fit.means[bases], np.nan)
    magnitude = np.nanmax(np.abs(fit.column.values[np.isfinite(fit.column.values)]))
    mean = np.where(np.abs(mean) < 1e-12 * magnitude, 0.0, mean)
    score = fit.means[bases] + _mean_seed(fit)
    return Contrasts(
        base=score,
        mean=mean,
        low=mean,
        high=mean,
        p=np.where(mean == 0, 1.0, np.where(is_tested, 0.0, np.nan)),
        d=np.where(mean == 0, 0.0, np.copysign(np.inf, mean)),
        detectable=np.zeros_like(mean),
        from_seeds=np.ones_like(mean),
        edge=np.stack([score, mean], axis=-1)[:, None],
    )


def _nothing(pairs):
    nan = np.full(pairs, np.nan)
    return Contrasts(*[nan] * 8, edge=np.full((pairs, 1, 2), np.nan))
