"""Masks as values: pictures, tiles, how far they reach, and that none is spread over
what it is the same for.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Mask, attention
from attn.masks import mask_part

pytestmark = pytest.mark.quick

Q_IDS = np.array([[1, 1, 2], [3, 3, 3]])
K_IDS = np.array([[1, 2, 2, 0], [3, 3, 0, 0]])


@pytest.mark.parametrize(
    ("mask", "picture"),
    [
        (Mask(), "●●●● ●●●● ●●●●"),
        (Mask.causal(), "●··· ●●·· ●●●·"),
        (Mask.causal(offset=np.array([1, 0])), "●●·· ●●●· ●●●●"),
        (Mask.window(1, 0), "●··· ●●·· ·●●·"),
        (Mask.padding(np.array([3, 1])), "●●●· ●●●· ●●●·"),
        (Mask.segments(Q_IDS, K_IDS), "●··· ●··· ·●●·"),
        (Mask.dense(np.arange(24).reshape(2, 1, 3, 4) % 2 == 0), "●·●· ●·●· ●·●·"),
        (Mask.dense(np.array([True, False, True, True])), "●·●● ●·●● ●·●●"),
        (
            Mask.causal(1) & Mask.padding(np.array([3, 1])) & Mask.window(1, 4),
            "●●·· ●●●· ·●●·",
        ),
    ],
)
def test_pictures(mask, picture):
    assert mask.picture(3, 4).split("\n") == picture.split()


ARRAY = np.random.default_rng(0).random((5, 7)) < 0.7
IDS = np.random.default_rng(1).integers(2, size=12)
ROW = np.arange(5)[:, None]
COLUMN = np.arange(7)[None]


@pytest.mark.parametrize(
    ("mask", "whole"),
    [
        (Mask.dense(ARRAY), ARRAY),
        (Mask.dense(ARRAY[:1]), np.broadcast_to(ARRAY[:1], (5, 7))),
        (Mask.dense(ARRAY[:, :1]), np.broadcast_to(ARRAY[:, :1], (5, 7))),
        (Mask.segments(IDS[:5], IDS[5:]), IDS[:5, None] == IDS[None, 5:]),
        (
            Mask.window(1, 1) & Mask.padding(np.array(4)),
            (abs(ROW - COLUMN) <= 1) & (COLUMN < 4),
        ),
    ],
    ids=[
        "dense",
        "dense, one row",
        "dense, one column",
        "segments",
        "window & padding",
    ],
)
def test_a_tile_is_a_part_of_the_whole(mask, whole):
    tile = mask.tile(
        jnp.arange(3, 6), jnp.arange(2, 6)
    )  # there is no query 5: it fills up a block
    np.testing.assert_array_equal(tile[:2], whole[3:, 2:6])


def test_the_nearest_of_several_bounds_is_known():
    mask = (
        Mask.window(2, 4)
        & Mask.padding(np.array([3]))
        & Mask.causal(1)
        & Mask.window(3, 5)
    )
    assert mask.reach() == (2, 1)
    assert Mask.causal(1).reach() == (None, 1)
    assert Mask.causal(np.array([1])).reach() == Mask().reach() == (None, None)


@pytest.mark.parametrize(
    ("mask", "shape"),
    [
        (Mask.padding(np.array(4)), (1, 1)),
        (Mask.padding(np.array([4, 7, 5])), (6, 1)),
        (Mask.segments(Q_IDS[:, None], K_IDS[:, None]), (6, 1, 3)),
        (Mask.dense(np.ones((3, 5), bool)), (1, 1, 3, 5)),
        (Mask.dense(np.ones((4, 1, 5), bool)), (1, 4, 1, 5)),
        (Mask.dense(np.ones((2, 1, 4, 3, 1), bool)), (6, 4, 3, 1)),
    ],
)
def test_a_leaf_has_an_axis_of_examples_and_one_of_heads(mask, shape):
    """For 2·3 examples; an axis is of length 1 where they share."""
    assert jax.tree.leaves(mask.flat((2, 3)))[0].shape == shape


def test_examples_keep_their_order():
    (padding,) = Mask.padding(np.array([[4], [7]])).flat((2, 3)).parts
    assert padding.lengths[:, 0].tolist() == [4, 4, 4, 7, 7, 7]


@pytest.mark.parametrize(
    "shape",
    [(3, 5), (1, 5), (3, 1), (2, 1, 3, 5), (2, 1, 1, 5), (4, 3, 5), (2, 4, 3, 1)],
)
@pytest.mark.parametrize("implementation", ["reference", "blocks"])
def test_a_dense_mask_is_broadcast(shape, implementation):
    draw = np.random.default_rng(0)
    q, k, v = (draw.normal(size=(2, n, 4, 7)).astype(np.float32) for n in (3, 5, 5))
    array = draw.random(shape) < 0.5
    whole = np.broadcast_to(array, (2, 4, 3, 5))
    out, spread_out = (
        attention(q, k, v, mask=Mask.dense(x), implementation=implementation)
        for x in (array, whole)
    )
    np.testing.assert_array_equal(out, spread_out)


def test_a_dense_mask_is_not_copied_for_every_example_and_head():
    """Temporary MiB at 2,048 tokens, 4 examples and 4 heads, with a mask of 4 MiB: for
    each of them it would be 64.
    """
    shape = jax.ShapeDtypeStruct((4, 2048, 4, 16), jnp.float32)
    array = jax.ShapeDtypeStruct((2048, 2048), jnp.bool_)
    compiled = (
        jax.jit(lambda q, k, v, array: attention(q, k, v, mask=Mask.dense(array)))
        .lower(shape, shape, shape, array)
        .compile()
    )
    assert compiled.memory_analysis().temp_size_in_bytes / 2**20 < 24


def test_axes_may_be_named():
    """A part of one's own whose field has a name for its axis is held to its length."""

    @mask_part(real="M")
    class Real:
        real: Any

        def tile(self, i, j):
            return self.real[j]

    q, k = jnp.ones((2, 3, 1, 4)), jnp.ones((2, 5, 1, 4))
    v = jnp.arange(5.0)[None, :, None, None] * jnp.ones((2, 1, 1, 1))
    real = np.array([[True, True, True, False, False], [False] * 4 + [True]])
    actual = attention(q, k, v, mask=Mask((Real(jnp.array(real)),)))
    np.testing.assert_allclose(actual[:, :, 0, 0], [[1.0] * 3, [4.0] * 3], rtol=1e-6)
    with pytest.raises(
        ValueError, match=r"real of shape \(2, 4\) does not fit \(\*B, M\) = \(2, 5\)"
    ):
        attention(q, k, v, mask=Mask((Real(jnp.array(real[:, :4])),)))
