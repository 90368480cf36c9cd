"""Compares a table's rows with its base: which differences are real.

It also says which of the orderings that the paper printed our differences support.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.evaluation.metrics import METRICS, Metric
from experiments.report.columns import ReadSentences, columns_of
from experiments.report.contrasts import Contrasts, contrast
from experiments.report.published import TABLE_3, Published
from experiments.report.statistics import LEVEL, Group
from experiments.report.strata import corpora_of, split_by_corpus
from experiments.settings import SCORING

MOST_SEEDS = 50
"""More seeds than these are not proposed."""

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
    """The smallest difference that matters; None where nobody said."""

    def factor(self, runs: int) -> float:
        """Returns by what the interval's width changes with so many runs."""
        return math.sqrt(self.from_seeds * self.runs / runs + 1 - self.from_seeds)


class Verdict(NamedTuple):
    """Holds what to conclude of a row in one metric."""

    words: str
    """"better", "worse", "equal within 0.5", "undecided", "diverged in 1 of 3 runs"; ""."""
    more_seeds: int | None = None
    """For "undecided": about how many more seeds decide."""
    detail: str = ""

    @property
    def is_decided(self) -> bool:
        """Returns whether more seeds are of no use."""
        return self.words != "undecided"

    def __str__(self):
        words = self.words
        if self.more_seeds:
            words += f": {seeds_text(self.more_seeds)}"
        return "; ".join(filter(None, (words, self.detail)))


class Row(NamedTuple):
    """Holds a group and how it compares with the base, each by the keys of the metrics.

    The base has no differences.
    """

    label: str
    group: Group
    base: Group | None
    """The group that it is compared with, itself for a base; None where there is none."""
    differences: Mapping[str, Difference]
    verdicts: Mapping[str, Verdict]
    published: Published | None
    """The paper's numbers for the row of this label."""
    ordering: Mapping[str, str]
    """Of published metrics: our results and the sign of the paper's row − base.

    "supported", "contradicted" or "cannot tell"; "" where the paper has no such row, or one
    number for row and base, or where there is no difference of ours.
    """

    @property
    def corpora(self) -> frozenset[str]:
        """Returns the digests of the text of its finished trials."""
        return corpora_of(self.group)


def compare(
    groups: Sequence[Group],
    sentences: ReadSentences,
    metrics: Sequence[Metric] = METRICS,
    interest: Mapping[str, float] | None = None,
    level: float = LEVEL,
) -> list[Row]:
    """Compares each of `groups` with the base, and returns a Row for each in their order.

    `sentences(trial)` returns what its sentences.npz holds, {} for nothing. The base is the
    group with the label "base", else the one that changes nothing; without one nothing is
    compared. Groups of another corpus are compared with a base of theirs, see
    `experiments.report.strata`. `experiments.report.contrasts` says how. `interest` are
    {metric key: the smallest difference, in the units of the table, that matters}: a row
    whose interval lies within it on both sides is equal. A table that is judged several
    times gives each a `level` of its own; p is then in proportion to it, so that p < 0.05 is
    a verdict.
    """
    base = base_of(groups)
    # Without a base no sentences are read, which takes a while for many trials.
    if base is None:
        return [_row(group, None, {}, {}, metrics) for group in groups]
    place = [group is base for group in groups].index(True)
    strata = split_by_corpus(groups, place)
    compared = sum(_comparisons(stratum) for stratum in strata)
    rows = {}
    for stratum in strata:
        members = [groups[i] for i in stratum.rows]
        if count := _comparisons(stratum):
            at = stratum.rows.index(stratum.base)
            # Tables of different text are independent: their levels add up.
            own_level = level * count / compared
            judged = _judge(members, at, sentences, metrics, interest or {}, own_level)
        else:
            base = None if stratum.base is None else groups[stratum.base]
            judged = [_row(group, base, {}, {}, metrics) for group in members]
        rows |= dict(zip(stratum.rows, judged, strict=True))
    return [rows[i] for i in range(len(groups))]


def _comparisons(stratum):
    return 0 if stratum.base is None else len(stratum.rows) - 1


def _judge(groups, place, sentences, metrics, interest, level):
    """Returns the Row of each group of one corpus, compared with the one at `place`."""
    originals = _originals(groups, place)
    runs, columns = columns_of(groups, sentences, metrics, place, originals)
    results = contrast([*columns.values()], place, level=level, originals=originals)
    contrasts = dict(zip(columns, results, strict=True))
    rows = []
    for i, group in enumerate(groups):
        differences = {}
        verdicts = {}
        for metric, column in columns.items():
            margin = interest.get(metric.key)
            difference = _difference(
                contrasts[metric], i, metric, column, margin, level
            )
            if difference is not None:
                differences[metric.key] = difference
            if i != place:
                verdicts[metric.key] = _verdict(
                    difference, runs[metric][i], metric, margin
                )
        # Without words there is nothing to conclude.
        verdicts = {key: verdict for key, verdict in verdicts.items() if verdict.words}
        rows.append(_row(group, groups[place], differences, verdicts, metrics))
    return rows


def base_of(groups: Iterable[Group]) -> Group | None:
    """Returns the group that the others are compared with."""
    groups = list(groups)
    # By label first, because a sweep may name another row its base.
    unchanged = next((group for group in groups if not group.point), None)
    return next((group for group in groups if group.label == "base"), unchanged)


