"""Chooses settings for each row of a sweep, by validation perplexity: `launch.sweep --tune`.

A row is trained at its own values and at each of a grid, on seeds that the comparison does
not use; its compared runs then have the values with the lowest perplexity. Its runs at its own
values, with the comparison's seeds, stand beside them. So a trial has one of three roles:

    tuning      a row at one of the values, with a tuning seed
    compared    a row at the values that were chosen, with a seed of the comparison
    untuned     a row at its own values, with a seed of the comparison

Where a row's own values are chosen, its untuned runs are its compared ones. What is to be run
is a function of the tuning trials that have ended, so a sweep may be stopped at any time.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_collections

from experiments.evaluation.perplexity import of_scores
from experiments.settings import Settings, SettingsError, check_key, known_fields
from experiments.sweep.plan import Trial, plan_trials
from experiments.sweep.points import MAX_POINTS, SweepError, describe_point
from experiments.sweep.workdir import adopt_directories, is_finished
from experiments.training.run_dir import read_result
from experiments.trial.cost import assumed_flops_of_a_step

TUNING = "tuning"
COMPARED = "compared"
UNTUNED = "untuned"

FIRST_SEED = 1000
"""The first tuning seed: comparisons count theirs from 0 on."""

EXAMPLE = "--tune=training.learning_rate:0.5,1,2"

Value = int | float | str
"""A number, or an optimizer or schedule with its options."""


class Tuning(NamedTuple):
    """Holds the values to choose from, and the seeds to choose with."""

    grid: dict[str, tuple[Value, ...]]
    """By dotted key."""
    seeds: tuple[int, ...]

    @property
    def values(self) -> list[dict[str, Value]]:
        """The product of the grid."""
        products = itertools.product(*self.grid.values())
        return [dict(zip(self.grid, values, strict=True)) for values in products]

    def to_json(self) -> dict[str, Any]:
        grid = {key: list(values) for key, values in self.grid.items()}
        return dict(grid=grid, seeds=list(self.seeds))


class Candidate(NamedTuple):
    """Holds values that a row may take."""

    values: dict[str, Value]
    """Empty for the row's own."""
    tuning: tuple[Trial, ...]
    """A trial for each tuning seed."""
    compared: tuple[Trial, ...]
    """The row's trials in the comparison, at these values."""


class Row(NamedTuple):
    """Holds a row with what it may be tuned to."""

    untuned: tuple[Trial, ...]
    candidates: tuple[Candidate, ...]
    """The row's own values first."""

    @property
    def name(self) -> str:
        first = self.untuned[0]
        return first.label or describe_point(without_seed(first.point))


def read_tuning(texts: Sequence[str], seeds: int) -> Tuning:
    """Returns the Tuning of texts such as "training.learning_rate:0.5,1,2".

    Raises SweepError for what is no number of model or training, nor an optimizer or
    schedule, and for fewer than two values.
    """
    grid = {}
    for text in texts:
        key, colon, listed = text.partition(":")
        if not colon:
            raise SweepError(f"--tune={text} has no values: give {EXAMPLE}")
        read = _reader(text, key)
        if key in grid:
            raise SweepError(
                f"--tune={text}: {key} has its values already: give them in one --tune"
            )
        # A comma between options is within brackets.
        parts = re.split(r",(?![^(]*\))", listed)
        values = [read(text, value.strip()) for value in parts]
        grid[key] = tuple(dict.fromkeys(values))
        if len(grid[key]) < 2:
            raise SweepError(
                f"--tune={text}: one value is no choice: give two or more, as {EXAMPLE}"
            )
    return Tuning(grid, tuple(range(FIRST_SEED, FIRST_SEED + seeds)))


def plan_rows(
    config, planned: Sequence[Trial], overrides: Mapping[str, Any], tuning: Tuning
) -> list[Row]:
    """Returns the rows of a sweep's trials, with the trials of all their candidates.

    Raises SweepError where the sweep sets what is to be tuned, or has a tuning seed, and
    SettingsError for values that a row cannot take.
    """
    _check_sweep(planned, tuning)
    rows = {}
    for trial in planned:
        # What is left of a row without its seed is what its trials have in common.
        row = dataclasses.replace(trial.settings, seed=0)
        rows.setdefault(row, []).append(trial)
    count = len(rows) * (len(tuning.values) + 1) * len(tuning.seeds)
    if count > MAX_POINTS:
        raise SweepError(
            f"--tune takes {count:,} trials, more than {MAX_POINTS:,}: give fewer values"
        )
    if isinstance(config, ml_collections.ConfigDict):
        config = config.to_dict()

    def plan(point, like, role):
        (trial,) = plan_trials(config, [point], overrides)
        # The names are the row's, at whatever values.
        return trial._replace(
            label=like.label, parts=like.parts, role=role, tuned=tuple(tuning.grid)
        )

    return [_row(trials, tuning, plan) for trials in rows.values()]


