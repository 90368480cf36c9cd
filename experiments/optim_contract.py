"""Validates a custom optimizer or schedule: what a training step needs of it.

R learning rates, each a lane of one program.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from attn.contract.common import Row, run
from experiments import optim
from experiments.optim import Numbers, Optimizer, Recipe, Schedule

SHAPES = {
    "embedding": (7, 3),
    "w_q": (3, 2, 5),
    "w_1": {"kernel": (3, 5), "bias": (5,)},
    "norm": {"scale": (3,)},
    "temperature": (),
}
"""Parameters as a model has them, but smaller."""

STEPS = 3
"""Steps of training that are compared."""
DESCENT = 60
"""Steps after which a quadratic's loss must be lower."""
RATES = (1e-3, 3e-3, 1e-2)
TRAINING = 100
"""Steps of a training whose schedule is looked at."""
D_MODEL = 8
TOLERANCE = 1e-5
"""How far lanes, and compiled steps, may be from single ones, as a share of the largest."""


def check_optimizer(optimizer: Optimizer) -> list[Row]:
    """Checks what a step of training, a checkpoint and lanes need of an optimizer.

    Returns:
      Rows on its updates, its state, learning rates as lanes, and compilation.
    """
    return list(
        run(
            {
                "updates are finite": lambda: _finite(optimizer),
                "updates have the parameters' structure and types": lambda: _types(
                    optimizer
                ),
                "its state keeps its structure and types": lambda: _kept(optimizer),
                "training goes on from a saved state": lambda: _saved(optimizer),
                "equal arguments give equal updates": lambda: _again(optimizer),
                "compiled steps are those that are not": lambda: _compiled(optimizer),
                "the learning rate decides the step": lambda: _rates(optimizer),
                "learning rates as lanes train as each alone": lambda: _lanes(
                    optimizer
                ),
                "a quadratic's loss falls": lambda: _falls(optimizer),
            }
        )
    )


def check_schedule(schedule: Schedule) -> list[Row]:
    """Checks what a step of training needs of a schedule.

    Returns:
      Rows on its rates over the steps of a training.
    """
    return list(
        run(
            {
                "rates are finite and not negative": lambda: _finite_rates(schedule),
                "equal steps have equal rates": lambda: _equal(
                    _rates_of(schedule), _rates_of(schedule), "a second time"
                ),
                "compiled rates are those that are not": lambda: _close(
                    jax.jit(functools.partial(_rate, schedule))(3.0, jnp.int32(7)),
                    _rate(schedule, 3.0, jnp.int32(7)),
                    "compiled",
                ),
            }
        )
    )


def _rate(schedule, peak, step):
    numbers = schedule.numbers
    return jnp.asarray(schedule.rate(peak, step, TRAINING, D_MODEL, numbers))


def _rates_of(schedule):
    steps = jnp.arange(1, TRAINING + 1)
    return np.asarray(jax.vmap(lambda step: _rate(schedule, 1.0, step))(steps))


def _finite_rates(schedule):
    rates = _rates_of(schedule)
    wrong = ~(np.isfinite(rates) & (rates >= 0))
    if wrong.any():
        step = int(np.argmax(wrong))
        raise ValueError(f"at step {step + 1} of {TRAINING} it is {rates[step]}")
    if not rates.any():
        raise ValueError(f"it is 0 at all of {TRAINING} steps")
    return f"{rates.min():.3g} to {rates.max():.3g}"


def _drawn(seed):
    """Returns standard normal numbers in the shapes of the parameters."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.standard_normal(shape), jnp.float32),
        SHAPES,
        is_leaf=lambda value: isinstance(value, tuple),
    )


def _recipe(optimizer):
    schedule = optim.choose_schedule(optim.constant, ())
    return Recipe(optimizer.compiled, schedule.compiled, False)


def _numbers(optimizer, rate):
    return Numbers(rate, TRAINING, 0.0, optimizer.numbers, {})


def _first(optimizer):
    """Returns the parameters and the optimizer's state before the first step."""
    parameters = _drawn(0)
    numbers = _numbers(optimizer, RATES[0])
    moments = optim.initial_moments(_recipe(optimizer), numbers, parameters)
    return parameters, moments


def _step(optimizer, rate, gradients, parameters, moments):
    recipe = _recipe(optimizer)
    numbers = _numbers(optimizer, rate)
    return optim.update(recipe, numbers, rate, gradients, moments, parameters)


def _states(optimizer, rate=RATES[0], step=None):
    """Yields the parameters and the state after each step of a training."""
    state = _first(optimizer)
    step = step or jax.jit(functools.partial(_step, optimizer))
    for seed in range(1, STEPS + 1):
        state = step(rate, _drawn(seed), *state)
        yield state


def _trained(optimizer, **options):
    *_, last = _states(optimizer, **options)
    return last


