"""Arithmetic: how much a training step needs, and how much of it a device can do.

Their ratio over the time that a step took is the model FLOP utilisation of Chowdhery et al.
2022 (PaLM), appendix B: it counts only what the model itself needs, so padding, dropout and
recomputation do not make it better.
"""

import re

import numpy as np

from attn import (
    Convolutional,
    CoPE,
    DeltaNet,
    GatedDeltaNet,
    GatedLinearAttention,
    LinearAttention,
    Recurrent,
    Restricted,
    SeparableConvolutional,
    TalkingHeads,
)
from attn.models.linear_attention import RANK
from experiments.trial.program import Program

PEAKS = (
    ("H200 NVL", 835e12, 418e12),
    ("H200", 989e12, 495e12),
    ("H100 PCIe", 756e12, 378e12),
    ("H100 NVL", 835e12, 418e12),
    ("H100", 989e12, 495e12),
    ("A100", 312e12, 156e12),
    ("V100.*PCIE", None, 14.0e12),
    ("V100", None, 15.7e12),
    ("TPU v2", 22.5e12, 22.5e12),
    ("TPU v3", 61.5e12, 61.5e12),
    ("TPU v4 lite", 138e12, 138e12),
    ("TPU v4", 275e12, 275e12),
    ("TPU v5 lite|TPU v5e", 197e12, 197e12),
    ("TPU v5", 459e12, 459e12),
    ("TPU v6 lite|TPU v6e", 918e12, 918e12),
)
"""(JAX's device kind, dense FLOP/s in bfloat16, in float32), from the vendors' data sheets.

The first match counts. float32 is what JAX does at its default precision: TF32 products on
GPUs that have them, bfloat16 products on TPUs. A JAX device of TPU v2 and v3 is one core,
half a chip. None: the device has no such products.
"""


def peak(kind: str, precision: str) -> float | None:
    """Returns the most FLOP/s of a device of JAX's `device_kind`; None for others, as CPUs."""
    for pattern, bfloat16, float32 in PEAKS:
        if re.search(pattern, kind):
            return bfloat16 if precision == "bfloat16" else float32
    return None


def of_training(program: Program, source_lengths, target_lengths) -> int:
    """Counts the FLOPs of training once on pairs of these lengths.

    The backward pass counts twice the forward pass. For a sentence of n source and m target
    tokens, end marks included, D = d_model, Y = vocabulary, a Transformer has

        6 · [(n + m)·N·(3·D·h·(d_k + d_v) + 2·D·d_ff) + m·D·Y
             + N·(n² + m·(m + 1)/2 + n·m)·h·(d_k + d_v)]

    The first two terms are the products with matrices, the third those of attention, by
    scaled dot products, over the pairs of query and key that may see each other. Where
    anything else mixes positions in a stack, its products stand in place of those of
    self-attention: `_mixing`. Fewer heads of keys, and latents, have fewer products with
    matrices: `_keys_and_values`. A language model has the target's part of that, without
    attention to a source. Differential heads have 2·d_k in place of d_k; talking heads have
    2·h² more products for each pair; a gate D·h or D·h·d_v more for each query. The
    recurrent encoder-decoder has

        6 · [N·n·3/2·g·D² + m·(2·N·g·D² + 2·D² + D·Y) + N·D² + 2·n·m·D]

    with g = 4, 3, 1 matrices of a cell (LSTM, GRU, tanh); the last term is attention, by
    dot products.
    """
    # A batch's products exceed 32 bits.
    n = np.asarray(source_lengths, np.int64)
    m = np.asarray(target_lengths, np.int64)
    if program.kind == "rnn":
        products = _recurrent(program, n, m)
    elif program.kind == "language":
        products = _language(program, m)
    else:
        products = _translating(program, n, m)
    logits = m * program.shape.d_model * program.vocabulary
    return int(6 * (products + logits).sum())


def _recurrent(program, n, m):
    N = program.shape.N
    D = program.shape.d_model
    cell = GATES[program.design.decoder_mixing.cell] * D**2
    encoder = N * n * 3 * cell // 2
    decoder = m * (2 * N * cell + 2 * D**2) + N * D**2
    attention = 2 * n * m * D * (program.design.score != "none")
    return encoder + decoder + attention


def _language(program, m):
    shape = program.shape
    mixing = _mixing(program.design.decoder_mixing, True, m, shape, program.design)
    return shape.N * (mixing + m * 2 * shape.d_model * shape.d_ff)


def _translating(program, n, m):
    design = program.design
    shape = program.shape
    encoder = _mixing(design.encoder_mixing, False, n, shape, design)
    decoder = _mixing(design.decoder_mixing, True, m, shape, design)
    keys_and_values = n * _keys_and_values(shape, design)
    queries_and_outputs = m * _of_query(shape, design)
    pairs = n * m * _of_pair(shape, design)
    cross = keys_and_values + queries_and_outputs + pairs
    feed_forward = (n + m) * 2 * shape.d_model * shape.d_ff
    return shape.N * (encoder + decoder + cross + feed_forward)


