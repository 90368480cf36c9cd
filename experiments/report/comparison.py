"""A table's rows against its base: which differences are real, and which of the paper's orderings they support."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.report import statistics
from experiments.report.published import TABLE_3, Result
from experiments.report.results import Trial
from experiments.report.statistics import Difference, Group, Score

HIGHER_IS_BETTER = {"perplexity": False, "bleu": True, "exact_match": True}
"""The metrics that are compared."""


LARGEST = {"bleu": 100.0, "exact_match": 1.0}
"""The largest differences that there can be; perplexity has none."""


class Row(NamedTuple):
    """A group against the base; None and nothing where it is the base, or shares fewer than 2 seeds with it."""

    label: str
    group: Group
    perplexity: Difference | None
    bleu: Difference | None
    exact_match: Difference | None
    adjusted: Mapping[str, float]
    """{metric: p after Holm's correction over the rows}, for metrics with a difference."""
    verdicts: Mapping[str, str]
    """{metric: `statistics.verdict`}, for the same."""
    published: Result | None
    """What the paper printed for the row of this label."""
    ordering: Mapping[str, str]
    """{"perplexity" and "bleu": the paper's sign of row − base is "supported", "contradicted", or we "cannot tell"}.

    "" where the paper has no such row, or one number for row and base, or where there is no difference of ours.
    """


class _Runs(NamedTuple):
    """A group's finished trials, {metric: {seed: …}}: results as they are, and scores on resampled test sets."""

    values: Mapping[str, Mapping[int, float]]
    scores: Mapping[str, Mapping[int, Score]]
    corpora: frozenset[str]


def compare(
    groups: Sequence[Group], sentences: Callable[[Trial], Mapping[str, np.ndarray]]
) -> list[Row]:
    """A Row for each of `groups`, in their order; `sentences(trial)` is what its sentences.npz holds, {} for nothing.

    The base is the group with the label "base", else the one that changes nothing; without one nothing is compared.
    Chance is that of seeds and sentences where both sides kept their sentences of one corpus, else that of seeds.

    `detectable` is at the level that Holm's correction leaves to every row, 5 % divided by their number: such a
    difference is shown with probability 0.8 or more, whatever the other rows are.
    """
    base = base_of(groups)
    draw = functools.cache(statistics.resamples)
    runs = [_runs(group, sentences, draw) if base else None for group in groups]
    of_base = next(
        (own for group, own in zip(groups, runs, strict=True) if group is base), None
    )
    others = [
        None if group is base else own for group, own in zip(groups, runs, strict=True)
    ]
    found = {
        metric: _differences(metric, others, of_base) for metric in HIGHER_IS_BETTER
    }
    return [
        _row(
            group,
            base,
            {metric: rows[i] for metric, rows in found.items() if i in rows},
        )
        for i, group in enumerate(groups)
    ]


def base_of(groups: Sequence[Group]) -> Group | None:
    """The group that the others are compared with."""
    unchanged = next((group for group in groups if not group.point), None)
    return next((group for group in groups if group.label == "base"), unchanged)


def _row(group, base, found):
    """`found` is {metric: (difference, adjusted p)}."""
    verdicts = {
        metric: statistics.verdict(
            difference,
            p,
            HIGHER_IS_BETTER[metric],
            percent=metric == "exact_match",
            largest=LARGEST.get(metric, np.inf),
        )
        for metric, (difference, p) in found.items()
    }
    published, beside = (
        TABLE_3.get(group.label),
        TABLE_3.get(base.label) if base else None,
    )
    ordering = {
        metric: _ordering(
            getattr(published, metric) - getattr(beside, metric), *found[metric]
        )
        if published and beside and metric in found
        else ""
        for metric in Result._fields
    }
    differences = {
        metric: found[metric][0] if metric in found else None
        for metric in HIGHER_IS_BETTER
    }
    return Row(
        group.label,
        group,
        **differences,
        adjusted={metric: p for metric, (_, p) in found.items()},
        verdicts=verdicts,
        published=published,
        ordering=ordering,
    )


def _ordering(published, difference, adjusted_p):
    if published == 0:
        return ""
    if adjusted_p >= statistics.LEVEL:
        return "cannot tell"
    return "supported" if (published > 0) == (difference.mean > 0) else "contradicted"


def _runs(group, sentences, draw):
    trials = {trial.seed: trial for trial in group.finished}
    values = {
        metric: {
            seed: trial.result[metric]
            for seed, trial in trials.items()
            if trial.result.get(metric) is not None
        }
        for metric in HIGHER_IS_BETTER
    }
    tables = {"perplexity": {}, "bleu": {}, "exact_match": {}}
    for seed, trial in trials.items():
        if kept := sentences(trial):
            tables["perplexity"][seed] = np.stack(
                [kept["validation_nll"], kept["validation_tokens"]], axis=1
            )
            if "test_bleu" in kept:
                tables["bleu"][seed], tables["exact_match"][seed] = (
                    kept["test_bleu"],
                    kept["test_exact"],
                )
    functions = (
        statistics.perplexity_scores,
        statistics.bleu_scores,
        statistics.rate_scores,
    )
    scores = {
        metric: _scores(function, tables[metric], draw)
        for metric, function in zip(tables, functions, strict=True)
    }
    return _Runs(
        values,
        scores,
        frozenset(str(trial.record.get("corpus")) for trial in trials.values()),
    )


def _scores(function, tables, draw):
    """{seed: Score}; {} where the trials have several test sets, or one that is too small to resample."""
    sizes = {len(table) for table in tables.values()}
    return function(tables, draw(*sizes)) if len(sizes) == 1 and min(sizes) > 1 else {}


def _differences(metric, rows, base):
    """{place of the row: (difference, p adjusted over all of them)}."""
    tests = {
        i: test
        for i, row in enumerate(rows)
        if row and (test := _test(metric, row, base))
    }
    found = {i: test(level=statistics.LEVEL / len(tests)) for i, test in tests.items()}
    adjusted = statistics.holm([difference.p for difference in found.values()])
    return dict(zip(found, zip(found.values(), adjusted, strict=True), strict=True))


def _test(metric, row, base):
    """The test of a row, its level still to be given; None where there is none."""
    values, scores = (
        (row.values[metric], base.values[metric]),
        (row.scores[metric], base.scores[metric]),
    )
    shared = values[0].keys() & values[1].keys()
    if len(shared) < 2:
        return None
    test_sets = (
        row.corpora | base.corpora,
        {score.sentences for side in scores for score in side.values()},
    )
    if all(len(distinct) == 1 for distinct in test_sets) and all(
        shared <= side.keys() for side in scores
    ):
        return functools.partial(statistics.paired_scores, *scores)
    return functools.partial(statistics.paired, *values)
