"""Mixers: what mixes the positions of a text in a layer, one value for each way.

They are the rows of the paper's Table 1, and relatives of attention. A value makes the
layer's Linen module; a user's own is a frozen dataclass, a subclass of `Mixer`, in any
file, which `attn.contract.check_mixer` holds to the contract.
"""

from attn.mixers.base import Mixer, Restricted, SelfAttention
from attn.mixers.convolution import (
    Convolution,
    Convolutional,
    SeparableConvolutional,
)
from attn.mixers.linear import (
    DeltaHeads,
    DeltaNet,
    GatedDeltaHeads,
    GatedDeltaNet,
    GatedLinearAttention,
    GatedLinearHeads,
    LinearAttention,
    LinearHeads,
)
from attn.mixers.recurrence import Recurrence, Recurrent

__all__ = [
    "MIXERS",
    "Convolution",
    "Convolutional",
    "DeltaHeads",
    "DeltaNet",
    "GatedDeltaHeads",
    "GatedDeltaNet",
    "GatedLinearAttention",
    "GatedLinearHeads",
    "LinearAttention",
    "LinearHeads",
    "Mixer",
    "Recurrence",
    "Recurrent",
    "Restricted",
    "SelfAttention",
    "SeparableConvolutional",
]

MIXERS = {
    "attention": SelfAttention,
    "restricted": Restricted,
    "recurrence": Recurrent,
    "convolution": Convolutional,
    "separable": SeparableConvolutional,
    "linear_attention": LinearAttention,
    "gated_linear_attention": GatedLinearAttention,
    "deltanet": DeltaNet,
    "gated_deltanet": GatedDeltaNet,
}
"""The classes of this package by name."""
