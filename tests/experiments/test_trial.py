"""One step: the same on one device and on four, packed or not, whatever the strategy."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import evaluation, population, trial
from experiments.batches import Batches
from tests.experiments import tiny

INIT = jax.jit(trial.initial_variables, static_argnums=0)


@functools.cache
def stepper(program, strategy, devices):
    """Compiled once for all tests that train this program."""
    return population.distribute(functools.partial(trial.step, program), strategy=strategy,
                                 devices=jax.local_devices()[:devices])


def state_and_hyper(settings, devices):
    program = trial.program(settings, settings.data.vocabulary, 48)
    state = trial.initial_state(program, settings, INIT)
    return program, *population.on_all_devices((state, trial.hyper(settings)), devices)


def train(settings, strategy, devices, steps=3):
    """The last state and the losses of some steps over the first `devices` devices."""
    states, losses = train_steps(settings, strategy, devices, steps)
    return states[-1], losses


def train_steps(settings, strategy, devices, steps):
    program, state, hyper = state_and_hyper(settings, jax.local_devices()[:devices])
    step = stepper(program, strategy, devices)
    batches = Batches(tiny.corpus().train, rows=settings.training.rows, row_pieces=settings.training.row_pieces, seed=0)
    states, losses = [], []
    for _ in range(steps):
        state, metrics = step(state, hyper, next(batches))
        states.append(jax.device_get(state))
        losses.append(float(metrics["loss"]))
    return states, losses


@pytest.fixture(scope="module")
def alone():
    """SGD, because Adam would hide a gradient that is four times too large."""
    settings = tiny.resolve(training__optimizer="sgd", training__learning_rate=0.5)
    return settings, *train(settings, "pmap", devices=1)


@pytest.mark.parametrize(("strategy", "devices", "accumulate"), [
    ("pmap", 4, 1), ("pmap", 2, 2), ("shard_map", 4, 1), ("shard_map", 1, 4)])
def test_any_number_of_devices_and_parts_gives_the_same_training(alone, strategy, devices, accumulate):
    settings, state, losses = alone
    assert losses[-1] < losses[0]
    parts = dataclasses.replace(settings, training=dataclasses.replace(settings.training, accumulate=accumulate))
    other, other_losses = train(parts, strategy, devices)
    np.testing.assert_allclose(other_losses, losses, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(other), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)


def test_adam_equals_its_formula(alone):
    """One update from the gradients of one SGD step, by hand: rate · m̂/(√v̂ + ε)."""
    sgd, adam = tiny.resolve(training__optimizer="sgd", training__learning_rate=1.0), tiny.resolve()
    before = jax.device_get(state_and_hyper(sgd, jax.local_devices()[:1])[1]).params["embedding"]
    gradient = before - train(sgd, "pmap", 1, steps=1)[0].params["embedding"]
    rate = 16**-0.5 * min(1.0, 4**-1.5)
    wanted = before - rate * gradient / (np.abs(gradient) + 1e-9)
    found = train(adam, "pmap", 1, steps=1)[0].params["embedding"]
    clear = np.abs(gradient) > 1e-4  # the gradient itself is known to rounding only
    np.testing.assert_allclose(found[clear], wanted[clear], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("positions", "moves"), [("sinusoidal", False), ("learned", True), ("none", False)])
def test_only_learned_positions_move(positions, moves):
    settings = tiny.resolve(model__positions=positions)
    start = trial.initial_state(trial.program(settings, 500, 48), settings, INIT)
    end, _ = train(settings, "pmap", 1, steps=2)
    same = [np.array_equal(a, b) for a, b in zip(jax.tree.leaves(start.positions), jax.tree.leaves(end.positions),
                                                  strict=True)]
    assert same == [not moves] * 2
    assert trial.parameters(settings, end) - sum(x.size for x in jax.tree.leaves(end.params)) == moves * 2 * 48 * 16


def test_perplexity_is_independent_of_packing():
    settings = tiny.resolve()
    program, state, _ = state_and_hyper(settings, jax.local_devices()[:1])
    state = state._replace(params=jax.tree.map(lambda x: 3 * x, state.params))  # for losses of some size
    piece_losses = jax.jit(functools.partial(trial.piece_losses, program))
    pairs = tiny.corpus().train
    batches = Batches(pairs, rows=4, row_pieces=48, seed=0)
    packed = [(piece_losses(state, batch), batch.target_segments > 0)
              for batch in itertools.islice(batches, batches.batches_per_epoch)]
    assert sum(real.sum() for _, real in packed) == sum(len(t) + 1 for t in pairs.target)
    wanted = np.exp(evaluation.mean_loss(packed))
    for rows, length in ((4, 48), (13, 41)):
        assert evaluation.perplexity(piece_losses, state, pairs, rows, length) == pytest.approx(wanted, rel=1e-6)


def test_bfloat16_and_the_moving_average(alone):
    settings, _, losses = alone
    light = dataclasses.replace(settings.training, precision="bfloat16", ema=0.75)
    states, other_losses = train_steps(dataclasses.replace(settings, training=light), "pmap", 1, steps=3)
    np.testing.assert_allclose(other_losses, losses, rtol=0.01)
    assert other_losses != losses
    start = jax.device_get(state_and_hyper(settings, jax.local_devices()[:1])[1])
    exact, _ = train(settings, "pmap", 1, steps=1)
    for a, b, c in zip(*(jax.tree.leaves(s.params) for s in (states[0], exact, start)), strict=True):
        assert a.dtype == np.float32
        assert np.linalg.norm(a - b) <= 0.1 * np.linalg.norm(b - c)
    weights = np.float64([0.75**2, 0.75, 1])
    each = [jax.tree.leaves(dict(params=s.params, positions=s.positions)) for s in states]
    for found, *values in zip(jax.tree.leaves(states[-1].ema), *each, strict=True):
        np.testing.assert_allclose(found, np.tensordot(weights / weights.sum(), values, axes=1), rtol=1e-5, atol=1e-6)


def test_sizes_of_memory_reach_the_model():
    assert not (model := trial.transformer(trial.program(tiny.resolve(), 500, 48))).remat and not model.scan
    settings = tiny.resolve(training__remat=True, training__scan=True)
    assert (model := trial.transformer(trial.program(settings, 500, 48))).remat and model.scan


def test_sentences_in_a_row_do_not_see_each_other():
    settings = tiny.resolve()
    program, state, _ = state_and_hyper(settings, jax.local_devices()[:1])
    batch = next(Batches(tiny.corpus().train, rows=4, row_pieces=48, seed=0))
    row = jax.tree.map(lambda x: jnp.asarray(x[0]), batch)
    assert row.source_segments.max() >= 2
    first, second = row.target_segments == 1, row.source_segments == 2
    changed = row._replace(source=jnp.where(second, 7, row.source))
    hidden = [trial._hidden(program, dict(params=state.params, positions=state.positions), r) for r in (row, changed)]
    np.testing.assert_array_equal(hidden[0][first], hidden[1][first])
    assert not jnp.allclose(hidden[0][row.target_segments == 2], hidden[1][row.target_segments == 2])


def test_schedule():
    settings = tiny.resolve(training__learning_rate=2.0)
    program, hyper = trial.program(settings, 500, 48), trial.hyper(settings)
    rates = [float(trial.learning_rate(program, hyper, jnp.int32(s))) for s in (1, 4, 16)]
    np.testing.assert_allclose(rates, [2 / 4 * 1 / 8, 2 / 4 / 2, 2 / 4 / 4], rtol=1e-6)


def test_rows_that_do_not_split_are_refused():
    with pytest.raises(population.DeviceError, match=r"rows=6 must be divisible .* 4: set training\.rows to 8"):
        population.check_rows(6, 4)
    with pytest.raises(population.DeviceError, match=r"rows=8 must .* 4 times training\.accumulate=3: .* to 12"):
        population.check_rows(8, 4, 3)
    population.check_rows(24, 4, 3)
    with pytest.raises(population.DeviceError, match="unknown strategy 'pjit'; known: pmap, shard_map"):
        population.distribute(lambda *_: None, strategy="pjit")