def _finite(optimizer):
    # A token that no text of a batch has leaves its row of the embedding without gradient.
    none = jax.tree.map(jnp.zeros_like, _drawn(0))
    state = _step(optimizer, RATES[0], none, *_first(optimizer))
    states = {"gradients of 0": state}
    states |= {"normal gradients": _trained(optimizer)}
    for name, state in states.items():
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state)):
            raise ValueError(f"parameters or state are NaN or Inf after {name}")


def _types(optimizer):
    parameters, moments = _first(optimizer)
    made = optimizer.transformation(RATES[0], optimizer.numbers)
    updates, _ = made.update(_drawn(1), moments, parameters)
    _same_types(updates, parameters, "updates")


def _kept(optimizer):
    _, before = _first(optimizer)
    for _, after in _states(optimizer):
        _same_types(after, before, "state after a step")
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(before))
    parameters = sum(np.size(leaf) for leaf in jax.tree.leaves(_drawn(0)))
    return f"{size / parameters:.3g} numbers for each parameter"


def _same_types(tree, expected, what):
    """Raises ValueError where a tree has another structure, other shapes or types."""
    if jax.tree.structure(tree) != jax.tree.structure(expected):
        raise ValueError(
            f"the {what} has another structure: {jax.tree.structure(tree)}"
        )
    paths = jax.tree_util.tree_leaves_with_path(tree)
    for (path, leaf), other in zip(paths, jax.tree.leaves(expected), strict=True):
        own = jax.typeof(leaf).str_short()
        needed = jax.typeof(other).str_short()
        if own != needed:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ValueError(f"{what}: {name} is {own}, not {needed}")


def _saved(optimizer):
    states = list(_states(optimizer))
    # As a checkpoint has them: leaves in files, put back into the structure of a new state.
    kept, structure = jax.tree.flatten(_first(optimizer))
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(states[-2])]
    if len(leaves) != len(kept) or any(leaf.dtype == object for leaf in leaves):
        raise ValueError("its state has leaves that are no arrays of numbers")
    restored = jax.tree.unflatten(structure, leaves)
    step = jax.jit(functools.partial(_step, optimizer))
    _equal(step(RATES[0], _drawn(STEPS), *restored), states[-1], "of a saved state")


def _again(optimizer):
    _equal(_trained(optimizer), _trained(optimizer), "a second time")
    step = functools.partial(_step, optimizer)
    eager = [_trained(optimizer, step=step) for _ in range(2)]
    _equal(*eager, "a second time, uncompiled")


def _compiled(optimizer):
    eager = _trained(optimizer, step=functools.partial(_step, optimizer))
    return _close(_trained(optimizer), eager, "compiled")


def _rates(optimizer):
    one, other = (_trained(optimizer, rate=rate)[0] for rate in RATES[:2])
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    if all(np.array_equal(*pair) for pair in leaves):
        raise ValueError(f"steps at rates {RATES[0]} and {RATES[1]} are the same")


def _lanes(optimizer):
    step = jax.vmap(functools.partial(_step, optimizer), (0, None, 0, 0))
    step = jax.jit(step)
    state = jax.tree.map(lambda x: jnp.stack([x] * len(RATES)), _first(optimizer))
    for seed in range(1, STEPS + 1):
        state = step(jnp.array(RATES), _drawn(seed), *state)
    alone = [_trained(optimizer, rate=rate) for rate in RATES]
    expected = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
    return _close(state, expected, "in lanes")


def _falls(optimizer):
    """Checks ½ ‖x − t‖², whose gradient is x − t."""
    parameters, moments = _first(optimizer)
    target = _drawn(1)
    step = jax.jit(functools.partial(_step, optimizer))
    losses = []
    for _ in range(DESCENT):
        gradients = jax.tree.map(jnp.subtract, parameters, target)
        losses.append(
            0.5 * sum(float((g**2).sum()) for g in jax.tree.leaves(gradients))
        )
        parameters, moments = step(RATES[0], gradients, parameters, moments)
    if not losses[-1] < losses[0]:
        raise ValueError(
            f"it goes from {losses[0]:.4g} to {losses[-1]:.4g} in {DESCENT} steps: is the "
            "update's sign that of the gradient?"
        )
    return f"{losses[0]:.4g} to {losses[-1]:.4g}"


def _equal(tree, expected, how):
    leaves = zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True)
    if not all(np.array_equal(*pair, equal_nan=True) for pair in leaves):
        raise ValueError(f"{how} the numbers are others")


def _close(tree, expected, how):
    """Raises ValueError where a leaf differs by more than rounding; returns the largest."""
    errors = []
    leaves = zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True)
    for own, other in leaves:
        scale = max(np.max(np.abs(other)), 1e-30)
        errors.append(float(np.max(np.abs(own - other)) / scale))
    if not max(errors, default=0.0) <= TOLERANCE:
        raise ValueError(f"{how} numbers are off by {max(errors):.2g} of the largest")
    return f"off by {max(errors, default=0.0):.1g}"
