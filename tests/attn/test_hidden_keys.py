"""What attention() and its relatives share: hidden keys reach nobody, and need no memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Mask, argmax_attention, attention, inspect, sampled_attention
from attn.kernels.query_blocks import BLOCK
from tests.attn.blocks import blocks_of
from tests.attn.cases import LENGTHS

KEY = jax.random.key(0)


def of_weights(function, **options):
    return lambda q, k, v, mask: function(q, k, mask=mask, **options)


def soft(kernel):
    return functools.partial(attention, return_lse=True, implementation=kernel)


best = functools.partial(argmax_attention, straight_through=True)
sampled = functools.partial(sampled_attention, key=KEY)
LOOKS = {
    "reference": soft("reference"),
    "blocks": soft("blocks"),
    "best": best,
    "sampled": sampled,
    "sampled, straight through": functools.partial(sampled, straight_through=True),
    "entropy": of_weights(inspect.entropy),
    "largest": of_weights(inspect.top_weights),
    "received": of_weights(inspect.received),
    "rows": of_weights(inspect.weight_rows, queries=[3, 0, 3]),
}


def floats(look, q, k, v, mask):
    """Returns what is no index."""
    leaves = jax.tree.leaves(look(q, k, v, mask=mask))
    return [x for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", LOOKS)
def test_nan_in_a_hidden_key_or_value_reaches_nobody(qkv, name):
    q, k, v = qkv
    mask = Mask.padding(LENGTHS)

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1, 2), has_aux=True)
    def gradients(q, k, v):
        results = floats(LOOKS[name], q, k, v, mask)
        return sum((x**2).sum() for x in results), results

    hidden = (0, slice(4, None))
    expected = jax.tree.leaves(gradients(*qkv))
    for poison in np.nan, np.inf:
        bad = q, k.at[hidden].set(poison), v.at[hidden].set(poison)
        for a, e in zip(jax.tree.leaves(gradients(*bad)), expected, strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)


MASKS = {"full": Mask(), "window": Mask.window(64, 64), "causal": Mask.causal()}
PAIRS = [(name, "full") for name in LOOKS if name != "reference"]
PAIRS += [(name, "window") for name in ("blocks", "sampled", "entropy")]


@pytest.mark.parametrize(
    ("name", "mask"),
    [*PAIRS, pytest.param("blocks", "causal", marks=pytest.mark.ci)],
)
def test_memory_grows_with_the_length_and_not_its_square(name, mask):
    """Temporary MiB with gradients, for one head of 8,192: its scores alone are 256."""
    shape = jax.ShapeDtypeStruct((8192, 1, 16), jnp.float32)

    def loss(q, k, v):
        results = floats(LOOKS[name], q, k, v, MASKS[mask])
        return sum((x**2).sum() for x in results)

    with blocks_of(BLOCK):
        gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
        compiled = gradient.lower(shape, shape, shape).compile()
    most = 8 if mask == "window" else 80
    assert compiled.memory_analysis().temp_size_in_bytes / 2**20 < most
