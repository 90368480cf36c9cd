"""The options of MultiHeadAttention: positions, biases, activation, dropout, weights that
are kept, hard selection; and what is refused.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import T5, ALiBi, Mask, MultiHeadAttention, Positions, Relative, Rotary
from tests.attn import oracle
from tests.attn.models.multihead_cases import (
    LENGTHS,
    B,
    D,
    H,
    K,
    M,
    N,
    applied,
    both_combinations,
    build,
    inputs,
    shapes,
    steps,
)


@dataclasses.dataclass(frozen=True)
class Kerple(Positions):
    """One's own: −slope · log(1 + |j − i|) (Chi et al. 2022)."""

    def bias(self, key, h, causal):
        return LogBias(jnp.ones(h))


@attn.bias
class LogBias:
    slopes: Any

    def tile(self, i, j):
        distance = jnp.abs(j[None] - i[:, None])
        return -self.slopes * jnp.log1p(distance.astype(jnp.float32))


OF_DISTANCE = {
    "rotary": Rotary(),
    "relative": Relative(3),
    "t5": T5(8, max_distance=6),
    "one's own": Kerple(),
}


def random_params(model):
    """Returns random parameters, biases too."""
    draw = np.random.default_rng(5).normal
    return jax.tree.map(
        lambda x: (0.4 * draw(size=x.shape)).astype(x.dtype), shapes(model)
    )


@pytest.mark.parametrize("name", OF_DISTANCE)
def test_a_step_knows_its_distances(name):
    """Of those that are values; `attn.contract` holds the others to this too."""
    model = MultiHeadAttention(
        D, H, 4, 5, biases=True, positions=OF_DISTANCE[name], causal=True
    )
    x, _ = inputs()
    params = random_params(model)

    def seeing(visible, x):
        return applied(model, params, x, x, Mask.dense(visible))

    whole = seeing(np.tri(N, dtype=bool), x)
    every, rolled = (
        seeing(np.ones((N, N), bool), y) for y in (x, jnp.roll(x, 1, axis=1))
    )
    assert not np.allclose(
        jnp.roll(rolled, -1, axis=1), every, atol=1e-3
    )  # the same, without distances
    np.testing.assert_allclose(steps(model, params, x), whole, rtol=2e-5, atol=2e-6)


def test_biases_are_added_where_they_belong():
    model = MultiHeadAttention(D, H, 4, 5, biases=True)
    x, memory = inputs()
    params = random_params(model)
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x64, memory64 = (np.asarray(a, np.float64) for a in (x, memory))
    q, k, v = (
        np.einsum("bnd,dhk->bhnk", a, p[f"w_{c}"]) + p[f"b_{c}"][:, None]
        for a, c in ((x64, "q"), (memory64, "k"), (memory64, "v"))
    )
    heads = oracle.softmax(q @ k.swapaxes(-1, -2) / 2) @ v
    expected = np.einsum("bhnv,hvd->bnd", heads, p["w_o"]) + p["b_o"]
    np.testing.assert_allclose(applied(model, params), expected, rtol=2e-5, atol=2e-6)


def test_alibi_has_no_parameters_and_a_trained_bias_has():
    x, _ = inputs()
    for positions, has in ((ALiBi(), False), (Relative(3), True), (Rotary(), False)):
        model = MultiHeadAttention(D, H, 4, 5, positions=positions)
        assert (
            "relative"
            in jax.eval_shape(model.init, jax.random.key(0), x, x, Mask())["params"]
        ) == has


def test_weights_are_dropped_with_an_rng_only():
    model = MultiHeadAttention(D, H, 4, 5, P_drop=0.5)
    params = random_params(model)
    arguments = *inputs(), Mask()
    plain = applied(model, params, *arguments)
    draws = [
        applied(model, params, *arguments, rngs={"dropout": jax.random.key(i)})
        for i in (0, 0, 1)
    ]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.allclose(draws[0], draws[2]) and not np.allclose(draws[0], plain)


@pytest.mark.parametrize(
    ("combine", "activation", "expected"),
    [
        ("concat", nn.relu, lambda y: np.maximum(y, 0)),
        ("mean", jnp.tanh, np.tanh),
    ],
)
def test_the_activation_is_on_the_output(combine, activation, expected):
    plain, params = build(combine=combine)
    active, _ = build(combine=combine, activation=activation)
    plain, active = (applied(model, params) for model in (plain, active))
    assert (plain < 0).any() and (plain > 0).any()
    np.testing.assert_allclose(active, expected(plain), rtol=1e-6, atol=1e-7)


