"""Differences to a base in a metric's own units, and what more seeds would show."""

import dataclasses
import math
from typing import NamedTuple

from experiments.stats.contrasts import Contrasts
from experiments.stats.summary import LEVEL
from experiments.stats.variance_stabilising import Link

MOST_SEEDS = 50
"""More seeds than these are not proposed."""

LACKS = ("seeds", "sentences", "both")

_LARGEST = 1e5
"""A perplexity so far above another is that of no guess, whatever the vocabulary."""

_OF_RANGE = 0.9
"""A difference of this share of what the metric can have at all is as good as none shown."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """Holds the difference row − base in a metric's own units."""

    mean: float
    low: float
    high: float
    """The interval; those of all rows and metrics hold at once with 95 % probability."""
    p: float
    """Two-sided, for no difference, corrected for all rows and metrics of the table."""
    d: float
    """Effect size: the difference, on the metric's scale, in standard deviations of a run."""
    runs: int
    detectable: float
    """The true difference that such a table shows with probability 0.8; infinite where the
    metric cannot differ so much."""
    more_seeds: int | None
    """About how many more seeds decide; None where that is more than MOST_SEEDS."""
    from_seeds: float = 1.0
    """The share of its variance that falls with the number of seeds."""
    margin: float | None = None
    """The smallest difference that matters; None where none was given."""
    lacks: str = ""
    """What would decide where `more_seeds` is None: one of LACKS; "" where nothing would."""

    @property
    def half(self) -> float:
        """Half of the interval's width."""
        return (self.high - self.low) / 2

    def factor(self, runs: int) -> float:
        """Returns by what the interval's width changes with this number of runs."""
        return math.sqrt(self.from_seeds * self.runs / runs + 1 - self.from_seeds)


class Verdict(NamedTuple):
    """Holds the conclusion on a row in one metric."""

    words: str
    """"better", "worse", "equal within 0.5", "undecided", "diverged in 1 of 3 runs"; ""."""
    more_seeds: int | None = None
    """For "undecided": about how many more seeds decide."""
    detail: str = ""
    needs: str = ""
    """For "undecided" without a number of seeds: what decides, as "more test sentences"."""

    @property
    def kind(self) -> str:
        """The first word: better, worse, equal, undecided or diverged."""
        return self.words.partition(" ")[0]

    @property
    def is_decided(self) -> bool:
        """Whether more seeds are of no use."""
        return self.words != "undecided"

    def __str__(self):
        words = self.words
        if self.more_seeds:
            words += f": {seeds_text(self.more_seeds)}"
        elif self.needs:
            words += f": {self.needs}"
        return "; ".join(filter(None, (words, self.detail)))


def seeds_text(seeds: int) -> str:
    return f"about {seeds} more seed{'s' if seeds > 1 else ''}"


def difference(
    contrasts: Contrasts,
    i: int,
    link: Link,
    runs: int,
    margin: float | None = None,
    level: float = LEVEL,
) -> Difference | None:
    """Returns the Difference of pair i, whose row has so many runs; None for no difference.

    p is in proportion to the `level` of the contrasts, so that p < LEVEL is a verdict.
    """
    if not contrasts.tested[i]:
        return None
    mean, *ends = contrasts.printed(i, link.inverse)
    low, high = map(_bounded, ends)
    without = Difference(
        mean=mean,
        low=low,
        high=high,
        p=min(1.0, float(contrasts.p[i]) * LEVEL / level),
        d=float(contrasts.d[i]),
        runs=runs,
        detectable=_detectable(contrasts, i, link),
        more_seeds=None,
        from_seeds=float(contrasts.from_seeds[i]),
        margin=margin,
    )
    more = _more_seeds(contrasts, i, without)
    lacks = "" if more else _lacks(contrasts, i)
    return dataclasses.replace(without, more_seeds=more, lacks=lacks)


def _bounded(difference):
    """Returns a difference, infinite where it only shows that there is no bound."""
    if abs(difference) < _LARGEST:
        return difference
    return math.copysign(math.inf, difference)


def _detectable(contrasts, i, link):
    """Returns the larger of the differences up and down that would have shown.

    Infinite where it is nearly all that the metric leaves room for.
    """
    score = contrasts.base[i]
    base = float(link.inverse(score))
    size = contrasts.detectable[i]
    up = _bounded(float(link.inverse(score + size)) - base)
    down = -_bounded(float(link.inverse(score - size)) - base)
    if not (math.isfinite(up) and math.isfinite(down)):
        return math.inf
    rooms = [link.highest - base, base - link.lowest]
    widest = max(zip(rooms, (up, down), strict=True))
    if widest[1] > _OF_RANGE * widest[0]:
        return math.inf
    return max(up, down)


def _lacks(contrasts, i):
    """Returns which part of the variance is in the way of a difference of this size.

    That of seeds falls with their number, that of sentences with theirs.
    """
    if not contrasts.detectable[i] > 0:
        return ""
    allowed = (contrasts.mean[i] / contrasts.detectable[i]) ** 2
    # Less than this no number that anybody would take shows.
    if allowed < 1 / MOST_SEEDS:
        return ""
    of_seeds = contrasts.from_seeds[i]
    if 1 - of_seeds < allowed:
        return "seeds"
    return "sentences" if of_seeds < allowed else "both"


def _more_seeds(contrasts, i, difference):
    """Returns about how many more seeds decide; None for more than MOST_SEEDS, or none needed.

    The seeds' share of the variance falls with their number, the sentences' stays.
    """
    shares = []
    if contrasts.detectable[i] > 0:
        shares.append(abs(contrasts.mean[i]) / contrasts.detectable[i])
    if difference.margin is not None and difference.high > difference.low:
        shares.append((difference.margin - abs(difference.mean)) / difference.half)
    runs = difference.runs
    counts = []
    for share in shares:
        room = share**2 - (1 - contrasts.from_seeds[i])
        if share > 0 and room > 0:
            counts.append(runs * contrasts.from_seeds[i] / room - runs)
    if not counts or not math.isfinite(min(counts)):
        return None
    more = max(1, math.ceil(min(counts)))
    return more if more <= MOST_SEEDS else None
