"""The flag --budget of launch.train: what fits into a time, chosen and said before the start."""

import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags

from launch import config_flag

if TYPE_CHECKING:
    from experiments.data.dataset import Dataset
    from experiments.settings import Settings
    from experiments.training.budget import Plan

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

SIZES = "sizes"
"""The function of a config that gives the models among which --budget chooses."""


def define_budget() -> flags.FlagHolder[str | None]:
    """Defines --budget, and refuses what is no time."""
    flag = flags.DEFINE_string(
        "budget",
        None,
        "Time for everything, as 10m, 8h or 2d: steps, evaluations and, where the config "
        "has sizes, the model are chosen for it",
    )

    def check(given):
        if given is not None and seconds_of(given) is None:
            raise flags.ValidationError("it is no time; write 90s, 10m, 8h or 2d")
        return True

    flags.register_validator("budget", check)
    return flag


def seconds_of(given: str) -> float | None:
    """Returns the seconds of "90s", "10m", "8h" or "2d"; None for what is no time."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", given)
    seconds = float(match[1]) * UNITS[match[2]] if match else 0.0
    return seconds if 0 < seconds < math.inf else None


class Budget(NamedTuple):
    """Holds --budget, and when its time began."""

    given: str
    begun: float

    def left(self) -> float:
        """Returns the seconds that are left."""
        return seconds_of(self.given) - (time.monotonic() - self.begun)


def planned(
    asked: Budget | None,
    settings: "Settings",
    prepared: "Dataset",
    workdir: Path | None,
    say: Callable[[str], None],
    keeps_model: bool = False,
) -> tuple["Settings", "Plan | None"]:
    """Returns the settings for a budget, and the plan: that of `workdir`, or a new one.

    A new one is kept there. The model is chosen too, unless `keeps_model` is given. Where
    nothing is `asked` and no plan is kept, the settings are as they were; with more steps
    than planned there is no plan any more.
    """
    from experiments.system.files import lock
    from experiments.training import budget

    plan = workdir and budget.kept(workdir, asked and asked.given)
    if not plan and not asked:
        return settings, None
    if not plan and not workdir:
        plan = _plan(asked, settings, prepared, say, keeps_model)
    elif not plan:
        # Of two equal commands at once the second must not plan for the first.
        with lock(workdir):
            plan = budget.kept(workdir, asked.given)
            if not plan:
                plan = _plan(asked, settings, prepared, say, keeps_model)
                budget.keep(workdir, plan)
    overrides = config_flag.experiment().overrides
    changes = {key: x for key, x in plan.changes.items() if key not in overrides}
    settings = _changed(changes)
    if settings.training.steps != plan.changes["training.steps"]:
        return settings, None
    say(_text(plan, settings))
    return settings, plan


def _plan(asked, settings, prepared, say, keeps_model):
    """Measures and chooses: of the config's sizes the largest that its own steps fit for."""
    from experiments.training.budget import choose, measure_costs

    given = asked.given
    points = [{}] if keeps_model else list(_affordable(asked.left(), settings))
    fixed = config_flag.experiment().overrides
    while True:
        point = points.pop()
        sized = _changed(point)
        names = " ".join(f"{key}={value}" for key, value in point.items())
        say(f"--budget={given}: measuring {names or 'the model'} ...")
        costs = measure_costs(sized, prepared)
        plan = choose(given, asked.left(), costs, sized, fixed)
        enough = plan.changes["training.steps"] >= settings.training.steps
        if enough or not points:
            changes = point | plan.changes
            # Before it is kept: a warm-up may be longer than what fits.
            _changed(changes)
            return plan._replace(changes=changes)


def _affordable(seconds, settings) -> Iterator[dict[str, Any]]:
    """Gives the sizes of the model that may do for a time, by what is estimated.

    The smallest is always among them.
    """
    from experiments.settings import SettingsError
    from experiments.sweep.estimate import seconds_of_a_step
    from experiments.system import machine
    from experiments.trial.cost import check_memory

    experiment = config_flag.experiment()
    sizes = list(
        getattr(experiment.module, SIZES, lambda config: [{}])(experiment.config)
    )
    if any(key in experiment.overrides for point in sizes for key in point):
        # A model that was asked for stays as it is.
        sizes = [{}]
    yield sizes[0]
    for point in sizes[1:]:
        sized = _changed(point)
        try:
            check_memory(sized, machine.here())
        except SettingsError:
            return
        if settings.training.steps * seconds_of_a_step(sized) > seconds:
            return
        yield point


def _changed(changes):
    from experiments.settings import override, resolve

    return resolve(override(config_flag.experiment().config, changes))


def _text(plan, settings):
    from experiments.sweep.estimate import duration

    t = settings.training
    sizes = [
        f"{key}={value}"
        for key, value in plan.changes.items()
        if not key.startswith("training.")
    ]
    model = f"{' '.join(sizes)}; " if sizes else ""
    return (
        f"--budget={plan.given}: {model}training.steps={t.steps} of {plan.costs.step:.3g} s, "
        f"an evaluation of {plan.costs.evaluation:.2g} s every {t.evaluate_every}: "
        f"{duration(plan.seconds)}, then {duration(plan.costs.end)} for the scores at the "
        "end. Started again, the same command makes the same steps"
    )


def ending(plan: "Plan", result: dict[str, Any]) -> str:
    """Says how long training took beside what was planned."""
    from experiments.sweep.estimate import duration
    from experiments.training.budget import is_slowed

    took = result["seconds"]
    text = (
        f"--budget={plan.given}: training took {duration(took)} of the "
        f"{duration(plan.seconds)} planned"
    )
    if is_slowed(plan, took):
        text += (
            f", {took / plan.seconds:.1f} times as long: something else slowed it down"
        )
    return text
