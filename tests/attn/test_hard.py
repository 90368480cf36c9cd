"""Hard attention: its choices against numpy and enumeration, its gradients against the
textbook's.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from attn import Dot, Mask, attention
from attn.hard import _exponential, argmax_attention, sampled_attention
from tests.attn import oracle
from tests.attn.blocks import blocks_of
from tests.attn.cases import LENGTHS, MASKS, SCORES, SCORES_FIRST, B, H, K, M, N, V
from tests.attn.test_inspect import textbook
from tests.cases import the_rest_in_ci

KEY = jax.random.key(0)


def log_weights(q, k, visible, score):
    """log softmax (B, H, N, M) in float64, −inf for a key that is not seen."""
    with np.errstate(divide="ignore"):
        return np.log(oracle.weights(q, k, visible, score))


def of_key(x, index):
    """x (B, M, H, V) at the keys `index` (B, N, H), 0 for −1."""
    return np.where(
        index[..., None] < 0,
        0,
        np.take_along_axis(np.asarray(x), np.maximum(index, 0)[..., None], 1),
    )


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("mask", "score"), SCORES_FIRST)
def test_the_best_key_and_the_log_probability_equal_the_oracle(qkv, mask, score):
    (mask, visible) = MASKS[mask]
    (score, formula) = SCORES[score]
    best, sampled = jax.jit(
        lambda *qkv: (
            argmax_attention(*qkv, score=score, mask=mask),
            sampled_attention(*qkv, key=KEY, score=score, mask=mask),
        )
    )(*qkv)
    log_w = log_weights(*qkv[:2], visible, formula).swapaxes(1, 2)
    expected = np.where(visible.any(-1).swapaxes(1, 2), log_w.argmax(-1), -1)
    np.testing.assert_array_equal(best[1], expected)
    np.testing.assert_array_equal(best[0], of_key(qkv[2], expected))
    out, index, log_prob = map(np.asarray, sampled)
    np.testing.assert_array_equal(index < 0, expected < 0)
    np.testing.assert_array_equal(out, of_key(qkv[2], index))
    chosen = np.take_along_axis(log_w, np.maximum(index, 0)[..., None], -1)[..., 0]
    np.testing.assert_allclose(
        log_prob, np.where(index < 0, 0, chosen), rtol=3e-5, atol=3e-6
    )
    assert best[1].dtype == index.dtype == np.int32


def test_of_equal_scores_the_first_key_is_best():
    k = jnp.array([1.0, 3.0, 2.0, 3.0, 3.0]).reshape(5, 1, 1)
    out, index = argmax_attention(
        jnp.ones((2, 1, 1)), k, jnp.arange(5.0).reshape(5, 1, 1), score=Dot()
    )
    np.testing.assert_array_equal(index, [[1], [1]])
    np.testing.assert_array_equal(out, [[[1]], [[1]]])


@pytest.mark.parametrize("bias", [None, jnp.arange(M) / M], ids=["no bias", "bias"])
def test_samples_have_the_probabilities_of_the_softmax(bias):
    """20,000 alike queries for each head and example, at 4 and 7 of 7 keys."""
    draw = np.random.default_rng(1).normal
    one = jnp.asarray(draw(size=(B, 1, H, K)), jnp.float32)
    q = jnp.broadcast_to(one, (B, 20_000, H, K))
    k = jnp.asarray(draw(size=(B, M, H, K)), jnp.float32)
    options = dict(key=KEY, mask=Mask.padding(LENGTHS), bias=bias)
    _, index, _ = sampled_attention(q, k, k, **options)
    for b, h in np.ndindex(B, H):
        length = LENGTHS[b]
        s = np.asarray(k[b, :, h] @ q[b, 0, h], np.float64) / np.sqrt(K)
        s += 0 if bias is None else np.asarray(bias)
        counts = np.bincount(index[b, :, h], minlength=M)
        assert (counts[length:] == 0).all()
        expected = 20_000 * oracle.softmax(s[:length])
        assert scipy.stats.chisquare(counts[:length], expected).pvalue > 1e-3


def test_small_probabilities_are_met_too():
    """2⁻¹, 2⁻², … 2⁻¹⁶ (twice), each with its share of a million draws."""
    p = 2.0 ** -np.append(np.arange(1, 17), 16)
    k = jnp.asarray(np.log(p), jnp.float32).reshape(-1, 1, 1)
    _, index, _ = sampled_attention(jnp.ones((2**20, 1, 1)), k, k, key=KEY, score=Dot())
    counts = np.bincount(index[:, 0], minlength=17)
    assert scipy.stats.chisquare(counts, 2**20 * p).pvalue > 1e-3


def test_the_noise_is_exponential_to_its_ends():
    """The winners are the smallest draws: they keep all 32 bits. The largest is not Inf."""
    bits = np.array([0, 1, 2, 1000, 2**24, 2**31, 2**32 - 2**16, 2**32 - 1], np.uint32)
    noise = np.asarray(_exponential(jnp.asarray(bits)[None]), np.float64)[0]
    np.testing.assert_allclose(
        noise[:-1], -np.log1p(-(bits[:-1] + 0.5) / 2**32), rtol=1e-5
    )
    assert 16 < noise[-1] < np.inf and (np.diff(noise) > 0).all()


def test_queries_heads_and_examples_are_independent():
    n = 4096
    q = jnp.ones((2, n, 2, 1))
    k = jnp.zeros((2, 5, 2, 1))
    index = np.asarray(sampled_attention(q, k, k, key=KEY)[1])
    other = np.asarray(sampled_attention(q, k, k, key=jax.random.key(1))[1])
    pairs = {
        "heads": (index[0, :, 0], index[0, :, 1]),
        "examples": (index[0, :, 0], index[1, :, 0]),
        "keys": (index, other),
        **{
            f"queries {lag} apart": (index[:, lag:], index[:, :-lag])
            for lag in (1, 2, 5, 64, 256, 512)
        },
    }
    for name, (a, b) in pairs.items():
        together = np.histogram2d(a.ravel(), b.ravel(), bins=5)[0]
        assert scipy.stats.chi2_contingency(together).pvalue > 1e-3, name


def test_a_key_gives_one_sample(qkv):
    """Whatever the blocks of queries, of heads and of keys (a window's begin where it
    does), and the keys behind.
    """
    q, k, v = (
        jnp.asarray(np.random.default_rng(2).normal(size=(1, 41, 2, 3)), jnp.float32)
        for _ in range(3)
    )
    i = np.arange(41)[:, None]
    j = np.arange(41)[None]
    window = Mask.window(3, 2)
    seen = (i - 3 <= j) & (j <= i + 2)
    _, expected_index, log_prob = sampled_attention(
        q, k, v, key=KEY, mask=Mask.dense(seen)
    )
    assert len(np.unique(expected_index)) > 20
    more = [jnp.pad(x, ((0, 0), (0, 6), (0, 0), (0, 0))) for x in (k, v)]
    real = Mask.padding(jnp.array([41]))
    for n in (3, 7, 256):
        with blocks_of(n, at_once=n % 2 + 1):
            for keys in ((k, v), more):
                _, index, actual_log_prob = sampled_attention(
                    q, *keys, key=KEY, mask=window & real
                )
                np.testing.assert_array_equal(index, expected_index)
                np.testing.assert_allclose(
                    actual_log_prob, log_prob, rtol=1e-5, atol=1e-6
                )


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", the_rest_in_ci(["additive", "scaled dot"], first=1))
def test_the_gradient_of_the_log_probability_is_the_textbooks(qkv, name):
    """To queries, keys, the score's parameters and a bias; the sample itself has none."""
    mask = Mask.causal(1)
    visible = np.broadcast_to(np.tri(N, M, 1), (B, H, N, M))
    pull = jnp.asarray(np.random.default_rng(3).normal(size=(B, N, H)), jnp.float32)
    bias = jnp.asarray(np.random.default_rng(4).normal(size=(H, N, M)), jnp.float32)
    score = jax.tree.map(jnp.asarray, SCORES[name][0])

    def loss(q, k, score, bias):
        out, index, log_prob = sampled_attention(
            q, k, qkv[2], key=KEY, score=score, mask=mask, bias=bias
        )
        return (log_prob * pull).sum() + out.sum(), index

    arguments = *qkv[:2], score, bias
    places = (0, 1, 2, 3)
    gradient, index = jax.jit(jax.grad(loss, places, has_aux=True))(*arguments)

    def textbook_loss(q, k, score, bias):
        weights = textbook(q, k, visible > 0, score, bias)
        log_w = jnp.log(jnp.where(visible > 0, weights, 1)).swapaxes(1, 2)
        chosen = jnp.take_along_axis(log_w, index[..., None], -1)[..., 0]
        return (chosen * pull).sum()

    exact = jax.jit(jax.grad(textbook_loss, places))(*arguments)
    for a, e in zip(*map(jax.tree.leaves, (gradient, exact)), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)
        assert np.abs(e).max() > 0.01


