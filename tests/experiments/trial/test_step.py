"""One step: the same on one device and on four, packed or not, whatever the strategy."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest

from attn import Annealed
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
    program_of,
)
from experiments.trial.step import token_losses
from tests.experiments import tiny


@functools.cache
def stepper(program, lanes):
    """Compiled once for all tests that train this program."""
    return distribute(functools.partial(step.train_steps, program), lanes, donate=False)


def program_and_state(settings):
    program = program_of(settings, settings.data.vocabulary_size, 48)
    return program, jax.device_get(initial_state(program, settings))


@functools.cache
def losses_of(program):
    return over_lanes(functools.partial(token_losses, program))


def placed(strategy, devices, count=1):
    return Lanes(count, strategy, tuple(jax.local_devices()[:devices]))


def train(settings, strategy="pmap", devices=1, steps=3):
    """The last state and the losses of some steps over the first `devices` devices."""
    states, losses = train_steps(settings, strategy, devices, steps)
    return states[-1], losses


def train_steps(settings, strategy, devices, steps):
    """The states and losses after each step of one trial."""
    dispatches = train_lanes([settings], placed(strategy, devices), [1] * steps)
    states = [lanes[0] for lanes, _ in dispatches]
    losses = [metrics["loss"][0, 0] for _, metrics in dispatches]
    return states, losses


def train_lanes(all_settings, lanes, counts):
    """After each of `counts` steps in one dispatch: the state of each lane, and metrics (L, K)."""
    program, _ = program_and_state(all_settings[0])
    run = stepper(program, lanes)
    corpus = tiny.corpus().train
    data = DeviceData(corpus, lanes, program.sequence_length)
    fresh = [program_and_state(settings)[1] for settings in all_settings]
    states = lanes.stack(fresh)
    hypers = [jax.device_get(hyper_of(settings)) for settings in all_settings]
    hypers = lanes.stack(hypers)
    streams = [
        Batches(
            corpus,
            batch_size=settings.training.batch_size,
            sequence_length=settings.training.sequence_length,
            seed=settings.seed,
        )
        for settings in all_settings
    ]
    longest = max(counts)
    dispatches = []
    for count in counts:
        # As many as in the longest dispatch, so that all have one shape; the rest is put back.
        slots = np.stack([stream.take(longest) for stream in streams])
        for stream in streams:
            place = dict(stream.get_state(), batch=stream.batch - longest + count)
            stream.set_state(place)
        states, metrics = run(states, hypers, *data(slots), count)
        of_lanes = [
            jax.device_get(take_lane(states, lanes.place(lane)))
            for lane in range(lanes.count)
        ]
        arrays = {
            name: np.asarray(x).reshape(lanes.count, -1) for name, x in metrics.items()
        }
        dispatches.append((of_lanes, arrays))
    return dispatches


def assert_close(tree, other, rtol, atol):
    check = functools.partial(np.testing.assert_allclose, rtol=rtol, atol=atol)
    jax.tree.map(check, tree, other)


DESCENT = dict(
    training__optimizer="sgd",
    training__schedule="constant",
    training__learning_rate=0.5,
)


@pytest.fixture(scope="module")
def alone():
    """SGD, because Adam would hide a gradient that is four times too large."""
    settings = tiny.resolve(**DESCENT)
    return settings, *train(settings)


@pytest.mark.parametrize(
    ("strategy", "devices", "accumulate"),
    [
        pytest.param("pmap", 4, 1, marks=pytest.mark.ci),
        ("shard_map", 2, 2),
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
    assert_close(other, state, rtol=1e-4, atol=2e-6)


# Of one stack, which has half as much to compile.
STACK = dict(model__kind="language")
POINTS = (
    dict(seed=1, model__P_drop=0.3),
    dict(seed=2, training__learning_rate=0.2, training__eps_ls=0.0),
    dict(seed=3, model__positions="learned"),
    dict(seed=4, training__learning_rate=0.1),
)
SGD = STACK | DESCENT
DISPATCHES = (2, 3, 1)
LANES = pytest.mark.parametrize(
    ("strategy", "devices", "lanes"),
    [
        pytest.param("pmap", 1, 4, marks=pytest.mark.ci),
        ("pmap", 2, 4),
        pytest.param("shard_map", 4, 4, marks=pytest.mark.ci),
    ],
)


@functools.cache
def trained_alone(lane):
    """The last state and the losses of a point by itself, with SGD, one step a dispatch."""
    settings = tiny.resolve(**SGD | POINTS[lane])
    return train(settings, steps=sum(DISPATCHES))


@LANES
def test_lanes_are_as_if_alone(strategy, devices, lanes):
    """From the first step to the last, with data, dropout and initial values of their own.

    With SGD: a gradient is a sum of some hundred float32 products, so lanes differ from lone
    runs by some 1e-6 of it, and six steps at rates up to 0.5 keep that so. Adam divides by
    the root of the second moment: where a gradient is 0 but for rounding, its sign decides
    on a whole step.
    """
    all_settings = [tiny.resolve(**SGD | point) for point in POINTS]
    dispatches = train_lanes(all_settings, placed(strategy, devices, lanes), DISPATCHES)
    states, _ = dispatches[-1]
    for lane in range(lanes):
        state, expected = trained_alone(lane)
        parts = [
            metrics["loss"][lane, :count]
            for (_, metrics), count in zip(dispatches, DISPATCHES, strict=True)
        ]
        np.testing.assert_allclose(np.concatenate(parts), expected, rtol=1e-5)
        assert_close(states[lane], state, rtol=1e-4, atol=5e-6)


def test_lanes_differ():
    """Else the test above would not see one lane in place of another."""
    assert len({float(trained_alone(lane)[1][0]) for lane in range(len(POINTS))}) == 4


def test_lanes_of_adam_have_their_own_moments_and_rates():
    """Moments are those of the lone run, and the step is the formula's from the lane's moments.

    After one step the moments are (1 − β₁)·g and (1 − β₂)·g², so they are compared as the
    gradients of the test above; what the root of tiny ones makes of rounding is left out.
    """
    warmup = dict(training__schedule="paper(warmup=2)")
    adam = (dict(training__learning_rate=2.0), warmup, dict(), dict())
    points = [
        STACK | dict(seed=point["seed"]) | own
        for point, own in zip(POINTS, adam, strict=True)
    ]
    all_settings = [tiny.resolve(**point) for point in points]
    ((states, _),) = train_lanes(all_settings, placed("pmap", 2, 4), [1])
    for lane, settings in enumerate(all_settings):
        ((alone,), _) = train_steps(settings, "pmap", 1, steps=1)
        assert_close(states[lane].moments, alone.moments, rtol=1e-4, atol=1e-7)
        _, start = program_and_state(settings)
        t = settings.training
        rate = t.learning_rate * 16**-0.5 * t.schedule_choice.warmup**-1.5
        moments = states[lane].moments[0]
        mean = moments.mu["params"]["embedding"] / (1 - 0.9)
        square = moments.nu["params"]["embedding"] / (1 - 0.98)
        step = rate * mean / (np.sqrt(square) + 1e-9)
        expected = start.params["embedding"] - step
        # Exact but for the rounding of some float32 operations on numbers up to 1.
        np.testing.assert_allclose(
            states[lane].params["embedding"], expected, rtol=0, atol=2e-6
        )


def test_lanes_may_differ_in_all_numbers_of_their_recipe():
    """Rate, decay, β₁, warm-up, end and clip; where tables are fixed, nothing moves them.

    With an ε of 1 AdamW has no step that rounding decides on, see above.
    """
    recipes = [
        ("adamw(weight_decay=0.1, b1=0.5, eps=1)", "cosine(warmup=1)", 0.5),
        ("adamw(weight_decay=2, b1=0.8, eps=1)", "cosine(warmup=3)", 0.5),
        ("adamw(weight_decay=0.3, b1=0.7, eps=1)", "cosine(final=0.5)", 4.0),
        ("adamw(weight_decay=1, b1=0.7, eps=2)", "cosine(warmup=2)", 0.1),
    ]
    all_settings = [
        tiny.resolve(
            **STACK,
            **point | dict(training__learning_rate=0.5 + 0.1 * point["seed"]),
            training__optimizer=optimizer,
            training__schedule=schedule,
            training__clip=clip,
            training__steps=10 + point["seed"],
        )
        for point, (optimizer, schedule, clip) in zip(POINTS, recipes, strict=True)
    ]
    assert len({program_and_state(settings)[0] for settings in all_settings}) == 1
    ((states, metrics),) = train_lanes(all_settings, placed("pmap", 2, 4), [3])
    for lane, settings in enumerate(all_settings):
        alone, losses = train(settings)
        np.testing.assert_allclose(metrics["loss"][lane], losses, rtol=1e-5)
        assert_close(states[lane], alone, rtol=1e-4, atol=5e-6)
        before, after = (
            jax.tree.leaves(state.positions)[0]
            for state in (program_and_state(settings)[1], states[lane])
        )
        assert np.array_equal(before, after) == (not settings.model.positions.trained)
    assert len({tuple(lane) for lane in metrics["learning_rate"].tolist()}) == 4
    # The norm is logged as it was before clipping.
    assert (metrics["grad_norm"] > 0.5).all()


def test_the_logged_norm_is_that_of_the_gradient():
    """Of its mean over tokens: with SGD the step's length over the rate."""
    settings = tiny.resolve(**SGD)
    _, before = program_and_state(settings)
    (((after,), metrics),) = train_lanes([settings], placed("pmap", 1), [1])
    changes = jax.tree.map(lambda x, y: (x - y) ** 2, before.params, after.params)
    length = sum(float(x.sum()) for x in jax.tree.leaves(changes)) ** 0.5
    rate = settings.training.learning_rate
    np.testing.assert_allclose(metrics["grad_norm"][0, 0], length / rate, rtol=1e-3)