def _originals(groups, base):
    """Returns for each group the first that has trained the same models, itself for most."""
    scoring = {f"evaluation.{name}" for name in SCORING}
    training = [
        frozenset(item for item in group.point.items() if item[0] not in scoring)
        for group in groups
    ]
    # The base is nobody's copy, wherever it stands.
    firsts = {training[base]: base}
    return [firsts.setdefault(key, i) for i, key in enumerate(training)]


def seeds_text(seeds: int) -> str:
    return f"about {seeds} more seed{'s' if seeds > 1 else ''}"


def _row(group, base, differences, verdicts, metrics):
    published = TABLE_3.get(group.label)
    of_base = TABLE_3.get(base.label) if base else None
    ordering = {}
    for metric in metrics:
        if not metric.published:
            continue
        ordering[metric.key] = ""
        if published and of_base and metric.key in differences:
            gap = getattr(published, metric.key) - getattr(of_base, metric.key)
            ordering[metric.key] = _ordering(gap, differences[metric.key])
    return Row(group.label, group, base, differences, verdicts, published, ordering)


def _ordering(published, difference):
    # Where the paper printed the same number twice, it has no ordering.
    if published == 0:
        return ""
    if difference.p >= LEVEL:
        return "cannot tell"
    return "supported" if (published > 0) == (difference.mean > 0) else "contradicted"


def _difference(contrasts: Contrasts, i, metric, column, margin, level):
    """Returns the Difference of row i on the metric's own scale; None where there is none."""
    if not contrasts.tested[i]:
        return None
    inverse = metric.link.inverse
    base = float(inverse(contrasts.base))
    moved = lambda by: float(inverse(contrasts.base + by)) - base
    mean, *ends = contrasts.printed(i, inverse)
    low, high = map(_bounded, ends)
    detectable = _detectable(contrasts, i, metric, base, moved)
    runs = int(np.isfinite(column.values[i]).sum())
    more_seeds = _more_seeds(
        contrasts, i, runs, (mean, low, high), _raw(margin, metric)
    )
    return Difference(
        mean=mean,
        low=low,
        high=high,
        p=min(1.0, float(contrasts.p[i]) * LEVEL / level),
        d=float(contrasts.d[i]),
        runs=runs,
        detectable=detectable,
        more_seeds=more_seeds,
        from_seeds=float(contrasts.from_seeds[i]),
        margin=_raw(margin, metric),
    )


def _raw(margin, metric):
    return None if margin is None else margin / metric.scale


def _bounded(difference):
    """Returns a difference, infinite where it says no more than that it has no bound."""
    return (
        difference
        if abs(difference) < _LARGEST
        else math.copysign(math.inf, difference)
    )


def _detectable(contrasts, i, metric, base, moved):
    """Returns the larger of the differences up and down that would have shown.

    Infinite where it is nearly all that the metric leaves room for.
    """
    size = contrasts.detectable[i]
    up = _bounded(moved(size))
    down = -_bounded(moved(-size))
    if not (math.isfinite(up) and math.isfinite(down)):
        return math.inf
    rooms = [metric.link.highest - base, base - metric.link.lowest]
    widest = max(zip(rooms, (up, down), strict=True))
    if widest[1] > _OF_RANGE * widest[0]:
        return math.inf
    return max(up, down)


def _more_seeds(contrasts, i, runs, interval, margin):
    """Returns about how many more seeds decide; None for more than MOST_SEEDS, or none needed.

    The seeds' share of the variance falls with their number, the sentences' stays.
    """
    mean, low, high = interval
    shares = []
    if contrasts.detectable[i] > 0:
        shares.append(abs(contrasts.mean[i]) / contrasts.detectable[i])
    if margin is not None and high > low:
        shares.append((margin - abs(mean)) / ((high - low) / 2))
    counts = []
    for share in shares:
        room = share**2 - (1 - contrasts.from_seeds[i])
        if share > 0 and room > 0:
            counts.append(runs * contrasts.from_seeds[i] / room - runs)
    if not counts or not math.isfinite(min(counts)):
        return None
    more = max(1, math.ceil(min(counts)))
    return more if more <= MOST_SEEDS else None


def _verdict(difference, runs, metric, margin):
    """Returns the Verdict of a row in one metric."""
    diverged = sum(math.isinf(value) for value in runs.values.values())
    if diverged:
        return Verdict(f"diverged in {diverged} of {len(runs.values)} runs")
    at_bound = _at_bound_text(runs, metric)
    if difference is None:
        return Verdict("")
    raw = _raw(margin, metric)
    if raw is not None and -raw < difference.low and difference.high < raw:
        return Verdict(f"equal within {margin:g}{_unit(metric)}", detail=at_bound)
    if difference.p < LEVEL:
        is_higher = difference.mean > 0
        words = "better" if is_higher == metric.higher_is_better else "worse"
        return Verdict(words, detail=at_bound)
    return Verdict(
        "undecided", difference.more_seeds, at_bound or _shown_text(difference, metric)
    )


def _at_bound_text(runs, metric):
    bound = runs.bound(metric)
    if bound is None:
        return ""
    return f"all runs at {metric.scale * bound:g}{_unit(metric)}"


def _shown_text(difference, metric):
    if difference.detectable == 0:
        return ""
    if not math.isfinite(difference.detectable):
        return "too few seeds to show any difference"
    size = difference.detectable * metric.scale
    # With .2g, 100 would be 1e+02.
    number = f"{size:.0f}" if 99.5 <= size < 1e5 else f"{size:.2g}"
    return f"differences above {number}{_unit(metric)} would have shown"


def _unit(metric):
    return f" {metric.unit}" if metric.unit else ""