def test_the_gradient_of_the_output_is_that_of_a_choice(qkv):
    pull = jnp.asarray(np.random.default_rng(3).normal(size=(B, N, H, V)), jnp.float32)
    for attend in (argmax_attention, lambda *qkv: sampled_attention(*qkv, key=KEY)):
        _, index, *_ = attend(*qkv)
        expected = np.zeros((B, M, H, V))
        for b, i, h in np.ndindex(B, N, H):
            expected[b, index[b, i, h], h] += pull[b, i, h]
        loss = lambda *qkv, attend=attend: (attend(*qkv)[0] * pull).sum()
        q, k, v = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*qkv)
        np.testing.assert_allclose(v, expected, rtol=1e-5, atol=1e-6)
        assert (q == 0).all() and (k == 0).all()


def test_straight_through_is_hard_forward_and_soft_backward(qkv):
    options = dict(mask=Mask.causal())
    pull = jnp.asarray(np.random.default_rng(3).normal(size=(B, N, H, V)), jnp.float32)
    soft = jax.jit(
        jax.grad(
            lambda *qkv: (attention(*qkv, **options) * pull).sum(), argnums=(0, 1, 2)
        )
    )(*qkv)
    for attend in (
        argmax_attention,
        lambda *qkv, **options: sampled_attention(*qkv, key=KEY, **options),
    ):

        def loss(*qkv, attend=attend):
            out, *rest = attend(*qkv, **options, straight_through=True)
            return (out * pull).sum(), (out, *rest)

        gradient, outputs = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(
            *qkv
        )
        for a, e in zip(outputs, attend(*qkv, **options), strict=True):
            np.testing.assert_array_equal(a, e)
        for a, e in zip(gradient, soft, strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)


