"""Lists what is timed, makes the inputs, and checks the results.

An adapter has a function `attend(x, call)` that asks its library for exactly what
`call` says and returns (output, LSE or None). `x` is a dictionary of the arrays that
have gradients: q (B, N, H, K), k (B, M, H, K), v (B, M, H, V); the parameters of the
score, w (H, K, K) of "bilinear" or w_q, w_k (H, K, A) and w_v (H, A) of "additive";
and bias (B, H, N, M) or table (H, 2·REACH + 1), what is added at each distance up to REACH,
where there is one. Here n = N = M and d = K = V = A.
"""

import dataclasses
import functools
import importlib

import ml_dtypes
import numpy as np

from attn.attention import IMPLEMENTATIONS
from attn.contract import oracle
from launch.bench.harness.libraries import CPU, Library, platform
from launch.bench.harness.run import timing

PASSES = ("forward", "gradient")
CHECKED_ROWS = 8
"""The number of queries that are checked."""
TOLERANCES = {"float32": 1e-4, "tf32": 0.01, "bfloat16": 0.1}
"""In parts of the largest exact value, by how factors of products are rounded: float32 stays
below 1e-5 of it, TF32 and bfloat16 keep 11 and 8 bits, and a wrong mask or scale is off by
a half and more."""
WINDOW = 64
"""Keys that a window has on each side."""
TEXTS = 8
"""Texts that share a row of "packed"."""
CAP = 50.0
"""Of "softcap", in scores."""
REACH = 128
"""The largest distance of "table"."""
SINK = 1.0
"""Of "sink", a score."""

JAX = Library("launch.bench.attention.jax")
TORCH = Library("launch.bench.attention.torch", needs=("torch",))
LIBRARIES = {
    "attn": JAX,
    **{f"attn:{name}": JAX for name in IMPLEMENTATIONS},
    "jax.nn": JAX,
    "jax.nn:cudnn": JAX,
    "flax": JAX,
    "textbook": JAX,
    "torch": TORCH,
    "torch:flex": TORCH,
}


