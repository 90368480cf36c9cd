"""Differential attention, talking heads and gates: against numpy in float64, and what they
are where they do nothing.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attn.models.blocks import LanguageLayer
from attn.models.design import check_design
from attn.models.heads import GATES

from attn import (
    Design,
    Differential,
    LanguageModel,
    Mask,
    MultiHeadAttention,
    NoPositions,
    Rotary,
    Separate,
    Shape,
    TalkingHeads,
    attention,
    differential,
    talking_heads,
)
from attn.jax_versions import enable_x64
from tests.attn import oracle
from tests.attn.models.multihead_cases import LENGTHS, B, D, H, M, N
from tests.attn.models.random_variables import random_variables

K = 4
V = 5
LAMBDA = 0.6
# The first query sees nothing, and the last keys of the first example are hidden.
MASK = Mask.causal(-1) & Mask.padding(LENGTHS)
VISIBLE = np.tri(N, M, -1, bool) & (np.arange(M) < LENGTHS[:, None])[:, None]

CASES = {
    "gate of heads": dict(gate="head"),
    "gate of elements": dict(gate="element", biases=True),
    "differential": dict(heads=Differential(LAMBDA)),
    "talking": dict(heads=TalkingHeads(), gate="head"),
}


@functools.cache
def build(**options):
    """Returns a module and random parameters in float64."""
    model = MultiHeadAttention(D, H, K, V, **options)
    shapes = jax.eval_shape(model.init, jax.random.key(0), *single(), Mask())
    draw = np.random.default_rng(5).normal
    params = jax.tree.map(lambda x: 0.4 * draw(size=x.shape), shapes["params"])
    return model, params


def inputs():
    draw = np.random.default_rng(0).normal
    return draw(size=(B, N, D)), draw(size=(B, M, D))


def single():
    return [jnp.asarray(x, jnp.float32) for x in inputs()]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def exact(p, x, memory, visible, heads=Separate(), gate="none", biases=False):
    """Computes one example, from the papers' formulas."""

    def projected(letter, x):
        y = np.einsum("nd,dhk->hnk", x, p[f"w_{letter}"])
        return y + p[f"b_{letter}"][:, None] if biases else y

    q, k, v = (
        projected(letter, y)
        for letter, y in zip("qkv", (x, memory, memory), strict=True)
    )
    if isinstance(heads, Differential):
        out = exact_difference(p["together"], q, k, v, visible)
    elif isinstance(heads, TalkingHeads):
        out = exact_mixture(p["together"], q, k, v, visible)
    else:
        out = np.stack(
            [oracle.attention(q[h], k[h], v[h], visible)[0] for h in range(H)]
        )
    if gate != "none":
        out = out * sigmoid(projected("g", x))
    out = np.einsum("hnv,hvd->nd", out, p["w_o"])
    return out + p["b_o"] if biases else out


def exact_difference(p, q, k, v, visible):
    factor = np.exp(p["lambda_q1"] @ p["lambda_k1"]) + LAMBDA
    factor -= np.exp(p["lambda_q2"] @ p["lambda_k2"])
    out = []
    for h in range(H):
        one, other = (
            oracle.attention(q[h][:, part], k[h][:, part], v[h], visible)[0]
            for part in (slice(K), slice(K, 2 * K))
        )
        difference = one - factor * other
        norm = np.sqrt((difference**2).mean(-1, keepdims=True) + 1e-5)
        out.append((1 - LAMBDA) * p["scale"] * difference / norm)
    return np.stack(out)


def exact_mixture(p, q, k, v, visible):
    s = np.einsum("hnk,hmk->hnm", q, k) / K**0.5
    mixed = sum(s[h] * p["w_scores"][h][:, None, None] for h in range(H))
    weights = np.zeros_like(mixed)
    for i in range(N):
        if visible[i].any():
            weights[:, i, visible[i]] = oracle.softmax(mixed[:, i, visible[i]])
    mixed = sum(weights[h] * p["w_weights"][h][:, None, None] for h in range(H))
    return mixed @ v


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_equal_the_oracles(name):
    """Gradients by central differences in a random direction of each parameter."""
    model, params = build(**CASES[name])
    x, memory = inputs()
    draw = np.random.default_rng(6).normal
    pull = draw(size=(B, N, D))

    def expected(p):
        examples = zip(x, memory, VISIBLE, strict=True)
        return np.stack([exact(p, *example, **CASES[name]) for example in examples])

    def loss(p):
        out = model.apply({"params": p}, jnp.asarray(x), jnp.asarray(memory), MASK)
        return (out * pull).sum(), out

    with enable_x64(True):
        wide = jax.tree.map(jnp.asarray, params)
        gradients, out = jax.jit(jax.grad(loss, has_aux=True))(wide)
    np.testing.assert_allclose(out, expected(params), rtol=1e-10, atol=1e-10)
    gradients = jax.tree.map(np.asarray, gradients)
    leaves, tree = jax.tree.flatten(params)
    for i, gradient in enumerate(jax.tree.leaves(gradients)):
        way = draw(size=leaves[i].shape)
        ends = []
        for step in (1e-5, -1e-5):
            moved = [*leaves[:i], leaves[i] + step * way, *leaves[i + 1 :]]
            ends.append((expected(tree.unflatten(moved)) * pull).sum())
        slope = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose((gradient * way).sum(), slope, rtol=1e-6, atol=1e-8)