GATES = dict(lstm=4, gru=3, tanh=1)
"""Pairs of matrices, from the input and from the state before, of a cell."""


def _mixing(mixer, causal, n, shape, design):
    """Counts the products of what mixes the n positions of a sentence in one layer.

    It is `causal` in a decoder. Attention: 2·n·D·h·(d_k + d_v) with matrices, where each
    head has its keys, and h·(d_k + d_v) for each pair that may see each other, and what
    `of_training` says of heads and gates; forget gates D·h a position; contextual positions
    h·d_k for each vector of their table and query. Recurrence:
    2·g·D² a position, 3/2·g·D² where two cells share the features. A convolution: a matrix
    a tap, or, separable, a number a feature and tap and one matrix. Taps beyond a
    sentence's ends do not count. Linear attention and its relatives: `_linear`. A mixer
    from outside that is no subclass of these counts as nothing.
    """
    D = shape.d_model
    r = getattr(mixer, "radius", 0)
    near = _seen(n, r, 0 if causal else r)
    if mixer.attends:
        pairs = n * (n + 1) // 2 if causal else n**2
        if isinstance(mixer, Restricted):
            pairs = near
        of_token = _keys_and_values(shape, design) + _of_query(shape, design)
        # Of the key that positions turn, and of the queries for it.
        turned = shape.d_r or 0
        of_token += (shape.h + 1) * D * turned
        of_token += D * shape.h * design.positions.has_gates
        if isinstance(design.positions, CoPE):
            of_token += shape.h * shape.d_k * (design.positions.p_max + 1)
        return n * of_token + pairs * (_of_pair(shape, design) + shape.h * turned)
    if isinstance(mixer, Recurrent):
        return n * GATES[mixer.cell] * D**2 * (4 if causal else 3) // 2
    if isinstance(mixer, LinearAttention):
        return n * _linear(mixer, causal, shape)
    if not isinstance(mixer, Convolutional):
        return n * 0
    taps = _seen(n, 2 * r, 0) if causal else near
    if isinstance(mixer, SeparableConvolutional):
        return taps * D + n * D**2
    return taps * D**2


def _linear(mixer, causal, shape):
    """Counts the products of linear attention or a relative at one position.

    Matrices have 2·D·h·(d_k + d_v), and a state of d_k·d_v a head is written and read,
    twice in an encoder, which has two directions. Linear attention has one column more, the
    denominator's. Gates have a matrix of D·h·d_v more, and one of D·h, or two of rank 16, for
    decays; DeltaNet one of D·h for β, and what its key gives, which it replaces, is read
    too. With P writes a token it has P keys, values and βs.
    Chunks trade some of these products for others, which do not count.
    """
    D = shape.d_model
    h = shape.h
    d_k = shape.d_k
    d_v = shape.d_v
    directions = 1 if causal else 2
    matrices = 2 * D * h * (d_k + d_v)
    if isinstance(mixer, DeltaNet):
        writes = mixer.householders
        matrices += (writes - 1) * D * h * (d_k + d_v) + writes * D * h
        if isinstance(mixer, GatedDeltaNet):
            matrices += D * h * (d_v + 1)
        return matrices + directions * (2 * writes + 1) * h * d_k * d_v
    if isinstance(mixer, GatedLinearAttention):
        decays = RANK * (D + h * d_k) if mixer.decay == "feature" else D * h
        matrices += D * h * d_v + decays
        return matrices + directions * 2 * h * d_k * d_v
    return matrices + directions * 2 * h * d_k * (d_v + 1)


def _keys_and_values(shape, design):
    """Counts the numbers of W_K and W_V, of W_C too where these are of latents."""
    source = shape.d_model if shape.d_c is None else shape.d_c
    into_latents = 0 if shape.d_c is None else shape.d_model * shape.d_c
    of_head = shape.d_k * design.heads.maps + shape.d_v
    return into_latents + source * shape.heads_of_keys * of_head


def _of_query(shape, design):
    """Counts the products of a query with W_Q, the gate's matrix and W_O."""
    d_k = shape.d_k * design.heads.maps
    gate = {"none": 0, "head": 1, "element": shape.d_v}[design.gate]
    return shape.d_model * shape.h * (d_k + gate + _widening(shape, design))


def _of_pair(shape, design):
    """Counts the products of a query and a key: their scores, weights and the value."""
    # The two maps of differential heads are subtracted before the value.
    products = shape.h * (shape.d_k * design.heads.maps + shape.d_v)
    mixtures = 2 * shape.h**2 if isinstance(design.heads, TalkingHeads) else 0
    return products + mixtures


def _widening(shape, design):
    """Counts the rows of W_O a head: none for a mean of heads as wide as the model."""
    return 0 if design.combine == "mean" and shape.d_v == shape.d_model else shape.d_v


def _seen(n, left, right):
    """Counts the pairs i − left ≤ j ≤ i + right in a sentence of n."""

    # Σ_i min(i, reach)
    def side(reach):
        reach = np.minimum(reach, np.maximum(n - 1, 0))
        return reach * (reach + 1) // 2 + (n - 1 - reach) * reach

    return n + side(left) + side(right)
