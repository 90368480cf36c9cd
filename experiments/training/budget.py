"""Chooses a trial's steps and evaluations from the time that there is for it.

Of T seconds that are left, a trial with n evaluations makes

    steps = (T − end − n · evaluation) / step

where a step's seconds, an evaluation's and those of the scores at the end are measured with
fresh weights. All is compiled by that, and stays so. What is chosen is kept in budget.json:
the same command later makes the same steps, whatever the machine's speed is then.
"""

import math
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.data.batches import Encoded
from experiments.data.dataset import Dataset, Heldout
from experiments.errors import UserError, WorkdirError
from experiments.evaluation.evaluator import Evaluator
from experiments.settings import Settings
from experiments.system.files import DamagedError, read_json, write_json
from experiments.training import speed
from experiments.training.population import program_for
from experiments.training.run_dir import look_up
from experiments.trial.lanes import Lanes
from experiments.trial.program import initial_state

FILE = "budget.json"

EVALUATIONS = 20
"""The most evaluations that are chosen: so many points show how a curve goes."""

SHARE = 0.1
"""The most of the time that goes to evaluations while training."""

SAVED = 600
"""The most seconds from one checkpoint to the next, as in section 6.1 of the paper."""

SLOWED = 1.2
"""Times as long as planned from which training is said to have been slowed down."""


class Costs(NamedTuple):
    """Holds seconds: of a step, of an evaluation while training, of the scores at the end."""

    step: float
    evaluation: float
    end: float


class Plan(NamedTuple):
    """Holds what was chosen for a time."""

    given: str
    """The budget as the user wrote it."""
    changes: dict[str, Any]
    """The settings that were chosen."""
    costs: Costs
    seconds: float
    """Those that training and its evaluations are to take, without the scores at the end."""


