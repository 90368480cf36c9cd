"""Tries each line of attention's contract on each library, in its own process.

A library (`launch.bench.attention.jax.Jax`, or one like it) keeps a line where what it
gives is near what the oracle gives. No verdict is written down anywhere: each is computed
when the command runs.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable

import ml_dtypes
import numpy as np

from attn.contract.oracle import error
from launch.bench.attention.cases import LIBRARIES, Call
from launch.bench.attention.jax import EXACT
from launch.bench.harness import report
from launch.bench.harness.benchmark import Benchmark, Outcome, Request
from launch.bench.harness.libraries import Unsupported
from launch.bench.harness.report import Table
from launch.bench.harness.run import workers
from launch.bench.harness.worker import Failed, one_line

# B examples, N queries, M keys, H heads, widths K and V, and A of an additive score: all
# differ, so that no two axes can be taken for each other.
B, N, M, H, K, V, A = 2, 5, 7, 3, 11, 12, 13
CLOSE = 3e-5
"""In parts of the largest exact value: a float32 result is closer."""
LENGTHS = np.array([4, M])
HIDDEN = (0, slice(4, None))
"""The keys that LENGTHS hides."""
EMPTY = np.array([0, M])
"""Lengths with which no query of example 0 sees anything."""
DENSE = np.random.default_rng(1).random((B, H, N, M)) < 0.6
# Every query sees a key: rows that see none have lines of their own.
DENSE[..., 0] = True
PARAMETERS = {
    "w": (H, K, K),
    "w_q": (H, K, A),
    "w_k": (H, K, A),
    "w_v": (H, A),
    "bias": (B, H, N, M),
}


def draw(n=N, names=(), v=K):
    """Returns q, k and v, and those of PARAMETERS in `names`: normal random numbers."""
    normal = np.random.default_rng(0).normal
    shapes = {"q": (B, n, H, K), "k": (B, M, H, K), "v": (B, M, H, v)}
    shapes |= {name: PARAMETERS[name] for name in names}
    return {name: normal(size=shape) for name, shape in shapes.items()}


def draw_sharp():
    """Returns arrays with scores near 64 that bfloat16 cannot tell apart.

    They come from numbers that bfloat16 holds exactly.
    """
    generator = np.random.default_rng(4)
    k = 32
    signs = generator.choice([-1.0, 1.0], size=(2, 1, 2, k))
    base = signs * (64 * k**-0.5) ** 0.5
    x = {
        "q": base + generator.normal(size=(2, 16, 2, k), scale=0.3),
        "k": base + generator.normal(size=(2, 32, 2, k), scale=0.1),
        "v": generator.normal(size=(2, 32, 2, k)),
    }
    return {
        name: a.astype(ml_dtypes.bfloat16).astype(np.float64) for name, a in x.items()
    }


def draw_empty_row():
    """Returns arrays with a bias that hides all keys from one query."""
    x = draw(names=("bias",))
    x["bias"][0, :, 1] = -np.inf
    return x


@dataclasses.dataclass(frozen=True)
class Probe:
    """Compares one result of a library with the oracle's."""

    call: Call
    result: str = "output"
    """Or "LSE", "gradient" of Σ g · output, "gradient of LSE"."""
    label: str = ""
    """What a finding begins with."""
    draw: Callable = draw
    poison: tuple[str, float] | None = None
    """The array that has this number at HIDDEN where a library gets it."""
    dtype: str = "float32"
    tolerance: float = CLOSE

    def __call__(self, library) -> str | None:
        """Returns None where the result is near the exact one, or else what it is."""
        x = self.draw()
        expected = self._result(EXACT, x, "float64")
        if self.poison:
            name, number = self.poison
            x[name][HIDDEN] = number
        found = self._result(library, x, self.dtype)
        largest = error(found, expected)
        if largest <= self.tolerance:
            return None
        arrays = found.values() if isinstance(found, dict) else [found]
        text = f"off by {largest:.1e}"
        if any(np.isnan(a).any() for a in arrays):
            text = "gives NaN"
        elif all((a == 0).all() for a in arrays):
            text = "gives 0"
        return f"{self.label} {text}".strip()

    def _result(self, library, x, dtype):
        if self.result == "output":
            return library.value(x, self.call, dtype)[0]
        if self.result == "LSE":
            return library.value(x, self.call, dtype)[1]
        normal = np.random.default_rng(3).normal
        shape = x["q"].shape[:3]
        if self.result == "gradient":
            g = normal(size=(*shape, x["v"].shape[-1]))
            return library.gradient(x, self.call, g, dtype=dtype)
        return library.gradient(x, self.call, h=normal(size=shape), dtype=dtype)


