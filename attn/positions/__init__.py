"""Positions: how a model knows where a token stands, one value for each way.

A value has hooks, which do nothing by default: `table` is added to the embeddings, at the
`places` of the tokens; `rotate` turns queries and keys; `bias` is added to the scores of
self-attention; `in_attention` and `bias_of` are for what reads the tokens, or keeps something
while decoding, and `attend` takes the place of `attention`. A user's own is a frozen
dataclass, a subclass of `Positions` with one hook or more, in any file:

    @dataclasses.dataclass(frozen=True)
    class Logarithmic(attn.positions.Positions):
        def bias(self, key, h, causal):
            return LogBias(jnp.ones(h))  # see attn.positions.biases

B batch (any leading axes), N tokens, L the length of a table, D = d_model, H = h heads,
K = d_k.
"""

from attn.positions.base import NoPositions, Positions
from attn.positions.biases import (
    T5,
    ALiBi,
    ALiBiBias,
    BucketBias,
    Relative,
    RelativeBias,
    alibi_slopes,
    bias,
    bias_of_heads,
    bias_row,
    bucket_of_distance,
)
from attn.positions.cope import CoPE, contextual_attention
from attn.positions.forget import Forget, ForgetBias, ForgetGates
from attn.positions.functional import (
    Fire,
    FireBias,
    Kerple,
    KerpleLogBias,
    KerplePowerBias,
)
from attn.positions.path import PaTH, path_products
from attn.positions.rotary import SCALINGS, Rotary, rotary
from attn.positions.tables import LAYOUTS, Learned, Randomised, Sinusoidal, sinusoidal
from attn.positions.wall import Wall

__all__ = [
    "LAYOUTS",
    "POSITIONS",
    "SCALINGS",
    "T5",
    "ALiBi",
    "ALiBiBias",
    "BucketBias",
    "CoPE",
    "Fire",
    "FireBias",
    "Forget",
    "ForgetBias",
    "ForgetGates",
    "Kerple",
    "KerpleLogBias",
    "KerplePowerBias",
    "Learned",
    "NoPositions",
    "PaTH",
    "Positions",
    "Randomised",
    "Relative",
    "RelativeBias",
    "Rotary",
    "Sinusoidal",
    "Wall",
    "alibi_slopes",
    "bias",
    "bias_of_heads",
    "bias_row",
    "bucket_of_distance",
    "contextual_attention",
    "path_products",
    "rotary",
    "sinusoidal",
]

POSITIONS = {
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "none": NoPositions,
    "rotary": Rotary,
    "alibi": ALiBi,
    "t5": T5,
    "relative": Relative,
    "kerple": Kerple,
    "fire": Fire,
    "forget": Forget,
    "cope": CoPE,
    "path": PaTH,
    "wall": Wall,
    "randomised": Randomised,
}
"""The classes of this package by name."""
