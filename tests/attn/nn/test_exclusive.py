"""Heads that leave something out: exclusive heads, blocks that a query picks, keys that an
indexer picks; and heads that mix scores of tokens nearby.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    ALiBi,
    Context,
    Mask,
    MultiHeadAttention,
    Rotary,
    ScaledDot,
    Softmax,
    Transformer,
    attention,
    config,
)
from attn.contract import check_heads
from attn.heads import (
    BlockHeads,
    Exclusive,
    IndexedHeads,
    MultiToken,
    NativeSparse,
    Separate,
    without_own,
)
from tests.attn.nn.modules import CAUSAL, apply, random_variables, steps

B, N, H, K, V = 2, 11, 2, 4, 3
D = 6
BLOCKS = BlockHeads(size=3, count=2)
MIXED = MultiToken(queries=3, keys=4)
SPARSE = NativeSparse(size=2, count=3, window=3)
INDEXED = IndexedHeads(k=3, indexers=2, width=5)
EACH = pytest.mark.parametrize("heads", [Exclusive(), BLOCKS, MIXED, INDEXED, SPARSE])


def drawn(*shape, seed=0):
    draw = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(draw, jnp.float32)


def qkv(h_kv=H):
    return drawn(B, N, H, K), drawn(B, N, h_kv, K, seed=1), drawn(B, N, h_kv, V, seed=2)


@functools.cache
def build(heads, **options):
    model = MultiHeadAttention(
        config.Attention(D, H, K, V, heads=heads, **options), causal=True
    )
    return model, random_variables(model, jnp.zeros((1, 2, D)), Context(), size=0.6)


@pytest.mark.parametrize("h_kv", [H, 1])
def test_exclusive_heads_are_orthogonal_to_their_own_values(h_kv):
    q, k, v = qkv(h_kv)
    v = v.at[0, 3].set(0.0)
    out, weights = Exclusive().attend(
        {}, q, k, v, CAUSAL, mask=Mask.causal(), return_weights=True
    )
    plain = attention(q, k, v, mask=Mask.causal())
    own = jnp.repeat(v, H // h_kv, 2)
    np.testing.assert_allclose((out * own).sum(-1), 0, atol=1e-5)
    # What is taken out is along the own value, and nothing where that is 0.
    taken = np.asarray(plain - out, np.float64)
    along = np.einsum("bnhv,bnhv->bnh", taken, own)
    norms = np.linalg.norm(taken, axis=-1) * np.linalg.norm(own, axis=-1)
    np.testing.assert_allclose(np.abs(along), norms, atol=1e-5)
    np.testing.assert_array_equal(taken[0, 3], 0)
    assert weights.shape == (B, H, N, N)
    gradient = jax.grad(lambda v: (without_own(plain, v) ** 2).sum())(v)
    assert np.isfinite(gradient).all()


def blockwise(q, k, v, places, visible):
    """The definition, of one head, query by query; the best of equal blocks is the first."""
    out = np.zeros((len(q), v.shape[-1]))
    of = places // BLOCKS.size
    for i in range(len(q)):
        s = q[i] @ k.T / np.sqrt(K)
        fits = {}
        for block in range(of.max() + 1):
            keys = visible[i] & (of == block)
            if keys.any():
                fits[block] = np.inf if block == of[i] else s[keys].mean()
        best = sorted(fits, key=lambda block: -fits[block])[: BLOCKS.count]
        keys = visible[i] & np.isin(of, best)
        weights = np.where(keys, np.exp(s - s[keys].max()), 0)
        out[i] = weights @ v / weights.sum()
    return out


@pytest.mark.parametrize("causal", [True, False])
def test_a_query_sees_the_blocks_that_fit_best(causal):
    """Two texts in a row, whose blocks begin with them."""
    q, k, v = qkv()
    segments = jnp.array([[1] * 4 + [2] * 7, [1] * N])
    places = jnp.array([[*range(4), *range(7)], [*range(N)]])
    mask = Mask.segments(segments, segments) & (Mask.causal() if causal else Mask())
    visible = np.asarray(segments)[:, :, None] == np.asarray(segments)[:, None]
    visible = visible & (np.tri(N, dtype=bool) if causal else True)
    attend = functools.partial(BLOCKS.attend, {}, score=ScaledDot(), mask=mask)
    out = attend(q, k, v, Context(places=places), normaliser=Softmax())
    for b, h in np.ndindex(B, H):
        of_head = (np.asarray(x[b, :, h], np.float64) for x in (q, k, v))
        expected = blockwise(*of_head, np.asarray(places[b]), visible[b])
        np.testing.assert_allclose(out[b, :, h], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_scores_are_mixed_with_those_of_tokens_nearby(causal):
    """Two texts in a row, which do not reach each other."""
    q, k, v = qkv(1)
    kernel = drawn(H, MIXED.queries, MIXED.keys, seed=5)
    segments = jnp.array([[1] * 4 + [2] * 7, [1] * N])
    mask = Mask.segments(segments, segments) & (Mask.causal() if causal else Mask())
    visible = np.asarray(segments)[:, :, None] == np.asarray(segments)[:, None]
    visible = visible & (np.tri(N, dtype=bool) if causal else True)
    arguments = dict(score=ScaledDot(), normaliser=Softmax(), mask=mask)
    out = MIXED.attend({"kernel": kernel}, q, k, v, Context(), **arguments)
    for b, h in np.ndindex(B, H):
        s = np.asarray(q[b, :, h], np.float64) @ np.asarray(k[b, :, 0], np.float64).T
        seen = visible[b]
        mixed = np.zeros((N, N))
        for i, j in np.ndindex(N, N):
            for back, tap in np.ndindex(MIXED.queries, MIXED.keys):
                one, other = i - back, j + tap - MIXED.keys // 2
                if one < 0 or not 0 <= other < N:
                    continue
                if seen[i, one] and seen[i, other] and seen[one, other]:
                    mixed[i, j] += kernel[h, back, tap] * s[one, other] / np.sqrt(K)
        weights = np.where(seen, np.exp(mixed), 0)
        expected = weights @ np.asarray(v[b, :, 0], np.float64)
        expected /= weights.sum(-1, keepdims=True)
        np.testing.assert_allclose(out[b, :, h], expected, rtol=2e-5, atol=2e-5)


def test_kernels_begin_as_plain_attention():
    q, k, v = qkv()
    params = MIXED.parameters(jax.random.key(0), config.Attention(D, H, K, V))
    arguments = dict(score=ScaledDot(), normaliser=Softmax(), mask=Mask.causal())
    out = MIXED.attend(params, q, k, v, CAUSAL, **arguments)
    np.testing.assert_allclose(out, attention(q, k, v, **arguments), atol=1e-5)


def test_kernels_need_what_a_cache_keeps():
    a = config.Attention(D, H, K, V, heads=MIXED, positions=ALiBi())
    with pytest.raises(ValueError, match="keeps no bias: not with positions=ALiBi"):
        a.check_alone()
    config.Attention(D, H, 4, V, heads=MIXED, positions=Rotary()).check_alone()


def test_all_blocks_are_plain_attention():
    q, k, v = qkv(1)
    arguments = dict(score=ScaledDot(), normaliser=Softmax(), mask=Mask.causal())
    all_of_them = BlockHeads(size=3, count=4)
    out = all_of_them.attend({}, q, k, v, CAUSAL, **arguments)
    np.testing.assert_allclose(out, attention(q, k, v, **arguments), atol=1e-5)


def sparse(params, q, k, v, places, visible):
    """The definition, of the heads of one example that share keys (G heads), query by query."""
    params, q, k, v = jax.tree.map(np.float64, (params, q, k, v))
    out = np.zeros((N, len(q), V))
    of = places // SPARSE.size
    for i in range(N):
        tokens = {c: np.flatnonzero(visible[i] & (of == c)) for c in set(of)}
        seen = {c: at for c, at in tokens.items() if len(at)}
        whole = [c for c, at in sorted(seen.items()) if len(at) == SPARSE.size]
        compressed = np.zeros((len(q), len(whole)))
        for h in range(len(q)):
            means = np.array([k[seen[c]].mean(0) for c in whole]).reshape(-1, K)
            e = np.exp(means @ q[h, i] / np.sqrt(K))
            compressed[h] = e / e.sum() if whole else e
        fits = dict(zip(whole, compressed.sum(0), strict=True))
        order = sorted(seen, key=lambda c: (c != of[i], c != 0, -fits.get(c, 0.0), c))
        picked = np.concatenate([seen[c] for c in order[: SPARSE.count]])
        near = [j for j in np.flatnonzero(visible[i]) if 0 <= places[i] - places[j] < 3]
        for h in range(len(q)):
            gates = 1 / (1 + np.exp(-(q[h, i] @ params["w"][h] + params["b"][h])))
            for c, weight in zip(whole, compressed[h], strict=True):
                out[i, h] += gates[0] * weight * v[seen[c]].mean(0)
            for gate, at in ((gates[1], picked), (gates[2], near)):
                e = np.exp(k[at] @ q[h, i] / np.sqrt(K))
                out[i, h] += gate * (e / e.sum()) @ v[at]
    return out


@pytest.mark.parametrize("h_kv", [H, 1])
def test_three_branches_are_gated(h_kv):
    """Two texts in a row, whose blocks begin with them."""
    # Of which heads that share keys would by themselves pick different blocks.
    q, k, v = (
        drawn(B, N, heads, width, seed=6 + i)
        for i, (heads, width) in enumerate([(H, K), (h_kv, K), (h_kv, V)])
    )
    a = config.Attention(D, H, K, V, heads=SPARSE, h_kv=h_kv)
    params = SPARSE.parameters(jax.random.key(3), a)
    params["b"] = drawn(H, 3, seed=8)
    segments = jnp.array([[1] * 4 + [2] * 7, [1] * N])
    places = jnp.array([[*range(4), *range(7)], [*range(N)]])
    mask = Mask.segments(segments, segments) & Mask.causal()
    visible = np.asarray(segments)[:, :, None] == np.asarray(segments)[:, None]
    visible = visible & np.tri(N, dtype=bool)
    arguments = dict(score=ScaledDot(), normaliser=Softmax(), mask=mask)
    ctx = Context(places=places)
    out, weights = SPARSE.attend(params, q, k, v, ctx, return_weights=True, **arguments)
    group = H // h_kv
    for b, j in np.ndindex(B, h_kv):
        heads = slice(j * group, (j + 1) * group)
        expected = sparse(
            {name: x[heads] for name, x in params.items()},
            np.moveaxis(q[b, :, heads], 1, 0),
            k[b, :, j],
            v[b, :, j],
            np.asarray(places[b]),
            visible[b],
        )
        np.testing.assert_allclose(out[b, :, heads], expected, rtol=2e-5, atol=2e-5)
    values = jnp.repeat(v, group, 2)
    by_weights = jnp.einsum("bhnm,bmhv->bnhv", weights, values)
    np.testing.assert_allclose(out, by_weights, rtol=2e-5, atol=2e-5)


def test_a_branch_of_nothing_has_a_gradient():
    q, k, v = qkv()
    params = SPARSE.parameters(jax.random.key(3), config.Attention(D, H, K, V))
    mask = Mask.causal() & Mask.dense(jnp.arange(N)[:, None] > 0)
    arguments = dict(score=ScaledDot(), normaliser=Softmax(), mask=mask)

    def total(*of):
        return (SPARSE.attend(*of, CAUSAL, **arguments) ** 2).sum()

    for x in jax.tree.leaves(jax.grad(total, (0, 1, 2, 3))(params, q, k, v)):
        assert np.isfinite(x).all() and np.abs(x).max() > 0


def indexed(params, q, k, v, visible):
    """The definition, of one example, query by query: outputs and the loss of the indexer."""
    params, q, k, v = jax.tree.map(np.float64, (params, q, k, v))
    out, loss = np.zeros((N, H, V)), np.zeros(N)
    keys = k.reshape(N, -1) @ params["w_k"]
    for i in np.flatnonzero(visible.any(-1)):
        read = q[i].reshape(-1)
        fits = np.einsum("d,dgw,mw->gm", read, params["w_q"], keys)
        index = (read @ params["w"]) @ np.maximum(fits, 0)
        seen = [j for j in np.argsort(-index, stable=True) if visible[i, j]]
        seen = seen[: INDEXED.k]
        weights = np.zeros((H, len(seen)))
        for h in range(H):
            s = k[seen, h * k.shape[1] // H] @ q[i, h] / np.sqrt(K)
            weights[h] = np.exp(s - s.max()) / np.exp(s - s.max()).sum()
            out[i, h] = weights[h] @ v[seen, h * v.shape[1] // H]
        p = weights.mean(0)
        own = np.exp(index[seen] - index[seen].max())
        loss[i] = (p * np.log(p * own.sum() / own)).sum()
    return out, loss


def of_indexer(h_kv):
    a = config.Attention(D, H, K, V, heads=INDEXED, h_kv=h_kv)
    params = INDEXED.parameters(jax.random.key(2), a)
    return jax.tree.map(lambda x: 2 * x, params)


@pytest.mark.parametrize("h_kv", [H, 1])
def test_a_query_sees_the_keys_that_an_indexer_picks(h_kv):
    """Two texts in a row and a place of none, which sees nothing."""
    q, k, v = qkv(h_kv)
    params = of_indexer(h_kv)
    segments = jnp.array([[1] * 4 + [2] * 6 + [0], [1] * N])
    real = Mask.dense(segments[:, None, :, None] > 0)
    mask = Mask.segments(segments, segments) & Mask.causal() & real
    visible = np.asarray(segments)[:, :, None] == np.asarray(segments)[:, None]
    visible = visible & np.tri(N, dtype=bool) & (np.asarray(segments)[:, None] > 0)
    arguments = dict(score=ScaledDot(), normaliser=Softmax(), mask=mask)
    out = INDEXED.attend(params, q, k, v, Context(), **arguments)
    loss = INDEXED.loss(params, q, k, v, Context(), **arguments)
    for b in range(B):
        expected = indexed(params, q[b], k[b], v[b], visible[b])
        np.testing.assert_allclose(out[b], expected[0], rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(loss[b], expected[1], rtol=2e-5, atol=2e-6)
    assert (loss > -1e-6).all() and loss[0, -1] == 0


def test_the_indexer_is_trained_by_its_loss_and_by_nothing_else():
    q, k, v = qkv()
    params = of_indexer(H)
    # A query that sees nothing has a gradient too.
    mask = Mask.causal() & Mask.dense(jnp.arange(N)[:, None] > 0)
    arguments = dict(score=ScaledDot(), normaliser=Softmax(), mask=mask)

    def total(function, params, *qkv):
        return (function(params, *qkv, Context(), **arguments) ** 2).sum()

    for function, trains in ((INDEXED.loss, True), (INDEXED.attend, False)):
        gradient = jax.grad(functools.partial(total, function), (0, 1, 2, 3))
        of_params, *of_others = gradient(params, q, k, v)
        for x in jax.tree.leaves(of_params):
            assert np.isfinite(x).all() and (np.abs(x).max() > 0) == trains
        for x in of_others:
            assert np.isfinite(x).all() and (np.abs(x).max() > 0) != trains


def test_an_indexer_of_all_keys_is_plain_attention():
    q, k, v = qkv(1)
    arguments = dict(score=ScaledDot(), normaliser=Softmax(), mask=Mask.causal())
    all_of_them = IndexedHeads(k=N, indexers=2, width=5)
    out = all_of_them.attend(of_indexer(1), q, k, v, CAUSAL, **arguments)
    np.testing.assert_allclose(out, attention(q, k, v, **arguments), atol=1e-5)


def test_an_index_is_summed_in_float32():
    """Of bfloat16 vectors too: 256 + 1 is more than 256, which bfloat16 does not tell."""
    one = IndexedHeads(k=1, indexers=2, width=2)
    eye = jnp.eye(2, dtype=jnp.bfloat16)
    params = dict(w_q=eye[:, None] * eye[..., None], w_k=eye, w=eye)
    q = jnp.ones((1, 1, 1, 2), jnp.bfloat16)
    k = jnp.asarray([[256, 0], [256, 1]], jnp.bfloat16).reshape(1, 2, 1, 2)
    v = jnp.asarray([1, 2], jnp.bfloat16).reshape(1, 2, 1, 1)
    arguments = dict(score=ScaledDot(), normaliser=Softmax(), mask=Mask())
    assert one.attend(params, q, k, v, Context(), **arguments).item() == 2


@EACH
@pytest.mark.parametrize("h_kv", [0, 1])
def test_one_after_the_other_is_all_at_once(heads, h_kv):
    model, variables = build(heads, h_kv=h_kv)
    x = drawn(3, 2, N, D, seed=4)
    whole = [apply(model, variables, x[:, i], CAUSAL)[0] for i in range(2)]
    cache = model.empty_cache(3, 2 * N, jnp.float32)
    actual = steps(model, variables, x, cache)
    np.testing.assert_allclose(actual, np.stack(whole, 1), rtol=2e-5, atol=2e-5)


@pytest.mark.ci
@EACH
def test_they_meet_the_contract(heads):
    assert not [row for row in check_heads(heads) if not row.ok]


@EACH
def test_attention_to_another_text_is_plain(heads):
    sizes = dict(N=1, d_model=D, d_ff=D, h=H, d_k=K, d_v=V)
    of = config.Transformer(**sizes, heads=heads)
    model = Transformer(of, 7, 10)
    (layer,) = model.config.stack("decoder")
    assert (layer.heads, model.config.of_memory().heads) == (heads, Separate())


@EACH
def test_what_they_cannot_do_is_refused(heads):
    with pytest.raises(ValueError, match="d_c=2 must be 0"):
        config.Attention(D, H, K, V, heads=heads, d_c=2).check_alone()
    with pytest.raises(ValueError, match="selection=argmax"):
        heads.check_selection("argmax")


@pytest.mark.parametrize("name", ["k", "indexers", "width"])
def test_an_indexer_has_something_to_pick_by(name):
    heads = IndexedHeads(**{name: 0})
    with pytest.raises(ValueError, match=f"{name}=0 must be at least 1"):
        config.Attention(D, H, K, V, heads=heads).check_alone()


def test_a_block_is_not_empty():
    with pytest.raises(ValueError, match="size=0 must be at least 1"):
        config.Attention(D, H, K, V, heads=BlockHeads(size=0)).check_alone()


def test_branches_drop_weights_of_their_own():
    """Two branches that see all, each by itself: alike without dropout, and not with it."""
    heads = NativeSparse(size=2, count=9, window=9)
    draw = np.random.default_rng(0).normal
    q, k, v = (jnp.asarray(draw(size=(1, 8, 2, 4)), jnp.float32) for _ in range(3))
    arguments = dict(score=ScaledDot(), normaliser=Softmax(), mask=Mask.causal())

    def of_branch(branch, **dropout):
        c = jnp.full((2, 3), -1e9).at[:, branch].set(1e9)
        params = dict(w=jnp.zeros((2, 4, 3)), b=c)
        return heads.attend(params, q, k, v, Context(), **arguments, **dropout)

    np.testing.assert_allclose(of_branch(1), of_branch(2), atol=1e-6)
    dropout = dict(dropout_rate=0.5, dropout_key=jax.random.key(0))
    one, other = of_branch(1, **dropout), of_branch(2, **dropout)
    assert jnp.abs(one - other).max() > 0.1


@pytest.mark.parametrize("normaliser", ["sigmoid", "top_k"])
def test_blocks_as_a_whole_take_softmax(normaliser):
    own = config.Attention(8, 2, 4, 4, heads=SPARSE, normaliser=normaliser)
    with pytest.raises(ValueError, match=f"take softmax, not {normaliser}"):
        own.check_alone()
