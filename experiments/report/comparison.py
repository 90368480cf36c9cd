"""Compares the rows of a table with their bases: which differences are real."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from experiments.evaluation.metrics import METRICS, Metric
from experiments.report.questions import USUAL, Question, pairs_of
from experiments.report.rows import Row
from experiments.report.trial_files import TrialResult
from experiments.report.trial_outputs import read_sentences
from experiments.settings import SCORING
from experiments.stats import sequential
from experiments.stats.contrasts import contrast, odd_rows
from experiments.stats.differences import MOST_SEEDS, Difference, Verdict, difference
from experiments.stats.least_squares import Pairs
from experiments.stats.resampling import Runs, column_of
from experiments.stats.summary import LEVEL

USUAL_SENTENCES = 1000
"""The size of a test set that a run does not record."""

ReadSentences = Callable[[TrialResult], Mapping[str, np.ndarray]]
"""Returns the arrays of a trial's sentences.npz, {} for none."""


def compare(
    rows: Sequence[Row],
    sentences: ReadSentences | None = None,
    metrics: Sequence[Metric] = METRICS,
    interest: Mapping[str, float] | None = None,
    looks: int | None = None,
    question: Question = USUAL,
) -> list[Row]:
    """Returns the rows with their bases, their differences to these, and verdicts.

    Of a question of pairs it returns a row for each pair, with the base of that.
    `sentences` is by default `read_sentences`. `interest` are {metric key: the smallest
    difference, in the units of the table, that matters}: a row whose interval lies within
    it on both sides is equal. A table that was judged several times has had a number of
    `looks`. Without a base nothing is compared. `experiments.stats.contrasts` has
    the method.
    """
    if sentences is None:
        sentences = functools.partial(read_sentences, metrics=metrics)
    known = sentences, metrics, interest or {}
    if looks is None:
        return _compare(rows, *known, LEVEL, question)
    judge = functools.partial(compare_at, rows, *known, question=question)
    return sequential.judge(judge, looks, _comparisons(rows, metrics, question))


MOST_BASES = 30
"""A table of more rows is not compared with each of them."""


def against_each(
    rows: Sequence[Row],
    sentences: ReadSentences | None = None,
    metrics: Sequence[Metric] = METRICS,
    interest: Mapping[str, float] | None = None,
) -> list[list[Row]]:
    """Returns the rows compared with each of them, by the base's place; each is one family.

    [] for fewer than three rows and more than MOST_BASES, and for rows of several corpora or
    vocabularies.
    """
    texts = {row.corpora for row in rows if row.corpora}
    vocabularies = {
        str(t.record.get("vocabulary")) for row in rows for t in row.finished
    }
    if not 3 <= len(rows) <= MOST_BASES or len(texts) != 1 or len(vocabularies) > 1:
        return []
    if sentences is None:
        sentences = functools.partial(read_sentences, metrics=metrics)
    count = len(rows)
    places = np.arange(count)
    pairs = Pairs(np.tile(places, count), np.repeat(places, count))
    known = sentences, metrics, interest or {}, LEVEL
    judged = iter(_judge(rows, pairs, *known, families=pairs.bases)[0])
    return [[_judged(row, base, next(judged)) for row in rows] for base in range(count)]


def _judged(row, base, judgement):
    differences, verdicts = judgement
    return dataclasses.replace(
        row, base=base, differences=differences, verdicts=verdicts
    )


def _comparisons(rows, metrics, question):
    """Counts the differences of a table, of all rows and metrics."""
    having = [
        metric
        for metric in metrics
        if any(metric.key in trial.result for row in rows for trial in row.finished)
    ]
    pairs = sum(base is not None and i != base for i, base in pairs_of(rows, question))
    return pairs * len(having)


def compare_at(
    rows: Sequence[Row],
    sentences: ReadSentences,
    metrics: Sequence[Metric],
    interest: Mapping[str, float],
    look: sequential.Look,
    question: Question = USUAL,
) -> list[Row]:
    """Returns the rows with all their trials, compared by the first seeds at a look's level."""
    seen = []
    trials = {}
    for row in rows:
        known = [trial for trial in row.trials if trial.seed is not None]
        first = tuple(trial for trial in known if trial.seed < look.seeds)
        seen.append(dataclasses.replace(row, trials=first))
        trials[row.name, frozenset(row.point.items())] = row.trials
    judged = _compare(seen, sentences, metrics, interest, look.level, question)
    return [
        dataclasses.replace(row, trials=trials[row.name, frozenset(row.point.items())])
        for row in judged
    ]


