"""The rows of padding in the last block of queries see nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Additive, Mask, attention, inspect, sampled_attention
from attn.positions.biases import RelativeBias
from tests.attn.blocks import blocks_of

pytestmark = pytest.mark.quick

N = 5
M = 6
K = 4
DRAW = np.random.default_rng(0).normal
SCORE = Additive(
    *(
        jnp.asarray(DRAW(size=(1, *shape)), jnp.float32)
        for shape in ((K, 3), (K, 3), (3,))
    )
)
BIAS = RelativeBias(jnp.asarray(DRAW(size=(1, 5)), jnp.float32))


@pytest.fixture(autouse=True, scope="module")
def _blocks_of_three():
    """The second block has two queries and a row of padding, which would see key 5."""
    with blocks_of(3):
        yield


def _attention(q, k, v, **options):
    return (attention(q, k, v, implementation="blocks", **options) ** 2).sum()


def _entropy(q, k, v, **options):
    return inspect.entropy(q, k, **options).sum()


def _log_prob(q, k, v, **options):
    out, _, log_prob = sampled_attention(q, k, v, key=jax.random.key(3), **options)
    return out.sum() + log_prob.sum()


@pytest.mark.parametrize(
    ("function", "mask"),
    [
        (_attention, Mask.causal()),
        (_attention, Mask.causal(jnp.array(0))),
        (_attention, Mask.window(2, 0)),
        pytest.param(_entropy, Mask.causal(), marks=pytest.mark.ci),
        pytest.param(_log_prob, Mask.causal(), marks=pytest.mark.ci),
    ],
)
def test_nan_that_padding_alone_would_see_reaches_no_gradient(function, mask):
    q, k, v = (jnp.asarray(DRAW(size=(n, 1, K)), jnp.float32) for n in (N, M, M))

    def loss(q, k, v, score, bias):
        return function(q, k, v, score=score, mask=mask, bias=bias)

    both = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4), allow_int=True))
    hidden = (x.at[N].set(jnp.nan) for x in (k, v))
    actual = jax.tree.leaves(both(q, *hidden, SCORE, BIAS))
    expected = jax.tree.leaves(both(q, k, v, SCORE, BIAS))
    for a, b in zip(actual, expected, strict=True):
        if a.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