def test_a_gate_of_ones_is_none():
    model, params = build(gate="element", biases=True)
    # σ(50) is 1 in float64.
    ones = dict(w_g=np.zeros((D, H, V)), b_g=np.full((H, V), 50.0))
    plain = {name: p for name, p in params.items() if name not in ones}
    with enable_x64(True):
        params, plain, x = jax.tree.map(
            jnp.asarray, ({**params, **ones}, plain, inputs())
        )
        np.testing.assert_array_equal(
            jax.jit(model.apply)({"params": params}, *x, MASK),
            jax.jit(model.clone(gate="none").apply)({"params": plain}, *x, MASK),
        )


def test_without_the_second_map_differential_attention_is_attention():
    q, k, v = draw_qkv(2 * K)
    parts = slice(K), slice(K, None)

    @functools.partial(jax.jit, static_argnums=0)
    def both(option, factor):
        name, value = option
        bias = np.ones((H, N, M), np.float32)
        arguments = dict(mask=MASK, bias=bias) | {name: value}
        out = differential(q, k, v, factor, **arguments)
        return out, [attention(q[..., x], k[..., x], v, **arguments) for x in parts]

    (out, weights), (expected, _) = both(("return_weights", True), 0.0)
    np.testing.assert_array_equal(out, expected[0])
    np.testing.assert_array_equal(weights, expected[1])
    out, maps = both(("implementation", "tiled"), 0.7)
    np.testing.assert_allclose(out, maps[0] - 0.7 * maps[1], rtol=1e-5, atol=1e-6)


def test_each_map_drops_weights_of_its_own():
    q, k, v = draw_qkv(K)
    both = [np.concatenate([x, x], axis=-1) for x in (q, k)]

    @jax.jit
    def subtracted(rate):
        dropout = dict(dropout_rate=rate, dropout_key=jax.random.key(0))
        return differential(*map(jnp.asarray, both), v, 1.0, **dropout)

    assert not subtracted(0.0).any()
    assert jnp.abs(subtracted(0.5)).max() > 0.1


def test_heads_that_say_nothing_are_separate():
    q, k, v = draw_qkv(K)
    eye = jnp.eye(H)

    @jax.jit
    def both(q, k, v):
        options = dict(mask=MASK, return_weights=True)
        talking = talking_heads(q, k, v, eye, eye, **options)
        return talking, attention(q, k, v, **options)

    (out, weights), expected = both(q, k, v)
    np.testing.assert_allclose(out, expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weights, expected[1], rtol=1e-5, atol=1e-6)


def test_talking_heads_are_separate_at_first():
    module = TalkingHeads().build(H, K, V)
    variables = module.init(jax.random.key(0), method=lambda module: module.w_scores)
    for matrix in variables["params"].values():
        np.testing.assert_array_equal(matrix, np.eye(H))


def draw_qkv(width):
    draw = np.random.default_rng(1).normal
    shapes = ((B, N, H, width), (B, M, H, width), (B, M, H, V))
    return [jnp.asarray(draw(size=shape), jnp.float32) for shape in shapes]


def test_what_talking_heads_do_not_see_reaches_nobody():
    """Neither an output nor a gradient; what one head sees reaches all."""
    q, k, v = draw_qkv(K)
    mix = jnp.asarray(np.random.default_rng(2).normal(size=(2, H, H)), jnp.float32)
    bad = k.at[0, 4:].set(np.nan), v.at[0, 5:].set(np.inf)

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1, 2, 3), has_aux=True)
    def loss(q, k, v, mix):
        out = talking_heads(q, k, v, *mix, mask=MASK)
        return (out**2).sum(), out

    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-6),
        loss(q, *bad, mix),
        loss(q, k, v, mix),
    )
    (_, out), _ = loss(q.at[1, 3, 0].set(np.nan), k, v, mix)
    assert np.isnan(out[1, 3]).all()
    assert np.isnan(out).sum() == H * V


