"""MultiHeadAttention against the float64 oracle for every score and both ways to
combine heads, its parameters, and its cache.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Additive, Bilinear, Mask, MultiHeadAttention
from attn.jax_versions import enable_x64
from tests.attn import oracle
from tests.attn.models.multihead_cases import (
    CASES,
    LENGTHS,
    WIDTH,
    A,
    B,
    D,
    H,
    K,
    M,
    N,
    applied,
    build,
    every_score,
    inputs,
    shapes,
    steps,
)


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
def test_outputs_and_gradients_equal_the_oracles(name, combine):
    """Gradients of the score's parameters: against central differences of the oracle, each
    in two directions.
    """
    model, params = build(name, combine)
    draw = np.random.default_rng(6).normal
    x, memory, pull = (draw(size=(B, n, D)) for n in (N, M, N))
    mask = Mask.causal(1) & Mask.padding(LENGTHS)
    visible = np.tri(N, M, 1) * (np.arange(M) < LENGTHS[:, None, None])
    h = 3e-6
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    others = {part: leaf for part, leaf in params.items() if part != "score"}

    def expected(score):
        of = others | {"score": score}
        rows = zip(x, memory, visible, strict=True)
        return np.stack([exact(of, *row, name, combine) for row in rows])

    def loss(score, x, memory):
        variables = {"params": others | ({"score": score} if score else {})}
        out = model.apply(variables, x, memory, mask)
        return (out * pull).sum(), out

    own = params.get("score", {})
    with enable_x64(True):
        gradients, out = jax.jit(jax.grad(loss, has_aux=True))(own, x, memory)
    np.testing.assert_allclose(np.asarray(out), expected(own), rtol=1e-9, atol=1e-9)
    assert set(gradients) == set(own)
    for leaf, gradient in jax.tree.map(np.asarray, gradients).items():
        assert (np.abs(gradient).reshape(H, -1).max(-1) > 1e-4).all()  # in every head
        for _ in range(2):
            way = draw(size=gradient.shape)
            ends = [
                (expected(own | {leaf: own[leaf] + step * way}) * pull).sum()
                for step in (h, -h)
            ]
            np.testing.assert_allclose(
                (gradient * way).sum(),
                (ends[0] - ends[1]) / (2 * h),
                rtol=1e-6,
                atol=1e-8,
            )


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
    out = applied(low, params)
    product = {
        "w_v": jnp.einsum("dhv,hve->dhe", params["w_v"], params["w_o"]),
        "b_v": jnp.einsum("hv,hve->he", params["b_v"], params["w_o"])
        + params["b_o"][None],
    }
    full = MultiHeadAttention(D, H, K, D, combine="mean", biases=True)
    both = {**{name: params[name] for name in ("w_q", "w_k", "b_q", "b_k")}, **product}
    np.testing.assert_allclose(out, applied(full, both), rtol=1e-4, atol=1e-5)
    sums = {**params, "w_o": params["w_o"] / H}
    concat = applied(low.clone(combine="concat"), sums)
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


# Each kernel's product, what is made of others, and both ways to combine heads; steps of
# each score by its name are in the contract.
IN_STEPS = [
    ("scaled dot", "concat"),
    ("scaled dot", "mean"),
    ("bilinear, low rank", "concat"),
    ("distance", "concat"),
    ("sum", "concat"),
    ("softcap of qk norm of additive", "concat"),
]


@pytest.mark.parametrize(("name", "combine"), IN_STEPS)
def test_step_by_step_equals_the_whole(name, combine):
    model, params = build(name, combine)
    x, _ = inputs()
    visible = np.tri(N)
    whole = [exact(params, row, row, visible, name, combine) for row in x]
    np.testing.assert_allclose(steps(model, params, x), whole, rtol=1e-4, atol=1e-5)


def test_an_empty_cache_has_room_for_keys_and_values():
    keys, values = MultiHeadAttention(D, H, K, 17).empty_cache((2, 3), 19, jnp.bfloat16)
    assert keys.shape == (2, 3, H, K, 19) and values.shape == (2, 3, H, 19, 17)
    assert keys.dtype == values.dtype == jnp.bfloat16


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
        jax.eval_shape(model.apply, {"params": params}, *inputs(), Mask())
