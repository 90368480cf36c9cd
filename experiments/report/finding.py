"""Says in a sentence or two what a table shows, from its verdicts alone.

All intervals of a table hold at once with 95 % probability, so a sentence about several rows
is as sure as one about a single row.
"""

import math
from collections.abc import Sequence

from experiments.evaluation.metrics import METRICS, Metric
from experiments.report.choice import by_size
from experiments.report.comparison import Row, base_of, seeds_text
from experiments.report.table import listed, mean_and_interval, number

MOST_NAMED = 3
"""Rows that are named; more are counted."""

SIDES = ("better", "worse")

_LARGEST_BOUND = 0.25
"""A bound of more than this share of the metric itself is no news."""


def finding(
    labels: Sequence[str], rows: Sequence[Row], metrics: Sequence[Metric] = METRICS
) -> str:
    """Returns what the rows, named by `labels`, show against the base.

    "" for a table without results, and for a single row.
    """
    named = list(zip(labels, rows, strict=True))
    base = base_of(row.group for row in rows)
    others = [(label, row) for label, row in named if row.group is not base]
    apart = _corpora(rows)
    if not any(row.differences for row in rows):
        sentences = [*apart, *_diverged(others)]
        if not apart:
            sentences.append(_without_differences(named, base, metrics))
        return " ".join(filter(None, sentences))
    decided = [rows[i] for i in by_size(rows) if _sides(rows[i])]
    sentences = [*apart, *_decided(decided, named, metrics), *_diverged(others)]
    rest = [row for _, row in others if row.differences]
    rest = [row for row in rest if not _sides(row) and not _has_diverged(row)]
    sentences += _rest(rest, metrics, bool(decided))
    return " ".join(sentences)


def _corpora(rows):
    """Says that rows of several corpora are not compared with each other."""
    corpora = {row.corpora for row in rows if row.corpora}
    if len(corpora) < 2:
        return []
    sentences = [
        f"Rows are of {len(corpora)} corpora, and each is compared within its own."
    ]
    compared = {id(row.base) for row in rows if row.group is not row.base}
    alone = [
        row
        for row in rows
        if row.base is None or (row.group is row.base and id(row.base) not in compared)
    ]
    if alone:
        count = "1 row has" if len(alone) == 1 else f"{len(alone)} rows have"
        nothing = (
            "nothing is said of it" if len(alone) == 1 else "nothing is said of them"
        )
        sentences.append(f"{count} no other to be compared with there, and {nothing}.")
    return sentences


def _without_differences(named, base, metrics):
    """Names the best row, where there is something to compare."""
    for metric in metrics:
        means = [(row.group.summary(metric.key), label) for label, row in named]
        means = [(s.mean, label) for s, label in means if s and math.isfinite(s.mean)]
        if len(means) < 2:
            continue
        choose = max if metric.higher_is_better else min
        mean, label = choose(means, key=lambda pair: pair[0])
        side = "highest" if metric.higher_is_better else "lowest"
        why = "no row is the base" if base is None else "there are too few seeds"
        return (
            f"{label} has the {side} {metric.name}, {_amount(mean, metric)}; {why}, so "
            "nothing is said of which differences are real."
        )
    return ""


def _sides(row):
    return {verdict.words for verdict in row.verdicts.values()} & set(SIDES)


def _decided(decided, named, metrics):
    """Returns sentences on the rows with a verdict for one side."""
    if not decided:
        return []
    labels = {id(row.group): label for label, row in named}
    base = base_of(row.group for _, row in named)
    parts = []
    for row in decided:
        than = "" if row.base is base else f" than {labels[id(row.base)]}"
        parts.append(_difference(labels[id(row.group)], row, metrics, than))
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
    rows = sum(row.group is not row.base for _, row in named)
    return [
        f"{len(decided)} of {rows} rows differ from base: {', '.join(counts)}.",
        f"The clearest: {'; '.join(firsts.values())}.",
    ]


def _difference(label, row, metrics, than):
    """Says a row's first decided difference: "h=1 is worse: perplexity 0.28 higher [...]".

    `than` names its base where that is not the table's.
    """
    for metric in metrics:
        verdict = row.verdicts.get(metric.key)
        difference = row.differences.get(metric.key)
        if difference is None or verdict is None or verdict.words not in SIDES:
            continue
        size = number(abs(metric.scale * difference.mean), metric.difference_decimals)
        _, interval = mean_and_interval(difference, metric)
        way = "higher" if difference.mean > 0 else "lower"
        text = f"{metric.name} is {size}{_unit(metric)} {way} {interval}"
        against = _against(row, verdict.words, metrics)
        return f"{label} is {verdict.words}{than}: {text}{against}"
    return ""


def _against(row, words, metrics):
    """Names the metrics with the other verdict."""
    other = SIDES[words == SIDES[0]]
    names = []
    for metric in metrics:
        verdict = row.verdicts.get(metric.key)
        if verdict is not None and verdict.words == other:
            names.append(metric.name)
    return f" (but {other} in {listed(names)})" if names else ""


def _diverged(others):
    labels = []
    for label, row in others:
        if _has_diverged(row):
            labels.append(label)
    if not labels:
        return []
    if len(labels) > MOST_NAMED:
        return [f"{len(labels)} rows diverged."]
    return [f"{listed(labels)} diverged in some runs."]


def _has_diverged(row):
    words = [verdict.words for verdict in row.verdicts.values()]
    return any(word.startswith("diverged") for word in words)


def _rest(rest, metrics, has_decided):
    """Returns a sentence on the rows without a side: how much they may differ at most."""
    if not rest:
        return []
    bounds = []
    for metric in metrics:
        bound = _bound(rest, metric)
        if bound is not None:
            bounds.append(f"{bound}{_unit(metric)} in {metric.name}")
    subject = "Nothing else" if has_decided else "No row"
    if bounds:
        return [f"{subject} differs by more than {listed(bounds)}."]
    seeds = [
        verdict.more_seeds
        for row in rest
        for verdict in row.verdicts.values()
        if verdict.more_seeds
    ]
    more = f"; {seeds_text(min(seeds))} may decide" if seeds else ""
    return [f"{subject} is shown to differ{more}."]


def _bound(rest, metric):
    """Returns what no row's difference exceeds; None where the intervals say too little."""
    ends = []
    for row in rest:
        if difference := row.differences.get(metric.key):
            ends += [abs(difference.low), abs(difference.high)]
    if not ends or not math.isfinite(max(ends)):
        return None
    means = [row.group.summary(metric.key) for row in rest]
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


def _amount(value, metric):
    return number(metric.scale * value, metric.decimals) + _unit(metric)


def _unit(metric):
    return f" {metric.unit}" if metric.unit else ""
