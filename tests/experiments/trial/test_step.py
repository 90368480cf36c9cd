"""One step: the same on one device and on four, packed or not, whatever the strategy."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.data.batches import Batches
from experiments.evaluation.perplexity import perplexity, sentence_losses
from experiments.training.device_data import DeviceData
from experiments.trial import step
from experiments.trial.lanes import (
    DeviceError,
    Lanes,
    check_batch_size,
    distribute,
    over_lanes,
    take_lane,
)
from experiments.trial.program import (
    build_model,
    count_parameters,
    hyper_of,
    initial_state,
    initial_variables,
    program_of,
)
from experiments.trial.step import hidden_states, learning_rate_at, token_losses
from tests.experiments import tiny

INIT = jax.jit(initial_variables, static_argnums=0)


@functools.cache
def stepper(program, lanes):
    """Compiled once for all tests that train this program."""
    return distribute(functools.partial(step.train_steps, program), lanes, donate=False)


def program_and_state(settings):
    program = program_of(settings, settings.data.vocabulary_size, 48)
    return program, jax.device_get(initial_state(program, settings, INIT))


def placed(strategy, devices, count=1):
    return Lanes(count, strategy, tuple(jax.local_devices()[:devices]))


def train(settings, strategy="pmap", devices=1, steps=3):
    """The last state and the losses of some steps over the first `devices` devices."""
    states, losses = train_steps(settings, strategy, devices, steps)
    return states[-1], losses


def train_steps(settings, strategy, devices, steps):
    found = train_lanes([settings], placed(strategy, devices), [1] * steps)
    return [states[0] for states, _ in found], [
        metrics["loss"][0, 0] for _, metrics in found
    ]


def train_lanes(all_settings, lanes, counts):
    """After each of `counts` steps in one dispatch: the state of each lane, and metrics (L, K)."""
    program, _ = program_and_state(all_settings[0])
    run, flat = stepper(program, lanes), tiny.corpus().train
    states = lanes.stack([program_and_state(settings)[1] for settings in all_settings])
    hypers = lanes.stack(
        [jax.device_get(hyper_of(settings)) for settings in all_settings]
    )
    streams = [
        Batches(
            flat,
            batch_size=s.training.batch_size,
            sequence_length=s.training.sequence_length,
            seed=s.seed,
        )
        for s in all_settings
    ]
    found, feed = [], DeviceData(flat, lanes, program.sequence_length)
    for count in counts:
        slots = np.stack([stream.take(max(counts)) for stream in streams])
        for stream in streams:
            stream.set_state(
                dict(stream.get_state(), batch=stream.batch - max(counts) + count)
            )
        states, metrics = run(states, hypers, *feed(slots), count)
        each = [
            jax.device_get(take_lane(states, lanes.place(i)))
            for i in range(lanes.count)
        ]
        found.append(
            (
                each,
                {k: np.asarray(x).reshape(lanes.count, -1) for k, x in metrics.items()},
            )
        )
    return found


@pytest.fixture(scope="module")
def alone():
    """SGD, because Adam would hide a gradient that is four times too large."""
    settings = tiny.resolve(training__optimizer="sgd", training__learning_rate=0.5)
    return settings, *train(settings)


@pytest.mark.parametrize(
    ("strategy", "devices", "accumulate"),
    [
        ("pmap", 4, 1),
        ("pmap", 2, 2),
        ("shard_map", 4, 1),
        pytest.param("shard_map", 1, 4, marks=pytest.mark.ci),
    ],
)
def test_any_number_of_devices_and_parts_gives_the_same_training(
    alone, strategy, devices, accumulate
):
    settings, state, losses = alone
    assert losses[-1] < losses[0]
    parts = dataclasses.replace(
        settings, training=dataclasses.replace(settings.training, accumulate=accumulate)
    )
    other, other_losses = train(parts, strategy, devices)
    np.testing.assert_allclose(other_losses, losses, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(other), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)


POINTS = (
    dict(seed=1, model__P_drop=0.3),
    dict(seed=2, training__learning_rate=3.0, training__eps_ls=0.0),
    dict(seed=3, model__positions="learned"),
    dict(seed=4, training__warmup=2),
)
ALONE = {}


@pytest.mark.parametrize(
    ("strategy", "devices", "lanes"),
    [
        pytest.param("pmap", 1, 4, marks=pytest.mark.ci),
        ("pmap", 2, 4),
        pytest.param("shard_map", 4, 4, marks=pytest.mark.ci),
    ],
)
def test_lanes_are_as_if_alone(strategy, devices, lanes):
    """From the first step to the last, with data, dropout and initial values of their own; some steps a dispatch."""
    all_settings = [tiny.resolve(**point) for point in POINTS]
    found = train_lanes(all_settings, placed(strategy, devices, lanes), [2, 3, 1])
    for lane, settings in enumerate(all_settings):
        wanted = ALONE.setdefault(
            lane, train_lanes([settings], placed("pmap", 1), [1] * 6)
        )
        losses = np.concatenate(
            [
                metrics["loss"][lane, :n]
                for (_, metrics), n in zip(found, (2, 3, 1), strict=True)
            ]
        )
        np.testing.assert_allclose(
            losses, [metrics["loss"][0, 0] for _, metrics in wanted], rtol=1e-5
        )
        for a, b in zip(
            jax.tree.leaves(found[-1][0][lane]),
            jax.tree.leaves(wanted[-1][0][0]),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)
    assert (
        len(
            {
                float(metrics["loss"][0, 0])
                for metrics in (ALONE[lane][0][1] for lane in ALONE)
            }
        )
        == lanes
    )


def test_a_lane_without_numbers_leaves_the_others_alone():
    all_settings = [tiny.resolve(seed=seed) for seed in range(2)]
    whole = train_lanes(all_settings, placed("pmap", 1, 2), [2])
    broken = [all_settings[0], tiny.resolve(seed=1, training__learning_rate=1e30)]
    ((states, metrics),) = train_lanes(broken, placed("pmap", 1, 2), [2])
    assert not np.isfinite(metrics["grad_norm"][1, 1])
    jax.tree.map(np.testing.assert_array_equal, states[0], whole[0][0][0])


def test_adam_equals_its_formula(alone):
    """One update from the gradients of one SGD step, by hand: rate · m̂/(√v̂ + ε)."""
    sgd, adam = (
        tiny.resolve(training__optimizer="sgd", training__learning_rate=1.0),
        tiny.resolve(),
    )
    before = program_and_state(sgd)[1].params["embedding"]
    gradient = before - train(sgd, steps=1)[0].params["embedding"]
    rate = 16**-0.5 * min(1.0, 4**-1.5)
    wanted = before - rate * gradient / (np.abs(gradient) + 1e-9)
    found = train(adam, steps=1)[0].params["embedding"]
    clear = np.abs(gradient) > 1e-4  # the gradient itself is known to rounding only
    np.testing.assert_allclose(found[clear], wanted[clear], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("positions", "moves"), [("sinusoidal", False), ("learned", True), ("none", False)]
)
def test_only_learned_positions_move(positions, moves):
    settings = tiny.resolve(model__positions=positions)
    start = initial_state(program_of(settings, 500, 48), settings, INIT)
    end, _ = train(settings, steps=2)
    same = [
        np.array_equal(a, b)
        for a, b in zip(
            jax.tree.leaves(start.positions),
            jax.tree.leaves(end.positions),
            strict=True,
        )
    ]
    assert same == [not moves] * 2
    assert (
        count_parameters(settings, end)
        - sum(x.size for x in jax.tree.leaves(end.params))
        == moves * 2 * 48 * 16
    )


def test_perplexity_is_independent_of_packing():
    settings = tiny.resolve()
    program, state = program_and_state(settings)
    states = Lanes().stack(
        [state._replace(params=jax.tree.map(lambda x: 3 * x, state.params))]
    )  # for sizeable losses
    piece_losses = over_lanes(functools.partial(token_losses, program))
    pairs = tiny.corpus().validation.ids
    batches = Batches(pairs, batch_size=4, sequence_length=48, seed=0)
    packed = [
        np.asarray(piece_losses(states, batch), np.float64)[0][
            batch.target_segments > 0
        ]
        for batch in itertools.islice(batches, batches.batches_in_part)
    ]
    wanted = np.exp(np.concatenate(packed).mean())
    for rows, length in ((4, 48), (13, 41)):
        nll, tokens = sentence_losses(piece_losses, states, pairs, rows, length)
        assert tokens.tolist() == [len(t) + 1 for t in pairs.target]
        np.testing.assert_allclose(perplexity(nll, tokens), [wanted], rtol=1e-6)


def test_bfloat16_and_the_moving_average(alone):
    settings, _, losses = alone
    light = dataclasses.replace(settings.training, precision="bfloat16", ema=0.75)
    states, other_losses = train_steps(
        dataclasses.replace(settings, training=light), "pmap", 1, steps=3
    )
    np.testing.assert_allclose(other_losses, losses, rtol=0.01)
    assert other_losses != losses
    _, start = program_and_state(settings)
    exact, _ = train(settings, steps=1)
    for a, b, c in zip(
        *(jax.tree.leaves(s.params) for s in (states[0], exact, start)), strict=True
    ):
        assert a.dtype == np.float32
        assert np.linalg.norm(a - b) <= 0.1 * np.linalg.norm(b - c)
    weights = np.float64([0.75**2, 0.75, 1])
    each = [
        jax.tree.leaves(dict(params=s.params, positions=s.positions)) for s in states
    ]
    for found, *values in zip(jax.tree.leaves(states[-1].ema), *each, strict=True):
        np.testing.assert_allclose(
            found,
            np.tensordot(weights / weights.sum(), values, axes=1),
            rtol=1e-5,
            atol=1e-6,
        )


def test_sizes_of_memory_reach_the_model():
    assert (
        not (model := build_model(program_of(tiny.resolve(), 500, 48))).remat
        and not model.scan
    )
    settings = tiny.resolve(training__remat=True, training__scan=True)
    assert (model := build_model(program_of(settings, 500, 48))).remat and model.scan


def test_sentences_in_a_row_do_not_see_each_other():
    settings = tiny.resolve()
    program, state = program_and_state(settings)
    state = jax.device_put(state)
    batch = next(Batches(tiny.corpus().train, batch_size=4, sequence_length=48, seed=0))
    row = jax.tree.map(lambda x: jnp.asarray(x[0]), batch)
    assert row.source_segments.max() >= 2
    first, second = row.target_segments == 1, row.source_segments == 2
    changed = row._replace(source=jnp.where(second, 7, row.source))
    trainable = dict(params=state.params, positions=state.positions)
    hidden = [hidden_states(program, trainable, r)[0] for r in (row, changed)]
    np.testing.assert_array_equal(hidden[0][first], hidden[1][first])
    assert not jnp.allclose(
        hidden[0][row.target_segments == 2], hidden[1][row.target_segments == 2]
    )


def test_schedule():
    settings = tiny.resolve(training__learning_rate=2.0)
    program, hyper = program_of(settings, 500, 48), hyper_of(settings)
    rates = [float(learning_rate_at(program, hyper, jnp.int32(s))) for s in (1, 4, 16)]
    np.testing.assert_allclose(rates, [2 / 4 * 1 / 8, 2 / 4 / 2, 2 / 4 / 4], rtol=1e-6)


def test_rows_that_do_not_split_are_refused():
    with pytest.raises(
        DeviceError,
        match=r"batch_size=6 must be divisible .* 4: set training\.batch_size to 8",
    ):
        check_batch_size(6, 4)
    with pytest.raises(
        DeviceError,
        match=r"batch_size=8 must .* 4 times training\.accumulate=3: .* to 12",
    ):
        check_batch_size(8, 4, 3)
    check_batch_size(24, 4, 3)
    with pytest.raises(
        DeviceError, match="unknown strategy 'pjit'; known: pmap, shard_map"
    ):
        distribute(lambda *_: None, Lanes(1, "pjit"))
    with pytest.raises(DeviceError, match=r"6 lanes must be divisible by .* 4: take 8"):
        distribute(lambda *_: None, Lanes(6))