def test_lanes_may_differ_in_temperatures():
    """Each as a program into which its numbers are compiled, and without the scan."""
    changes = dict(SGD, model__P_drop=0.0, training__scan=True)
    options = [dict(start=4.0, steps=3), {}, dict(end=0.5, steps=2), dict(start=0.25)]
    all_settings = [
        tiny.resolve(**changes, seed=lane, model__score=annealed(own))
        for lane, own in enumerate(options)
    ]
    assert len({program_and_state(settings)[0] for settings in all_settings}) == 1
    ((states, metrics),) = train_lanes(all_settings, placed("pmap", 2, 4), [4])
    for lane, (settings, own) in enumerate(zip(all_settings, options, strict=True)):
        score = functools.partial(Annealed.init, **own)
        model = dataclasses.replace(settings.model, score=score)
        own = dataclasses.replace(
            settings,
            model=model,
            training=dataclasses.replace(settings.training, scan=False),
        )
        alone, losses = train(own, steps=4)
        assert alone.numbers == {}
        np.testing.assert_allclose(metrics["loss"][lane], losses, rtol=1e-5)
        assert_close(states[lane].params, alone.params, rtol=1e-4, atol=5e-6)


def annealed(options):
    return f"annealed({', '.join(f'{name}={x}' for name, x in options.items())})"