def next_plan(
    rows: Sequence[Row],
    sentences: ReadSentences,
    budget: sequential.Budget,
    metrics: Sequence[Metric] = METRICS,
    interest: Mapping[str, float] | None = None,
    question: Question = USUAL,
) -> sequential.Plan:
    """Returns how many seeds each row is to have, as far as its trials decide it."""
    known = sentences, metrics, interest or {}
    judge_at = functools.partial(compare_at, rows, *known, question=question)
    ended = []
    costs = []
    for row in rows:
        ended.append({t.seed for t in row.trials if t.status != "unfinished"})
        seconds = [trial.result.get("seconds", 0.0) for trial in row.finished]
        costs.append(float(np.mean(seconds or 0.0)) / 3600 if budget.in_hours else 1.0)
    comparisons = _comparisons(rows, metrics, question)
    return sequential.next_plan(
        ended, costs, judge_at, budget.amount, interest or {}, comparisons
    )


def _compare(rows, sentences, metrics, interest, level, question):
    asked = pairs_of(rows, question)
    # Scores on other text are no evidence for or against a row.
    asked = [
        (i, None if base is None or _are_apart(rows[i], rows[base]) else base)
        for i, base in asked
    ]
    compared = [dataclasses.replace(rows[i], base=base) for i, base in asked]
    # Of one corpus all is one family, whatever is compared within what.
    families = {}
    for place, (_, base) in enumerate(asked):
        if base is not None:
            families.setdefault(rows[base].corpora, []).append(place)
    total = sum(i != base for i, base in asked if base is not None)
    bases = {base for i, base in asked if base is not None and i != base}
    for family in families.values():
        own = [asked[place] for place in family]
        comparisons = sum(i != base for i, base in own)
        if not comparisons:
            continue
        members = sorted({i for pair in own for i in pair})
        inside = {i: place for place, i in enumerate(members)}
        pairs = Pairs(*np.array([[inside[i] for i in pair] for pair in own]).T)
        # Tables of different text are independent: their levels add up.
        own_level = level * comparisons / total
        of_family = [rows[i] for i in members]
        known = sentences, metrics, interest, own_level
        judged, odd = _judge(of_family, pairs, *known)
        for place, (differences, verdicts) in zip(family, judged, strict=True):
            i, base = asked[place]
            is_one_of_many = i != base and (len(bases) > 1 or question.pairs)
            compared[place] = dataclasses.replace(
                compared[place],
                differences=differences,
                verdicts=verdicts,
                times_as_variable=odd.get(inside[i]),
                against=rows[base].name if is_one_of_many else "",
            )
    return compared


def _are_apart(row, base):
    """Tells whether both have finished trials, of different text."""
    return bool(row.corpora and base.corpora) and row.corpora != base.corpora


def originals_of(rows: Sequence[Row], bases: Sequence[int]) -> list[int]:
    """Returns for each row one that has trained the same models, itself for most.

    That is the first of the bases, else of the rows.
    """
    scoring = {f"evaluation.{name}" for name in SCORING}
    training = [
        frozenset(item for item in row.point.items() if item[0] not in scoring)
        for row in rows
    ]
    firsts = {}
    for base in bases:
        firsts.setdefault(training[base], base)
    return [firsts.setdefault(key, i) for i, key in enumerate(training)]


def _judge(rows, pairs, sentences, metrics, interest, level, families=None):
    """Returns (differences, verdicts) of each pair of rows of one corpus, and `odd_rows`.

    `families` are those of `contrast`.
    """
    originals = originals_of(rows, pairs.bases)
    apart = _have_other_tokens(rows, pairs)
    stored = [{trial.seed: sentences(trial) for trial in row.finished} for row in rows]
    runs = {}
    columns = {}
    for metric in metrics:
        own = [runs_of(*pair, metric) for pair in zip(rows, stored, strict=True)]
        alike = _without(own, pairs, apart) if metric.per_token else own
        of_sums = metric.of_sums if metric.columns else None
        column = column_of(alike, pairs, metric.link, originals, of_sums)
        if column is not None:
            columns[metric] = column
            runs[metric] = own
    options = dict(level=level, originals=originals, families=families)
    contrasts = contrast([*columns.values()], pairs, **options)
    differences = [{} for _ in pairs.rows]
    verdicts = [{} for _ in pairs.rows]
    for (metric, column), contrasted in zip(columns.items(), contrasts, strict=True):
        margin = interest.get(metric.key)
        raw = None if margin is None else margin / metric.scale
        for place, i in enumerate(pairs.rows):
            count = int(np.isfinite(column.values[i]).sum())
            found = None
            if not (metric.per_token and apart[place]):
                found = difference(contrasted, place, metric.link, count, raw, level)
            if found is not None:
                differences[place][metric.key] = found
            verdict = verdict_of(found, runs[metric][i], metric, margin)
            if pairs.differ[place] and verdict is not None:
                verdicts[place][metric.key] = verdict
    odd = odd_rows([*columns.values()], originals)
    return list(zip(differences, verdicts, strict=True)), odd