def _number_mask(library):
    x = draw()
    mask = DENSE.astype(np.float32)
    # A library that refuses the boolean mask too does not keep the line.
    library.value(x, Call(mask=DENSE))
    try:
        out = library.value(x, Call(mask=mask))[0]
    # However it is refused, the line is kept.
    except Exception:
        return None
    as_bias = {**x, "bias": mask.astype(np.float64)}
    for given, call, words in (
        (x, Call(mask=DENSE), "takes 0.0 and 1.0 as False and True"),
        (as_bias, Call(), "adds it to the scores"),
    ):
        if error(out, EXACT.value(given, call, "float64")[0]) < CLOSE:
            return words
    return "takes it, and makes something else of it"


def _dropout(library):
    m = 64
    rate = 0.25
    # All scores are equal and v is the unit matrix, so that the output is the weights.
    unit = np.broadcast_to(np.eye(m)[None, :, None], (B, m, H, m)).copy()
    x = {"q": np.full((B, m, H, m), 0.1), "k": np.full((B, m, H, m), 0.1), "v": unit}
    out = library.value(x, Call(rate=rate, seed=1))[0]
    flat = np.moveaxis(out != 0, 2, 1).reshape(B * H, -1)
    # 24,576 draws: 0.05 is eighteen standard deviations.
    if abs(flat.mean() - (1 - rate)) > 0.05:
        return f"at a rate of {rate} drops {1 - flat.mean():.2f}"
    pairs = itertools.combinations(flat, 2)
    # Independent masks agree in 0.75² + 0.25² = 0.63 of their places.
    alike = sum((a == b).mean() > 0.75 for a, b in pairs)
    return f"alike in {alike} pairs of heads" if alike else None


def _window_memory(library):
    n = 4096
    shape = (1, n, 1, 16)
    x = {name: np.random.default_rng(9).normal(size=shape) for name in "qkv"}
    used = library.memory(x, Call(window=(64, 64)))
    if used is None:
        raise Unsupported("memory cannot be measured on this system")
    # The least that pairs can take: one byte each.
    if used < n**2:
        return None
    return f"takes {used / 2**20:.0f} MiB; a boolean of n² is {n**2 // 2**20}"


def _poisoned(result):
    """Returns probes with NaN or Inf in a key or a value that a mask hides."""
    call = Call(lengths=LENGTHS)
    return [
        Probe(call, result, f"{number} of {name}:", poison=(name, number))
        for name, number in itertools.product("kv", (np.nan, np.inf))
    ]


def _parameters(call, *names):
    return [Probe(call, "gradient", draw=functools.partial(draw, names=names))]