REWARD = np.array([10.0, 12.0, 9.0, 11.0, 14.0])


@pytest.fixture(scope="module")
def reinforced():
    """Samples one query at 5 keys 4,096 times.

    Returns the probabilities, the indices, the gradients of the log-probabilities to q,
    and the gradient of the expected reward.
    """
    draw = np.random.default_rng(5).normal
    q, k = (jnp.asarray(draw(size=(n, 1, K)), jnp.float32) for n in (1, 5))

    def log_prob(q, key):
        _, index, log_prob = sampled_attention(q, k, k, key=key)
        return log_prob.sum(), index[0, 0]

    sample = jax.vmap(jax.grad(log_prob, has_aux=True), (None, 0))
    gradients, index = jax.jit(sample)(q, jax.random.split(KEY, 4096))

    def expected_reward(q):
        return (jax.nn.softmax(q[0, 0] @ k[:, 0].T / np.sqrt(K)) * REWARD).sum()

    p = oracle.softmax(np.asarray(k[:, 0] @ q[0, 0], np.float64) / np.sqrt(K))
    return (
        p,
        np.asarray(index),
        np.asarray(gradients)[:, 0, 0],
        np.asarray(jax.grad(expected_reward)(q))[0, 0],
    )


def test_reinforce_is_exact_when_all_outcomes_are_weighed(reinforced):
    p, index, gradients, expected = reinforced
    first = [np.flatnonzero(index == j)[0] for j in range(5)]
    np.testing.assert_allclose(
        (p * REWARD) @ gradients[first], expected, rtol=1e-4, atol=1e-5
    )


