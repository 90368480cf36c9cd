"""A small Transformer with random variables. Sizes are different primes, mostly."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from attn import Design, Learned, Mask, Shape, Transformer

N = 2
D = 14
F = 17
H = 2
Y = 29
L = 13
SHAPE = Shape(N, D, F, H, D // H, D // H)


def assert_same(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


@functools.cache
def build(design=Design(biases=True, positions=Learned()), shape=SHAPE):
    """A model, and variables at random."""
    model = Transformer(shape, Y, L, design)
    ids = jnp.zeros((1, 1), jnp.int32)
    every = Mask()
    made = jax.eval_shape(
        lambda key: model.init(
            key,
            ids,
            ids,
            ids,
            ids,
            source_mask=every,
            target_mask=every,
            cross_mask=every,
        ),
        jax.random.key(0),
    )
    draw = np.random.default_rng(3).normal
    return model, jax.tree.map(lambda x: jnp.asarray(draw(size=x.shape), x.dtype), made)
