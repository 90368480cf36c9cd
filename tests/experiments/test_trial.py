"""One step: the same on one device and on four, packed or not, whatever the strategy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import population, trial
from experiments.batches import Batches, padded
from tests.experiments import tiny


def state_and_hyper(settings, devices):
    program = trial.program(settings, settings.data.vocabulary, 48)
    state = trial.initial_state(program, settings, jax.jit(trial.initial_variables, static_argnums=0))
    return program, *population.on_all_devices((state, trial.hyper(settings)), devices)


def train(settings, strategy, devices, steps=3):
    """The state and the losses after some steps over the first `devices` devices."""
    devices = jax.local_devices()[:devices]
    program, state, hyper = state_and_hyper(settings, devices)
    step = population.distribute(functools.partial(trial.step, program), strategy=strategy, devices=devices)
    batches = Batches(tiny.corpus().train, rows=settings.training.rows, row_pieces=settings.training.row_pieces, seed=0)
    losses = []
    for _ in range(steps):
        state, metrics = step(state, hyper, next(batches))
        losses.append(float(metrics["loss"]))
    return jax.device_get(state), losses


@pytest.fixture(scope="module")
def alone():
    """SGD, because Adam would hide a gradient that is four times too large."""
    settings = tiny.resolve(training__optimizer="sgd", training__learning_rate=0.5)
    return settings, *train(settings, "pmap", devices=1)


@pytest.mark.parametrize(("strategy", "devices"), [("pmap", 4), ("pmap", 2), ("shard_map", 4), ("shard_map", 1)])
def test_any_number_of_devices_gives_the_same_training(alone, strategy, devices):
    settings, state, losses = alone
    assert losses[-1] < losses[0]
    other, other_losses = train(settings, strategy, devices)
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
    program = trial.program(settings, 500, 48)
    start = trial.initial_state(program, settings)
    end, _ = train(settings, "pmap", 1, steps=2)
    same = [np.array_equal(a, b) for a, b in zip(jax.tree.leaves(start.positions), jax.tree.leaves(end.positions),
                                                  strict=True)]
    assert same == [not moves] * 2
    assert trial.parameters(settings, end) - sum(x.size for x in jax.tree.leaves(end.params)) == moves * 2 * 48 * 16


def test_perplexity_is_independent_of_packing():
    settings = tiny.resolve()
    program, state, _ = state_and_hyper(settings, jax.local_devices()[:1])
    loss_sums = jax.jit(functools.partial(trial.loss_sums, program))
    pairs = tiny.corpus().train
    batches = Batches(pairs, rows=4, row_pieces=48, seed=0)
    packed = [loss_sums(state, next(batches)) for _ in range(batches.batches_per_epoch)]
    apart = [loss_sums(state, batch) for _, batch in padded(pairs, 16, 48)]
    (nll, pieces), (other_nll, other_pieces) = (np.sum(np.array(sums, np.float64), axis=0) for sums in (packed, apart))
    assert pieces == other_pieces == sum(len(t) + 1 for t in pairs.target)
    assert nll / pieces == pytest.approx(other_nll / other_pieces, rel=1e-6)


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
    with pytest.raises(population.DeviceError, match="unknown strategy 'pjit'; known: pmap, shard_map"):
        population.distribute(lambda *_: None, strategy="pjit")