# Square, as libraries may align causal masks in two ways elsewhere.
_square = functools.partial(draw, n=M)
_in_float64 = {"dtype": "float64", "tolerance": 1e-12}
_in_bfloat16 = {"dtype": "bfloat16", "draw": draw_sharp}
_LSE = Call(causal=0, lse=True)
_EMPTY_LSE = Call(lengths=EMPTY, lse=True)
LINES = {
    "output equals float64 to rounding, under every mask": [
        Probe(Call(), label="full"),
        Probe(Call(causal=0), label="causal", draw=_square),
        Probe(Call(window=(2, 1)), label="window", draw=_square),
        Probe(Call(lengths=LENGTHS), label="padding"),
        Probe(Call(mask=DENSE), label="dense"),
    ],
    "d_v ≠ d_k": [
        Probe(Call(causal=0), "gradient", draw=functools.partial(draw, n=M, v=V))
    ],
    "a query that sees nothing: output 0": [Probe(Call(lengths=EMPTY))],
    "a query that sees nothing: no gradient through it": [
        Probe(Call(lengths=EMPTY), "gradient")
    ],
    "a query that sees nothing: LSE −inf, no gradient through it": [
        Probe(_EMPTY_LSE, "LSE"),
        Probe(_EMPTY_LSE, "gradient of LSE", "gradient"),
    ],
    "a row of bias −inf: output 0, no gradient through it": [
        Probe(Call(), draw=draw_empty_row),
        Probe(Call(), "gradient", "gradient", draw=draw_empty_row),
    ],
    "NaN or Inf in a hidden key or value reaches no output": _poisoned("output"),
    "NaN or Inf in a hidden key or value reaches no gradient": _poisoned("gradient"),
    "causal alignment is explicit where N ≠ M": [Probe(Call(causal=M - N))],
    "a mask that is not boolean is an error": [_number_mask],
    "float64 in, float64 out, exact to 1e-12": [
        Probe(Call(causal=0), draw=_square, **_in_float64),
        Probe(Call(causal=0), "gradient", "gradient", draw=_square, **_in_float64),
    ],
    # A few roundings of bfloat16; weights in bfloat16 err by several times as much.
    "bfloat16: weights in float32": [Probe(Call(), tolerance=0.02, **_in_bfloat16)],
    # bfloat16 has steps of a 128th.
    "bfloat16: LSE in float32": [
        Probe(Call(lse=True), "LSE", tolerance=1.4e-4, **_in_bfloat16)
    ],
    "LSE is differentiable": [Probe(_LSE, "gradient of LSE")],
    "dropout differs between heads and examples": [_dropout],
    "gradient to the bias": _parameters(Call(lengths=LENGTHS), "bias"),
    "additive score, with gradients to its parameters": _parameters(
        Call("additive", causal=0), "w_q", "w_k", "w_v"
    ),
    "bilinear score, with gradients to its parameters": _parameters(
        Call("bilinear", causal=0), "w"
    ),
    "a window of 64 at n = 4096 takes less than n² memory": [_window_memory],
}
"""{what the contract says: probes, which return None where a library keeps it}."""


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
        findings = [probe(library) for probe in LINES[line]]
    except Unsupported as unsupported:
        return Verdict("cannot", str(unsupported))
    # A library may raise anything, and the other lines are still to be tried.
    except Exception as raised:
        return Verdict("cannot", f"raises {one_line(raised)}")
    found = "; ".join(filter(None, findings))
    return Verdict("breaks", found) if found else Verdict("keeps")


@dataclasses.dataclass(frozen=True)
class Case:
    """A line, as --cases picks it by its beginning."""

    name: str


def measure(request: Request) -> Outcome:
    """Tries every line on the libraries; shows the table and writes it."""
    verdicts = {case.name: {} for case in request.cases}
    with workers(request.libraries) as running:
        for library in request.libraries:
            for line, found in verdicts.items():
                with request.console.status(f"{library}: {line}"):
                    found[library] = _ask(running.get(library), line)
    filled = table(verdicts)
    report.show(filled, request.console)
    entries = {
        line: {name: dataclasses.asdict(verdict) for name, verdict in found.items()}
        for line, found in verdicts.items()
    }
    files = report.write(request.directory, "conformance", [filled], {"lines": entries})
    return Outcome(files)


def _ask(worker, line):
    if worker is None:
        return Verdict("absent", "not installed")
    try:
        return worker.call(attempt, line)
    except Failed as failed:
        # A process that died says nothing of the line itself.
        return Verdict("cannot", str(failed))


def table(verdicts: dict[str, dict[str, Verdict]]) -> Table:
    """Returns the table line × library, with a note for each finding."""
    filled = Table("Attention's contract", ("", *next(iter(verdicts.values()))))
    for line, by_name in verdicts.items():
        cells = [
            filled.noted(verdict.kind, verdict.finding) if verdict.finding else "keeps"
            for verdict in by_name.values()
        ]
        filled.rows.append((line, *cells))
    return filled


CASES = tuple(map(Case, LINES))
BENCHMARK = Benchmark(
    name="conformance",
    run=measure,
    cases=CASES,
    tiny=tuple(case for case in CASES if case.name.endswith(("output 0", "the bias"))),
    libraries=LIBRARIES,
    compared=tuple(name for name in LIBRARIES if name not in ("attn", "textbook")),
)
