"""Lists what is timed, makes the inputs, and checks the results.

B batch, n queries and keys, H heads, d = d_k = d_v = A (the hidden width of an
additive score).
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from launch.bench.attention import normalisers, oracle
from launch.bench.attention.call import Call
from launch.bench.harness import device
from launch.bench.harness.libraries import Library

PASSES = ("forward", "gradient")
CHECKED_ROWS = 8
"""The number of queries that are checked."""
TOLERANCES = {"float32": 1e-4, "tf32": 0.01, "bfloat16": 0.1}
"""In parts of the largest exact value, by how factors of products are rounded: float32 stays
below 1e-5 of it, TF32 and bfloat16 keep 11 and 8 bits, and a wrong mask or scale is off by
a half and more."""
WINDOW = 64
"""Keys that a window has on each side."""

JAX = Library("launch.bench.attention.jax")
LIBRARIES = {
    "attn": JAX,
    "attn:tiled": JAX,
    "attn:reference": JAX,
    "attn:jax_nn": JAX,
    "jax.nn": JAX,
    "flax": JAX,
    "textbook": JAX,
    "torch": Library("launch.bench.attention.torch", needs=("torch",)),
}

NORMALISERS = {
    "attn": JAX,
    **{f"attn:{name}": JAX for name in normalisers.NORMALISERS if name != "softmax"},
}
"""What --normalisers compares: softmax, and each that may stand in its place."""


# Frozen, because cases are the keys of results.
@dataclasses.dataclass(frozen=True)
class Case:
    """Holds the sizes of one thing to time."""

    group: str
    """The name without the pass: one table holds both passes."""
    direction: str
    """"forward": the output. "gradient": Σ g · output and its gradient to q, k, v and
    the parameters of the score."""
    score: str
    n: int
    b: int
    h: int
    d: int = 64
    dtype: str = "float32"
    """Or "bfloat16"."""
    mask: str = "full"
    """Or "causal", or "window": WINDOW keys on each side."""
    only: tuple[str, ...] | None = None
    """Libraries (the name up to a colon) that take part, where the n² memory or time of
    the others makes no sense."""

    @property
    def name(self) -> str:
        """Returns the name by which --cases picks it."""
        return f"{self.group}-{self.direction}"

    @property
    def call(self) -> Call:
        """Returns what the libraries are asked for."""
        return Call(
            score=self.score,
            causal=0 if self.mask == "causal" else None,
            window=(WINDOW, WINDOW) if self.mask == "window" else None,
        )

    @property
    def products(self) -> str:
        """Returns how factors of products are rounded, unless a library is asked otherwise."""
        if self.dtype != "float32":
            return self.dtype
        return {"cuda": "tf32", "tpu": "bfloat16"}.get(device.platform(), "float32")

    @property
    def turn(self) -> float:
        """Returns the seconds after which the clock and the dispatch do not matter."""
        return 0.05

    def check(
        self, samples: dict[str, dict[str, np.ndarray]], name: str
    ) -> tuple[float, str]:
        """Returns the error of a sample and, where it is too large, a complaint."""
        named = name.removeprefix("attn:")
        normaliser = named if named in normalisers.NORMALISERS else "softmax"
        largest = error(self, samples[name], normaliser)
        if largest <= TOLERANCES[self.products]:
            return largest, ""
        return largest, f"off by {largest:.1e} of the largest exact value"


def _both(group, score, *, n, b, h, **options):
    """Returns the cases of both passes."""
    return tuple(
        Case(group, direction, score, n=n, b=b, h=h, **options) for direction in PASSES
    )


FLOAT32 = (
    *_both("dot-128", "scaled_dot", n=128, b=4, h=8),
    *_both("dot-512", "scaled_dot", n=512, b=4, h=8),
    *_both("dot-2048", "scaled_dot", n=2048, b=4, h=8),
    *_both("dot-2048-causal", "scaled_dot", n=2048, b=4, h=8, mask="causal"),
    *_both("additive-wide-32", "additive", n=32, b=64, h=2, d=256),
    *_both("additive-512", "additive", n=512, b=1, h=8),
    *_both("additive-1024", "additive", n=1024, b=1, h=8),
    *_both("bilinear-512", "bilinear", n=512, b=4, h=8),
    *_both(
        "window-8192",
        "scaled_dot",
        n=8192,
        b=1,
        h=8,
        mask="window",
        only=("attn", "jax.nn"),
    ),
    Case(
        "long-65536",
        "gradient",
        "scaled_dot",
        n=65536,
        b=1,
        h=1,
        mask="causal",
        only=("attn",),
    ),
)
BFLOAT16 = (
    *_both("bfloat16-2048", "scaled_dot", n=2048, b=4, h=16, dtype="bfloat16"),
    *_both(
        "bfloat16-8192-causal",
        "scaled_dot",
        n=8192,
        b=2,
        h=16,
        mask="causal",
        dtype="bfloat16",
    ),
    *_both("bfloat16-additive-2048", "additive", n=2048, b=2, h=8, dtype="bfloat16"),
)
"""Sizes of which a CPU, whose products are of float32, would say little in many minutes."""
CASES = FLOAT32 if device.platform() == device.CPU else FLOAT32 + BFLOAT16
TINY = (
    *_both("tiny-dot", "scaled_dot", n=16, b=1, h=2, d=8, mask="causal"),
    *_both("tiny-additive", "additive", n=16, b=1, h=2, d=8),
)


def inputs(case: Case) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns (x, g), the same in every process.

    x holds the arrays of `call`; g (B, n, H, d) weights the output in its sum.
    """
    # numpy draws, as every library can read its arrays without another library.
    generator = np.random.default_rng(0)
    sequence_shape = (case.b, case.n, case.h, case.d)
    matrix_shape = (case.h, case.d, case.d)

    def normal(shape, scale=1.0):
        return generator.standard_normal(shape, np.float32) * np.float32(scale)

    x = {name: normal(sequence_shape) for name in "qkv"}
    if case.score == "bilinear":
        # Scores stay near 1: qᵀ W k is a sum of d² terms.
        x["w"] = normal(matrix_shape, scale=1 / case.d)
    if case.score == "additive":
        x["w_q"] = normal(matrix_shape, scale=case.d**-0.5)
        x["w_k"] = normal(matrix_shape, scale=case.d**-0.5)
        x["w_v"] = normal((case.h, case.d))
    g = normal(sequence_shape)
    # Now, so that the exact result is of what the libraries get.
    return {name: _rounded(case, a) for name, a in x.items()}, _rounded(case, g)


