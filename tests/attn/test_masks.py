"""Masks as values: pictures, and dense ones that are not spread over what they are the same for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Mask, attention

Q_IDS, K_IDS = np.array([[1, 1, 2], [3, 3, 3]]), np.array([[1, 2, 2, 0], [3, 3, 0, 0]])


@pytest.mark.parametrize(("mask", "picture"), [
    (Mask(), "●●●● ●●●● ●●●●"),
    (Mask.causal(), "●··· ●●·· ●●●·"),
    (Mask.causal(offset=np.array([1, 0])), "●●·· ●●●· ●●●●"),
    (Mask.window(1, 0), "●··· ●●·· ·●●·"),
    (Mask.padding(np.array([3, 1])), "●●●· ●●●· ●●●·"),
    (Mask.segments(Q_IDS, K_IDS), "●··· ●··· ·●●·"),
    (Mask.dense(np.arange(24).reshape(2, 1, 3, 4) % 2 == 0), "●·●· ●·●· ●·●·"),
    (Mask.dense(np.array([True, False, True, True])), "●·●● ●·●● ●·●●"),
    (Mask.causal(1) & Mask.padding(np.array([3, 1])) & Mask.window(1, 4), "●●·· ●●●· ·●●·"),
])
def test_pictures(mask, picture):
    assert mask.picture(3, 4).split("\n") == picture.split()


@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (3, 1), (2, 1, 3, 5), (2, 1, 1, 5), (4, 3, 5), (2, 4, 3, 1)])
@pytest.mark.parametrize("implementation", ["reference", "tiled"])
def test_a_dense_mask_is_broadcast(shape, implementation):
    draw = np.random.default_rng(0)
    q, k, v = (draw.normal(size=(2, n, 4, 7)).astype(np.float32) for n in (3, 5, 5))
    array = draw.random(shape) < 0.5
    whole = np.broadcast_to(array, (2, 4, 3, 5))
    out, spread_out = (attention(q, k, v, mask=Mask.dense(x), implementation=implementation) for x in (array, whole))
    np.testing.assert_array_equal(out, spread_out)


def test_a_dense_mask_is_not_copied_for_every_head():
    """Temporary MiB at 2,048 tokens and 16 heads, with a mask of 4 MiB: for every head it would be 64."""
    shape = jax.ShapeDtypeStruct((2048, 16, 16), jnp.float32)
    array = jax.ShapeDtypeStruct((2048, 2048), jnp.bool_)
    compiled = jax.jit(lambda q, k, v, array: attention(q, k, v, mask=Mask.dense(array))).lower(
        shape, shape, shape, array).compile()
    assert compiled.memory_analysis().temp_size_in_bytes / 2**20 < 24
