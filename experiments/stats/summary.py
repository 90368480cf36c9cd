"""Summarises a few values by mean, spread and interval, and corrects p-values."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

from scipy import special

LEVEL = 0.05
"""The significance level of every test; intervals are for 1 − LEVEL."""


@dataclasses.dataclass(frozen=True)
class Summary:
    """Holds mean, spread and 95 % interval of n values.

    x̄ = Σ xᵢ / n, s = √(Σ (xᵢ − x̄)² / (n − 1)), and x̄ ± t(n − 1) s / √n. Spread and interval
    are None for one value.
    """

    mean: float
    spread: float | None
    n: int
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> "Summary":
        """Returns mean and spread of the values times `factor`, without an interval."""
        spread = None if self.spread is None else factor * self.spread
        return Summary(factor * self.mean, spread, self.n)


def summarise(values: Iterable[float]) -> Summary:
    """Computes mean, sample standard deviation, number and interval of `values`.

    A NaN or infinity among them shows in each. Raises ValueError for no values.
    """
    values = [float(value) for value in values]
    n = len(values)
    if n == 0:
        raise ValueError("no values to summarise")
    mean = sum(values) / n
    # One value has no spread, which is other than a spread of 0.
    if n == 1:
        return Summary(mean, None, 1)
    spread = math.sqrt(sum((x - mean) * (x - mean) for x in values) / (n - 1))
    # Student's t, because the spread is estimated from few seeds. The lower tail, because
    # 1 − level / 2 rounds to 1 for small levels.
    t = -float(special.stdtrit(n - 1, LEVEL / 2))
    reach = t * spread / math.sqrt(n)
    return Summary(mean, spread, n, mean - reach, mean + reach)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts p-values for their number, in the same order (Holm 1979).

    Adjusted values ≤ α keep the probability of any false one at α. The k-th smallest of m
    becomes max over j ≤ k of min(1, (m − j + 1) p_j). Raises ValueError for a value outside
    [0, 1].
    """
    if wrong := [p for p in p_values if not 0 <= p <= 1]:
        raise ValueError(f"p-values lie between 0 and 1, not at {wrong[0]}")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    ranked = sorted(range(len(p_values)), key=lambda i: p_values[i])
    for rank, i in enumerate(ranked):
        # A running maximum keeps the order of the p-values.
        largest = max(largest, min(1.0, (len(p_values) - rank) * float(p_values[i])))
        adjusted[i] = largest
    return adjusted