def test_numbers_inside_of_others_and_of_single_layers_are_data():
    """And what is no number makes another program."""
    scores = [
        f"softcap(inner=annealed(start={start}, inner={inner}), cap={cap})"
        for start, inner, cap in ((3, "dot", 5), (2, "dot", 5), (3, "additive", 5))
    ]
    same, other, additive = (
        tiny.resolve(model__decoder__layer_1__score=score) for score in scores
    )
    program, state = program_and_state(same)
    assert program == program_and_state(other)[0] != program_and_state(additive)[0]
    (kept,) = jax.tree.leaves(state.numbers, is_leaf=lambda x: "inner.start" in x)
    assert kept == {"inner.start": 3, "inner.end": 1, "inner.steps": 1000}


def test_a_lane_without_numbers_leaves_the_others_alone():
    all_settings = [tiny.resolve(**STACK, seed=seed) for seed in range(4)]
    lanes = placed("pmap", 2, 4)
    (whole, _) = train_lanes(all_settings, lanes, [1, 1])[-1]
    broken = list(all_settings)
    broken[1] = tiny.resolve(**STACK, seed=1, training__learning_rate=1e30)
    states, metrics = train_lanes(broken, lanes, [1, 1])[-1]
    assert not np.isfinite(metrics["grad_norm"][1, 0])
    for lane in (0, 2, 3):
        jax.tree.map(np.testing.assert_array_equal, states[lane], whole[lane])


