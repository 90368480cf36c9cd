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
from attn.mixers.kimi import KimiDelta, KimiDeltaHeads
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
from attn.mixers.log_linear import LogLinear, LogLinearHeads
from attn.mixers.mamba import Mamba2, Mamba2Heads
from attn.mixers.mamba3 import Mamba3, Mamba3Heads
from attn.mixers.recurrence import Recurrence, Recurrent
from attn.mixers.short import Short, ShortConvolved

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
    "KimiDelta",
    "KimiDeltaHeads",
    "LinearAttention",
    "LinearHeads",
    "LogLinear",
    "LogLinearHeads",
    "Mamba2",
    "Mamba2Heads",
    "Mamba3",
    "Mamba3Heads",
    "Mixer",
    "Recurrence",
    "Recurrent",
    "Restricted",
    "SelfAttention",
    "SeparableConvolutional",
    "Short",
    "ShortConvolved",
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
    "kda": KimiDelta,
    "mamba2": Mamba2,
    "mamba3": Mamba3,
    "log_linear": LogLinear,
    "short": Short,
}
"""The classes of this package by name."""
