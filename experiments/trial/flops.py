"""Arithmetic: how much a training step needs, and how much of it a device can do.

Their ratio over the time that a step took is the model FLOP utilisation of Chowdhery et al.
2022 (PaLM), appendix B: it counts only what the model itself needs, so padding, dropout and
recomputation do not make it better.
"""

import re

import numpy as np

from attn.arithmetic import stated
from experiments.trial.program import Program, build_model

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


def of_training(program: Program, source_lengths, target_lengths) -> int | None:
    """Counts the FLOPs of training once on pairs of these lengths.

    A product takes 2, and the backward pass counts twice the forward pass: 6 times the
    products that the model states, such as `Transformer.products`. None where it, or a
    variant in it, states none.
    """
    # Whole numbers are exact in float64 up to 2⁵³, and beyond do not wrap around as int64.
    n = np.asarray(source_lengths, np.float64)
    m = np.asarray(target_lengths, np.float64)
    products = stated(build_model(program), n, m)
    return None if products is None else int(6 * products.sum())
