"""Differential attention, talking heads and gates: against numpy in float64, and what they
are where they do nothing.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    Context,
    CrossAttention,
    Differential,
    LanguageModel,
    Mask,
    MultiHeadAttention,
    NoPositions,
    Rotary,
    Separate,
    TalkingHeads,
    attention,
    config,
    differential,
    talking_heads,
)
from attn.jax_versions import enable_x64
from attn.nn.blocks import Layer
from tests.attn import oracle
from tests.attn.nn.modules import CAUSAL, apply, assert_slopes, random_variables

B = 2
N = 5
M = 7
H = 3
D = 13
K = 4
V = 5
LENGTHS = np.array([4, 7])
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
def build(cls=CrossAttention, **options):
    """Returns a module and random parameters in float64."""
    model = cls(config.Attention(D, H, K, V, **options))
    x, memory = single()
    variables = random_variables(model, x, Context(memory=memory), dtype=np.float32)
    return model, jax.tree.map(np.float64, variables["params"])


def inputs():
    draw = np.random.default_rng(0).normal
    return draw(size=(B, N, D)), draw(size=(B, M, D))


def single():
    return [jnp.asarray(x, jnp.float32) for x in inputs()]


def attended(model, params, x, memory):
    ctx = Context(memory=memory, memory_mask=MASK)
    return apply(model, {"params": params}, x, ctx)[0]


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
    pull = np.random.default_rng(6).normal(size=(B, N, D))

    def expected(p):
        examples = zip(x, memory, VISIBLE, strict=True)
        return np.stack([exact(p, *example, **CASES[name]) for example in examples])

    def loss(p):
        out = attended(model, p, jnp.asarray(x), jnp.asarray(memory))
        return (out * pull).sum(), out

    with enable_x64(True):
        wide = jax.tree.map(jnp.asarray, params)
        gradients, out = jax.jit(jax.grad(loss, has_aux=True))(wide)
    np.testing.assert_allclose(out, expected(params), rtol=1e-10, atol=1e-10)

    def total(p):
        return (expected(p) * pull).sum()

    assert_slopes(total, params, gradients, 1e-5, rtol=1e-6, atol=1e-8)


def test_a_gate_of_ones_is_none():
    model, params = build(gate="element", biases=True)
    # σ(50) is 1 in float64.
    ones = dict(w_g=np.zeros((D, H, V)), b_g=np.full((H, V), 50.0))
    plain = {name: p for name, p in params.items() if name not in ones}
    with enable_x64(True):
        params, plain, x = jax.tree.map(
            jnp.asarray, ({**params, **ones}, plain, inputs())
        )
        without = CrossAttention(config.Attention(D, H, K, V, biases=True))
        np.testing.assert_array_equal(
            attended(model, params, *x), attended(without, plain, *x)
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
    out, maps = both(("implementation", "blocks"), 0.7)
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
    own = TalkingHeads().parameters(jax.random.key(0), config.Attention(h=H))
    eye = own["w_scores"]
    np.testing.assert_array_equal(eye, np.eye(H))

    @jax.jit
    def both(q, k, v):
        options = dict(mask=MASK, return_weights=True)
        talking = talking_heads(q, k, v, *own.values(), **options)
        return talking, attention(q, k, v, **options)

    (out, weights), expected = both(q, k, v)
    np.testing.assert_allclose(out, expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weights, expected[1], rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize("name", CASES)
def test_outputs_keep_the_precision_of_the_inputs(name):
    model, params = build(**CASES[name])
    half = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), (params, inputs()))
    out = jax.eval_shape(lambda p, x: attended(model, p, *x), *half)
    assert out.dtype == jnp.bfloat16


def test_rotation_turns_each_map_by_itself():
    """Equal maps stay equal, and are turned."""
    options = dict(heads=Differential(), positions=Rotary())
    model, params = build(MultiHeadAttention, **options)
    params = dict(params)
    for name in ("w_q", "w_k"):
        params[name] = np.concatenate([params[name][..., :K]] * 2, axis=-1)
    x, _ = single()

    def both(module, x):
        ctx = Context()
        k, _, _ = module._keys_and_values(x, ctx)
        return module._queries(x, ctx.places_of(x)), k

    for y in model.apply({"params": params}, x, method=both):
        np.testing.assert_array_equal(y[..., :K], y[..., K:])
        plain = np.einsum("bd,dhk->bhk", x[:, 1], params["w_q"])
        assert not np.allclose(y[:, 1], plain)


def test_lambda_grows_with_the_layer():
    """As 0.8 − 0.6·exp(−0.3·(l − 1)), l from 1 (Ye et al. 2024, section 2.1), in a loop and
    in a scan.
    """
    sizes = dict(d_model=D, d_ff=D, h=H, d_k=K, d_v=V, positions=NoPositions())
    of = config.LanguageModel(N=3, heads=Differential(), **sizes)
    model = LanguageModel(of, 7, 6)
    tokens = jnp.array([[3, 1, 4, 1, 5, 2]])
    variables = random_variables(model, tokens, CAUSAL)
    table = {"target_positions": {"table": jnp.zeros((6, D))}}
    variables["positions"] = table
    params = variables["params"]
    x = params["embedding"][tokens] * D**0.5
    for number, factor in enumerate((0.2, 0.355509, 0.470713)):
        layer = Layer(config.Block(heads=Differential(factor), **sizes), causal=True)
        x, _ = apply(layer, {"params": params[f"decoder_{number}"]}, x, CAUSAL)
    for scan in (False, True):
        actual = apply(model.clone(scan=scan), variables, tokens, CAUSAL)
        np.testing.assert_allclose(actual, x, rtol=1e-4, atol=1e-4)