def test_reinforce_is_right_on_average_and_a_baseline_makes_it_surer(reinforced):
    p, index, gradients, expected = reinforced
    spread = []
    for baseline in (0, p @ REWARD):
        estimates = (REWARD[index] - baseline)[:, None] * gradients
        error = estimates.std(0) / np.sqrt(len(index))
        assert (np.abs(estimates.mean(0) - expected) < 4 * error).all()
        spread.append(error)
    assert (spread[1] < 0.5 * spread[0]).all()


def looks(q, k, v, straight_through=True, **options):
    """Returns what is sampled and what is best: outputs, indices, the log-probability."""
    options |= dict(straight_through=straight_through)
    best, at = argmax_attention(q, k, v, **options)
    out, index, log_prob = sampled_attention(q, k, v, key=KEY, **options)
    return best, at, out, index, log_prob


@functools.partial(jax.jit, static_argnames="straight_through")
def looks_and_gradients(qkv, mask, straight_through=True):
    def loss(*qkv):
        results = looks(*qkv, straight_through, mask=mask)
        best, _, out, _, log_prob = results
        return (best**2).sum() + (out**2).sum() + log_prob.sum(), results

    return jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(*qkv)


@pytest.mark.usefixtures("small_blocks")
def test_a_query_that_sees_nothing_has_no_choice_and_gives_no_gradient(qkv):
    mask = Mask.causal(offset=-2)  # queries 0 and 1 see no key
    gradients, (best, at, out, index, log_prob) = looks_and_gradients(qkv, mask)
    for values, places in ((best, at), (out, index)):
        assert not values[:, :2].any()
        assert (places[:, :2] == -1).all() and (places[:, 2:] >= 0).all()
    assert not log_prob[:, :2].any()
    assert all(jnp.isfinite(g).all() for g in gradients)
    assert not gradients[0][:, :2].any()


@pytest.mark.parametrize(
    "mask", [Mask(), Mask.padding(LENGTHS)], ids=["none", "padding"]
)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_in_a_key_that_is_seen_is_not_hidden(qkv, mask, poison):
    """Example 0, head 1. A NaN in a value is met by whom takes it."""
    q, k, v = qkv
    q = jnp.abs(q)  # so that Inf in a key gives a score of Inf
    bad = q, k.at[0, 2, 1].set(poison), v
    for out, _ in (
        argmax_attention(*bad, mask=mask),
        sampled_attention(*bad, key=KEY, mask=mask)[::2],
    ):
        tainted = np.isnan(out).all(-1)
        assert tainted[0, :, 1].all() and tainted.sum() == N
    assert np.isnan(sampled_attention(*bad, key=KEY, mask=mask)[2][0, :, 1]).all()
    out, index = argmax_attention(q, k, v.at[0, 2, 1].set(poison), mask=mask)
    taken = np.zeros((B, N, H), bool)
    taken[0, :, 1] = index[0, :, 1] == 2
    np.testing.assert_array_equal(~np.isfinite(out).any(-1), taken)


def test_bfloat16_has_a_float32_log_probability(qkv):
    low = [x.astype(jnp.bfloat16) for x in qkv]
    out, index, log_prob = sampled_attention(*low, key=KEY)
    assert out.dtype == jnp.bfloat16 and log_prob.dtype == jnp.float32
    _, same, exact = sampled_attention(*(x.astype(jnp.float32) for x in low), key=KEY)
    off = np.where(index == same, log_prob - exact, 0)
    np.testing.assert_allclose(off, 0, atol=0.02)
    assert (index == same).mean() > 0.9


def test_lanes_with_their_own_keys_are_as_one_by_one(qkv):
    keys = jax.random.split(KEY, 3)
    f = jax.value_and_grad(
        lambda q, key: sampled_attention(q, *qkv[1:], key=key)[2].sum()
    )
    one = jax.jit(f)
    for lane, key in zip(
        zip(*jax.jit(jax.vmap(f, (None, 0)))(qkv[0], keys), strict=True),
        keys,
        strict=True,
    ):
        for a, e in zip(lane, one(qkv[0], key), strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)


def test_the_gradient_does_not_make_the_noise_again(qkv):
    shape = jax.ShapeDtypeStruct((600, 1, 16), jnp.float32)
    loss = lambda q, k: sampled_attention(q, k, k, key=KEY)[2].sum()
    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    lowered = gradient.lower(shape, shape).as_text()
    assert lowered.count("log_plus_one") == 1
