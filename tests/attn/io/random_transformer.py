"""A small Transformer with random variables. Sizes are different primes, mostly."""

import functools

import jax
import numpy as np

from attn import Learned, Transformer, config
from tests.attn.nn.modules import random_variables, sentences

N = 2
D = 14
F = 17
H = 2
Y = 29
L = 13
SIZES = dict(N=N, d_model=D, d_ff=F, h=H, d_k=D // H, d_v=D // H)


def assert_same(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


@functools.cache
def build(biases=True, positions=Learned(), **options):
    """Returns a model, and variables at random."""
    options = SIZES | dict(biases=biases, positions=positions) | options
    model = Transformer(config.Transformer(**options), Y, L)
    tokens = np.zeros((1, 1), np.int32)
    return model, random_variables(model, *sentences(tokens, tokens), seed=3)
