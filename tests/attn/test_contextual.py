"""Positions counted by gates (CoPE): against numpy in float64, and what they become."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import attn
from attn import (
    Context,
    CoPE,
    Decoding,
    Differential,
    Mask,
    MultiHeadAttention,
    config,
    contextual_attention,
    keys_of_rows,
)
from attn.heads import Exclusive

in_float64 = pytest.mark.usefixtures("float64")

B, N, H, K, V, P = 2, 7, 3, 4, 5, 4
D = 6
DRAW = np.random.default_rng(11).normal
CAUSAL = Mask.causal()
SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 2, 2], [1] * N])
MASKS = {
    "causal": (CAUSAL, np.tri(N, dtype=bool)[None].repeat(B, 0)),
    "none": (Mask(), np.ones((B, N, N), bool)),
    "causal & padding": (
        CAUSAL & Mask.padding(jnp.array([4, N])),
        np.tri(N, dtype=bool) & (np.arange(N) < np.array([[4], [N]]))[:, None],
    ),
    "segments": (
        Mask.segments(SEGMENTS, SEGMENTS),
        np.array([[[(i < 3) == (j < 3) for j in range(N)] for i in range(N)]])
        | np.array([False, True])[:, None, None],
    ),
}


def qkv(dtype=float):
    shapes = ((B, N, H, K), (B, N, H, K), (B, N, H, V), (P, K))
    return [jnp.asarray(DRAW(size=shape), dtype) for shape in shapes]


def oracle(q, k, v, table, visible):
    """The definition, one number after the other."""
    q, k, v, table = (np.asarray(x, np.float64) for x in (q, k, v, table))
    out = np.zeros((B, N, H, V))
    for b, h, i in np.ndindex(B, H, N):
        s = np.array([q[b, i, h] @ k[b, j, h] / np.sqrt(K) for j in range(N)])
        gates = np.where(visible[b, i], 1 / (1 + np.exp(-s)), 0)
        for j in range(N):
            between = gates[min(i, j) : max(i, j) + 1].sum()
            p = min(P - 1, between)
            low = int(p)
            high = min(low + 1, P - 1)
            e = (1 - (p - low)) * table[low] + (p - low) * table[high]
            s[j] += q[b, i, h] @ e
        if visible[b, i].any():
            weights = np.where(visible[b, i], np.exp(s - s[visible[b, i]].max()), 0)
            out[b, i, h] = weights @ v[b, :, h] / weights.sum()
    return out


@in_float64
@pytest.mark.parametrize("mask", MASKS)
def test_equals_the_definition(mask):
    value, visible = MASKS[mask]
    arguments = qkv()
    out = contextual_attention(*arguments, mask=value)
    np.testing.assert_allclose(out, oracle(*arguments, visible), rtol=1e-9, atol=1e-11)


@in_float64
def test_a_table_of_zeros_makes_it_attention():
    q, k, v, table = qkv()
    arguments = dict(mask=CAUSAL, normaliser=attn.OffByOne(), return_weights=True)
    actual = contextual_attention(q, k, v, 0 * table, **arguments)
    expected = attn.attention(q, k, v, **arguments)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@in_float64
def test_open_gates_count_every_key():
    """Where all gates are open, positions are distances, as `Relative` has them."""
    q, k, v, table = qkv()
    # One number of 1 in q meets one of 100 in k, which softmax does not see.
    q = q.at[..., 0].set(1.0)
    k = k.at[..., 0].set(100.0)
    out = contextual_attention(q, k, v, table, mask=CAUSAL)
    distance = np.arange(N)[:, None] - np.arange(N)
    places = np.clip(distance + 1, 0, P - 1)
    bias = jnp.einsum("bnhk,nmk->bhnm", q, table[places])
    expected = attn.attention(q, k, v, mask=CAUSAL, bias=bias)
    np.testing.assert_allclose(out, expected, rtol=1e-8, atol=1e-9)


@in_float64
def test_gradients_are_those_of_differences():
    def function(*arguments):
        return contextual_attention(*map(jnp.asarray, arguments), mask=CAUSAL)

    check_grads(function, qkv(), order=1, modes=["fwd", "rev"], eps=1e-6)


def test_low_precision_is_near():
    arguments = qkv(jnp.bfloat16)
    out = contextual_attention(*arguments, mask=CAUSAL)
    assert out.dtype == jnp.bfloat16
    visible = MASKS["causal"][1]
    np.testing.assert_allclose(
        np.asarray(out, float), oracle(*arguments, visible), atol=0.05
    )


def test_what_a_query_does_not_see_reaches_it_neither_forward_nor_backward():
    q, k, v, table = qkv(jnp.float32)
    mask = Mask.causal() & Mask.padding(jnp.array([4, N]))

    def loss(q, k, v, table):
        return (contextual_attention(q, k, v, table, mask=mask)[0] ** 2).sum()

    before = loss(q, k, v, table)
    assert loss(q, k.at[0, 4:].set(1e9), v.at[0, 4:].add(1.0), table) == before
    grads = jax.grad(loss, argnums=(0, 1, 2, 3))(q, k, v, table)
    assert all(jnp.isfinite(grad).all() for grad in grads)
    assert not grads[1][0, 4:].any() and not grads[2][0, 4:].any()
    seen = contextual_attention(q, k.at[0, 5].set(np.nan), v, table, mask=CAUSAL)
    assert jnp.isnan(seen[0, 5:]).all()
    assert jnp.isfinite(seen[0, :5]).all() and jnp.isfinite(seen[1]).all()


def build(**options):
    """Returns a module, inputs, and variables with a table that matters."""
    of = config.Attention(D, H, K, V, **{"positions": CoPE(p_max=3), **options})
    module = MultiHeadAttention(of)
    x = jnp.asarray(DRAW(size=(B, N, D)), jnp.float32)
    variables = module.init(jax.random.key(0), x, Context(CAUSAL))
    # Plain attention at first.
    assert not variables["params"]["contextual"]["table"].any()
    table = {"table": jnp.asarray(DRAW(size=(4, K)), jnp.float32)}
    return module, x, {"params": variables["params"] | {"contextual": table}}


def test_a_module_has_a_table_a_layer():
    module, x, variables = build()
    p = variables["params"]
    q, k, v = (jnp.einsum("bnd,dhk->bnhk", x, p[f"w_{y}"]) for y in "qkv")
    heads = contextual_attention(q, k, v, p["contextual"]["table"], mask=CAUSAL)
    expected = jnp.einsum("bnhv,hvd->bnd", heads, p["w_o"])
    actual, _ = module.apply(variables, x, Context(CAUSAL))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_weights_can_be_watched_and_dropped():
    module, x, variables = build()
    ctx = Context(CAUSAL)
    (out, _), kept = module.apply(variables, x, ctx, mutable=["weights"])
    weights = kept["weights"]["weights"]
    assert weights.shape == (B, H, N, N)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    keys = keys_of_rows(jax.random.key(3), jnp.arange(B))
    dropping = ctx.replace(keys=keys, numbers={"P_attention": 0.5})
    assert not jnp.allclose(out, module.apply(variables, x, dropping)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(heads=Exclusive()), "need separate heads.*heads=Exclusive"),
        (dict(h_kv=1), "need separate heads, each with its keys: not with .*h_kv=1"),
        (dict(d_c=2), "d_c=2"),
        (dict(heads=Differential()), r"not with heads=Differential"),
        (dict(positions=CoPE(p_max=0)), "p_max=0 must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    of = config.Attention(D, H, K, V, **{"positions": CoPE(), **options})
    with pytest.raises(ValueError, match=message):
        of.check()


def test_a_ring_is_refused():
    module, x, variables = build()
    at = Decoding(jnp.int32(0), jnp.ones((B, 1, N), bool))
    ctx = Context(decoding=at, cache=module.empty_cache(B, 4, x.dtype))
    with pytest.raises(ValueError, match="a ring of 4 of 7 entries does not keep"):
        module.apply(variables, x[:, :1], ctx)


def test_tables_that_do_not_fit_are_refused():
    q, k, v, table = qkv(jnp.float32)
    for wrong in (table[:, 1:], table[:0], table[0]):
        with pytest.raises((ValueError, TypeError), match=r"must be \(P, d_k\)|table"):
            contextual_attention(q, k, v, wrong)
    with pytest.raises(ValueError, match="7 queries stand at the places"):
        contextual_attention(q, k[:, 1:], v[:, 1:], table)
    with pytest.raises(ValueError, match="3 heads of queries, 1 of keys"):
        contextual_attention(q, k[:, :, :1], v[:, :, :1], table)
