"""What is timed: the cases, their inputs, and how a result is checked.

B batch, n queries and keys, H heads, d = d_k = d_v = A (the hidden width of an additive score).
"""

import dataclasses

import numpy as np

from launch.bench import exact
from launch.bench.peers import BenchError, Call

PASSES = ("forward", "gradient")
ROWS = 8
TOLERANCE = 1e-4
"""Of the largest exact value: float32 stays below 1e-5 of it, a wrong mask or scale does not."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing to time."""

    group: str
    """The name without the pass: a table holds both."""
    direction: str
    """"forward": the output. "gradient": Σ g · output and its gradient to q, k, v and the score's parameters."""
    score: str
    n: int
    b: int
    h: int
    d: int = 64
    mask: str = "full"
    """Or "causal", or "window": WINDOW keys on each side."""
    only: tuple[str, ...] | None = None
    """Libraries (the name up to a colon) that take part, where the others' n² memory or time makes no sense."""

    @property
    def name(self) -> str:
        return f"{self.group}-{self.direction}"

    @property
    def call(self) -> Call:
        return Call(self.score, causal=0 if self.mask == "causal" else None,
                    window=(WINDOW, WINDOW) if self.mask == "window" else None)

    @property
    def turn(self) -> float:
        """Seconds: so many calls that the clock and the dispatch do not matter."""
        return 0.05

    def check(self, samples: dict[str, dict[str, np.ndarray]], name: str) -> tuple[float, str]:
        found = error(self, samples[name])
        return found, "" if found <= TOLERANCE else f"off by {found:.1e} of the largest exact value"


WINDOW = 64


def _both(group, *arguments, **options):
    return tuple(Case(group, direction, *arguments, **options) for direction in PASSES)


CASES = (
    *_both("dot-128", "scaled_dot", 128, 4, 8),
    *_both("dot-512", "scaled_dot", 512, 4, 8),
    *_both("dot-2048", "scaled_dot", 2048, 4, 8),
    *_both("dot-2048-causal", "scaled_dot", 2048, 4, 8, mask="causal"),
    *_both("additive-512", "additive", 512, 1, 8),
    *_both("additive-1024", "additive", 1024, 1, 8),
    *_both("bilinear-512", "bilinear", 512, 4, 8),
    *_both("window-8192", "scaled_dot", 8192, 1, 8, mask="window", only=("attn", "jax.nn")),
    Case("long-65536", "gradient", "scaled_dot", 65536, 1, 1, mask="causal", only=("attn",)),
)


def select(names: list[str] | None, cases: tuple[Case, ...] = CASES) -> list[Case]:
    """The cases whose names begin so, in their own order; all for None. Raises BenchError where none does."""
    if names is None:
        return list(cases)
    for name in names or [""]:
        if not name or not any(case.name.startswith(name) for case in cases):
            raise BenchError(f"no case begins with {name!r}; known: {', '.join(case.name for case in cases)}")
    return [case for case in cases if case.name.startswith(tuple(names))]


def inputs(case: Case) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(x, g): the arrays of `Call`, and the fixed weights g of the output's sum; the same in every process."""
    draw = np.random.default_rng(0)
    b, n, h, d = case.b, case.n, case.h, case.d

    def normal(*shape, scale=1.0):
        return draw.standard_normal(shape, np.float32) * np.float32(scale)

    x = {name: normal(b, n, h, d) for name in "qkv"}
    if case.score == "bilinear":
        x["w"] = normal(h, d, d, scale=1 / d)
    if case.score == "additive":
        x |= {"w_q": normal(h, d, d, scale=d**-0.5), "w_k": normal(h, d, d, scale=d**-0.5), "w_v": normal(h, d)}
    return x, normal(b, n, h, d)


def rows(case: Case) -> np.ndarray:
    """The queries whose results are checked, of the last head of the last example: first, last, and between."""
    return np.unique(np.linspace(0, case.n - 1, ROWS).round().astype(int))


def checked(case: Case, g: np.ndarray) -> np.ndarray:
    """g, 0 but in the checked rows: then gradients to all keys, values and parameters come from these rows alone."""
    kept = np.zeros_like(g)
    kept[-1, rows(case), -1] = g[-1, rows(case), -1]
    return kept


def sample(case: Case, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What `error` compares, of a program's whole results: the last head of the last example.

    "out" (rows, d) of a forward pass; or, with `checked` weights, the gradients to q (rows, d), k, v (n, d) and the
    score's parameters.
    """
    cut = {name: array[-1, :, -1] if name in ("q", "k", "v", "out") else array[-1] for name, array in found.items()}
    return {name: array[rows(case)] if name in ("q", "out") else array for name, array in cut.items()}


def error(case: Case, sample: dict[str, np.ndarray]) -> float:
    """The largest error of a peer's `sample` against float64, in parts of the largest exact value; inf for NaN."""
    return exact.error(sample, _wanted(case))


def _wanted(case):
    x, g = inputs(case)
    i, j = rows(case)[:, None], np.arange(case.n)[None]
    visible = np.broadcast_to({"full": True, "causal": j <= i, "window": abs(i - j) <= WINDOW}[case.mask],
                              (len(i), case.n))
    one = {name: (array[-1, :, -1] if name in "qkv" else array[-1]).astype(np.float64) for name, array in x.items()}
    one["q"] = one["q"][i[:, 0]]
    if case.direction == "forward":
        return {"out": exact.head(one, visible, case.score)[0]}
    return exact.gradient(one, visible, g[-1, i[:, 0], -1].astype(np.float64), score=case.score)