def _row(trials, tuning, plan):
    """Returns the row of these trials; `plan(point, like, role)` makes one named alike."""
    like = trials[0]
    first = without_seed(like.point)
    candidates = {}
    for values in ({}, *tuning.values):
        own = {**first, **values}
        tried = [plan({**own, "seed": seed}, like, TUNING) for seed in tuning.seeds]
        compared = []
        for trial in trials:
            seed = {key: x for key, x in trial.point.items() if key == "seed"}
            compared.append(plan({**own, **seed}, like, COMPARED))
        # A row's own values may be among the grid's.
        candidate = Candidate(values, tuple(tried), tuple(compared))
        candidates.setdefault(tried[0].settings, candidate)
    keys = tuple(tuning.grid)
    untuned = tuple(trial._replace(role=UNTUNED, tuned=keys) for trial in trials)
    return Row(untuned, tuple(candidates.values()))


def without_seed(point: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in point.items() if key != "seed"}


def choose(row: Row, perplexities: Mapping[Settings, float]) -> Candidate | None:
    """Returns the candidate of the lowest validation perplexity; None until all have ended.

    It is the geometric mean over the tuning seeds, infinite where one diverged. Of equal
    candidates the first is chosen: the row's own values, else the first of the grid.
    """
    best = None
    lowest = math.inf
    for candidate in row.candidates:
        found = [perplexities.get(trial.settings) for trial in candidate.tuning]
        if None in found:
            return None
        score = math.fsum(map(_log, found)) / len(found)
        if best is None or score < lowest:
            best = candidate
            lowest = score
    return best


def choices(rows: Sequence[Row], workdir: Path) -> list[Candidate | None]:
    """Returns what is chosen for each row by the tuning trials that have ended."""
    perplexities = {}
    for trial in adopt_directories(workdir, tuning_trials(rows)):
        if is_finished(workdir, trial):
            result = read_result(workdir / trial.directory)
            # One that diverged has none.
            perplexities[trial.settings] = of_scores(result)
    return [choose(row, perplexities) for row in rows]


def trials_to_run(
    rows: Sequence[Row], chosen: Sequence[Candidate | None]
) -> list[Trial]:
    """Returns all trials whose settings are known once these candidates are chosen.

    Those are the tuning and the untuned ones, and the compared ones of rows with a choice.
    """
    trials = tuning_trials(rows)
    for row, candidate in zip(rows, chosen, strict=True):
        if candidate is None:
            trials += row.untuned
            continue
        trials += candidate.compared
        if candidate.values:
            trials += row.untuned
    return trials


def tuning_trials(rows: Sequence[Row]) -> list[Trial]:
    """Returns the tuning trials of all rows."""
    trials = []
    for row in rows:
        for candidate in row.candidates:
            trials += candidate.tuning
    return trials


def costliest(rows: Sequence[Row]) -> list[Trial]:
    """Returns the compared trials of each row at the values that take most arithmetic."""
    trials = []
    for row in rows:
        trials += max((candidate.compared for candidate in row.candidates), key=_work)
    return trials


def _work(trials):
    settings = trials[0].settings
    return assumed_flops_of_a_step(settings) * settings.training.steps


def _reader(text, key):
    """Returns the function that reads a value of `key`.

    Raises SweepError unless a row's perplexity may depend on it.
    """
    try:
        check_key(key)
    except SettingsError as error:
        raise SweepError(f"--tune={text}: {error}") from None
    group = key.partition(".")[0]
    if group not in ("model", "training"):
        raise SweepError(
            f"--tune={text}: {key} is chosen by perplexity, which must be on the same data: "
            "tune a setting of model or training"
        )
    fields = [field for known, _, field in known_fields() if known == key]
    if group == "training" and "choices" in fields[0].metadata:
        return lambda text, value: value
    if not {field.type for field in fields} <= {int, float}:
        raise SweepError(
            f"--tune={text}: {key} is no number; make it a sweep of its own"
        )
    return _number


def _number(text, value):
    for kind in (int, float):
        try:
            number = kind(value)
        except ValueError:
            continue
        if math.isfinite(number):
            return number
    raise SweepError(f"--tune={text}: {value!r} is no number; give {EXAMPLE}")


def _check_sweep(planned, tuning):
    for trial in planned:
        if both := [key for key in tuning.grid if key in trial.point]:
            raise SweepError(
                f"--tune={both[0]} and the sweep both set {both[0]}, in the point "
                f"{trial.name}: leave one of them out"
            )
        if trial.settings.seed in tuning.seeds:
            raise SweepError(
                f"seed {trial.settings.seed} is one of the sweep's, and --tune chooses with "
                f"seeds {FIRST_SEED} to {tuning.seeds[-1]}, which the comparison must not "
                "have: give the sweep lower ones"
            )


def _log(perplexity):
    # NaN is worse than any number.
    return math.log(perplexity) if perplexity < math.inf else math.inf
