"""What every kernel is given: NaN and Inf set apart, and heads without queries or keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Additive, Mask, ScaledDot, attention, inspect

B = 2
N = 3
M = 5
H = 2
K = 4
DRAW = np.random.default_rng(0).normal
SCORES = {
    "scaled dot": ScaledDot(),
    "additive": Additive(
        *(
            jnp.asarray(DRAW(size=(H, *shape)), jnp.float32)
            for shape in ((K, 3), (K, 3), (3,))
        )
    ),
}
NOTHING_HIDDEN = Mask.causal(offset=M)


@pytest.fixture(params=["reference", "blocks"])
def kernel(request):
    return request.param


def inputs(n=N, m=M):
    shapes = (B, n, H, K), (B, m, H, K), (B, m, H, K)
    return [jnp.asarray(DRAW(size=shape), jnp.float32) for shape in shapes]


@pytest.mark.parametrize(
    ("dtype", "number"),
    [(jnp.float16, 2_000.0), (jnp.float32, 1e37), (jnp.bfloat16, 1e37)],
)
@pytest.mark.parametrize("where", ["key", "value"])
def test_a_large_sum_of_numbers_is_not_inf(kernel, dtype, number, where):
    large = jnp.full((1, M, H, 64), number, dtype)
    zeros = jnp.zeros_like(large)
    k, v = (large, zeros) if where == "key" else (zeros, large)
    actual = attention(zeros, k, v, mask=NOTHING_HIDDEN, implementation=kernel)
    np.testing.assert_allclose(
        actual.astype(jnp.float32), v.astype(jnp.float32), rtol=1e-2
    )


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("poison", [jnp.nan, jnp.inf])
def test_a_query_of_nan_that_sees_nothing_gives_no_gradient(kernel, score, poison):
    q, k, v = inputs()
    # The last query of the second example sees nothing.
    mask = Mask.window(0, 0) & Mask.padding(np.array([M, 2]))

    def loss(q, k, v, score):
        out, lse = attention(
            q,
            k,
            v,
            score=score,
            mask=mask,
            return_lse=True,
            implementation=kernel,
        )
        return (out**2).sum() + jnp.where(lse > -jnp.inf, lse, 0).sum()

    both = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))
    actual = both(q.at[1, 2].set(poison), k, v, SCORES[score])
    expected = both(q, k, v, SCORES[score])
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mask", [None, NOTHING_HIDDEN], ids=["no mask", "a mask"])
@pytest.mark.parametrize("where", [0, 1, 2], ids=["query", "key", "value"])
@pytest.mark.parametrize("poison", [jnp.nan, -jnp.inf])
def test_nan_and_inf_that_are_seen_give_nan(kernel, mask, where, poison):
    bad = inputs()
    bad[where] = bad[where].at[0, 1, 0, 2].set(poison)
    actual = attention(*bad, mask=mask, implementation=kernel)
    expected = np.zeros(actual.shape, bool)
    if where == 0:
        expected[0, 1, 0] = True
    else:
        expected[0, :, 0] = True
    np.testing.assert_array_equal(np.isnan(actual), expected)


def test_rows_of_weights_know_which_query_is_nan():
    q, k, _ = inputs()
    q = q.at[0, 2].set(jnp.nan).at[0, 0].set(jnp.nan)
    mask = Mask.causal(offset=-1)  # query 0 sees nothing
    rows = inspect.weight_rows(q, k, [2, 0, 1], mask=mask)
    actual = np.isnan(rows[0]).any(-1)
    np.testing.assert_array_equal(actual, np.tile([True, False, False], (H, 1)))