def test_without_keys_talking_heads_give_0():
    q, k, v = draw_qkv(K)
    eye = jnp.eye(H)
    no_keys = jax.jit(talking_heads)(q, k[:, :0], v[:, :0], eye, eye)
    assert no_keys.shape == (B, N, H, V)
    assert not no_keys.any()
    no_queries = jax.eval_shape(talking_heads, q[:, :0], k, v, eye, eye)
    assert no_queries.shape == (B, 0, H, V)


@pytest.mark.parametrize(
    ("options", "more"),
    [
        (dict(gate="head"), D * H),
        (dict(gate="element"), D * H * V),
        (dict(gate="element", biases=True), D * H * V + H * V),
        (dict(heads=Differential()), H * D * 2 * K + 4 * K + V),
        (dict(heads=TalkingHeads()), 2 * H * H),
    ],
)
def test_parameters_are_as_many_as_the_formulas_say(options, more):
    def count(**options):
        return sum(x.size for x in jax.tree.leaves(build(**options)[1]))

    assert count(**options) - count(biases=options.get("biases", False)) == more


@pytest.mark.parametrize("name", CASES)
def test_outputs_keep_the_precision_of_the_inputs(name):
    model, params = build(**CASES[name])
    half = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), (params, single())
    )
    out = jax.eval_shape(lambda p, x: model.apply({"params": p}, *x, MASK), *half)
    assert out.dtype == jnp.bfloat16


def test_rotation_turns_each_map_by_itself():
    """Equal maps stay equal, and are turned."""
    model = MultiHeadAttention(D, H, K, V, heads=Differential(), positions=Rotary())
    x, _ = single()
    params = dict(build(heads=Differential())[1])
    for name in ("w_q", "w_k"):
        params[name] = np.concatenate([params[name][..., :K]] * 2, axis=-1)

    @jax.jit
    def turned(params, x):
        def both(module, x):
            return module._queries(x), module.keys_and_values(x)[0]

        return model.apply({"params": params}, x, method=both)

    q, k = map(np.asarray, turned(params, x))
    for y in (q, k):
        np.testing.assert_array_equal(y[..., :K], y[..., K:])
        assert not np.allclose(
            y[:, 1], np.einsum("bd,dhk->bhk", x[:, 1], params["w_q"])
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(gate="row"), f"unknown gate 'row'; known: {', '.join(GATES)}"),
        (dict(heads=Differential(1.0)), "lambda_init=1.0 must be at least 0 and below"),
        (
            dict(heads=TalkingHeads(), selection="argmax"),
            r"without heads=TalkingHeads\(\)",
        ),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


@pytest.mark.parametrize("scan", [False, True])
def test_lambda_grows_with_the_layer(scan):
    """As 0.8 − 0.6·exp(−0.3·(l − 1)), l from 1 (Ye et al. 2024, section 2.1)."""
    model, variables, tokens, places, expected = layer_by_layer()
    apply = jax.jit(model.clone(scan=scan).apply)
    actual = apply(variables, tokens, places)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@functools.cache
def layer_by_layer():
    """Returns a model with its arguments, and what its layers give one after another."""
    shape = Shape(3, D, D, H, K, V)
    design = Design(heads=Differential(), positions=NoPositions())
    model = LanguageModel(shape, 7, 6, design)
    tokens = jnp.array([[3, 1, 4, 1, 5, 2]])
    places = jnp.arange(6)[None]
    params = random_variables(model, tokens, places)["params"]
    variables = {"params": params, "positions": no_table()}

    @jax.jit
    def expected(params):
        x = params["embedding"][tokens] * D**0.5
        for number, factor in enumerate((0.2, 0.355509, 0.470713)):
            of_layer = Design(heads=Differential(factor), positions=NoPositions())
            layer = LanguageLayer(shape, of_layer)
            own = {"params": params[f"decoder_{number}"]}
            x = layer.apply(own, x, Mask.causal())
        return x

    return model, variables, tokens, places, expected(params)


def no_table():
    return {"target_positions": {"table": jnp.zeros((6, D))}}


def test_heads_of_ones_own_keep_their_class_in_a_layer():
    @dataclasses.dataclass(frozen=True)
    class Own(Differential):
        extra: int = 3

    own = Own(extra=5).in_layer(2)
    assert type(own) is Own
    assert own.extra == 5
    assert own.initial_lambda() == pytest.approx(0.355509, abs=1e-6)
    assert Own(0.7).in_layer(2).initial_lambda() == 0.7
    assert own == Own(extra=5).in_layer(2)
    # A layer is no option: what names the value has none.
    assert repr(Differential().in_layer(2)) == "Differential(lambda_init=None)"


def test_heads_of_a_design_are_a_value():
    shape = Shape(1, D, D, H, K, V)
    with pytest.raises(ValueError, match="heads='talking' must be a Heads, such as"):
        check_design(Design(heads="talking"), shape)
