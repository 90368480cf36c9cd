"""Lists the lines of attention's contract, and judges a library on one of them."""

import dataclasses

from launch.bench.conformance import bfloat16, probes
from launch.bench.harness.libraries import Unsupported
from launch.bench.harness.process import one_line

LINES = {
    "output equals float64 to rounding: full, causal, window, padding": probes.equals_float64,
    "output equals float64 to rounding: dense mask": probes.dense_mask,
    "a query that sees nothing: output 0": probes.empty_output,
    "a query that sees nothing: no gradient through it": probes.empty_gradient,
    "a query that sees nothing: LSE that of no key, no gradient through it": probes.empty_lse,
    "a row of bias −inf: output 0, no gradient through it": probes.empty_bias,
    "NaN or Inf in a hidden key or value reaches no output": probes.hidden_output,
    "NaN or Inf in a hidden key or value reaches no gradient": probes.hidden_gradient,
    "causal alignment is explicit where N ≠ M": probes.causal_offset,
    "a mask that is not boolean is an error": probes.number_mask,
    "float64 in, float64 out, exact to 1e-12": probes.float64_exact,
    "bfloat16: weights in float32": bfloat16.weights,
    "bfloat16: LSE in float32": bfloat16.lse,
    "LSE is differentiable": probes.lse_gradient,
    "dropout differs between heads and examples": probes.dropout_differs,
    "dropout without a key is an error": probes.dropout_without_key,
    "no argument is ignored in silence": probes.nothing_ignored,
    "forward mode": probes.forward_mode,
    "second order": probes.second_order,
    "gradients under vmap": probes.under_vmap,
    "d_v ≠ d_k": probes.value_width,
    "gradient to the bias": probes.bias_gradient,
    "more hidden keys change the output by rounding only": probes.longer_padding,
    "a window of 64 at n = 4096 takes less than n² memory": probes.window_memory,
    "additive score, with gradients to its parameters": probes.additive,
    "bilinear score, with gradients to its parameters": probes.bilinear,
}


TINY = ("a query that sees nothing: output 0", "gradient to the bias")
"""Lines that take a second."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Says whether a library keeps a line."""

    kind: str
    """"keeps", "breaks", "cannot" (the library does not offer it, or refuses it), or
    "absent" (it is not installed)."""
    finding: str = ""


def attempt(library, line: str) -> Verdict:
    """Returns the verdict on one line."""
    try:
        finding = LINES[line](library)
    except Unsupported as error:
        return Verdict("cannot", str(error))
    # A library may raise anything, and the other lines are still to be tried.
    except Exception as error:
        return Verdict("cannot", f"raises {one_line(error)}")
    return Verdict("keeps") if finding is None else Verdict("breaks", finding)
