"""Sums up a table in a sentence or two, from its verdicts alone.

All intervals of a table hold at once with 95 % probability, so a sentence about several rows
is as sure as one about a single row.
"""

import collections
import math
from collections.abc import Sequence

from experiments.evaluation.metrics import METRICS, Metric
from experiments.report.cells import listed, mean_and_interval, number
from experiments.report.factors import compared_in, factors_of
from experiments.report.notable_rows import by_size
from experiments.report.rows import Row, base_of
from experiments.stats.differences import seeds_text

MOST_NAMED = 3
"""Rows that are named; more are counted."""

SIDES = ("better", "worse")

_LARGEST_BOUND = 0.25
"""A bound of more than this share of the metric itself is no news."""


def finding(
    rows: Sequence[Row], metrics: Sequence[Metric] = METRICS, are_pairs: bool = False
) -> str:
    """Returns what the rows show against their bases.

    "" for a table without results, and for a single row. Each of `are_pairs` is a row with
    a base that is no other of them.
    """
    apart = [] if are_pairs else _corpora(rows)
    diverged = _diverged(rows)
    if not any(row.differences for row in rows):
        sentences = [*apart, *diverged]
        if not apart:
            sentences.append(_without_differences(rows, metrics))
        return " ".join(filter(None, sentences))
    decided = [rows[i] for i in by_size(rows) if _sides(rows[i])]
    rest = []
    for row in rows:
        if row.differences and not _sides(row) and not _has_diverged(row):
            rest.append(row)
    sentences = [*apart, *_decided(decided, rows, metrics), *diverged]
    return " ".join([*sentences, *_rest(rest, metrics, bool(decided))])


def _corpora(rows):
    """Returns sentences on rows of several corpora, which are not compared with each other."""
    corpora = {row.corpora for row in rows if row.corpora}
    if len(corpora) < 2:
        return []
    sentences = [
        f"Rows are of {len(corpora)} corpora, and each is compared within its own."
    ]
    compared = {row.base for i, row in enumerate(rows) if row.base != i}
    alone = sum(
        row.base is None or (row.base == i and i not in compared)
        for i, row in enumerate(rows)
    )
    if alone:
        count = "1 row has" if alone == 1 else f"{alone} rows have"
        them = "it" if alone == 1 else "them"
        sentences.append(
            f"{count} no other to be compared with there, and nothing is said of {them}."
        )
    return sentences


def _without_differences(rows, metrics):
    """Names the best row, where there is something to compare."""
    for metric in metrics:
        means = [(row.summary(metric.key), row.name) for row in rows]
        means = [(s.mean, name) for s, name in means if s and math.isfinite(s.mean)]
        if len(means) < 2:
            continue
        choose = max if metric.higher_is_better else min
        mean, name = choose(means, key=lambda pair: pair[0])
        side = "highest" if metric.higher_is_better else "lowest"
        amount = number(metric.scale * mean, metric.decimals) + metric.spaced_unit
        has_base = base_of(rows) is not None
        why = "there are too few seeds" if has_base else "no row is the base"
        return (
            f"{name} has the {side} {metric.name}, {amount}; {why}, so nothing is said of "
            "which differences are real."
        )
    return ""


def _sides(row):
    return {verdict.words for verdict in row.verdicts.values()} & set(SIDES)


def _has_diverged(row):
    return any(verdict.kind == "diverged" for verdict in row.verdicts.values())


def _decided(decided, rows, metrics):
    """Returns sentences on the rows with a verdict for one side."""
    if not decided:
        return []
    parts = [_difference(row, metrics) for row in decided]
    if len(decided) <= MOST_NAMED:
        return [f"{'; '.join(parts)}."]
    counts = []
    for side in SIDES:
        if count := sum(_sides(row) == {side} for row in decided):
            counts.append(f"{count} {side}")
    if mixed := sum(len(_sides(row)) > 1 for row in decided):
        counts.append(f"{mixed} better in one metric and worse in another")
    # The clearest of each side.
    firsts = {}
    for row, part in zip(decided, parts, strict=True):
        firsts.setdefault(frozenset(_sides(row)), part)
    others = sum(bool(row.verdicts) for row in rows)
    base = "their bases" if any(row.against for row in decided) else "base"
    return [
        _by_factor(rows)
        or f"{len(decided)} of {others} rows differ from {base}: {', '.join(counts)}.",
        f"The clearest: {'; '.join(firsts.values())}.",
    ]


