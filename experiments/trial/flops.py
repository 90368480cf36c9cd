"""Arithmetic: how much a training step needs, and how much of it a device can do.

Their ratio over the time that a step took is the model FLOP utilisation of Chowdhery et al.
2022 (PaLM), appendix B: it counts only what the model itself needs, so padding, dropout and
recomputation do not make it better.
"""

import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attn.arithmetic import stated
from attn.nn.layers import output_matrix
from experiments.data.batches import Batch
from experiments.trial.program import (
    Program,
    build_model,
    contexts,
    initial_variables,
)

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
    products that the model states, such as `Transformer.products`. Where a variant in it
    states none, they are those of `of_row`, as many for each token of a row. None where that
    is unknown too.
    """
    # Whole numbers are exact in float64 up to 2⁵³, and beyond do not wrap around as int64.
    n = np.asarray(source_lengths, np.float64)
    m = np.asarray(target_lengths, np.float64)
    products = stated(build_model(program), n, m)
    if products is None:
        row = of_row(program)
        read = n if program.objective.targets == "labels" else m
        products = None if row is None else row * read / program.sequence_length
    return None if products is None else int(6 * products.sum())


# The loop asks it for every batch.
@functools.cache
def of_row(program: Program) -> int | None:
    """Counts the products of matrices in the program of one full row's forward pass.

    Loops count as often as they turn. None for a program whose loops turn as often as their
    data say, or that calls a kernel which hides its products.
    """

    def forward(variables, row):
        model = build_model(program)
        batch = Batch(*[row] * len(Batch._fields))
        both = contexts(batch)
        hidden = program.objective.call(model.apply, variables, row, row, both)
        return hidden @ output_matrix(variables["params"]).T

    key = jax.eval_shape(lambda: jax.random.key(0))
    row = jax.ShapeDtypeStruct((1, program.sequence_length), jnp.int32)
    variables = jax.eval_shape(functools.partial(initial_variables, program), key)
    return products_of(jax.make_jaxpr(forward)(variables, row).jaxpr)


def products_of(jaxpr: Any) -> int | None:
    """Counts the products of matrices in a jaxpr, None where it does not say."""
    total = 0
    for equation in jaxpr.eqns:
        count = _products_of_equation(equation)
        if count is None:
            return None
        total += count
    return total


def _products_of_equation(equation):
    name = equation.primitive.name
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        lhs = equation.invars[0].aval.shape
        return math.prod(equation.outvars[0].aval.shape) * math.prod(
            lhs[axis] for axis in contracted
        )
    inner = [products_of(x) for x in _jaxprs_in(equation)]
    if (
        any(count is None for count in inner)
        or "pallas" in name
        or "custom_call" in name
    ):
        return None
    if name == "scan":
        return equation.params["length"] * sum(inner)
    if name == "while":
        return None if sum(inner) else 0
    if name == "cond":
        return max(inner)
    if name.startswith("custom_"):
        # The rules of its derivative are no part of the forward pass.
        return inner[0] if inner else 0
    return sum(inner)


def _jaxprs_in(equation):
    """Yields the programs that an equation calls."""
    is_jaxpr = lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
    for value in jax.tree.leaves(equation.params, is_leaf=is_jaxpr):
        inner = getattr(value, "jaxpr", value)
        if hasattr(inner, "eqns"):
            yield inner
