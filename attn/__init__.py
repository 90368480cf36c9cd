"""Attention as pure functions of one head, and the models built from them."""

from attn import contract, inspect, io, normalisers
from attn.attention import attention
from attn.hard import argmax_attention, sampled_attention
from attn.heads import differential, talking_heads
from attn.masks import Mask
from attn.models.beam_search import BeamResult, beam_search, greedy
from attn.models.convolution import Convolution
from attn.models.design import Design, Shape
from attn.models.heads import (
    HEADS,
    Differential,
    Heads,
    Separate,
    TalkingHeads,
)
from attn.models.language_model import LanguageModel
from attn.models.mixers import (
    MIXERS,
    Convolutional,
    Mixer,
    Recurrent,
    Restricted,
    SelfAttention,
    SeparableConvolutional,
)
from attn.models.multihead import MultiHeadAttention
from attn.models.recurrence import Recurrence
from attn.models.rnn import RNN
from attn.models.sampling import SampleResult, sample
from attn.models.transformer import Transformer
from attn.normalisers import (
    NORMALISERS,
    AdaptiveEntmax,
    ASEntmax,
    Entmax,
    OffByOne,
    ReLU,
    ScalableSoftmax,
    Sigmoid,
    Sink,
    Softmax,
    Sparsemax,
    normaliser,
)
from attn.positions import (
    POSITIONS,
    T5,
    ALiBi,
    ALiBiBias,
    BucketBias,
    Learned,
    NoPositions,
    Positions,
    Relative,
    RelativeBias,
    Rotary,
    Sinusoidal,
    alibi_slopes,
    bias,
    rotary,
    sinusoidal,
)
from attn.scores import (
    SCORES,
    Additive,
    Bilinear,
    Dot,
    QKNorm,
    ScaledDot,
    Softcap,
    score,
)

__all__ = [
    "HEADS",
    "MIXERS",
    "NORMALISERS",
    "POSITIONS",
    "RNN",
    "SCORES",
    "T5",
    "ALiBi",
    "ALiBiBias",
    "ASEntmax",
    "AdaptiveEntmax",
    "Additive",
    "BeamResult",
    "Bilinear",
    "BucketBias",
    "Convolution",
    "Convolutional",
    "Design",
    "Differential",
    "Dot",
    "Entmax",
    "Heads",
    "LanguageModel",
    "Learned",
    "Mask",
    "Mixer",
    "MultiHeadAttention",
    "NoPositions",
    "OffByOne",
    "Positions",
    "QKNorm",
    "ReLU",
    "Recurrence",
    "Recurrent",
    "Relative",
    "RelativeBias",
    "Restricted",
    "Rotary",
    "SampleResult",
    "ScalableSoftmax",
    "ScaledDot",
    "SelfAttention",
    "SeparableConvolutional",
    "Separate",
    "Shape",
    "Sigmoid",
    "Sink",
    "Sinusoidal",
    "Softcap",
    "Softmax",
    "Sparsemax",
    "TalkingHeads",
    "Transformer",
    "alibi_slopes",
    "argmax_attention",
    "attention",
    "beam_search",
    "bias",
    "contract",
    "differential",
    "greedy",
    "inspect",
    "io",
    "normaliser",
    "normalisers",
    "rotary",
    "sample",
    "sampled_attention",
    "score",
    "sinusoidal",
    "talking_heads",
]