def _by_factor(rows):
    """Says how often each value of the factor that a product compares differs from the base's.

    "" where it compares several, or there is no product.
    """
    factors = factors_of(rows)
    compared = compared_in(rows, factors)
    same = [heading for heading in factors if heading not in compared]
    if len(compared) != 1 or not same:
        return ""
    texts = factors[compared[0]]
    bases = {texts[row.base] for row in rows if row.differences}
    if len(bases) != 1:
        return ""
    counts = {}
    for text, row in zip(texts, rows, strict=True):
        if row.verdicts:
            counts.setdefault(text, collections.Counter())[_said_of(row)] += 1
    parts = []
    for text, sides in counts.items():
        of = sum(sides.values())
        # The sides come first.
        order = sorted(
            sides, key=lambda side: (side.partition(" ")[0] not in SIDES, side)
        )
        said = [f"{side} in {sides[side]} of {of}" for side in order]
        parts.append(f"{text} is {listed(said)}")
    return f"Against {bases.pop()} at the same {listed(same)}: {'; '.join(parts)}."


def _said_of(row):
    """Returns what a row's verdicts say in all: a side, else diverged, equal or undecided."""
    if _sides(row):
        return " and ".join(sorted(_sides(row)))
    kinds = {verdict.kind for verdict in row.verdicts.values()}
    if "diverged" in kinds or len(kinds) == 1:
        return "diverged" if "diverged" in kinds else kinds.pop()
    return "undecided"


def _difference(row, metrics):
    """Describes a row's first decided difference: "h=1 is worse: perplexity 0.28 higher [...]"."""
    than = f" than {row.against}" if row.against else ""
    kinds = {}
    for metric in metrics:
        verdict = row.verdicts.get(metric.key)
        if verdict is not None and verdict.words in SIDES:
            kinds[metric] = verdict.words
    for metric, words in kinds.items():
        difference = row.differences.get(metric.key)
        if difference is None:
            continue
        size = number(abs(metric.scale * difference.mean), metric.difference_decimals)
        _, interval = mean_and_interval(difference, metric)
        way = "higher" if difference.mean > 0 else "lower"
        text = f"{metric.name} is {size}{metric.spaced_unit} {way} {interval}"
        against = [other.name for other, kind in kinds.items() if kind != words]
        other = SIDES[words == SIDES[0]]
        but = f" (but {other} in {listed(against)})" if against else ""
        return f"{row.name} is {words}{than}: {text}{but}"
    return ""


def _diverged(rows):
    base = base_of(rows)
    names = []
    for i, row in enumerate(rows):
        if i != base and _has_diverged(row):
            names.append(row.name)
    if not names:
        return []
    if len(names) > MOST_NAMED:
        return [f"{len(names)} rows diverged."]
    return [f"{listed(names)} diverged in some runs."]


def _rest(rest, metrics, has_decided):
    """Returns a sentence on the rows without a side: how much they may differ at most."""
    if not rest:
        return []
    bounds = []
    for metric in metrics:
        bound = _bound(rest, metric)
        if bound is not None:
            bounds.append(f"{bound}{metric.spaced_unit} in {metric.name}")
    subject = "Nothing else" if has_decided else "No row"
    if bounds:
        return [f"{subject} differs by more than {listed(bounds)}."]
    verdicts = [verdict for row in rest for verdict in row.verdicts.values()]
    seeds = [verdict.more_seeds for verdict in verdicts if verdict.more_seeds]
    more = f"; {seeds_text(min(seeds))} may decide" if seeds else ""
    return [f"{subject} is shown to differ{more}."]


def _bound(rest, metric):
    """Returns what no row's difference exceeds; None where the intervals show too little."""
    ends = []
    for row in rest:
        if difference := row.differences.get(metric.key):
            ends += [abs(difference.low), abs(difference.high)]
    if not ends or not math.isfinite(max(ends)):
        return None
    means = [row.summary(metric.key) for row in rest]
    largest = max(abs(mean.mean) for mean in means if mean)
    if max(ends) > _LARGEST_BOUND * largest:
        return None
    return _rounded_up(metric.scale * max(ends), metric.difference_decimals)


def _rounded_up(value, decimals):
    """Returns two digits that are not below `value`."""
    if value == 0:
        return "0"
    places = max(0, min(decimals, 1 - math.floor(math.log10(value))))
    return f"{math.ceil(value * 10**places) / 10**places:.{places}f}"
