"""Runs a sweep whose seeds go where they decide: `launch.sweep --seeds=auto`."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rich.console

from experiments.evaluation.metrics import Metric
from experiments.report.comparison import next_plan
from experiments.report.questions import USUAL, Question, fitting
from experiments.report.rows import Row, base_of, rows_of
from experiments.report.trial_files import read_results
from experiments.report.trial_outputs import read_sentences
from experiments.stats import sequential
from experiments.stats.contrasts import contrast
from experiments.stats.least_squares import Column, Pairs
from experiments.stats.sequential import SEEDS, Budget, looks_of
from experiments.sweep.plan import Trial, plan_trials
from experiments.sweep.points import NAMES
from experiments.sweep.workdir import adopt_directories, set_looks
from experiments.system.console import print_line
from launch import command

TABLES = 20
"""Simulated tables behind what a budget is expected to decide."""


class Rows:
    """Holds the rows of a sweep, each of which may have any number of seeds."""

    def __init__(
        self,
        config,
        rows: Sequence[Trial],
        overrides: Mapping[str, Any],
        asked: Question | None = None,
    ):
        self.config = config
        self.rows = rows
        self.overrides = overrides
        base = plan_trials(config, [{}], overrides)[0].settings
        is_named = asked is not None and asked.base
        has_base = any(row.label == "base" or row.settings == base for row in rows)
        if not (is_named or has_base):
            command.mistake(
                "--seeds=auto compares rows with base, and no point is: label one of them "
                "base, or have one that changes nothing"
            )

    @property
    def first(self) -> tuple[int, ...]:
        """The seeds of each row to begin with."""
        return sequential.first_plan(len(self.rows)).seeds

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        """Returns the trials of the first `seeds` of each row."""
        points = []
        for row, count in zip(self.rows, seeds, strict=True):
            named = {name: getattr(row, name) for name in NAMES if getattr(row, name)}
            points += [row.point | named | {"seed": seed} for seed in range(count)]
        return plan_trials(self.config, points, self.overrides)


class Aim(NamedTuple):
    """Holds what is to be decided, and what that may take."""

    budget: Budget
    metrics: Sequence[Metric]
    interest: Mapping[str, float]
    question: Question | None = None
    """Which rows are compared with which; None for what is usual."""


def read_budget(text: str | None, rows: Rows) -> Budget:
    """Returns --budget; ends with a usage error where it is too small to begin."""
    least = sum(rows.first)
    example = (
        f"--budget={3 * least} for so many trials, or --budget=2h for hours of training"
    )
    if text is None:
        command.mistake(f"--seeds=auto needs a budget: give {example}")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(h?)", text)
    if not match or not 0 < float(match[1]) < math.inf:
        command.mistake(f"--budget={text} is no budget: give {example}")
    budget = Budget(float(match[1]), match[2] == "h")
    if not budget.in_hours and budget.amount < least:
        command.mistake(
            f"--budget={text}: {SEEDS[0]} seeds of each of {len(rows.rows)} rows are "
            f"{least} trials; give {least} or more"
        )
    return budget


def next_seeds(
    rows: Rows,
    seeds: Sequence[int],
    workdir: Path,
    aim: Aim,
    console: rich.console.Console,
) -> tuple[int, ...] | None:
    """Looks at the results; returns the seeds that each row is to have, None for no more."""
    # Each look reads the same files.
    kept = {}

    def sentences(trial):
        if trial.directory not in kept:
            kept[trial.directory] = read_sentences(trial, aim.metrics)
        return kept[trial.directory]

    found = _rows_in(workdir, rows, aim)
    # Of the config's question the report says where it does not fit.
    asked, _ = fitting(found, aim.question or USUAL)
    known = sentences, aim.budget, aim.metrics, aim.interest
    plan = next_plan(found, *known, question=asked)
    is_complete = plan.seeds == tuple(seeds)
    set_looks(workdir, plan.looks if is_complete else plan.looks - 1, aim.interest)
    if is_complete:
        print_line(
            console,
            f"after {SEEDS[plan.looks - 1]} seeds: no row is left that the rest of the "
            "budget may decide",
        )
        return None
    more = sum(plan.seeds) - sum(seeds)
    growing = sum(new > old for new, old in zip(plan.seeds, seeds, strict=True))
    print_line(
        console,
        f"after {SEEDS[plan.looks - 2]} seeds: {growing} of {len(seeds)} rows get "
        f"{SEEDS[plan.looks - 1]} ({more} more trials)",
    )
    return plan.seeds


def say_what_to_expect(
    rows: Rows, budget: Budget, metrics: Sequence[Metric], console: rich.console.Console
) -> None:
    """Prints what differences each look shows, as far as the budget reaches."""
    count = len(rows.rows)
    lines = []
    for look in looks_of((count - 1) * len(metrics)):
        trials = count * look.seeds
        if not budget.in_hours and trials > budget.amount:
            break
        size = _expected(count, look, len(metrics))
        lines.append(
            f"{look.seeds} seeds of all rows ({trials} trials): differences of {size:.1f} "
            "standard deviations of a run"
        )
    print_line(console, "Expected to be shown, with probability 0.8:")
    for line in lines:
        print_line(console, f"  {line}")
    print_line(
        console,
        "Rows that are decided leave their seeds to the others, so these see more.",
    )


def _expected(rows, look, metrics):
    """Returns the difference that a look shows, in tables of equal rows."""
    rng = np.random.default_rng(0)
    correlation = np.full((metrics, metrics), 0.8)
    np.fill_diagonal(correlation, 1)
    shape = np.linalg.cholesky(correlation).T
    nothing = np.zeros(rows)
    pairs = Pairs.against(0, rows)
    sizes = []
    for _ in range(TABLES):
        values = rng.standard_normal((rows, look.seeds, metrics)) @ shape
        columns = [
            Column(values[..., i], nothing, nothing, nothing > 0)
            for i in range(metrics)
        ]
        results = contrast(columns, pairs, draws=4_000, level=look.level)
        sizes.append(np.nanmean([result.detectable for result in results]))
    return float(np.mean(sizes))


def _rows_in(workdir, rows, aim) -> list[Row]:
    """Returns the rows' trials as they are in the workdir, in the rows' order."""
    found = rows_of(read_results(workdir, aim.metrics))
    by_directory = {trial.directory.name: row for row in found for trial in row.trials}
    ordered = []
    planned = adopt_directories(workdir, rows.trials(rows.first))
    for trial in planned[:: SEEDS[0]]:
        ordered.append(by_directory[Path(trial.directory).name])
    if base_of(ordered) is None and not (aim.question and aim.question.base):
        command.mistake("no row of the sweep is its base: label one of them base")
    return ordered
