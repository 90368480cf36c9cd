"""Heads that share keys and values, and latents of which they are made."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import Design, Mask, MultiHeadAttention, Relative, Rotary, Shape, Transformer
from attn.jax_versions import enable_x64
from tests.attn import oracle
from tests.attn.models.slow_search import LENGTH, VOCABULARY, searcher, sentences
from tests.attn.models.slow_search import build as build_model

B = 2
N = 5
M = 7
D = 12
H = 4
K = 6
V = 3
C = 5
LENGTHS = np.array([4, 7])


@attn.score
class Normed:
    """score(q, k) = q · k / |k|: it makes keys of its own."""

    scale: Any = 1.0
    is_product = True

    def prepare(self, q, k):
        return (
            attn.Dot(),
            self.scale * q,
            k / jnp.linalg.norm(k, axis=-1, keepdims=True),
        )

    def __call__(self, q, k):
        dot, q, k = self.prepare(q, k)
        return dot(q, k)


def module(**options):
    return MultiHeadAttention(D, H, K, V, **options)


def inputs(dtype=np.float32):
    draw = np.random.default_rng(0).normal
    return [jnp.asarray(draw(size=(B, n, D)), dtype) for n in (N, M)]


@functools.cache
def drawn(model, dtype=np.float32):
    """Returns random parameters, biases too."""
    x = jax.ShapeDtypeStruct((B, N, D), jnp.float32)
    init = functools.partial(model.init, mask=Mask())
    shapes = jax.eval_shape(init, jax.random.key(0), x, x)["params"]
    draw = np.random.default_rng(1).normal
    return jax.tree.map(lambda x: jnp.asarray(0.5 * draw(size=x.shape), dtype), shapes)


@functools.partial(jax.jit, static_argnames=("model", "method"))
def apply(model, params, *args, **options):
    return model.apply({"params": params}, *args, **options)


def repeated(params, h_kv):
    """Returns the parameters of as many heads of keys as there are of queries."""
    names = ("w_k", "w_v", "b_k", "b_v")
    return {
        name: x.repeat(H // h_kv, -2) if name in names else x
        for name, x in params.items()
    }


def without_latents(params):
    """Returns the parameters of multi-head attention with the products of W_C."""
    into = {
        name: jnp.tensordot(params["w_c"], params[name], 1) for name in ("w_k", "w_v")
    }
    return {name: x for name, x in (params | into).items() if name != "w_c"}


def steps(model, params, x):
    """Returns the outputs of tokens one after another, two hypotheses a position."""
    empty = model.empty_cache((B,), 2 * N, x.dtype)
    # Entries that are not yet written must not count.
    cache = jax.tree.map(lambda room: np.full(room.shape, 1e6, room.dtype), empty)

    @jax.jit
    def step(x, t, cache):
        # Each sees the entries of its own hypothesis.
        own = np.arange(2 * N) % 2 == np.arange(2)[:, None]
        before = jnp.arange(2 * N)[None] // 2 <= t
        visible = jnp.broadcast_to((own & before)[None], (B, 2, 2 * N))
        return apply(model, params, x, t, cache, visible, method="decode_step")

    outputs = []
    for t in range(N):
        both = np.stack([x[:, t], -x[:, t]], 1)
        y, cache = step(both, np.int32(t), cache)
        outputs.append(y)
    return np.stack(outputs, 2)


def slow(*values):
    """Marks a case of which .ci/run alone has time for all."""
    return pytest.param(*values, marks=pytest.mark.ci)


def test_as_many_heads_of_keys_are_multi_head_attention_bit_for_bit():
    plain, grouped = module(), module(h_kv=H)
    params = drawn(plain)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, drawn(grouped))

    @functools.partial(jax.jit, static_argnums=0)
    @functools.partial(jax.value_and_grad, argnums=1)
    def loss(model, params):
        return (apply(model, params, *inputs(), Mask()) ** 2).sum()

    both = loss(plain, params), loss(grouped, params)
    for a, b in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("h_kv", "options"),
    [
        slow(1, dict(score="additive", combine="mean")),
        (2, dict(biases=True, positions=Rotary(), normaliser="sink", P_drop=0.3)),
        slow(2, dict(selection="argmax", positions=Relative())),
    ],
)
def test_fewer_heads_of_keys_are_repeated_ones(h_kv, options):
    with enable_x64():
        grouped, plain = module(h_kv=h_kv, **options), module(**options)
        params = drawn(grouped, np.float64)
        x, memory = inputs(np.float64)
        rngs = {"dropout": jax.random.key(2)}

        @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
        def gradient_of_grouped(params, x):
            out = apply(grouped, params, x, memory, Mask.padding(LENGTHS), rngs=rngs)
            return (out**2).sum(), out

        @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
        def gradient_of_repeated(params, x):
            params = repeated(params, h_kv)
            out = apply(plain, params, x, memory, Mask.padding(LENGTHS), rngs=rngs)
            return (out**2).sum(), out

        @jax.jit
        def of_both(params, x):
            return gradient_of_grouped(params, x), gradient_of_repeated(params, x)

        for a, b in zip(*map(jax.tree.leaves, of_both(params, x)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [dict(h_kv=2), dict(h_kv=1, d_c=C)])
def test_equals_the_oracle(options):
    model = module(biases=True, **options)
    params = drawn(model)
    x, memory = inputs()
    out = apply(model, params, x, memory, Mask.padding(LENGTHS))
    p, x, memory = jax.tree.map(np.float64, (params, x, memory))
    for b in range(B):
        visible = np.broadcast_to(np.arange(M) < LENGTHS[b], (N, M))
        source = memory[b] @ p["w_c"] if "w_c" in p else memory[b]
        heads = []
        for i in range(H):
            j = i // (H // model.h_kv)
            q = x[b] @ p["w_q"][:, i] + p["b_q"][i]
            k, v = (source @ p[f"w_{y}"][:, j] + p[f"b_{y}"][j] for y in "kv")
            heads.append(oracle.attention(q, k, v, visible)[0])
        expected = np.concatenate(heads, -1) @ p["w_o"].reshape(-1, D) + p["b_o"]
        np.testing.assert_allclose(out[b], expected, rtol=1e-4, atol=1e-5)


def test_latents_as_wide_as_the_model_are_multi_head_attention():
    plain, latent = module(), module(d_c=D)
    params = drawn(plain)
    out = apply(latent, params | {"w_c": jnp.eye(D)}, *inputs(), Mask())
    np.testing.assert_allclose(out, apply(plain, params, *inputs(), Mask()), rtol=1e-5)


def test_latents_are_matrices_of_low_rank():
    latent = module(d_c=C)
    params = drawn(latent)
    sizes = D * H * (K + V) + D * C + C * H * (K + V)
    assert sum(x.size for x in jax.tree.leaves(params)) == sizes
    out = apply(latent, params, *inputs(), Mask())
    expected = apply(module(), without_latents(params), *inputs(), Mask())
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        slow(dict(h_kv=2, positions=Rotary(), score="bilinear")),
        dict(h_kv=1, positions=Relative(), score="additive", biases=True),
        slow(dict(d_c=C)),
        # Weights that do not sum to 1 show a value's bias.
        dict(d_c=C, h_kv=2, biases=True, normaliser="sigmoid", positions=Relative()),
        slow(dict(d_c=C, score="bilinear", combine="mean")),
        slow(dict(d_c=C, score="additive")),
        slow(dict(d_c=C, score=Normed, biases=True)),
        dict(d_c=C, d_r=4, positions=Rotary(), biases=True),
        slow(dict(d_c=C, d_r=2, h_kv=2, positions=Rotary(), score="additive")),
    ],
)
def test_steps_over_a_cache_are_the_whole(options):
    model = module(causal=True, **options)
    params = drawn(model)
    x, _ = inputs()
    both = jnp.stack([x, -x], axis=1)
    expected = apply(model, params, both, both, Mask.causal())
    actual = steps(model, params, np.asarray(x))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("selection", ["soft", "argmax"])
@pytest.mark.parametrize("options", [dict(h_kv=2), dict(d_c=C, biases=True)])
def test_a_memory_is_attended_to_in_steps(selection, options):
    model = module(selection=selection, **options)
    params = drawn(model)
    x, memory = inputs()
    visible = jnp.asarray(np.arange(M) < LENGTHS[:, None, None])

    @jax.jit
    def both(params, x, memory):
        kept = apply(model, params, memory, method="project_memory")
        out = apply(model, params, x, kept, visible, method="attend_to_memory")
        return out, apply(model, params, x, memory, Mask.padding(LENGTHS))

    out, expected = both(params, x, memory)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_what_positions_turn_beside_latents_is_the_end_of_all_keys():
    """Without what is turned it is latents; without latents, attention of one rotary key."""
    model = module(d_c=C, d_r=4, positions=Rotary())
    params = drawn(model)
    x, _ = inputs()
    names = ("w_q", "w_k", "w_v", "w_o", "w_c")
    alone = {name: params[name] for name in names}
    still = params | {"w_k_r": jnp.zeros((D, 4))}
    # The scale is that of longer keys.
    scaled = alone | {"w_q": alone["w_q"] * (K / (K + 4)) ** 0.5}
    out = apply(model, still, x, x, Mask())
    expected = apply(module(d_c=C), scaled, x, x, Mask())
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-6)
    turned = MultiHeadAttention(D, H, 4, V, positions=Rotary())
    shared = {
        "w_q": params["w_q_r"] * (4 / (K + 4)) ** 0.5,
        "w_k": params["w_k_r"][:, None].repeat(H, 1),
        "w_v": jnp.tensordot(params["w_c"], params["w_v"], 1),
        "w_o": params["w_o"],
    }
    out = apply(model, params | {"w_k": 0 * params["w_k"]}, x, x, Mask())
    expected = apply(turned, shared, x, x, Mask())
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-6)


def test_a_cache_keeps_as_little_as_it_says():
    def numbers(**options):
        cache = module(**options).empty_cache((B,), N, jnp.float32)
        return sum(x.size for x in jax.tree.leaves(cache)) / (B * N)

    assert numbers() == H * (K + V)
    assert numbers(h_kv=1) == numbers() / H
    assert numbers(d_c=C) == numbers(d_c=C, h_kv=2) == C
    assert numbers(d_c=C, biases=True) == C + 1
    assert numbers(d_c=C, d_r=2, positions=Rotary()) == C + 2


def test_a_step_over_latents_makes_no_keys():
    """No array is larger than the cache, but where a score needs the keys themselves."""
    entries = 1000

    def largest(**options):
        model = module(d_c=C, **options)
        cache = model.empty_cache((B,), entries, jnp.float32)
        visible = jnp.ones((B, 1, entries), bool)
        step = functools.partial(model.apply, method="decode_step")
        variables, x = {"params": drawn(model)}, jnp.ones((B, 1, D))
        made = jax.make_jaxpr(step)(variables, x, jnp.int32(0), cache, visible)
        return max(
            math.prod(x.aval.shape)
            for equation in made.jaxpr.eqns
            for x in equation.outvars
        )

    assert largest() == B * entries * C
    assert largest(score="bilinear") == B * entries * C
    assert largest(score=Normed) >= B * entries * H * K


def test_a_beam_search_finds_the_pieces_of_the_plain_form():
    """Of latents, of which one head of keys is made for all."""
    shape = Shape(N=1, d_model=10, d_ff=17, h=H, d_k=6, d_v=5)
    design = Design()
    model, plain = (
        Transformer(x, VOCABULARY, LENGTH, design, 0.0)
        for x in (shape._replace(h_kv=1, d_c=C), shape)
    )
    _, variables = build_model(VOCABULARY, design, model)

    def of_layer(layer):
        return {
            name: repeated(without_latents(x), 1) if name.endswith("attention") else x
            for name, x in layer.items()
        }

    params = {
        name: of_layer(x) if "coder_" in name and isinstance(x, dict) else x
        for name, x in variables["params"].items()
    }
    actual = searcher(model, 2, 2)(variables, *sentences())
    expected = searcher(plain, 2, 2)(variables | {"params": params}, *sentences())
    np.testing.assert_array_equal(actual.tokens, expected.tokens)
    np.testing.assert_allclose(actual.log_probs, expected.log_probs, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(h_kv=3), "4 heads of queries cannot share 3 of keys"),
        (dict(h_kv=0), "4 heads of queries cannot share 0 of keys"),
        (dict(d_c=0), "d_c=0 must be at least 1"),
        (dict(d_c=C, positions=Rotary()), "turn keys, and those of latents"),
        (dict(d_c=C, d_r=2), "d_r=2 is the width of a key that positions turn"),
        (dict(d_r=2, positions=Rotary()), "it needs both, not d_c=None"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        drawn(module(**options))
    sizes = (options.get(name) for name in ("h_kv", "d_c", "d_r"))
    shape = Shape(1, D, D, H, K, V, *sizes)
    design = Design(positions=options.get("positions", Relative()))
    with pytest.raises(ValueError, match=message):
        attn.models.design.check_design(design, shape)
