"""Multi-head attention against the float64 oracle for every score and both ways to combine
heads; its parameters, its cache and its options.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    Additive,
    Bilinear,
    Context,
    CrossAttention,
    Mask,
    MultiHeadAttention,
    config,
    keys_of_rows,
)
from attn.jax_versions import enable_x64
from tests.attn import numpy_transformer
from tests.attn.nn.modules import (
    apply,
    assert_slopes,
    count,
    random_variables,
)
from tests.attn.nn.scores import CASES, A, H, K

B = 2
N = 5
M = 7
D = 13
WIDTH = {"concat": 17, "mean": D}  # d_v
LENGTHS = np.array([4, 7])

# How heads are combined and how they score have nothing to do with each other.
every_score = pytest.mark.parametrize(
    ("name", "combine"),
    [*((name, "concat") for name in CASES), ("scaled dot", "mean")],
)
both_combinations = pytest.mark.parametrize("combine", WIDTH)


def inputs():
    draw = np.random.default_rng(0).normal
    return tuple(jnp.asarray(draw(size=(B, n, D)), jnp.float32) for n in (N, M))


def description(name="scaled dot", combine="concat", **options):
    sizes = dict(d_model=D, h=H, d_k=K, d_v=WIDTH[combine])
    of_score = dict(score=CASES[name][0], combine=combine)
    return config.Attention(**sizes | of_score | options)


@functools.cache
def build(name="scaled dot", combine="concat", cls=CrossAttention, **options):
    """Returns a module and random parameters, biases too."""
    model = cls(description(name, combine, **options))
    x, memory = inputs()
    variables = random_variables(model, x, Context(memory=memory), size=0.3, seed=5)
    return model, variables["params"]


def attended(model, params, mask=Mask(), **context):
    """Returns attention from the inputs to the memory."""
    x, memory = inputs()
    ctx = Context(memory=memory, memory_mask=mask, **context)
    return apply(model, {"params": params}, x, ctx)[0]


def exact(p, x, memory, visible, name):
    """Computes one example in float64."""
    p, x, memory = jax.tree.map(np.float64, (p, x, memory))
    score = functools.partial(CASES[name][1], p.get("score"))
    return numpy_transformer.multi_head(p, visible, memory, score)(x)


@every_score
def test_outputs_and_gradients_equal_the_oracles(name, combine):
    """Gradients of the score's parameters against central differences of the oracle."""
    model, params = build(name, combine)
    draw = np.random.default_rng(6).normal
    x, memory, pull = (draw(size=(B, n, D)) for n in (N, M, N))
    mask = Mask.causal(1) & Mask.padding(LENGTHS)
    visible = np.tri(N, M, 1) * (np.arange(M) < LENGTHS[:, None, None])
    params = jax.tree.map(np.float64, params)
    others = {part: leaf for part, leaf in params.items() if part != "score"}

    def expected(score):
        of = others | {"score": score}
        rows = zip(x, memory, visible, strict=True)
        return np.stack([exact(of, *row, name) for row in rows])

    def loss(score, x, memory):
        variables = {"params": others | ({"score": score} if score else {})}
        ctx = Context(memory=memory, memory_mask=mask)
        out, _ = model.apply(variables, x, ctx)
        return (out * pull).sum(), out

    own = params.get("score", {})
    with enable_x64(True):
        wide = jnp.asarray(x), jnp.asarray(memory)
        gradients, out = jax.jit(jax.grad(loss, has_aux=True))(own, *wide)
    np.testing.assert_allclose(np.asarray(out), expected(own), rtol=1e-9, atol=1e-9)
    assert set(gradients) == set(own)
    for leaf, gradient in jax.tree.map(np.asarray, gradients).items():
        assert (np.abs(gradient).reshape(H, -1).max(-1) > 1e-4).all(), leaf

    def total(score):
        return (expected(score) * pull).sum()

    assert_slopes(total, own, gradients, 3e-6, rtol=1e-6, atol=1e-8)


@every_score
def test_parameters_are_as_many_as_the_formulas_say(name, combine):
    _, params = build(name, combine)
    values = D if combine == "mean" else 2 * WIDTH[combine]
    assert count({"params": params}) == H * D * (2 * K + values) + CASES[name][2]
    assert ("score" in params) == (CASES[name][2] > 0)
    others = {"w_q", "w_k", "w_v"} | ({"w_o"} if combine == "concat" else set())
    assert set(params) - {"score"} == others