def test_adam_equals_its_formula():
    """One update from the gradients of one SGD step, by hand: rate · m̂/(√v̂ + ε)."""
    sgd = tiny.resolve(**SGD | dict(training__learning_rate=1.0))
    adam = tiny.resolve(**STACK)
    before = program_and_state(sgd)[1].params["embedding"]
    gradient = before - train(sgd, steps=1)[0].params["embedding"]
    rate = 16**-0.5 * min(1.0, 4**-1.5)
    expected = before - rate * gradient / (np.abs(gradient) + 1e-9)
    after = train(adam, steps=1)[0].params["embedding"]
    # The gradient itself is known to rounding only.
    clear = np.abs(gradient) > 1e-4
    np.testing.assert_allclose(after[clear], expected[clear], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("positions", "moves"), [("sinusoidal", False), ("learned", True), ("none", False)]
)
def test_only_learned_positions_move(positions, moves):
    settings = tiny.resolve(**STACK, model__positions=positions)
    start = initial_state(program_of(settings, 500, 48), settings)
    end, _ = train(settings, steps=2)
    ((before,), (after,)) = (jax.tree.leaves(s.positions) for s in (start, end))
    assert np.array_equal(before, after) == (not moves)
    others = sum(x.size for x in jax.tree.leaves(end.params))
    assert count_parameters(settings, end) - others == moves * 48 * 16


def test_perplexity_is_independent_of_packing():
    """Mean losses, as packed for training and as sentences of two shapes of batches.

    A token's loss is made of float32 sums over d_model = 16 products and 500 exponentials, so
    it is known to some 100 roundings of 6e-8; what is packed beside it would change it by
    percents.
    """
    program, state = program_and_state(tiny.resolve())
    states = Lanes().stack([state])
    losses = losses_of(program)
    pairs = tiny.corpus().validation.ids
    batches = Batches(pairs, batch_size=4, sequence_length=48, seed=0)
    packed = []
    for batch in itertools.islice(batches, batches.batches_in_part):
        of_batch = np.asarray(losses(states, batch), np.float64)[0]
        packed.append(of_batch[batch.target_segments > 0])
    packed = np.concatenate(packed)
    assert 100 < np.exp(packed.mean()) < 2000
    for batch_size, length in ((4, 48), (13, 41)):
        nll, tokens = sentence_losses(losses, states, pairs, batch_size, length)
        assert tokens.tolist() == [len(target) + 1 for target in pairs.target]
        log_perplexity = np.log(perplexity(nll, tokens))
        np.testing.assert_allclose(log_perplexity, [packed.mean()], rtol=6e-6)


def test_bfloat16_and_the_moving_average():
    settings = tiny.resolve(**SGD)
    _, losses = train(settings)
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
    for average, *values in zip(jax.tree.leaves(states[-1].ema), *each, strict=True):
        np.testing.assert_allclose(
            average,
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
    program, state = program_and_state(tiny.resolve())
    states = Lanes().stack([state])
    batch = next(Batches(tiny.corpus().train, batch_size=4, sequence_length=48, seed=0))
    assert batch.source_segments.max(1).min() >= 2
    second = batch.source_segments == 2
    changed = batch._replace(source=np.where(second, 7, batch.source))
    before, after = (
        np.asarray(losses_of(program)(states, b))[0] for b in (batch, changed)
    )
    first, second = (batch.target_segments == segment for segment in (1, 2))
    np.testing.assert_array_equal(before[first], after[first])
    assert (before[second] != after[second]).all()


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