# Compared by identity, as its mask is an array: it is a key of caches.
@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """Holds what is asked of attention, beside the arrays."""

    score: str = "scaled_dot"
    """Or "bilinear", qᵀ W k, or "additive", vᵀ tanh(W_q q + W_k k)."""
    mask: np.ndarray | None = None
    """Boolean, broadcastable to (B, H, N, M), True = may attend."""
    lengths: np.ndarray | None = None
    """(B,): an example's keys are real below its length."""
    causal: int | None = None
    """Query i sees key j when j ≤ i + causal."""
    window: tuple[int, int] | None = None
    """(left, right): query i sees key j when i − left ≤ j ≤ i + right."""
    texts: np.ndarray | None = None
    """(B, N): a query sees the keys of its own text, numbered; M = N."""
    slopes: np.ndarray | None = None
    """(H,): scores lose slope · |i − j| (ALiBi)."""
    cap: float | None = None
    """Scores s become cap · tanh(s / cap), before slopes."""
    sink: float | None = None
    """The score of one more key that all queries see, and whose value is 0."""
    rate: float = 0.0
    """Dropout of the weights, drawn from `seed`. Without a seed, the library does what
    it does when it gets none."""
    seed: int | None = None
    lse: bool = False
    """Whether the logarithm of the sum of exponentials is returned too."""
    rows: np.ndarray | None = None
    """Which queries those of the arrays are; None for all, from the first."""

    def visible(self, n: int, m: int) -> np.ndarray | None:
        """Returns what masks, lengths, causal and window show, None without any.

        It is boolean and broadcasts to (B, H, n, m); some libraries take no other form.
        """
        i = np.arange(n)[None, None, :, None]
        j = np.arange(m)[None, None, None]
        parts = [] if self.mask is None else [self.mask]
        if self.lengths is not None:
            parts.append(j < self.lengths[:, None, None, None])
        if self.causal is not None:
            parts.append(j <= i + self.causal)
        if self.window is not None:
            parts.append((i - self.window[0] <= j) & (j <= i + self.window[1]))
        if self.texts is not None:
            parts.append(self.texts[:, None, :, None] == self.texts[:, None, None])
        # A single mask as it is, of whatever numbers: libraries may refuse it.
        return functools.reduce(np.logical_and, parts) if parts else None

    def places(self, n: int, m: int) -> np.ndarray:
        """Returns the places (n, m) in a table of distances, of which the middle is 0."""
        i = np.arange(n) if self.rows is None else self.rows
        return np.clip(np.arange(m) - i[:, None], -REACH, REACH) + REACH

    def losses(self, n: int, m: int) -> np.ndarray | None:
        """Returns what slopes add to the scores (1, H, n, m), None without any."""
        if self.slopes is None:
            return None
        i = np.arange(n)[None, None, :, None]
        j = np.arange(m)[None, None, None]
        return (-self.slopes[None, :, None, None] * abs(i - j)).astype(np.float32)


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
    """Or "causal"; "window": WINDOW keys on each side; "padding": examples end earlier;
    "packed": TEXTS texts in a row, causal."""
    variant: str = ""
    """Or "alibi", "table", "softcap" (CAP) or "sink" (SINK)."""
    only: tuple[str, ...] | None = None
    """Libraries (the name up to a colon) that take part, where the n² memory or time of
    the others makes no sense."""
    turn: float = 0.05
    """Seconds after which the clock and the dispatch do not matter."""
    budget: float = 20.0
    work: int = 0
    error_words: str = ""

    @property
    def name(self) -> str:
        """Returns the name by which --cases picks it."""
        return f"{self.group}-{self.direction}"

    @property
    def column(self) -> str:
        """Returns the pass."""
        return self.direction

    @property
    def title(self) -> str:
        """Returns what heads the table of the group."""
        masks = {
            "causal": ", causal",
            "window": f", window of {WINDOW} on each side",
            "padding": ", padded",
            "packed": f", causal, {TEXTS} texts in a row",
        }
        sizes = f"batch {self.b}, {self.h} heads, n {self.n}, d {self.d}, {self.dtype}"
        score = self.score.replace("_", " ")
        variant = f", {self.variant}" if self.variant else ""
        return f"{self.group}: {score}{masks.get(self.mask, '')}{variant}; {sizes}"

    @property
    def call(self) -> Call:
        """Returns what the libraries are asked for."""
        texts = lengths = slopes = None
        if self.mask == "packed":
            in_row = np.arange(self.n) * TEXTS // self.n
            texts = np.broadcast_to(in_row, (self.b, self.n))
        if self.mask == "padding":
            # The last, of which rows are checked, is the shortest.
            lengths = np.maximum(1, self.n * np.arange(self.b, 0, -1) // self.b)
        if self.variant == "alibi":
            # Those of the paper, for a power of two of heads.
            slopes = 2.0 ** (-8 * (1 + np.arange(self.h)) / self.h)
        return Call(
            score=self.score,
            causal=0 if self.mask in ("causal", "packed") else None,
            window=(WINDOW, WINDOW) if self.mask == "window" else None,
            texts=texts,
            lengths=lengths,
            slopes=slopes,
            cap=CAP if self.variant == "softcap" else None,
            sink=SINK if self.variant == "sink" else None,
        )

    @property
    def products(self) -> str:
        """Returns how factors of products are rounded, unless a library is asked otherwise."""
        if self.dtype != "float32":
            return self.dtype
        return {"cuda": "tf32", "tpu": "bfloat16"}.get(platform(), "float32")

    def check(
        self, samples: dict[str, dict[str, np.ndarray]], name: str
    ) -> tuple[float, str]:
        """Returns the error of a sample and, where it is too large, a complaint."""
        largest = oracle.error(samples[name], _expected(self))
        if largest <= TOLERANCES[self.products]:
            return largest, ""
        return largest, f"off by {largest:.1e} of the largest exact value"


def _both(group, score, **options):
    """Returns the cases of both passes."""
    return tuple(Case(group, direction, score, **options) for direction in PASSES)


_WINDOW = {"mask": "window", "only": ("attn", "jax.nn")}
FLOAT32 = (
    *_both("dot-128", "scaled_dot", n=128, b=4, h=8),
    *_both("dot-512", "scaled_dot", n=512, b=4, h=8),
    *_both("dot-2048", "scaled_dot", n=2048, b=4, h=8),
    *_both("dot-2048-causal", "scaled_dot", n=2048, b=4, h=8, mask="causal"),
    *_both("additive-wide-32", "additive", n=32, b=64, h=2, d=256),
    *_both("additive-512", "additive", n=512, b=1, h=8),
    *_both("additive-1024", "additive", n=1024, b=1, h=8),
    *_both("bilinear-512", "bilinear", n=512, b=4, h=8),
    *_both("window-8192", "scaled_dot", n=8192, b=1, h=8, **_WINDOW),
    *_both(
        "long-65536",
        "scaled_dot",
        n=65536,
        b=1,
        h=1,
        mask="causal",
        only=("attn",),
    )[1:],
)
_BFLOAT16 = {"h": 16, "dtype": "bfloat16"}
BFLOAT16 = (
    *_both("bfloat16-2048", "scaled_dot", n=2048, b=4, **_BFLOAT16),
    *_both(
        "bfloat16-8192-causal", "scaled_dot", n=8192, b=2, mask="causal", **_BFLOAT16
    ),
    *_both("bfloat16-additive-2048", "additive", n=2048, b=2, **_BFLOAT16 | {"h": 8}),
)
"""Sizes of which a CPU, whose products are of float32, would say little in many minutes."""
_VARIANTS = {
    "packed": {"mask": "packed"},
    "window": {"mask": "window"},
    "padding": {"mask": "padding"},
    "alibi": {"mask": "causal", "variant": "alibi"},
    "table": {"mask": "causal", "variant": "table"},
    "softcap": {"mask": "causal", "variant": "softcap"},
    "sink": {"mask": "causal", "variant": "sink"},
}
VARIANTS = tuple(
    case
    for name, options in _VARIANTS.items()
    for case in _both(
        f"bfloat16-{name}-2048", "scaled_dot", n=2048, b=4, **options, **_BFLOAT16
    )
)
"""Masks and variants beside the plain ones, for `launch.bench device`."""
CASES = FLOAT32 if platform() == CPU else FLOAT32 + BFLOAT16
TINY = (
    *_both("tiny-dot", "scaled_dot", n=16, b=1, h=2, d=8, mask="causal"),
    *_both("tiny-additive", "additive", n=16, b=1, h=2, d=8),
)

BENCHMARK = timing(
    "attention",
    CASES,
    TINY,
    LIBRARIES,
    compared=("attn", "jax.nn", "flax", "textbook", "torch"),
    notes={},
)


def inputs(case: Case) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns (x, g), the same in every process.

    x holds the arrays that `attend` takes; g (B, n, H, d) weights the output in its sum.
    """
    # numpy draws, as every library can read its arrays without another library.
    generator = np.random.default_rng(0)
    sequence_shape = (case.b, case.n, case.h, case.d)
    matrix_shape = (case.h, case.d, case.d)

    def normal(shape, scale=1.0):
        x = generator.standard_normal(shape, np.float32) * np.float32(scale)
        if case.dtype == "float32":
            return x
        # Now, so that the exact result is of what the libraries get.
        return x.astype(ml_dtypes.bfloat16).astype(np.float32)

    x = {name: normal(sequence_shape) for name in "qkv"}
    if case.score == "bilinear":
        # Scores stay near 1: qᵀ W k is a sum of d² terms.
        x["w"] = normal(matrix_shape, scale=1 / case.d)
    if case.score == "additive":
        x["w_q"] = normal(matrix_shape, scale=case.d**-0.5)
        x["w_k"] = normal(matrix_shape, scale=case.d**-0.5)
        x["w_v"] = normal((case.h, case.d))
    if case.variant == "table":
        x["table"] = normal((case.h, 2 * REACH + 1))
    return x, normal(sequence_shape)


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
    """Cuts what is checked out of a program's whole results.

    That is, of the last head of the last example, "out" (1, rows, 1, d) of a forward pass;
    or, with `checked` weights, the gradients to q (1, rows, 1, d), k, v (1, n, 1, d) and
    the parameters of the score, or the table (1, ...).
    """
    cut = {}
    for name, array in results.items():
        has_batch = name in ("q", "k", "v", "out")
        cut[name] = array[-1:, :, -1:] if has_batch else array[-1:]
        # Keys and values get gradients from the checked rows at every position.
        if name in ("q", "out"):
            cut[name] = cut[name][:, rows(case)]
    return cut


def _expected(case):
    """Returns the exact values of a `sample`, of which only the checked rows are computed."""
    # By name, as that module imports this one.
    exact = importlib.import_module("launch.bench.attention.jax").EXACT
    x, g = inputs(case)
    asked = case.call
    visible = asked.visible(case.n, case.n)
    if visible is not None:
        visible = np.broadcast_to(visible, (*visible.shape[:2], case.n, case.n))
        visible = visible[-1:, -1:, rows(case)]
    call = Call(
        score=case.score, mask=visible, cap=asked.cap, sink=asked.sink, rows=rows(case)
    )
    x = sample(case, x)
    losses = asked.losses(case.n, case.n)
    if losses is not None:
        x["bias"] = losses[:, -1:, rows(case)]
    if case.direction == "forward":
        return {"out": exact.value(x, call, "float64")[0]}
    gradient = exact.gradient(x, call, sample(case, {"out": g})["out"], dtype="float64")
    # No library is asked for this one.
    gradient.pop("bias", None)
    return gradient
