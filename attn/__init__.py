"""attn: every attention of the basic literature as a pure function, and the Transformer built from them."""

from attn.attention import attention
from attn.decoding import greedy
from attn.masks import Mask
from attn.multihead import MultiHeadAttention
from attn.positions import POSITIONS, Learned, NoPositions, Sinusoidal, sinusoidal
from attn.scores import Additive, Bilinear, Dot, ScaledDot, score
from attn.transformer import Shape, Transformer

__all__ = ["POSITIONS", "Additive", "Bilinear", "Dot", "Learned", "Mask", "MultiHeadAttention", "NoPositions",
           "ScaledDot", "Shape", "Sinusoidal", "Transformer", "attention", "greedy", "score", "sinusoidal"]
