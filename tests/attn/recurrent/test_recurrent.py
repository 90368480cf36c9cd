"""Recurrences in chunks against loops over tokens in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attn.recurrent.delta import (
    delta_product,
    delta_product_step,
    delta_rule,
    delta_rule_step,
)
from attn.recurrent.gated import gated_linear, gated_linear_step
from attn.recurrent.linear import linear_attention
from tests.attn import numpy_linear
from tests.attn.recurrent.sharded import assert_shards

N, K, V = 37, 5, 3
BEGINS = np.isin(np.arange(N), (0, 5, 6, 20))


in_float64 = pytest.mark.usefixtures("float64")


def drawn(n=N):
    draw = np.random.default_rng(0)
    q, k = draw.normal(size=(2, n, K))
    k = k / np.linalg.norm(k, axis=-1, keepdims=True)
    v = draw.normal(size=(n, V))
    log_decay = -3 * draw.random((n, K))
    return dict(q=q, k=k, v=v, log_decay=log_decay, beta=draw.random((n, 1)))


def case(names, n=N):
    """Returns the arrays that a rule takes, by its name."""
    arrays = drawn(n)
    arrays["decay of a head"] = arrays["log_decay"][:, :1]
    if "three betas" in names:
        # Some up to 2, where the state's factors are below 0.
        arrays["three betas"] = np.array([2, 1, 1.5]) * arrays["beta"]
        for name in ("k", "v"):
            x = arrays[name]
            arrays[name] = np.stack([x, np.roll(x, 1, axis=1), x[::-1]], axis=1)
    return [arrays[name] for name in ("q", "k", "v", *names)]


# {case: (rule, step, names of its arrays, arguments of the oracle by their order)}
RULES = {
    "no decay": (gated_linear, gated_linear_step, (), ()),
    "a decay a feature": (
        gated_linear,
        gated_linear_step,
        ("log_decay",),
        ("decay",),
    ),
    "a decay a head": (
        gated_linear,
        gated_linear_step,
        ("decay of a head",),
        ("decay",),
    ),
    "delta": (delta_rule, delta_rule_step, ("beta",), ("beta",)),
    "gated delta": (
        delta_rule,
        delta_rule_step,
        ("beta", "decay of a head"),
        ("beta", "decay"),
    ),
    "delta, a decay a feature": (
        delta_rule,
        delta_rule_step,
        ("beta", "log_decay"),
        ("beta", "decay"),
    ),
    "gated product": (
        delta_product,
        delta_product_step,
        ("three betas", "decay of a head"),
        ("beta", "decay"),
    ),
}


def jitted(rule, **options):
    """Returns the compiled rule of a case, which takes arrays of numpy."""
    function, *_ = RULES[rule]
    return jax.jit(functools.partial(function, **options))


def expected(rule, arrays, begins=(0,)):
    _, _, _, names = RULES[rule]
    q, k, v, *rest = arrays
    rest = dict(zip(names, rest, strict=True))
    if "decay" in rest:
        rest["decay"] = np.exp(rest["decay"])
    parts = []
    for run in np.split(np.arange(len(q)), np.flatnonzero(begins)):
        of_run = {name: x[run] for name, x in rest.items()}
        parts.append(numpy_linear.recurrence(q[run], k[run], v[run], **of_run))
    return np.concatenate(parts)


@in_float64
@pytest.mark.parametrize(
    ("chunk", "begins"),
    [
        (3, BEGINS),
        (64, None),
        pytest.param(1, BEGINS, marks=pytest.mark.ci),
        pytest.param(64, BEGINS, marks=pytest.mark.ci),
    ],
)
@pytest.mark.parametrize("rule", RULES)
def test_chunks_of_any_size_are_the_recurrence(rule, chunk, begins):
    arrays = case(RULES[rule][2])
    actual = jitted(rule, chunk=chunk)(*arrays, begins=begins)
    exact = expected(rule, arrays, [0] if begins is None else begins)
    np.testing.assert_allclose(actual, exact, atol=1e-13)


@in_float64
@pytest.mark.parametrize("rule", RULES)
def test_steps_are_the_recurrence(rule):
    _, step, names, _ = RULES[rule]
    step = jax.jit(step)
    arrays = case(names)
    state = jnp.zeros((K, V))
    outputs = []
    for token in zip(*arrays, strict=True):
        state, out = step(state, *token)
        outputs.append(out)
    np.testing.assert_allclose(outputs, expected(rule, arrays), atol=1e-13)


# One of each function; the others are for .ci/run.
HARDEST = ("a decay a feature", "delta, a decay a feature", "gated product")
EACH = [
    rule if rule in HARDEST else pytest.param(rule, marks=pytest.mark.ci)
    for rule in RULES
]


@in_float64
@pytest.mark.parametrize("rule", EACH)
def test_gradients_are_those_of_differences(rule):
    begins = jnp.isin(jnp.arange(7), jnp.array([0, 2]))
    function = jitted(rule, begins=begins, chunk=3)
    arrays = case(RULES[rule][2], 7)
    check_grads(function, arrays, order=1, modes=["fwd", "rev"], eps=1e-6)


@pytest.mark.parametrize("rule", HARDEST)
def test_decays_of_any_strength_are_safe(rule):
    """In float32, products of decays down to e^−16,000, between decays of 1."""
    arrays = case(RULES[rule][2], 40)
    strength = np.where(np.arange(40)[:, None] % 3 == 0, 1000.0, 1e-3)
    arrays[-1] = arrays[-1] * strength
    narrow = [jnp.asarray(x, jnp.float32) for x in arrays]
    # 16 are enough for three blocks, and compile faster.
    function = jitted(rule, chunk=16)
    actual = function(*narrow)
    np.testing.assert_allclose(actual, expected(rule, arrays), rtol=0, atol=3e-3)

    def total(*arrays):
        return (function(*arrays) ** 2).sum()

    gradients = jax.jit(jax.grad(total, range(len(narrow))))
    for gradient in gradients(*narrow):
        assert jnp.isfinite(gradient).all()


@in_float64
@pytest.mark.parametrize("causal", [True, False])
def test_linear_attention_is_its_weights_times_the_values(causal):
    q, k, v = case(())
    ends = np.append(BEGINS[1:], True)
    runs = BEGINS.cumsum()
    visible = runs[:, None] == runs[None]
    visible = np.tril(visible) if causal else visible
    features = [np.where(x > 0, x + 1, np.exp(x)) for x in (q, k)]
    weights = np.where(visible, features[0] @ features[1].T, 0)
    exact = weights @ v / weights.sum(-1, keepdims=True)
    for chunk in (5, 64):
        function = functools.partial(linear_attention, causal=causal, chunk=chunk)
        actual = jax.jit(function)(q, k, v, begins=BEGINS, ends=ends)
        np.testing.assert_allclose(actual, exact, atol=1e-13)


@in_float64
def test_gates_of_one_are_linear_attention_without_its_denominator():
    q, k, v = case(())
    exact = np.tril(q @ k.T) @ v
    for gates in (None, np.zeros((N, K)), np.zeros((N, 1))):
        actual = jax.jit(gated_linear)(q, k, v, gates)
        np.testing.assert_allclose(actual, exact, atol=1e-13)
    other = jax.jit(functools.partial(gated_linear, own=False))(q, k, v)
    np.testing.assert_allclose(other, np.tril(q @ k.T, -1) @ v, atol=1e-13)


@in_float64
def test_two_reflections_swap_what_two_keys_give():
    """Householder matrices turn a state: (a b)(b c) of three things is a cycle."""
    things = np.eye(3)
    swaps = np.stack([things[0] - things[1], things[1] - things[2]]) / np.sqrt(2)
    # The first token writes the three things, the others turn them.
    k = np.stack([things, *(np.append(swaps, things[:1], axis=0),) * 2])
    v = np.stack([np.eye(3), np.zeros((3, 3)), np.zeros((3, 3))])
    beta = np.array([[1.0, 1, 1], [2, 2, 0], [2, 2, 0]])
    for asked in range(3):
        q = np.repeat(things[asked : asked + 1], 3, axis=0)
        out = jax.jit(delta_product)(q, k, v, beta)
        cycle = [asked, (asked + 1) % 3, (asked + 2) % 3]
        np.testing.assert_allclose(np.abs(out), np.eye(3)[cycle], atol=1e-13)


@in_float64
def test_the_delta_rule_writes_replaces_and_forgets():
    q, k, v, beta = case(("beta",))
    rule = jitted("delta", chunk=8)
    np.testing.assert_array_equal(rule(q, k, v, 0 * beta), 0)
    # With β = 1 each key gives the value that it was written with last.
    at = np.random.default_rng(1).integers(K, size=N)
    last = {}
    exact = np.zeros((N, V))
    for t in range(N):
        last[at[t]] = v[t]
        exact[t] = last.get(at[(t + 1) % N], np.zeros(V))
    keys = np.eye(K)[at]
    asked = np.roll(keys, -1, axis=0)
    recalled = rule(asked, keys, v, np.ones_like(beta))
    np.testing.assert_allclose(recalled, exact, atol=1e-12)
    # Keys that never meet again replace nothing: it is linear attention.
    arrays = q[:K], np.eye(K)
    actual = rule(*arrays, v[:K], beta[:K])
    exact = jax.jit(gated_linear)(*arrays, beta[:K] * v[:K])
    np.testing.assert_allclose(actual, exact, atol=1e-13)


@pytest.mark.parametrize(
    "rule",
    [
        "a decay a head",
        pytest.param("a decay a feature", marks=pytest.mark.ci),
        pytest.param("gated delta", marks=pytest.mark.ci),
    ],
)
def test_memory_grows_with_n_and_not_its_square(rule):
    function, _, names, _ = RULES[rule]

    def memory(n):
        def total(*arrays):
            return (function(*arrays) ** 2).sum()

        arrays = [jnp.asarray(x, jnp.float32) for x in case(names, n)]
        gradient = jax.jit(jax.grad(total, range(len(arrays))))
        compiled = gradient.lower(*arrays).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(8192) < 5 * memory(2048)
    assert memory(8192) < 4 * 8192**2 / 8


def test_halves_are_summed_in_float32():
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in case(("beta",))]
    wide = [np.asarray(x, np.float64) for x in arrays]
    actual = jitted("delta")(*arrays)
    assert actual.dtype == jnp.float32
    np.testing.assert_allclose(actual, expected("delta", wide), atol=1e-5)


@pytest.mark.parametrize("rule", ["a decay a head", "gated delta"])
def test_no_tokens_and_no_chunks(rule):
    names = RULES[rule][2]
    assert jitted(rule)(*case(names, 0)).shape == (0, V)
    with pytest.raises(ValueError, match="chunk=0 must be at least 1"):
        jitted(rule, chunk=0)(*case(names))


@pytest.mark.ci
@pytest.mark.parametrize("rule", HARDEST)
def test_shard_map_over_sequences(rule):
    function, _, names, _ = RULES[rule]
    assert_shards(function, case(names))