def measure_costs(settings: Settings, prepared: Dataset) -> Costs:
    """Measures a trial's costs on this machine, of one trial on all devices."""
    step = speed.measure(settings, prepared, 1).step
    lanes = Lanes(strategy=settings.training.strategy)
    program = program_for(settings, prepared)
    states = lanes.stack([jax.device_get(initial_state(program, settings))])
    e = settings.evaluation
    evaluator = Evaluator.of(e, prepared, lanes, program)
    functions = evaluator.functions
    per_loss = _seconds(lambda: evaluator.losses(states)) / len(
        prepared.validation.ids.source
    )

    def searched(search, heldout, count):
        """Returns the seconds in which `count` sentences of a set are translated."""
        if not evaluator.objective.writes:
            return 0.0
        pairs = _batch(heldout, e.batch_size)
        batch = _seconds(lambda: evaluator.translate(states, search, pairs, [0]))
        share = _share_of_limit(heldout, e) if evaluator.objective.searches else 1.0
        return batch * share * -(-count // e.batch_size)

    sets = prepared.validation, prepared.test
    counts = [len(heldout.ids.source) for heldout in sets]
    sentences = min(e.sentences, counts[0])
    evaluation = per_loss * counts[0] + searched(functions.greedy, sets[0], sentences)
    end = per_loss * sum(counts)
    for heldout, count in zip(sets, counts, strict=True):
        end += searched(functions.search, heldout, count)
    return Costs(step, evaluation, end * len(settings.training.kept_weights))


def _seconds(call):
    """Returns the seconds of a call; the first one compiles."""
    call()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _batch(heldout: Heldout, count) -> Encoded:
    """Returns `count` sentences, short and long ones."""
    step = max(1, len(heldout.ids.source) // count)
    return Encoded(*(list(side[::step])[:count] for side in heldout.ids))


def _share_of_limit(heldout, e):
    """Returns how much of the steps that fresh weights search are those of trained ones.

    Fresh weights write to the limit of the longest sentence, trained ones about as much as
    the reference; a batch has sentences of about one length.
    """
    sources = np.array([len(ids) + 1 for ids in heldout.ids.source])
    targets = np.array([len(ids) + 1 for ids in heldout.ids.target])
    limit = np.minimum(sources + e.max_extra, e.max_length).max()
    longest = [
        part.max()
        for part in np.array_split(
            targets[np.argsort(sources, kind="stable")],
            -(-len(targets) // e.batch_size),
        )
    ]
    return min(1.0, float(np.mean(longest)) / limit)


def choose(
    given: str,
    seconds: float,
    costs: Costs,
    settings: Settings,
    fixed: Collection[str] = (),
) -> Plan:
    """Chooses steps and evaluations for `seconds`; the settings `fixed` stay as they are.

    Raises UserError where nothing fits.
    """
    t = settings.training
    left = seconds - costs.end
    every, save_every, log_every = _intervals(left, costs, t, fixed)
    whole = int(left // (every * costs.step + costs.evaluation))
    rest = left - whole * (every * costs.step + costs.evaluation) - costs.evaluation
    steps = whole * every + max(0, int(rest / costs.step))
    if steps < 1:
        raise UserError(
            f"--budget={given} is too short: scoring the held-out sentences alone takes "
            f"{costs.end + costs.evaluation:.0f} s, and compiling came before; give more, or "
            "lower evaluation.beam, evaluation.sentences or data.heldout"
        )
    changes = {
        "training.steps": steps,
        "training.until": "steps",
        "training.log_every": log_every,
        "training.evaluate_every": every,
        "training.save_every": save_every,
    }
    planned = steps * costs.step + -(-steps // every) * costs.evaluation
    changes = {key: value for key, value in changes.items() if key not in fixed}
    return Plan(given, changes, costs, planned)


def _intervals(left, costs, training, fixed):
    """Returns the steps from one evaluation, checkpoint and line to the next."""
    count = int(min(EVALUATIONS, max(1, SHARE * left / max(costs.evaluation, 1e-9))))
    every = max(1, math.ceil((left / count - costs.evaluation) / costs.step))
    log_every = training.log_every
    if "training.evaluate_every" in fixed:
        every = training.evaluate_every
    elif "training.log_every" not in fixed:
        log_every = min(log_every, every)
    if "training.evaluate_every" not in fixed:
        every = -(-every // log_every) * log_every
    save_every = int(min(every, SAVED / costs.step)) // log_every * log_every
    return every, max(log_every, save_every), log_every


def is_slowed(plan: Plan, seconds: float) -> bool:
    """Returns whether training took much longer than was planned."""
    return seconds > SLOWED * plan.seconds


def keep(workdir: Path, plan: Plan) -> None:
    """Writes the plan into a trial's directory."""
    write_json(workdir / FILE, plan._asdict() | dict(costs=plan.costs._asdict()))


def kept(workdir: Path, given: str | None) -> Plan | None:
    """Returns the plan that a trial's directory has, and None where there is none.

    Raises WorkdirError where a budget is given, and it was begun with another or without, and
    DamagedError for a file that holds no plan.
    """
    found = read_json(workdir / FILE)
    if found is None:
        if given and (workdir / "config.json").exists():
            raise WorkdirError(
                f"{workdir} was begun without --budget, and its steps are fixed: leave "
                "--budget out, or choose another --workdir"
            )
        return None
    try:
        plan = Plan(**found | dict(costs=Costs(**found["costs"])))
        steps = plan.changes["training.steps"]
    except (KeyError, TypeError) as error:
        raise DamagedError(workdir / FILE, "it holds no plan") from error
    if given not in (None, plan.given):
        raise WorkdirError(
            f"{workdir} was begun with --budget={plan.given}, and its {steps:,} steps are "
            "fixed: leave --budget out, or choose another --workdir; in place of it "
            "--config.training.steps=N makes the trial longer"
        )
    config = read_json(workdir / "config.json")
    now = look_up(config, "training.steps") or steps
    if given and now > steps:
        raise WorkdirError(
            f"{workdir} has got more steps than --budget={given} chose: leave --budget out, "
            f"and give --config.training.steps={now}"
        )
    return plan
