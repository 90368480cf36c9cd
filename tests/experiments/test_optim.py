"""Optimizers, schedules and clipping: against formulas in float64, and as data of lanes."""

import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import optim
from experiments.errors import WorkdirError
from experiments.settings import OutsideError, SettingsError, resolve
from experiments.settings.choices import OPTIMIZERS, SCHEDULES
from experiments.system.signals import Interrupted
from experiments.training import loop
from experiments.training.checkpoints import Checkpoints
from experiments.training.start_point import StartPoint
from experiments.trial.program import hyper_of, initial_state, program_of
from tests.experiments import tiny

SHAPES = {
    "params": {
        "embedding": (7, 3),
        "layer": {
            "self_attention": {"w_q": (3, 2, 5), "w_o": (2, 5, 3), "b_q": (2, 5)},
            "feed_forward": {"w_1": {"kernel": (3, 5), "bias": (5,)}},
            "norm": {"scale": (3,)},
        },
    },
}
DECAYED = ("embedding", "w_q", "w_o", "kernel")

OWN = """
import numpy as np
import optax


def signs(learning_rate, beta: float = 0.9):
    return optax.chain(
        optax.centralize(),
        optax.ema(beta),
        optax.scale_by_sign(),
        optax.scale_by_learning_rate(learning_rate),
    )


def by_value(learning_rate, beta: float = 0.9):
    return optax.sgd(learning_rate, momentum=beta if beta > 0.5 else None)


def without_rate(beta: float = 0.9):
    return optax.ema(beta)


def nothing(learning_rate):
    return None


def two_rates():
    return lambda count: np.ones(2) * count


def by_count():
    return lambda count: 1.0 if count < 5 else 0.1


def fading(power: float = 0.5):
    return lambda count: (1 + count) ** -power
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def tree(seed):
    generator = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: generator.normal(size=shape).astype(np.float32),
        SHAPES,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def named(values):
    return {
        jax.tree_util.keystr(path[-1:], simple=True): np.float64(x)
        for path, x in jax.tree_util.tree_leaves_with_path(values)
    }


def recipe(**training):
    """The recipe, and the numbers, of settings with group training."""
    changes = {f"training__{name}": x for name, x in training.items()}
    settings = tiny.resolve(**changes)
    return program_of(settings, 500, 48).recipe, hyper_of(settings).recipe


def updated(steps=3, rate=0.1, **training):
    """The parameters after some steps, each with gradients of its own."""
    compiled, numbers = recipe(**training)
    params = tree(0)
    moments = optim.initial_moments(compiled, numbers, params)
    update = jax.jit(functools.partial(optim.update, compiled))
    for step in range(1, steps + 1):
        params, moments = update(numbers, rate, tree(step), moments, params)
    return named(params)


def assert_close(ours, expected):
    assert ours.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_allclose(ours[name], x, rtol=2e-5, atol=2e-6, err_msg=name)


def adamw(x, gradients, decay, rate=0.1, b1=0.9, b2=0.999, eps=1e-8):
    """Loshchilov and Hutter (2019), with the rate on both parts as in PyTorch."""
    m = v = 0
    for t, g in enumerate(gradients, start=1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        step = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
        x = x - rate * (step + decay * x)
    return x


def lion(x, gradients, decay, rate=0.1, b1=0.9, b2=0.99):
    """Chen et al. (2023), algorithm 2."""
    m = 0
    for g in gradients:
        x = x - rate * (np.sign(b1 * m + (1 - b1) * g) + decay * x)
        m = b2 * m + (1 - b2) * g
    return x


@pytest.mark.parametrize(
    ("optimizer", "formula", "decay", "decayed"),
    [
        ("adam", functools.partial(adamw, b2=0.98, eps=1e-9), 0, ()),
        ("adamw(weight_decay=0.3)", adamw, 0.3, DECAYED),
        (
            "adamw(weight_decay=0.3, b1=0.5)",
            functools.partial(adamw, b1=0.5),
            0.3,
            DECAYED,
        ),
        ("adamw(weight_decay=0.3, mask=all)", adamw, 0.3, None),
        (
            "lion(weight_decay=0.3, b2=0.8)",
            functools.partial(lion, b2=0.8),
            0.3,
            DECAYED,
        ),
    ],
)
def test_optimizers_equal_their_formulas(optimizer, formula, decay, decayed):
    gradients = [named(tree(step)) for step in (1, 2, 3)]
    expected = {
        name: formula(
            x,
            [g[name] for g in gradients],
            decay if decayed is None or name in decayed else 0,
        )
        for name, x in named(tree(0)).items()
    }
    assert_close(updated(optimizer=optimizer), expected)


def orthogonal(g, shape):
    """Newton and Schulz's iteration, by Jordan's coefficients, of g as one matrix."""
    x = np.float64(g).reshape(shape)
    x = x.T if shape[0] > shape[1] else x
    x = x / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    x = x.T if shape[0] > shape[1] else x
    return math.sqrt(max(1, shape[1] / shape[0])) * x.reshape(g.shape)


def test_muon_has_whole_matrices_and_adam_the_rest():
    """After one step the momentum's direction is the gradient's."""
    before = named(tree(0))
    gradients = named(tree(1))
    matrices = dict(w_q=(3, 10), w_o=(10, 3), kernel=(3, 5))
    expected = {}
    for name, g in gradients.items():
        if name in matrices:
            step = orthogonal(g, matrices[name]) + 0.3 * before[name]
            expected[name] = before[name] - 0.1 * step
        else:
            # With Nesterov's momentum, one step of Adam has 1.9/1.9 of the gradient's sign.
            expected[name] = before[name] - 0.1 * np.sign(g) * (
                0.9 * 0.1 / (1 - 0.9**2) + 0.1 / (1 - 0.9)
            )
    ours = updated(steps=1, optimizer="muon(weight_decay=0.3)")
    assert_close(ours, expected)


@pytest.mark.parametrize("h", [1, 4])
def test_vectors_of_heads_do_not_decay_however_many_there_are(h):
    shapes = {
        "score": {"v": (h, 5), "g_q": (h, 5), "b": (h, 5), "w_q": (h, 5, 5)},
        "relative": {"table": (h, 32), "w_2": (h, 32)},
        "together": {"b": (h, 3), "w_scores": (4, 4)},
        "w_q": (8, h, 5),
    }
    arrays = jax.tree.map(np.zeros, shapes, is_leaf=lambda x: isinstance(x, tuple))
    leaves = jax.tree_util.tree_leaves_with_path(optim.decays(arrays))
    names = {
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, is_decayed in leaves
        if is_decayed
    }
    assert names == {"score/w_q", "together/w_scores", "w_q"}


def test_per_head_parts_and_embeddings_are_not_for_muon():
    shapes = {
        "output": (7, 3),
        "layer": {
            "score": {"w_q": (2, 5, 5)},
            "relative": {"w_1": (1, 32)},
            "convolution": {"kernel": (9, 3, 3), "taps": (9, 3)},
        },
    }
    arrays = jax.tree.map(np.zeros, shapes, is_leaf=lambda x: isinstance(x, tuple))
    axes = optim.matrices(arrays)
    kernel = axes["layer"]["convolution"].pop("kernel")
    assert (kernel.reduction_axis, kernel.output_axis) == ((0, 1), (2,))
    assert jax.tree.leaves(axes) == []


def test_what_has_no_rate_is_multiplied_by_it():
    """A transformation of optax is a whole chain with −rate behind it."""
    expected = {
        name: x - 0.1 * sum(np.clip(named(tree(s))[name], -0.5, 0.5) for s in (1, 2, 3))
        for name, x in named(tree(0)).items()
    }
    assert_close(updated(optimizer="clip(max_delta=0.5)"), expected)


def test_clipping_is_by_the_norm_of_all_gradients():
    expected = named(tree(0))
    for step in (1, 2, 3):
        gradients = named(tree(step))
        norm = math.sqrt(sum((g**2).sum() for g in gradients.values()))
        assert norm > 2
        for name, g in gradients.items():
            expected[name] = expected[name] - 0.1 * g * 2 / norm
    assert_close(updated(optimizer="sgd", clip=2), expected)
    assert_close(updated(optimizer="sgd", clip=1e9), updated(optimizer="sgd"))


def rates(schedule, steps, at, learning_rate=2.0):
    settings = tiny.resolve(
        training__schedule=schedule,
        training__steps=steps,
        training__learning_rate=learning_rate,
    )
    compiled = program_of(settings, 500, 48).recipe
    numbers = hyper_of(settings).recipe
    return [
        float(optim.learning_rate_at(compiled, numbers, jnp.int32(s), 16)) for s in at
    ]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # Of steps 1, 2, 4, 8, 9 of 12.
        ("paper(warmup=4)", [1 / 16, 1 / 8, 1 / 4, 8**-0.5 / 2, 1 / 6]),
        ("constant", [2, 2, 2, 2, 2]),
        ("constant(warmup=4)", [0.5, 1, 2, 2, 2]),
        ("linear", [2, 2 * 11 / 12, 2 * 9 / 12, 2 * 5 / 12, 2 * 4 / 12]),
        ("linear(warmup=4, final=0.5)", [0.5, 1, 2, 1 + 5 / 8, 1 + 4 / 8]),
        (
            "cosine(warmup=4)",
            [0.5, 1, 2, 1 + math.cos(math.pi * 3 / 8), 1 + math.cos(math.pi / 2)],
        ),
        ("warmup_stable_decay(warmup=2, decay=0.5)", [1, 2, 2, 2 * 5 / 6, 2 * 4 / 6]),
        ("warmup_stable_decay(decay=0.25)", [2, 2, 2, 2, 2]),
        # Optax counts from 0.
        ("linear_schedule(init_value=1, end_value=0, transition_steps=8)",
         [2, 2 * 7 / 8, 2 * 5 / 8, 2 / 8, 0]),
    ],
)  # fmt: skip
def test_schedules_equal_their_formulas(schedule, expected):
    ours = rates(schedule, 12, (1, 2, 4, 8, 9))
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-7)


def test_the_last_step_of_a_decay_still_moves():
    for schedule in ("cosine", "linear", "warmup_stable_decay"):
        (last,) = rates(schedule, 100, [100])
        assert 0 < last < 0.2


def test_numbers_that_are_written_are_data():
    """So trials that differ in them share a program; defaults are compiled in."""
    base = dict(optimizer="adamw(weight_decay=0.1)", schedule="cosine", clip=1.0)
    compiled, numbers = recipe(**base)
    for changes in (
        dict(optimizer="adamw(weight_decay=2)"),
        dict(schedule="cosine(warmup=3, final=0.1)"),
        dict(clip=3.0),
        dict(learning_rate=3.0),
        dict(steps=20),
    ):
        other, their_numbers = recipe(**base | changes)
        assert other == compiled and hash(other) == hash(compiled)
        assert their_numbers != numbers
    for changes in (
        dict(optimizer="adamw"),
        dict(optimizer="adamw(weight_decay=0.1, nesterov=True)"),
        dict(optimizer="lion(weight_decay=0.1)"),
        dict(schedule="linear"),
        dict(clip=0.0),
    ):
        assert recipe(**base | changes)[0] != compiled
    assert recipe()[0].optimizer.data == ()


def test_equal_choices_have_equal_texts():
    for text, canonical in (
        ("adam(b1=0.9)", "adam"),
        ("adamw( weight_decay = 1 )", "adamw(weight_decay=1)"),
        ("optax:lion", "lion"),
    ):
        assert OPTIMIZERS.parse(text, "").text == canonical
    assert SCHEDULES.parse("paper(warmup=4000)", "").text == "paper"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("optimizer", "lbfgs", "needs more than gradients, its state and parameters"),
        ("optimizer", "polyak_sgd", "as line searches do: .*'value'"),
        ("optimizer", "momo", "needs more than gradients"),
        ("optimizer", "sophia", "obj_fn must be provided"),
        ("optimizer", "schedule_free_adamw", "evaluates other weights than it trains"),
        ("optimizer", "lookahead", "option fast_optimizer is missing"),
        ("optimizer", "adam(b2=1)", "b2=1.0 must be at least 0 and below 1"),
        ("optimizer", "adamw(mask=none)", "mask=none must be all"),
        ("optimizer", "novograd(weight_decay=0.1)", "would decay norms and biases too"),
        ("optimizer", "muon(adam_weight_decay=0.1)", "would decay norms and biases"),
        ("optimizer", "adamw(decay=1)", "no option decay"),
        (
            "optimizer",
            "nothing",
            "must be one of adam, adamw, lion, muon, sgd, another",
        ),
        ("schedule", "cosine(warmup=12)", "does not fit into training.steps=12"),
        ("schedule", "warmup_stable_decay(warmup=7, decay=0.5)", "does not fit into"),
        ("schedule", "paper(warmup=0)", "warmup=0 must be at least 1"),
        ("schedule", "cosine(final=1.5)", "final=1.5 must be from 0 to 1"),
        ("schedule", "warmup_stable_decay(decay=0)", "decay=0.0 must be from 0 to 1"),
        ("schedule", "linear_schedule", "option init_value is missing"),
        ("clip", -1, "must be at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused(key, value, message):
    with pytest.raises(SettingsError, match=rf"^training\.{key}=.*{message}"):
        tiny.resolve(**{f"training__{key}": value})


def known():
    """The optimizers of optax that can be had by their name alone."""
    for name in optim.OPTIMIZERS:
        try:
            yield name, OPTIMIZERS.value(name, "training.optimizer")
        except SettingsError:
            continue


# Of names that optax is about to change.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Specifying a key")
def test_optax_optimizers_make_steps_of_lanes():
    """By shape, with parameters of every kind; the state is like the one before."""
    chosen = dict(known())
    assert {"adam", "adamw", "adafactor", "lion", "muon", "prodigy", "sgd"} < {*chosen}
    assert len(chosen) > 50
    _, numbers = recipe()
    lanes = jax.tree.map(lambda x: jnp.stack([x, x]), (numbers, tree(0)))
    for name, optimizer in chosen.items():
        compiled = optim.Recipe(optimizer.compiled, SCHEDULES.value("paper", ""), False)

        def step(numbers, params, compiled=compiled):
            state = optim.initial_moments(compiled, numbers, params)
            state = jax.tree.map(jnp.asarray, state)
            rate = numbers.learning_rate
            return state, optim.update(compiled, numbers, rate, params, state, params)

        before, (params, after) = jax.eval_shape(jax.vmap(step), *lanes)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), before) == jax.tree.map(
            lambda x: (x.shape, x.dtype), after
        ), name
        assert jax.tree.structure(params) == jax.tree.structure(tree(0)), name


@pytest.mark.parametrize(
    "optimizer",
    [
        "adam",
        "muon",
        "adagrad",
        "adagrad(initial_accumulator_value=0.3)",
        "adafactor",
        "prodigy",
    ],
)
def test_the_first_state_is_optax_own(optimizer):
    """Also of optimizers that do not begin with zeros."""
    compiled, numbers = recipe(optimizer=optimizer)
    state = optim.initial_moments(compiled, numbers, tree(0))
    made = compiled.optimizer.transformation(
        numbers.learning_rate, numbers.optimizer
    ).init(tree(0))
    assert jax.tree.structure(state) == jax.tree.structure(made)
    jax.tree.map(np.testing.assert_array_equal, state, made)
    shapes = optim.moment_shapes(compiled, tree(0))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), shapes
    )


def test_a_custom_optimizer_and_schedule(own):
    settings = tiny.resolve(
        training__optimizer=f"{own}:signs(beta=0.5)",
        training__schedule=f"{own}:fading(power=1)",
    )
    outside = settings.outside()
    assert [part.name for part in outside] == ["signs", "fading"]
    assert settings.training.optimizer == (
        f"{own}:signs@{outside[0].sha256[:8]}(beta=0.5)"
    )
    assert resolve(json.loads(json.dumps(settings.to_dict()))) == settings
    chosen = settings.training.optimizer_choice
    assert chosen.data == ("beta",)
    expected = named(tree(0))
    mean = dict.fromkeys(expected, 0)
    for step in (1, 2, 3):
        for name, g in named(tree(step)).items():
            axes = tuple(range(1, g.ndim))
            centred = g - g.mean(axes, keepdims=True) if g.ndim > 1 else g
            mean[name] = 0.5 * mean[name] + 0.5 * centred
            expected[name] = expected[name] - 0.1 * np.sign(mean[name])
    assert_close(updated(optimizer=f"{own}:signs(beta=0.5)"), expected)
    assert rates(f"{own}:fading(power=1)", 12, (1, 4)) == [2.0, 0.5]


def test_a_custom_optimizer_that_decides_by_a_number_has_it_compiled_in(own):
    compiled, numbers = recipe(optimizer=f"{own}:by_value(beta=0.7)")
    assert compiled.optimizer.data == () and numbers.optimizer == {}
    assert dict(compiled.optimizer.options) == {"beta": 0.7}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "without_rate",
            "without_rate is not an optimizer: a function of learning_rate",
        ),
        ("nothing", "it returns None, not an optax.GradientTransformation"),
        ("absent", "no class or function absent there"),
    ],
)
def test_a_custom_optimizer_that_is_none_is_refused(own, name, message):
    with pytest.raises(SettingsError, match=message):
        tiny.resolve(training__optimizer=f"{own}:{name}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("two_rates", "it does not give one number for a step"),
        ("by_count", "Attempted boolean conversion of traced array"),
    ],
)
def test_a_custom_schedule_that_is_none_is_refused(own, name, message):
    with pytest.raises(SettingsError, match=message) as refused:
        tiny.resolve(training__schedule=f"{own}:{name}")
    assert "\n" not in str(refused.value)


def test_a_runs_directory_does_not_start_a_custom_optimizer(tmp_path):
    path = tmp_path / "unread.py"
    path.write_text("raise SystemExit('this was run')\n")
    config = tiny.resolve().to_dict()
    config["training"]["optimizer"] = f"{path}:signs"
    with pytest.raises(OutsideError, match=r"--outside=.*unread.py:signs"):
        resolve(config, trusted=False)


RUN = dict(
    model__kind="language",
    training__steps=6,
    training__save_every=4,
    training__evaluate_every=6,
    evaluation__sentences=1,
    evaluation__examples=0,
)
OPTIMIZED = [
    "lion(weight_decay=0.1)",
    pytest.param("adamw(weight_decay=0.1)", marks=pytest.mark.ci),
    pytest.param("muon(weight_decay=0.1)", marks=pytest.mark.ci),
    pytest.param("{}:signs(beta=0.5)", marks=pytest.mark.ci),
]


@pytest.mark.parametrize("optimizer", OPTIMIZED)
def test_a_run_goes_on_to_the_last_bit(own, tmp_path, optimizer):
    settings = tiny.resolve(
        **RUN,
        training__optimizer=optimizer.format(own),
        training__schedule="cosine(warmup=2)",
        training__clip=0.5,
        training__ema=0.5,
        training__learning_rate=0.01,
    )

    def run(name, **options):
        return loop.run(settings, tiny.corpus(), tmp_path / name, **options)

    whole = run("whole")
    assert whole["status"] == "finished"
    with pytest.raises(Interrupted):
        run("again", interruption=tiny.StopAt(2))
    again = run("again")
    assert again["perplexity"] == whole["perplexity"]
    corpus = tiny.corpus()
    program = program_of(settings, corpus.vocabulary().size, corpus.length(settings))
    blank = initial_state(program, settings)
    ends, others = (
        Checkpoints(tmp_path / name, keep=None).restore(blank).state
        for name in ("whole", "again")
    )
    jax.tree.map(np.testing.assert_array_equal, ends, others)
    assert jax.tree.leaves(ends.moments) and ends.step == 6
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    assert resolve(config) == settings
    kept = sorted(path.name for path in (tmp_path / "whole" / "outside").glob("*"))
    assert kept == (["own.py"] if "signs" in optimizer else [])


@pytest.mark.ci
def test_a_decayed_run_is_not_made_longer(tmp_path):
    cosine = RUN | dict(training__schedule="cosine")
    loop.run(tiny.resolve(**cosine), tiny.corpus(), tmp_path / "short")
    start = StartPoint(resume=str(tmp_path / "short"))

    def longer(name, **changes):
        settings = tiny.resolve(**cosine | dict(training__steps=8) | changes)
        return loop.run(settings, tiny.corpus(), tmp_path / name, start=start)

    with pytest.raises(WorkdirError, match=r"is at step 6 of 6, where .*=cosine has"):
        longer("longer")
    assert longer("other", training__schedule="constant")["steps"] == 8