def test_bias_is_added_to_the_scores():
    model, params = build()
    x, memory = inputs()
    bias = np.random.default_rng(7).normal(size=(H, N, M)).astype(np.float32)
    out = applied(model, params, x, memory, Mask(), bias)
    q, k, v = (
        np.einsum("bnd,dhk->bhnk", y, params[w])
        for y, w in ((x, "w_q"), (memory, "w_k"), (memory, "w_v"))
    )
    heads = oracle.softmax(q @ k.swapaxes(-1, -2) / np.sqrt(K) + bias[None]) @ v
    np.testing.assert_allclose(
        out, np.einsum("bhnv,hvd->bnd", heads, params["w_o"]), rtol=1e-4, atol=1e-5
    )


@both_combinations
def test_weights_are_kept_when_asked(combine):
    model, params = build("distance", combine)

    @jax.jit
    def watched(params, *arguments):
        variables = {"params": params}
        out, kept = model.apply(variables, *arguments, mutable=["weights"])
        _, memory, _ = arguments
        _, values = model.apply(variables, memory, method="keys_and_values")
        return out, kept["weights"]["weights"], values

    arguments = *inputs(), Mask.padding(LENGTHS)
    out, weights, values = map(np.asarray, watched(params, *arguments))
    plain = applied(model, params, *arguments)
    np.testing.assert_allclose(out, plain, rtol=1e-5, atol=1e-6)
    parts = np.einsum("bhnm,bmhv->bnhv", weights, values)
    np.testing.assert_allclose(
        out,
        parts.mean(2)
        if combine == "mean"
        else np.einsum("bnhv,hvd->bnd", parts, params["w_o"]),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(d_v=D, combine="sum"), "unknown combine 'sum'; known: concat, mean"),
    ],
)
def test_a_combination_that_is_unknown_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(D, H, K, **options).init(
            jax.random.key(0), *inputs(), Mask()
        )


def test_what_sampled_attention_keeps_is_of_all_heads_together():
    """−E[log π] is the entropy, and heads draw for themselves, so both are sums over the heads."""
    module = MultiHeadAttention(D, H, K, K, selection="sampled")
    x = inputs()[0][0]
    variables = {"params": random_params(module)}
    watched = jax.jit(functools.partial(module.apply, mutable=["weights"]))
    _, kept = watched(variables, x, x, Mask())
    (weights,) = jax.tree.leaves(kept)  # (H, N, N)
    expected = -(weights * np.log(weights)).sum((0, -1))

    def policy(key):
        return module.apply(
            variables, x, x, Mask(), rngs={"sample": key}, mutable=["policy"]
        )[1]["policy"]

    drawn = jax.jit(jax.vmap(policy))(jax.random.split(jax.random.key(1), 4000))
    np.testing.assert_allclose(drawn["entropy"][0], expected, rtol=1e-5)
    log_probs = np.asarray(drawn["log_prob"], np.float64)
    assert (
        np.abs(log_probs.mean(0) + expected) < 5 * log_probs.std(0) / 4000**0.5
    ).all()


def test_legacy_keys_drop_and_sample_like_typed_ones():
    for options in (dict(P_drop=0.5), dict(selection="sampled")):
        model = MultiHeadAttention(D, H, 4, 5, **options)
        params = random_params(model)
        outputs = []
        for make in (jax.random.key, jax.random.PRNGKey):
            rngs = {"dropout": make(2), "sample": make(3)}
            arguments = *inputs(), Mask()
            outputs.append(applied(model, params, *arguments, rngs=rngs))
        np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize("selection", ["argmax", "sampled"])
def test_whole_values_have_no_weights_to_drop(selection):
    model = MultiHeadAttention(D, H, 4, 5, selection=selection, P_drop=0.1)
    x, memory = inputs()
    message = f"selection='{selection}' takes whole values .* P_drop=0.1 must be 0"
    with pytest.raises(ValueError, match=message):
        model.init(jax.random.key(1), x, memory, Mask())


def test_a_rate_that_is_no_probability_is_refused():
    model = MultiHeadAttention(D, H, 4, 5, P_drop=1.5)
    x, memory = inputs()
    with pytest.raises(ValueError, match=r"P_drop=1.5 must be a probability"):
        model.init(jax.random.key(1), x, memory, Mask())


def test_a_memory_is_attended_to_without_positions():
    model = MultiHeadAttention(D, H, 4, 5, positions=Relative(2))
    x, memory = inputs()
    variables = {"params": random_params(model)}
    project = functools.partial(model.apply, method="project_memory")
    attend = functools.partial(model.apply, method="attend_to_memory")
    projected = jax.eval_shape(project, variables, memory)
    visible = jnp.ones((B, 1, M), bool)
    with pytest.raises(
        ValueError, match=r"Relative\(reach=2\) add to the scores of self"
    ):
        jax.eval_shape(attend, variables, x, projected, visible)
