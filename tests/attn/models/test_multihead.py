"""MultiHeadAttention against the float64 oracle for every score and both ways to
combine heads, its parameters, and its cache.
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
from attn import (
    T5,
    Additive,
    ALiBi,
    Bilinear,
    Mask,
    MultiHeadAttention,
    Positions,
    Relative,
    Rotary,
    ScaledDot,
)
from tests.attn import oracle

B = 2
N = 5
M = 7
H = 3
K = 11
D = 13
A = 19
WIDTH = {"concat": 17, "mean": D}  # d_v
LENGTHS = np.array([4, 7])


@attn.score
class Distance:
    """The one in the docstring of attn.scores."""

    temperature: Any

    def __call__(self, q, k):
        return -self.temperature * ((q[:, None] - k[None]) ** 2).sum(-1)


@attn.score
class Sum:
    """A score made of scores."""

    a: Any
    b: Any

    def __call__(self, q, k):
        return self.a(q, k) + self.b(q, k)


def bilinear(p, i):
    return lambda q, k: q @ p["w"][i] @ k


def additive(p, i):
    return lambda q, k: (
        p["v"][i]
        @ np.tanh(q @ p["w_q"][i] + k @ p["w_k"][i] + (p["b"][i] if "b" in p else 0))
    )


# What makes the score, the oracle's score of head i from the parameters p, and how many
# parameters there are.
CASES = {
    "dot": ("dot", lambda p, i: np.dot, 0),
    "scaled dot": ("scaled_dot", lambda p, i: oracle.scaled_dot, 0),
    "scale=0.3": (
        lambda key, h, d_q, d_k: ScaledDot(0.3),
        lambda p, i: lambda q, k: 0.3 * q @ k,
        0,
    ),
    "bilinear": (Bilinear, bilinear, H * K**2),
    "bilinear, low rank": (
        functools.partial(Bilinear.init, rank=2),
        lambda p, i: lambda q, k: q @ p["w"][i] @ p["w_2"][i] @ k,
        H * 2 * K * 2,
    ),
    "additive": (Additive.init, additive, H * (2 * K * K + K)),
    "additive, wide, biased": (
        functools.partial(Additive.init, d_a=A, bias=True),
        additive,
        H * (2 * K * A + 2 * A),
    ),
    "distance": (
        lambda key, h, d_q, d_k: Distance(jnp.ones(h)),
        lambda p, i: lambda q, k: -p["temperature"][i] * ((q - k) ** 2).sum(),
        H,
    ),
    "sum": (
        lambda key, h, d_q, d_k: Sum(
            Bilinear.init(key, h, d_q, d_k), Distance(np.ones(h, np.float32))
        ),
        lambda p, i: (
            lambda q, k: (
                q @ p["a.w"][i] @ k - p["b.temperature"][i] * ((q - k) ** 2).sum()
            )
        ),
        H * (K**2 + 1),
    ),
}

VARIANTS = ["scale=0.3", "bilinear, low rank", "additive, wide, biased", "sum"]
every_score = pytest.mark.parametrize(
    ("name", "combine"),
    [(name, "concat") for name in CASES]
    + [(name, "mean") for name in CASES if name not in VARIANTS],
)
both_combinations = pytest.mark.parametrize("combine", WIDTH)


@functools.cache
def build(name="scaled dot", combine="concat", **options):
    model = MultiHeadAttention(
        D, H, K, WIDTH[combine], score=CASES[name][0], combine=combine, **options
    )
    # The initial values would give every head the same temperature, and each bias is 0.
    draw = np.random.default_rng(5).normal
    return model, jax.tree.map(
        lambda x: jnp.asarray(0.3 * draw(size=x.shape), x.dtype), shapes(model)
    )


def shapes(model):
    return jax.eval_shape(model.init, jax.random.key(0), *inputs(), Mask())["params"]


def inputs():
    draw = np.random.default_rng(0).normal
    return tuple(jnp.asarray(draw(size=(B, n, D)), jnp.float32) for n in (N, M))


def exact(p, x, memory, visible, name, combine):
    """One example in float64."""
    p, x, memory = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float64), (p, x, memory)
    )
    parts = [
        oracle.attention(
            x @ p["w_q"][:, i],
            memory @ p["w_k"][:, i],
            memory @ p["w_v"][:, i],
            visible,
            CASES[name][1](p.get("score"), i),
        )[0]
        for i in range(H)
    ]
    return (
        np.mean(parts, 0)
        if combine == "mean"
        else np.concatenate(parts, -1) @ p["w_o"].reshape(-1, D)
    )


@every_score
def test_equals_the_oracle(name, combine):
    model, params = build(name, combine)
    x, memory = inputs()
    out = jax.jit(model.apply)({"params": params}, x, memory, Mask.padding(LENGTHS))
    for b in range(B):
        visible = np.broadcast_to(np.arange(M)[None] < LENGTHS[b], (N, M))
        expected = exact(params, x[b], memory[b], visible, name, combine)
        np.testing.assert_allclose(out[b], expected, rtol=1e-4, atol=1e-5)


@every_score
def test_parameters_are_as_many_as_the_formulas_say(name, combine):
    params = shapes(build(name, combine)[0])
    projections = (
        H * D * (2 * K + D)
        if combine == "mean"
        else H * D * (2 * K + 2 * WIDTH[combine])
    )
    assert sum(x.size for x in jax.tree.leaves(params)) == projections + CASES[name][2]
    assert ("score" in params) == (CASES[name][2] > 0)


def test_values_of_a_low_rank_are_those_of_their_product():
    """A mean of heads with W_V as two matrices, against the same with their product;
    and against the paper's form.
    """
    low = MultiHeadAttention(D, H, K, 5, combine="mean", biases=True)
    params = jax.tree.map(
        lambda x: jnp.asarray(
            np.random.default_rng(x.size).normal(size=x.shape) * 0.3, x.dtype
        ),
        shapes(low),
    )
    out = low.apply({"params": params}, *inputs(), Mask())
    product = {
        "w_v": jnp.einsum("dhv,hve->dhe", params["w_v"], params["w_o"]),
        "b_v": jnp.einsum("hv,hve->he", params["b_v"], params["w_o"])
        + params["b_o"][None],
    }
    full = MultiHeadAttention(D, H, K, D, combine="mean", biases=True)
    both = {**{name: params[name] for name in ("w_q", "w_k", "b_q", "b_k")}, **product}
    np.testing.assert_allclose(
        out, full.apply({"params": both}, *inputs(), Mask()), rtol=1e-4, atol=1e-5
    )
    concat = low.clone(combine="concat").apply(
        {"params": {**params, "w_o": params["w_o"] / H}}, *inputs(), Mask()
    )
    np.testing.assert_allclose(out, concat, rtol=1e-4, atol=1e-5)


def test_one_head_of_the_naive_form():
    params = shapes(MultiHeadAttention(D, 1, K, D, combine="mean"))
    assert sum(x.size for x in jax.tree.leaves(params)) == D * (2 * K + D)


def test_parameters_are_plain_dictionaries_of_arrays():
    assert {"w_q", "w_k", "w_v", "w_o"} == set(build()[1])
    params = shapes(build("additive, wide, biased", "mean")[0])
    assert (
        set(params) == {"w_q", "w_k", "w_v", "score"} and type(params["score"]) is dict
    )
    assert {name: x.shape for name, x in params["score"].items()} == {
        "w_q": (H, K, A),
        "w_k": (H, K, A),
        "v": (H, A),
        "b": (H, A),
    }


def test_initial_values_are_glorot_uniform():
    h = 3
    d = 67
    d_k = 31
    d_v = 37
    d_a = 1021

    @jax.jit
    def initial(key):
        x = jnp.zeros((2, d))
        concat = MultiHeadAttention(d, h, d_k, d_v).init(key, x, x, Mask())["params"]
        mean = MultiHeadAttention(d, h, d_k, d, combine="mean").init(key, x, x, Mask())[
            "params"
        ]
        return (
            concat["w_v"],
            mean["w_v"],
            Bilinear.init(key, h, d, d_k),
            Bilinear.init(key, h, d, d_k, rank=41),
            Additive.init(key, h, d, d_k, d_a=d_a, bias=True),
        )

    concat, mean, general, low, hidden = initial(jax.random.key(1))
    for name, leaf, fans in [
        ("w_v, concat", concat, d + h * d_v),
        ("w_v, mean", mean, d + d),
        ("bilinear", general.w, d + d_k),
        ("left", low.w, d + 41),
        ("right", low.w_2, 41 + d_k),
        ("additive w_q", hidden.w_q, d + d_a),
        ("additive w_k", hidden.w_k, d_k + d_a),
        ("additive v", hidden.v, d_a + 1),
    ]:
        limit = np.sqrt(6 / fans)
        assert 0.99 * limit < np.abs(leaf).max() <= limit, name
        np.testing.assert_allclose(
            np.std(leaf), limit / np.sqrt(3), rtol=0.03, err_msg=name
        )
        assert not np.allclose(leaf[0], leaf[1])
    assert (hidden.b == 0).all()
    # With the same key two matrices would begin with the same draws.
    for drawn in (low.w, low.w_2), (hidden.w_q, hidden.w_k, hidden.v):
        alike = np.corrcoef([leaf.ravel()[:3000] for leaf in drawn])
        assert (np.abs(alike - np.eye(len(drawn))) < 0.1).all()


@pytest.mark.parametrize("name", [name for name, (*_, count) in CASES.items() if count])
def test_the_gradient_reaches_the_parameters_of_the_score(name):
    """Against central differences of the oracle, each parameter in two directions."""
    model, params = build(name)
    draw = np.random.default_rng(6).normal
    x, memory, pull = (draw(size=(n, D)) for n in (N, M, N))
    visible = np.tri(N, M, 1)
    h = 1e-5

    def expected_loss(p):
        return (exact(p, x, memory, visible, name, "concat") * pull).sum()

    def loss(p):
        return (
            model.apply(
                {"params": p}, jnp.asarray(x), jnp.asarray(memory), Mask.causal(1)
            )
            * pull
        ).sum()

    with jax.enable_x64(True):
        params = jax.tree.map(
            lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), params
        )
        gradients = jax.tree.map(np.asarray, jax.jit(jax.grad(loss))(params)["score"])
    assert set(gradients) == set(params["score"])
    for leaf, gradient in gradients.items():
        assert (np.abs(gradient).reshape(H, -1).max(-1) > 1e-4).all()  # in every head
        for _ in range(2):
            way = draw(size=gradient.shape)
            ends = [
                expected_loss(
                    {
                        **params,
                        "score": {
                            **params["score"],
                            leaf: np.asarray(params["score"][leaf]) + s * way,
                        },
                    }
                )
                for s in (h, -h)
            ]
            np.testing.assert_allclose(
                (gradient * way).sum(),
                (ends[0] - ends[1]) / (2 * h),
                rtol=1e-6,
                atol=1e-8,
            )


def steps(model, params, x):
    """Returns the outputs of the tokens, one step after another, from a cache of rubbish."""
    # Entries that are not yet written must not count.
    empty = model.empty_cache((B,), N, x.dtype)
    cache = jax.tree.map(lambda room: jnp.full_like(room, 1e6), empty)

    @jax.jit
    def step(x, t, cache):
        visible = jnp.broadcast_to(jnp.arange(N) <= t, (B, 1, N))
        variables = {"params": params}
        return model.apply(variables, x, t, cache, visible, method="decode_step")

    outputs = []
    for t in range(N):
        y, cache = step(x[:, t : t + 1], jnp.int32(t), cache)
        outputs.append(y)
    return jnp.concatenate(outputs, 1)


@every_score
def test_step_by_step_equals_the_whole(name, combine):
    model, params = build(name, combine)
    x, _ = inputs()
    whole = jax.jit(model.apply)({"params": params}, x, x, Mask.causal())
    np.testing.assert_allclose(steps(model, params, x), whole, rtol=2e-5, atol=2e-6)


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
    "half rotary": Rotary(fraction=0.5),
    "relative": Relative(3),
    "t5": T5(8, max_distance=6),
    "alibi": ALiBi(),
    "one's own": Kerple(),
}


@pytest.mark.parametrize("name", OF_DISTANCE)
def test_a_step_knows_its_distances(name):
    model = MultiHeadAttention(
        D, H, 4, 5, biases=True, positions=OF_DISTANCE[name], causal=True
    )
    x, _ = inputs()
    params = jax.jit(model.init)(jax.random.key(1), x, x, Mask.causal())["params"]
    params = jax.tree.map(
        lambda p: p + 0.3 * jax.random.normal(jax.random.key(p.size), p.shape), params
    )
    apply = jax.jit(model.apply)
    whole = apply({"params": params}, x, x, Mask.causal())
    every, rolled = (
        apply({"params": params}, y, y, Mask()) for y in (x, jnp.roll(x, 1, axis=1))
    )
    assert not np.allclose(
        jnp.roll(rolled, -1, axis=1), every, atol=1e-3
    )  # the same, without distances
    np.testing.assert_allclose(steps(model, params, x), whole, rtol=2e-5, atol=2e-6)


def test_biases_are_added_where_they_belong():
    model = MultiHeadAttention(D, H, 4, 5, biases=True)
    x, memory = inputs()
    params = jax.jit(model.init)(jax.random.key(1), x, memory, Mask())["params"]
    params = jax.tree.map(
        lambda p: p + 0.3 * jax.random.normal(jax.random.key(p.size), p.shape), params
    )
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x64, memory64 = (np.asarray(a, np.float64) for a in (x, memory))
    q, k, v = (
        np.einsum("bnd,dhk->bhnk", a, p[f"w_{c}"]) + p[f"b_{c}"][:, None]
        for a, c in ((x64, "q"), (memory64, "k"), (memory64, "v"))
    )
    heads = oracle.softmax(q @ k.swapaxes(-1, -2) / 2) @ v
    expected = np.einsum("bhnv,hvd->bnd", heads, p["w_o"]) + p["b_o"]
    np.testing.assert_allclose(
        model.apply({"params": params}, x, memory, Mask()),
        expected,
        rtol=2e-5,
        atol=2e-6,
    )


def test_alibi_has_no_parameters_and_a_trained_bias_has():
    x, _ = inputs()
    for name, has in (("alibi", False), ("relative", True), ("rotary", False)):
        model = MultiHeadAttention(D, H, 4, 5, positions=OF_DISTANCE[name])
        assert (
            "relative"
            in jax.eval_shape(model.init, jax.random.key(0), x, x, Mask())["params"]
        ) == has


def test_weights_are_dropped_with_an_rng_only():
    model = MultiHeadAttention(D, H, 4, 5, P_drop=0.5)
    x, memory = inputs()
    params = jax.jit(model.init)(jax.random.key(1), x, memory, Mask())
    plain = model.apply(params, x, memory, Mask())
    draws = [
        model.apply(params, x, memory, Mask(), rngs={"dropout": jax.random.key(i)})
        for i in (0, 0, 1)
    ]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.allclose(draws[0], draws[2]) and not np.allclose(draws[0], plain)


def test_an_empty_cache_has_room_for_keys_and_values():
    keys, values = MultiHeadAttention(D, H, K, 17).empty_cache((2, 3), 19, jnp.bfloat16)
    assert keys.shape == (2, 3, H, K, 19) and values.shape == (2, 3, H, 19, 17)
    assert keys.dtype == values.dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("activation", "expected"),
    [(nn.relu, lambda y: np.maximum(y, 0)), (jnp.tanh, np.tanh)],
)
@both_combinations
def test_the_activation_is_on_the_output(activation, expected, combine):
    (plain, params) = build(combine=combine)
    (active, _) = build(combine=combine, activation=activation)
    x, memory = inputs()
    plain, active = (
        model.apply({"params": params}, x, memory, Mask()) for model in (plain, active)
    )
    assert (plain < 0).any() and (plain > 0).any()
    np.testing.assert_allclose(active, expected(plain), rtol=1e-6, atol=1e-7)


def test_bias_is_added_to_the_scores():
    model, params = build()
    x, memory = inputs()
    bias = np.random.default_rng(7).normal(size=(H, N, M)).astype(np.float32)
    out = model.apply({"params": params}, x, memory, Mask(), bias)
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
    args = {"params": params}, *inputs(), Mask.padding(LENGTHS)
    out, kept = model.apply(*args, mutable=["weights"])
    weights = kept["weights"]["weights"]
    np.testing.assert_allclose(out, model.apply(*args), rtol=1e-5, atol=1e-6)
    values = model.apply({"params": params}, inputs()[1], method="keys_and_values")[1]
    parts = jnp.einsum("bhnm,bmhv->bnhv", weights, values)
    np.testing.assert_allclose(
        out,
        parts.mean(2)
        if combine == "mean"
        else jnp.einsum("bnhv,hvd->bnd", parts, params["w_o"]),
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


@pytest.mark.parametrize(
    ("saved", "score", "message"),
    [
        ("bilinear", "scaled dot", r"they have \['w'\], it has \[\]"),
        ("sum", "bilinear", r"they have \['a.w', 'b.temperature'\], it has \['w'\]"),
    ],
)
def test_parameters_of_another_score_are_refused(saved, score, message):
    model = build(score)[0]
    params = build(saved)[1]
    with pytest.raises(ValueError, match=message):
        model.apply({"params": params}, *inputs(), Mask())


def test_what_sampled_attention_keeps_is_of_all_heads_together():
    """−E[log π] is the entropy, and heads draw for themselves, so both are sums over the heads."""
    module = MultiHeadAttention(H * K, H, K, K, selection="sampled")
    x = jnp.asarray(np.random.default_rng(0).normal(size=(N, H * K)), jnp.float32)
    variables = module.init(jax.random.key(0), x, x, Mask())
    _, kept = module.apply(variables, x, x, Mask(), mutable=["weights"])
    (weights,) = jax.tree.leaves(kept)  # (H, N, N)
    expected = -(weights * jnp.log(weights)).sum((0, -1))

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
    x, memory = inputs()
    for options in (dict(P_drop=0.5), dict(selection="sampled")):
        model = MultiHeadAttention(D, H, 4, 5, **options)
        variables = model.init(jax.random.PRNGKey(1), x, memory, Mask())
        outputs = []
        for make in (jax.random.key, jax.random.PRNGKey):
            rngs = {"dropout": make(2), "sample": make(3)}
            outputs.append(model.apply(variables, x, memory, Mask(), rngs=rngs))
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
    variables = model.init(jax.random.key(1), x, memory, Mask())
    projected = model.apply(variables, memory, method="project_memory")
    visible = jnp.ones((B, 1, M), bool)
    with pytest.raises(ValueError, match=r"Relative\(reach=2\) add a bias to self-att"):
        model.apply(variables, x, projected, visible, method="attend_to_memory")
