"""Heads that share keys and values, and latents of which they are made."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import (
    Context,
    CrossAttention,
    Decoding,
    Mask,
    MultiHeadAttention,
    Relative,
    Rotary,
    config,
    keys_of_rows,
)
from attn.jax_versions import enable_x64
from tests.attn import numpy_transformer
from tests.attn.nn.modules import CAUSAL, apply, count, random_variables, steps

B = 2
N = 5
M = 7
D = 12
H = 4
K = 6
V = 3
C = 5
LENGTHS = np.array([4, 7])
MASK = Mask.padding(LENGTHS)


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


def module(cls=MultiHeadAttention, selection="soft", d_k=K, **options):
    return cls(config.Attention(D, H, d_k, V, **options), selection=selection)


def inputs(dtype=np.float32):
    draw = np.random.default_rng(0).normal
    return [jnp.asarray(draw(size=(B, n, D)), dtype) for n in (N, M)]


@functools.cache
def drawn(model, dtype=np.float32):
    """Returns random variables, biases too."""
    x, memory = inputs()
    ctx = Context(memory=memory)
    return random_variables(model, x, ctx, size=0.5, seed=1, dtype=dtype)


def outputs(model, params, ctx=CAUSAL):
    """Returns what a module gives of the inputs."""
    x, memory = inputs(params["w_q"].dtype)
    return apply(model, {"params": params}, x, ctx.replace(memory=memory))[0]


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


def slow(*values):
    """Marks a case of which .ci/run alone has time for all."""
    return pytest.param(*values, marks=pytest.mark.ci)


def values_and_gradients(model, params, ctx, prepared=lambda params: params):
    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(params):
        out = outputs(model, prepared(params), ctx)
        return (out**2).sum(), out

    return jax.tree.leaves(loss(params))


def test_as_many_heads_of_keys_are_multi_head_attention_bit_for_bit():
    params = drawn(module())["params"]
    both = [values_and_gradients(module(h_kv=x), params, CAUSAL) for x in (0, H)]
    for a, b in zip(*both, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("h_kv", "options"),
    [
        slow(1, dict(score="additive", combine="mean")),
        (2, dict(biases=True, positions=Rotary(), normaliser="sink")),
        slow(2, dict(selection="argmax", positions=Relative())),
    ],
)
def test_fewer_heads_of_keys_are_repeated_ones(h_kv, options):
    """With dropout of weights, where there are such."""
    ctx = Context(MASK, keys=keys_of_rows(jax.random.key(2), jnp.arange(B)))
    if "selection" not in options:
        ctx = ctx.replace(numbers={"P_attention": 0.3})
    # Queries and keys are the same tokens.
    ctx = ctx.replace(mask=Mask.padding(np.array([4, 3])))
    with enable_x64():
        grouped, plain = module(h_kv=h_kv, **options), module(**options)
        params = drawn(grouped, np.float64)["params"]
        of_repeated = functools.partial(repeated, h_kv=h_kv)
        actual = values_and_gradients(grouped, params, ctx)
        expected = values_and_gradients(plain, params, ctx, of_repeated)
        for a, b in zip(actual, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [dict(h_kv=2), dict(h_kv=1, d_c=C)])
def test_equals_the_oracle(options):
    model = module(CrossAttention, biases=True, **options)
    params = drawn(model)["params"]
    out = outputs(model, params, Context(memory_mask=MASK))
    p, x, memory = jax.tree.map(np.float64, (params, *inputs()))
    for b in range(B):
        visible = np.broadcast_to(np.arange(M) < LENGTHS[b], (N, M))
        expected = numpy_transformer.multi_head(p, visible, memory[b])(x[b])
        np.testing.assert_allclose(out[b], expected, rtol=1e-4, atol=1e-5)


def test_latents_are_matrices_of_low_rank():
    latent = module(d_c=C)
    variables = drawn(latent)
    assert count(variables) == D * H * (K + V) + D * C + C * H * (K + V)
    params = variables["params"]
    expected = outputs(module(), without_latents(params))
    np.testing.assert_allclose(outputs(latent, params), expected, rtol=1e-4, atol=1e-6)


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
    """Of two hypotheses that share it."""
    model = module(**options)
    variables = drawn(model)
    x, _ = inputs()
    both = jnp.stack([x, -x], axis=1)
    actual = steps(model, variables, both, model.empty_cache(B, 2 * N, x.dtype))
    for i, own in enumerate((x, -x)):
        expected, _ = apply(model, variables, own, CAUSAL)
        np.testing.assert_allclose(actual[:, i], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("selection", ["soft", "argmax"])
@pytest.mark.parametrize("options", [dict(h_kv=2), dict(d_c=C, biases=True)])
def test_a_memory_is_attended_to_in_steps(selection, options):
    model = module(CrossAttention, selection, **options)
    variables = drawn(model)
    x, memory = inputs()
    visible = jnp.asarray(np.arange(M) < LENGTHS[:, None, None])
    kept = apply(model, variables, memory, method="project")
    at = Decoding(jnp.int32(0), None, visible)
    out, _ = apply(model, variables, x, Context(memory=kept, decoding=at))
    expected = outputs(model, variables["params"], Context(memory_mask=MASK))
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_what_positions_turn_beside_latents_is_the_end_of_all_keys():
    """Without what is turned it is latents; without latents, attention of one rotary key."""
    model = module(d_c=C, d_r=4, positions=Rotary())
    params = drawn(model)["params"]
    alone = {name: params[name] for name in ("w_q", "w_k", "w_v", "w_o", "w_c")}
    still = params | {"w_k_r": jnp.zeros((D, 4))}
    # The scale is that of longer keys.
    scaled = alone | {"w_q": alone["w_q"] * (K / (K + 4)) ** 0.5}
    expected = outputs(module(d_c=C), scaled)
    np.testing.assert_allclose(outputs(model, still), expected, rtol=1e-4, atol=1e-6)
    turned = module(d_k=4, positions=Rotary())
    shared = {
        "w_q": params["w_q_r"] * (4 / (K + 4)) ** 0.5,
        "w_k": params["w_k_r"][:, None].repeat(H, 1),
        "w_v": jnp.tensordot(params["w_c"], params["w_v"], 1),
        "w_o": params["w_o"],
    }
    out = outputs(model, params | {"w_k": 0 * params["w_k"]})
    np.testing.assert_allclose(out, outputs(turned, shared), rtol=1e-4, atol=1e-6)


def test_a_cache_keeps_as_little_as_it_says():
    def numbers(**options):
        cache = module(**options).empty_cache(B, N, jnp.float32)
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
        cache = model.empty_cache(B, entries, jnp.float32)
        at = Decoding(jnp.int32(0), jnp.ones((B, 1, entries), bool))
        ctx = Context(decoding=at, cache=cache)
        made = jax.make_jaxpr(model.apply)(drawn(model), jnp.ones((B, 1, D)), ctx)
        return max(
            math.prod(x.aval.shape)
            for equation in made.jaxpr.eqns
            for x in equation.outvars
        )

    assert largest() == B * entries * C
    assert largest(score="bilinear") == B * entries * C
    assert largest(score=Normed) >= B * entries * H * K


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(h_kv=3), "4 heads of queries cannot share 3 of keys"),
        (dict(h_kv=-1), "h_kv=-1 must be at least 0"),
        (dict(d_c=C, positions=Rotary()), "turn keys, and those of latents"),
        (dict(d_c=C, d_r=2), "d_r=2 is the width of a key that positions turn"),
        (dict(d_r=2, positions=Rotary()), "it needs both, not d_c=0"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        config.Attention(D, H, K, V, **options).check()
