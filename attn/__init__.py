"""attn: every attention of the basic literature as a pure function, and the Transformer built from them."""

from attn import inside, interop
from attn.attention import attention
from attn.biases import ALiBi, RelativeTable, T5Buckets, alibi_slopes
from attn.decoding import Found, beam_search, greedy
from attn.hard import argmax_attention, sampled_attention
from attn.language_model import LanguageModel
from attn.layers import Design, Shape
from attn.masks import Mask
from attn.mixing import Convolution, Recurrence
from attn.multihead import MultiHeadAttention
from attn.positions import (
    POSITIONS,
    Learned,
    NoPositions,
    Sinusoidal,
    rotary,
    sinusoidal,
)
from attn.recurrent import RNN
from attn.sampling import sample
from attn.scores import SCORES, Additive, Bilinear, Dot, ScaledDot, score
from attn.transformer import Transformer

__all__ = [
    "POSITIONS",
    "RNN",
    "SCORES",
    "ALiBi",
    "Additive",
    "Bilinear",
    "Convolution",
    "Design",
    "Dot",
    "Found",
    "LanguageModel",
    "Learned",
    "Mask",
    "MultiHeadAttention",
    "NoPositions",
    "Recurrence",
    "RelativeTable",
    "ScaledDot",
    "Shape",
    "Sinusoidal",
    "T5Buckets",
    "Transformer",
    "alibi_slopes",
    "argmax_attention",
    "attention",
    "beam_search",
    "greedy",
    "inside",
    "interop",
    "rotary",
    "sample",
    "sampled_attention",
    "score",
    "sinusoidal",
]
