"""Arithmetic: how much a training step needs, and how much of it a device can do.

Their ratio over the time a step took is the model FLOP utilisation of Chowdhery et al. 2022 (PaLM), appendix B: only
what the model itself needs is counted, so padding, dropout and recomputation do not make it better.
"""

import re

import numpy as np

from attn import Shape

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
"""(JAX's device kind, dense FLOP/s in bfloat16, in float32), from the vendors' data sheets, the first match counting.

float32 is what JAX does at its default precision: TF32 products on GPUs that have them, bfloat16 products on TPUs. A
JAX device of TPU v2 and v3 is one core, half a chip. None: the device has no such products.
"""


def peak(kind: str, precision: str) -> float | None:
    """FLOP/s that a device of JAX's `device_kind` can do at most; None where that is not known, as for CPUs."""
    for pattern, bfloat16, float32 in PEAKS:
        if re.search(pattern, kind):
            return bfloat16 if precision == "bfloat16" else float32
    return None


def of_training(shape: Shape, vocabulary: int, source_lengths, target_lengths) -> int:
    """FLOPs of training once on pairs of these lengths; the backward pass counts twice the forward pass.

    For a sentence of n source and m target pieces, end marks included, D = d_model, Y = vocabulary:

        6 · [(n + m)·N·(3·D·h·(d_k + d_v) + 2·D·d_ff) + m·D·Y + N·(n² + m·(m + 1)/2 + n·m)·h·(d_k + d_v)]

    The first two terms are the products with matrices, the third those of attention, by scaled dot products, over the
    pairs of query and key that may see each other.
    """
    N, D, d_ff, h, d_k, d_v = shape
    heads = h * (d_k + d_v)
    n, m = (np.asarray(lengths, np.int64) for lengths in (source_lengths, target_lengths))
    matrices = (n + m) * N * (3 * D * heads + 2 * D * d_ff) + m * D * vocabulary
    pairs = N * (n**2 + m * (m + 1) // 2 + n * m)
    return int(6 * (matrices + pairs * heads).sum())