def test_values_of_a_low_rank_are_those_of_their_product():
    """A mean of heads with W_V as two matrices, against the same with their product;
    and against the paper's form.
    """
    low, params = build(combine="mean", d_v=5, biases=True)
    out = attended(low, params)
    product = {
        "w_v": jnp.einsum("dhv,hve->dhe", params["w_v"], params["w_o"]),
        "b_v": jnp.einsum("hv,hve->he", params["b_v"], params["w_o"])
        + params["b_o"][None],
    }
    full = CrossAttention(description(combine="mean", biases=True))
    both = {**{name: params[name] for name in ("w_q", "w_k", "b_q", "b_k")}, **product}
    np.testing.assert_allclose(out, attended(full, both), rtol=1e-4, atol=1e-5)
    sums = {**params, "w_o": params["w_o"] / H}
    concat = CrossAttention(description(d_v=5, biases=True))
    np.testing.assert_allclose(out, attended(concat, sums), rtol=1e-4, atol=1e-5)


def test_parameters_are_plain_dictionaries_of_arrays():
    _, params = build("additive, wide, biased", "mean")
    assert type(params["score"]) is dict
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
        x = jnp.zeros((1, 2, d))

        def w_v(**options):
            module = MultiHeadAttention(config.Attention(d, h, d_k, **options))
            return module.init(key, x, Context())["params"]["w_v"]

        return (
            w_v(d_v=d_v),
            w_v(d_v=d, combine="mean"),
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
        deviation = limit / np.sqrt(3)
        np.testing.assert_allclose(np.std(leaf), deviation, rtol=0.03, err_msg=name)
        assert not np.allclose(leaf[0], leaf[1])
    assert (hidden.b == 0).all()
    # With the same key two matrices would begin with the same draws.
    for drawn in (low.w, low.w_2), (hidden.w_q, hidden.w_k, hidden.v):
        alike = np.corrcoef([leaf.ravel()[:3000] for leaf in drawn])
        assert (np.abs(alike - np.eye(len(drawn))) < 0.1).all()


@pytest.mark.parametrize(
    ("saved", "score", "message"),
    [
        ("bilinear", "scaled dot", r"they have \['w'\], it has \[\]"),
        ("sum", "bilinear", r"they have \['a.w', 'b.temperature'\], it has \['w'\]"),
    ],
)
def test_parameters_of_another_score_are_refused(saved, score, message):
    with pytest.raises(ValueError, match=message):
        attended(build(score)[0], build(saved)[1])


# Options


def test_weights_drop_by_the_rows_keys_alone():
    """Not without keys, and not by the batch that a row is in."""
    model, params = build(d_k=4, d_v=5)
    plain = attended(model, params)
    key = jax.random.key(0)
    rate = {"P_attention": 0.5}
    same = attended(model, params, numbers=rate)
    np.testing.assert_allclose(same, plain, rtol=1e-6)
    first, again, other = (
        attended(model, params, numbers=rate, keys=keys_of_rows(key, np.array(rows)))
        for rows in ([0, 1], [0, 1], [2, 1])
    )
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first[1], other[1])
    assert not np.allclose(first[0], other[0]) and not np.allclose(first, plain)


@pytest.mark.parametrize(
    ("combine", "activation", "expected"),
    [
        ("concat", "relu", lambda y: np.maximum(y, 0)),
        ("mean", "silu", lambda y: y / (1 + np.exp(-y))),
    ],
)
def test_the_activation_is_on_the_output(combine, activation, expected):
    plain, params = build(combine=combine)
    active = CrossAttention(description(combine=combine, head_activation=activation))
    plain, active = (attended(model, params) for model in (plain, active))
    assert (plain < 0).any() and (plain > 0).any()
    np.testing.assert_allclose(active, expected(plain), rtol=1e-5, atol=1e-6)