def runs_of(
    row: Row, stored: Mapping[int | None, Mapping[str, np.ndarray]], metric: Metric
) -> Runs:
    """Returns a row's runs in one metric; `stored` are the sentences of each seed."""
    values = {}
    for trial in row.finished:
        value = trial.result.get(metric.key)
        # A metric may be newer than the run, or not apply to its corpus.
        if value is not None:
            values[trial.seed] = float(value) if math.isfinite(value) else math.inf
    for trial in row.trials:
        if trial.status == "diverged":
            values[trial.seed] = math.inf
    tables = {seed: metric.statistics(arrays) for seed, arrays in stored.items()}
    tables = {seed: table for seed, table in tables.items() if table is not None}
    sizes = {len(table) for table in tables.values()}
    sizes |= {trial.result.get(f"{metric.split}_sentences") for trial in row.finished}
    sizes = [size for size in sizes if type(size) is int and size > 0]
    sentences = sizes[0] if len(sizes) == 1 else USUAL_SENTENCES
    answers = sentences
    if metric.answers is not None and tables:
        answers = int(next(iter(tables.values()))[:, metric.answers].sum())
    return Runs(values, tables, sentences, answers)


def _have_other_tokens(rows, pairs):
    """Returns (P,) bool: the pairs whose rows have two vocabularies, and so other tokens."""
    vocabularies = [
        {str(trial.record.get("vocabulary")) for trial in row.finished} for row in rows
    ]
    both = (
        vocabularies[i] | vocabularies[base] for i, base in zip(*pairs, strict=True)
    )
    return np.array([len(names) > 1 for names in both])


def _without(runs, pairs, apart):
    """Empties the runs of rows that are in no pair but those `apart`."""
    kept = {*pairs.rows[~apart & pairs.differ], *pairs.bases[pairs.differ]}
    return [
        own if i in kept else own._replace(values={}, tables={})
        for i, own in enumerate(runs)
    ]


def verdict_of(
    difference: Difference | None, runs: Runs, metric: Metric, margin: float | None
) -> Verdict | None:
    """Returns the Verdict of a row in one metric, None where there is nothing to conclude."""
    diverged = sum(map(math.isinf, runs.values.values()))
    if diverged:
        return Verdict(f"diverged in {diverged} of {len(runs.values)} runs")
    if difference is None:
        return None
    bound = runs.bound(metric.link)
    at_bound = "" if bound is None else f"all runs at {metric.amount(bound, 'g')}"
    raw = difference.margin
    if raw is not None and -raw < difference.low and difference.high < raw:
        return Verdict(f"equal within {margin:g}{metric.spaced_unit}", detail=at_bound)
    if difference.p < LEVEL:
        is_higher = difference.mean > 0
        words = "better" if is_higher == metric.higher_is_better else "worse"
        return Verdict(words, detail=at_bound)
    detail = at_bound or _shown_text(difference, metric)
    needs = {
        "seeds": f"more than {MOST_SEEDS} more seeds",
        "sentences": f"more {metric.split} sentences",
        "both": f"more seeds and {metric.split} sentences",
    }.get(difference.lacks, "")
    return Verdict("undecided", difference.more_seeds, detail, needs)


def _shown_text(difference, metric):
    if difference.detectable == 0:
        return ""
    if not math.isfinite(difference.detectable):
        return "too few seeds to show any difference"
    size = difference.detectable * metric.scale
    # With .2g, 100 would be 1e+02.
    size = metric.amount(difference.detectable, ".0f" if 99.5 <= size < 1e5 else ".2g")
    return f"differences above {size} would have shown"