def _rounded(case, a):
    return a.astype(jnp.dtype(case.dtype)).astype(np.float32)


def rows(case: Case) -> np.ndarray:
    """Returns the queries that are checked: the first, the last, and some between.

    They are those of the last head of the last example.
    """
    evenly = np.linspace(0, case.n - 1, CHECKED_ROWS)
    # A short case has fewer queries than are asked for.
    return np.unique(evenly.round().astype(int))


def checked(case: Case, g: np.ndarray) -> np.ndarray:
    """Returns g with zeros outside the checked rows.

    Gradients to all keys, values and parameters then come from these rows alone.
    """
    # An exact gradient of all rows would take n² memory in float64.
    sparse = np.zeros_like(g)
    sparse[-1, rows(case), -1] = g[-1, rows(case), -1]
    return sparse


def sample(case: Case, results: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Cuts what `error` compares out of a program's whole results.

    That is, of the last head of the last example, "out" (rows, d) of a forward pass;
    or, with `checked` weights, the gradients to q (rows, d), k, v (n, d) and the
    parameters of the score.
    """
    cut = {}
    for name, array in results.items():
        has_batch = name in ("q", "k", "v", "out")
        cut[name] = array[-1, :, -1] if has_batch else array[-1]
        # Keys and values get gradients from the checked rows at every position.
        if name in ("q", "out"):
            cut[name] = cut[name][rows(case)]
    return cut


def error(
    case: Case, sample: dict[str, np.ndarray], normaliser: str = "softmax"
) -> float:
    """Returns the largest error of a `sample` against float64.

    It is in parts of the largest exact value, and inf for NaN.
    """
    return oracle.error(sample, _expected(case, normaliser))


def _expected(case, normaliser):
    x, g = inputs(case)
    queries = rows(case)
    # Only the checked rows are computed: all of n = 65,536 would not fit.
    visible = np.broadcast_to(_visible(case, queries), (len(queries), case.n))
    head = {}
    for name, array in x.items():
        last = array[-1, :, -1] if name in "qkv" else array[-1]
        head[name] = last.astype(np.float64)
    head["q"] = head["q"][queries]
    forward = case.direction == "forward"
    g_of_rows = g[-1, queries, -1].astype(np.float64)
    options = dict(score=case.score, normaliser=normaliser)
    if forward:
        return {"out": oracle.head(head, visible, **options)[0]}
    return oracle.gradient(head, visible, g_of_rows, **options)


def _visible(case, queries):
    i = queries[:, None]
    j = np.arange(case.n)[None]
    if case.mask == "causal":
        return j <= i
    return abs(i - j) <= WINDOW if case.mask == "window" else np.True_
