"""Statistics of attention's weights, against the float64 oracle's weights. Sizes are
different primes.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attn import Dot, Mask, attention
from attn.inspect import entropy, max_score, received, top_weights, weight_rows
from attn.jax_versions import enable_x64
from attn.positions import ALiBiBias, RelativeBias, alibi_slopes
from tests.attn import oracle
from tests.attn.cases import ALL, MASKS, SCORES, SCORES_FIRST, B, H, M, N
from tests.cases import the_rest_in_ci

QUERIES = [3, 0, 3]


def exact(q, k, visible, score=lambda h: oracle.scaled_dot):
    """The weights (B, H, N, M) in float64."""
    return oracle.weights(q, k, visible, score)


def textbook(q, k, visible, score, bias=None):
    """The weights (B, H, N, M) in a form that JAX differentiates; each query must see a key."""
    s = jax.vmap(jax.vmap(lambda score, q, k: score(q, k), (0, 1, 1)), (None, 0, 0))(
        score, q, k
    )
    return jax.nn.softmax(
        jnp.where(visible, s if bias is None else s + bias[None], -jnp.inf)
    )


def check(q, k, mask, score):
    """Entropy, largest weights, received attention and some rows against the exact weights."""
    (mask, visible) = MASKS[mask]
    (score, formula) = SCORES[score]
    look = jax.jit(
        lambda q, k: (
            [f(q, k, score=score, mask=mask) for f in (entropy, top_weights, received)]
            + [weight_rows(q, k, QUERIES, score=score, mask=mask)]
        )
    )
    e, (largest, index), sums, rows = look(q, k)
    w = exact(q, k, visible, formula)
    close = dict(rtol=3e-5, atol=3e-6)
    np.testing.assert_allclose(rows, w[:, :, QUERIES], **close)
    np.testing.assert_allclose(sums, w.sum(2).swapaxes(1, 2), **close)
    np.testing.assert_allclose(
        e, -(w * np.log(np.where(w > 0, w, 1))).sum(-1).swapaxes(1, 2), **close
    )
    w = w.swapaxes(1, 2)
    expected = np.argsort(-w, stable=True)[..., :5]
    np.testing.assert_array_equal(
        index, np.where(np.take_along_axis(w, expected, -1) > 0, expected, -1)
    )
    np.testing.assert_allclose(largest, np.take_along_axis(w, expected, -1), **close)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("mask", "score"), SCORES_FIRST)
def test_equals_the_oracle(qk, mask, score):
    check(*qk, mask, score)


def test_equals_the_oracle_in_one_block(qk):
    check(*qk, ALL, "additive")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("mask", "score"), SCORES_FIRST)
def test_the_highest_score_is_of_the_keys_that_are_seen(qk, mask, score):
    (mask, visible) = MASKS[mask]
    (score, formula) = SCORES[score]
    bias = ALiBiBias(jnp.asarray(alibi_slopes(H)))
    highest = jax.jit(max_score)(*qk, score=score, mask=mask, bias=bias)
    q, k = (np.asarray(x, np.float64) for x in qk)
    expected = np.full((B, N, H), -np.inf)
    for b, h, i, j in np.argwhere(np.broadcast_to(visible, (B, H, N, M))):
        s = formula(h)(q[b, i, h], k[b, j, h]) - alibi_slopes(H)[h] * abs(i - j)
        expected[b, i, h] = max(expected[b, i, h], s)
    np.testing.assert_allclose(highest, expected, rtol=3e-5, atol=3e-6)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", the_rest_in_ci(["additive", "scaled dot"], first=1))
def test_gradients_equal_those_of_the_textbook(qk, name):
    """The gradients of the inputs and the score's parameters; each query sees a key, some keys are
    seen by none.
    """
    mask = Mask.causal() & Mask.window(1, 2)
    visible = np.tri(N, M) * np.tri(M, M, 1).T[:N]
    draw = np.random.default_rng(1).normal
    pulls = [
        jnp.asarray(draw(size=shape), jnp.float32)
        for shape in ((B, N, H), (B, N, H, 2), (B, M, H))
    ]
    score = jax.tree.map(jnp.asarray, SCORES[name][0])

    def loss(q, k, score):
        e = entropy(q, k, score=score, mask=mask)
        (top, _) = top_weights(q, k, score=score, mask=mask, top=2)
        return [e, top, received(q, k, score=score, mask=mask) ** 2]

    def textbook_loss(q, k, score):
        w = textbook(q, k, visible[None, None] > 0, score)
        rows = w.swapaxes(1, 2)
        return [
            -(rows * jnp.log(jnp.where(rows > 0, rows, 1))).sum(-1),
            jnp.sort(rows)[..., :-3:-1],
            w.sum(2).swapaxes(1, 2) ** 2,
        ]

    def gradient(f):
        return jax.jit(
            jax.grad(
                lambda *args: sum(
                    (x * pull).sum() for x, pull in zip(f(*args), pulls, strict=True)
                ),
                argnums=(0, 1, 2),
            )
        )(*qk, score)

    for a, e in zip(
        *map(jax.tree.leaves, (gradient(loss), gradient(textbook_loss))), strict=True
    ):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)
        assert np.abs(e).max() > 0.01


@pytest.mark.usefixtures("small_blocks")
def test_entropy_has_derivatives_of_both_modes(qk):
    with enable_x64(True):
        q, k = (jnp.asarray(np.asarray(x[0, :, :1]), jnp.float64) for x in qk)
        bias = jnp.asarray(np.random.default_rng(3).normal(size=(N, M)))
        check_grads(
            lambda q, k, bias: entropy(q, k, bias=bias, mask=Mask.causal(1)),
            (q, k, bias),
            order=1,
            modes=("fwd", "rev"),
        )


def test_a_small_entropy_of_large_scores_is_not_lost():
    """Two keys, 20 nats apart, at scores of 10,000: with w = e⁻²⁰ the entropy is 20 w +
    w; 1 + w is 1 in float32.
    """
    q = jnp.ones((1, 1, 1))
    k = jnp.array([10_000.0, 9_980.0]).reshape(2, 1, 1)
    np.testing.assert_allclose(
        entropy(q, k, score=Dot())[0, 0], 21 * np.exp(-20), rtol=0.05
    )


def test_even_weights_have_the_entropy_of_their_number():
    q = jnp.zeros((N, 1, 1))
    seen = np.minimum(np.arange(N) + 1, M)
    np.testing.assert_allclose(
        entropy(q, jnp.ones((M, 1, 1)), mask=Mask.causal())[:, 0],
        np.log(seen),
        atol=1e-6,
    )


def test_of_equal_weights_the_first_keys_are_on_top():
    weights, index = top_weights(jnp.zeros((1, 1, 1)), jnp.ones((M, 1, 1)), top=3)
    np.testing.assert_array_equal(index, [[[0, 1, 2]]])
    np.testing.assert_allclose(weights, np.full((1, 1, 3), 1 / M), rtol=1e-6)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("mask", [Mask(), Mask.window(1, 0)], ids=["all", "two keys"])
def test_on_top_may_be_more_than_there_are(qk, mask):
    weights, index = top_weights(*qk, mask=mask, top=M + 2)
    seen = np.array([M] * N if mask == Mask() else [1, 2, 2, 2, 2])[None, :, None]
    np.testing.assert_array_equal(
        (index >= 0).sum(-1), np.broadcast_to(seen, (B, N, H))
    )
    assert (np.asarray(weights)[np.asarray(index) < 0] == 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)


def looks(q, k, mask, queries=QUERIES):
    """Returns every statistic, those of queries with them as the second axis."""
    rows = weight_rows(q, k, queries, mask=mask).swapaxes(1, 2)
    weights, index = top_weights(q, k, mask=mask)
    return entropy(q, k, mask=mask), weights, rows, received(q, k, mask=mask), index


@pytest.mark.usefixtures("small_blocks")
def test_a_query_that_sees_nothing_has_no_weights_and_gives_no_gradient(qk):
    mask = Mask.causal(offset=-2)  # queries 0 and 1 see no key
    look = jax.jit(lambda q, k: looks(q, k, mask, range(N)))
    e, weights, rows, sums, index = look(*qk)
    assert not e[:, :2].any() and not weights[:, :2].any()
    assert (index[:, :2] == -1).all()
    assert not rows[:, :2].any() and (rows[:, 2:].sum(-1) > 0.99).all()
    assert not sums[:, 3:].any() and (sums[:, :3] > 0).all()

    def loss(q):
        return sum((x**2).sum() for x in look(q, qk[1])[:-1])

    g = jax.jit(jax.grad(loss))(qk[0])
    assert jnp.isfinite(g).all() and not g[:, :2].any() and (g[:, 3:] != 0).all()


@pytest.mark.usefixtures("small_blocks")
def test_nan_that_is_seen_is_not_hidden(qk):
    look = jax.jit(lambda q, k: looks(q, k, Mask.causal(), range(N)))
    for poison in np.nan, np.inf:
        # Seen by queries 3 and 4 of example 0, head 1.
        e, weights, rows, sums, _ = look(qk[0], qk[1].at[0, 3, 1].set(poison))
        for x in (e[..., None], weights, rows):
            tainted = np.isnan(x).any(-1)
            assert tainted[0, 3:, 1].all() and tainted.sum() == 2
        assert np.isnan(sums[0, :, 1]).any() and np.isfinite(sums[1]).all()
        assert np.isfinite(sums[0, :, [0, 2]]).all()


def test_weights_after_dropout_are_those_that_attention_uses(qk):
    options = dict(mask=Mask.causal(1), dropout_rate=0.4, dropout_key=jax.random.key(1))
    # So that the output is the weights.
    values = jnp.broadcast_to(jnp.eye(M)[None, :, None], (B, M, H, M))
    used = np.asarray(attention(*qk, values, **options)).swapaxes(1, 2)
    rows = weight_rows(*qk, QUERIES, **options)
    sums = received(*qk, **options)
    np.testing.assert_allclose(rows, used[:, :, QUERIES], rtol=1e-5)
    np.testing.assert_allclose(sums, used.sum(2).swapaxes(1, 2), rtol=1e-5)
    assert (used.sum(-1) > 1.01).any()  # so that they are not those before it


def drawn(*shape):
    return jnp.asarray(np.random.default_rng(5).normal(size=shape), jnp.float32)


BIASES = {
    "ALiBi": ALiBiBias(jnp.asarray(alibi_slopes(H))),
    "relative": RelativeBias(drawn(H, 5)),
    "(H, N, M)": drawn(H, N, M),
    "(H, 1, M)": drawn(H, 1, M),
    "(M)": jnp.arange(M) / M,
}


@pytest.mark.parametrize("name", BIASES)
def test_every_bias_counts(qk, name):
    @jax.jit
    def look(q, k, bias):
        return (
            attention(q, k, k, bias=bias, return_weights=True)[1],
            weight_rows(q, k, QUERIES, bias=bias),
            received(q, k, bias=bias),
            entropy(q, k, bias=bias),
            top_weights(q, k, bias=bias, top=1)[0][..., 0],
        )

    w, rows, sums, e, largest = map(np.asarray, look(*qk, BIASES[name]))
    np.testing.assert_allclose(rows, w[:, :, QUERIES], rtol=1e-5)
    np.testing.assert_allclose(sums, w.sum(2).swapaxes(1, 2), rtol=1e-5)
    np.testing.assert_allclose(e, -(w * np.log(w)).sum(-1).swapaxes(1, 2), rtol=1e-5)
    np.testing.assert_allclose(largest, w.max(-1).swapaxes(1, 2), rtol=1e-5)


@pytest.mark.parametrize(
    ("queries", "named"), [([0, N], r"\[0, 5\]"), ([-1], r"\[-1\]")]
)
def test_positions_outside_are_named(qk, queries, named):
    with pytest.raises(
        ValueError, match=f"queries={named} must be positions of the 5 queries, 0 to 4"
    ):
        weight_rows(*qk, queries)