@both_combinations
def test_weights_are_kept_when_asked(combine):
    model, params = build("distance", combine)
    x, memory = inputs()
    ctx = Context(memory=memory, memory_mask=Mask.padding(LENGTHS))
    (out, _), kept = apply(model, {"params": params}, x, ctx, mutable=("weights",))
    weights = kept["weights"]["weights"]
    plain = attended(model, params, Mask.padding(LENGTHS))
    np.testing.assert_allclose(out, plain, rtol=1e-5, atol=1e-6)
    values = np.einsum("bmd,dhv->bmhv", memory, params["w_v"])
    parts = np.einsum("bhnm,bmhv->bnhv", weights, values)
    expected = parts.mean(2)
    if combine == "concat":
        expected = np.einsum("bnhv,hvd->bnd", parts, params["w_o"])
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_the_highest_score_of_each_query_is_kept_when_asked():
    model, params = build()
    x, memory = (np.asarray(y, np.float64) for y in inputs())
    ctx = Context(memory=inputs()[1], memory_mask=Mask.padding(LENGTHS))
    mutable = ("weights", "max_score")
    _, kept = apply(model, {"params": params}, inputs()[0], ctx, mutable=mutable)
    q, k = (
        np.einsum("bnd,dhk->bhnk", y, np.asarray(params[name], np.float64))
        for y, name in ((x, "w_q"), (memory, "w_k"))
    )
    s = np.einsum("bhnk,bhmk->bhnm", q, k) / np.sqrt(K)
    is_real = np.arange(s.shape[-1]) < np.asarray(LENGTHS)[:, None, None, None]
    expected = np.where(is_real, s, -np.inf).max(-1)
    highest = kept["max_score"]["max_score"]
    np.testing.assert_allclose(highest, expected, rtol=1e-5, atol=1e-6)


def test_what_sampled_attention_keeps_is_of_all_heads_together():
    """−E[log π] is the entropy, and heads draw for themselves, so both are sums over the heads."""
    module = CrossAttention(description(), selection="sampled")
    x, memory = (y[:1] for y in inputs())
    variables = random_variables(module, x, Context(memory=memory), size=0.3)
    ctx = Context(memory=memory)
    _, kept = apply(module, variables, x, ctx, mutable=("weights",))
    weights = np.asarray(kept["weights"]["weights"])
    expected = -(weights * np.log(weights)).sum((1, 3))[0]
    draws = 4000
    many = Context(memory=jnp.repeat(memory, draws, 0))
    many = many.replace(keys=keys_of_rows(jax.random.key(1), jnp.arange(draws)))
    rows = jnp.repeat(x, draws, 0)
    _, drawn = apply(module, variables, rows, many, mutable=("policy",))
    drawn = drawn["policy"]
    np.testing.assert_allclose(drawn["entropy"][0], expected, rtol=1e-5)
    log_probs = np.asarray(drawn["log_prob"], np.float64)
    error = np.abs(log_probs.mean(0) + expected)
    assert (error < 5 * log_probs.std(0) / draws**0.5).all()


@pytest.mark.parametrize(
    ("selection", "numbers", "message"),
    [
        ("argmax", 0.1, "selection=argmax takes whole values.* P_attention=0.1 must"),
        ("sampled", 0.1, "selection=sampled takes whole values"),
        ("soft", 1.5, "P_attention=1.5 must be a probability"),
    ],
)
def test_rates_that_make_no_sense_are_refused(selection, numbers, message):
    module = CrossAttention(description(), selection=selection)
    x, memory = inputs()
    ctx = Context(memory=memory, numbers={"P_attention": numbers})
    with pytest.raises(ValueError, match=message):
        module.init(jax.random.key(1), x, ctx)


@pytest.mark.parametrize(
    ("selection", "normaliser", "message"),
    [
        ("argmax", "stick_breaking", "need not have the greatest weight of Stick"),
        ("sampled", "sink", "those of Sink need not sum to 1"),
    ],
)
def test_normalisers_that_cannot_select_are_refused(selection, normaliser, message):
    model = CrossAttention(description(normaliser=normaliser), selection=selection)
    x, memory = inputs()
    with pytest.raises(ValueError, match=message):
        model.init(jax.random.key(1), x, Context(memory=memory))


def test_an_attention_by_itself_checks_its_description():
    module = MultiHeadAttention(config.Attention(8, 4, 2, 2, h_kv=3))
    with pytest.raises(ValueError, match="h_kv=3: 4 heads of queries cannot share 3"):
        module.init(jax.random.key(0), jnp.zeros((1, 2, 8)), Context())
