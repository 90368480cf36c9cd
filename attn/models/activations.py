"""Activation functions by name."""

import functools

import flax.linen as nn

ACTIVATIONS = {
    "none": None,
    "relu": nn.relu,
    # The exact form, which is PyTorch's default; Linen's is the tanh approximation.
    "gelu": functools.partial(nn.gelu, approximate=False),
    "silu": nn.silu,
}
"""The functions; "none" is the identity, for the output of attention only."""
