"""Checks of custom optimizers and schedules: what is right passes, what is broken is named."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import optim
from experiments.optim_contract import check_optimizer, check_schedule


def momentum(learning_rate, beta: float = 0.9):
    return optax.chain(optax.trace(beta), optax.scale_by_learning_rate(learning_rate))


def uphill(learning_rate):
    return optax.scale(learning_rate)


def normed(learning_rate):
    return optax.stateless(
        lambda g, _: jax.tree.map(lambda g: -learning_rate * g / jnp.abs(g), g)
    )


def narrow(learning_rate):
    return optax.chain(
        optax.sgd(learning_rate),
        optax.stateless(lambda u, _: jax.tree.map(lambda u: u.astype("bfloat16"), u)),
    )


def deaf(learning_rate):
    return optax.sgd(0.001)


def widening(learning_rate):
    """Its state is int32 at first, and float32 after a step."""

    def update(gradients, state, parameters=None):
        return jax.tree.map(lambda g: -learning_rate * g, gradients), state + 0.5

    return optax.GradientTransformation(lambda parameters: jnp.int32(0), update)


def counting(learning_rate):
    """It counts its calls in a variable, and not in its state."""

    def update(gradients, state, parameters=None):
        calls.append(0)
        factor = -learning_rate / len(calls)
        return jax.tree.map(lambda g: factor * g, gradients), state

    return optax.GradientTransformation(lambda parameters: (), update)


calls = []


@jax.custom_batching.custom_vmap
def _first_lanes(rate):
    return rate


@_first_lanes.def_vmap
def _(size, batched, rate):
    return jnp.broadcast_to(rate[0], rate.shape), True


def of_the_first_lane(learning_rate):
    return optax.sgd(_first_lanes(learning_rate))


def refined(learning_rate):
    """Rounds what is computed before a program is compiled, and not what a program computes."""

    def update(gradients, state, parameters=None):
        is_traced = isinstance(jax.tree.leaves(gradients)[0], jax.core.Tracer)
        factor = -learning_rate if is_traced else -1.01 * learning_rate
        return jax.tree.map(lambda g: factor * g, gradients), state

    return optax.GradientTransformation(lambda parameters: (), update)


class Hidden:
    """A part of the structure of a state, which no checkpoint has."""

    def __init__(self, count=0):
        self.count = count


jax.tree_util.register_pytree_node(
    Hidden, lambda state: ((), state.count), lambda count, _: Hidden(count)
)


def unsaved(learning_rate):
    def update(gradients, state, parameters=None):
        factor = -learning_rate * (1 + state.count)
        return jax.tree.map(lambda g: factor * g, gradients), Hidden(state.count + 1)

    return optax.GradientTransformation(lambda parameters: Hidden(), update)


BROKEN = [
    (uphill, "a quadratic's loss falls"),
    (normed, "updates are finite"),
    (narrow, "updates have the parameters' structure and types"),
    (deaf, "the learning rate decides the step"),
    (widening, "its state keeps its structure and types"),
    (counting, "equal arguments give equal updates"),
    (of_the_first_lane, "learning rates as lanes train as each alone"),
    (refined, "compiled steps are those that are not"),
    (unsaved, "training goes on from a saved state"),
]


def failures(rows):
    return {row.what for row in rows if not row.ok}


@pytest.mark.parametrize("name", ["adam", "lion", "muon"])
def test_an_optimizer_of_the_library_passes(name):
    optimizer = optim.choose_optimizer(optim.OPTIMIZERS[name], ())
    assert not failures(check_optimizer(optimizer))


def test_a_custom_optimizer_passes_with_its_options():
    rows = check_optimizer(optim.choose_optimizer(momentum, (("beta", 0.5),)))
    assert not failures(rows)
    assert {row.what for row in rows} == {what for _, what in BROKEN}


@pytest.mark.parametrize(("function", "what"), BROKEN)
def test_what_is_broken_fails_its_check(function, what):
    assert what in failures(check_optimizer(optim.choose_optimizer(function, ())))


def fading(power: float = 0.5):
    return lambda count: (1 + count) ** -power


def negative():
    return lambda count: 1 - count / 20


def undefined():
    return lambda count: jnp.sqrt(10.0 - count)


def nothing():
    return lambda count: 0.0 * count


def noisy():
    return lambda count: jnp.exp(-count) + np.random.default_rng().random()


def by_tracing():
    return lambda count: 1.0 if isinstance(count, jax.core.Tracer) else 2.0


@pytest.mark.parametrize("function", [fading, optim.cosine, optim.paper])
def test_a_schedule_passes(function):
    assert not failures(check_schedule(optim.choose_schedule(function, ())))


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (negative, "rates are finite and not negative"),
        (undefined, "rates are finite and not negative"),
        (nothing, "rates are finite and not negative"),
        (noisy, "equal steps have equal rates"),
        (by_tracing, "compiled rates are those that are not"),
    ],
)
def test_a_schedule_that_is_broken_fails_its_check(function, what):
    assert what in failures(check_schedule(optim.choose_schedule(function, ())))
