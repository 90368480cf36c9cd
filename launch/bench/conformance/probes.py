"""Probes a library for one line of attention's contract each; `contract` lists them.

A probe returns None where the library keeps the line, or else what it saw, in a few
words. It raises Unsupported where the library does not offer what the line is about.
"""

import itertools

import numpy as np

from launch.bench.attention.call import Call
from launch.bench.attention.oracle import error
from launch.bench.conformance import inputs
from launch.bench.conformance.inputs import (
    CLOSE,
    DENSE,
    EMPTY,
    HIDDEN,
    LENGTHS,
    B,
    H,
    K,
    M,
    N,
)
from launch.bench.harness.libraries import Unsupported

STEP = 1e-30
"""Step of complex-step derivatives: nothing is subtracted, so nothing is lost however
small it is."""


def _exact(library, x, call):
    """Returns the exact output."""
    return inputs.exact_output(x, call, library.normaliser)[0]


def _exact_gradient(library, x, call, *weights):
    """Returns the exact gradient of Σ g · output, or + Σ h · LSE."""
    return inputs.exact_gradient(x, call, library.normaliser, *weights)


def equals_float64(library):
    """Compares the output under each kind of mask."""
    # Square, as libraries may align causal masks in two ways where N ≠ M.
    x = inputs.inputs(n=M)
    calls = {
        "full": Call(),
        "causal": Call(causal=0),
        "window": Call(window=(2, 1)),
        "padding": Call(lengths=LENGTHS),
    }
    errors = []
    for name, call in calls.items():
        text = inputs.off(library.value(x, call)[0], _exact(library, x, call))
        if text:
            errors.append(f"{name} {text}")
    return ", ".join(errors) or None


def dense_mask(library):
    """Compares the output under an arbitrary mask."""
    x = inputs.inputs()
    call = Call(mask=DENSE)
    return inputs.off(library.value(x, call)[0], _exact(library, x, call))


def empty_output(library):
    """Looks at the output of queries that see nothing."""
    x = inputs.inputs()
    out = library.value(x, Call(lengths=EMPTY))[0]
    return _not_zero(out[0], x)


def _not_zero(out, x):
    """Says what outputs (..., H, V) of example 0 are that should be 0."""
    if (out == 0).all():
        return None
    if np.isnan(out).any():
        return "gives NaN"
    # A finite number in place of −inf makes all weights of such a row equal.
    if error(out, x["v"][0].mean(0)) < CLOSE:
        return "gives mean(v)"
    return f"gives up to {np.abs(out).max():.2g}"


def empty_gradient(library):
    """Looks at the gradient that comes through queries that see nothing."""
    x = inputs.inputs()
    g = inputs.weights(x)
    # Example 1 has real keys, whose gradients are not 0 and would hide a leak.
    g[1] = 0
    return _leak(library.gradient(x, Call(lengths=EMPTY), g))


def _leak(gradient):
    """Says which gradients are not 0 that should be."""
    largest = {name: np.abs(a).max() for name, a in gradient.items() if (a != 0).any()}
    nan = [name for name, value in largest.items() if np.isnan(value)]
    if nan:
        return f"gradient NaN to {', '.join(nan)}"
    leaks = [f"gradient up to {value:.2g} to {name}" for name, value in largest.items()]
    return ", ".join(leaks) or None


def empty_lse(library):
    """Looks at the LSE of queries that see nothing, and at its gradient."""
    x = inputs.inputs()
    call = Call(lengths=EMPTY, lse=True)
    lse = library.value(x, call)[1]
    expected = inputs.exact_output(x, call, library.normaliser)[1]
    if not np.array_equal(lse[0], expected[0]):
        return f"gives {lse[0].flat[0]:.3g}"
    h = np.zeros((B, N, H))
    # Example 1 has real keys, whose gradients are not 0.
    h[0] = 1
    return _leak(library.gradient(x, call, h=h))


def empty_bias(library):
    """Looks at a query whose bias hides every key from it."""
    x = inputs.inputs(names=("bias",))
    call = Call()
    x["bias"][0, :, 1] = -np.inf
    g = np.zeros((B, N, H, K))
    g[0, 1] = inputs.weights(x)[0, 1]
    faults = [
        _not_zero(library.value(x, call)[0][0, 1], x),
        _leak(library.gradient(x, call, g)),
    ]
    # With other rows in the loss too, this one must not spoil their gradients.
    whole = library.gradient(x, call, inputs.weights(x))
    if not all(np.isfinite(a).all() for a in whole.values()):
        faults.append("gradients of all rows not finite")
    return "; ".join(filter(None, faults)) or None


def _poisoned():
    """Yields (name, x) with NaN or Inf in a key or a value that LENGTHS hides."""
    for side, word in (("k", "key"), ("v", "value")):
        for name, poison in (("NaN", np.nan), ("Inf", np.inf)):
            x = inputs.inputs()
            x[side][HIDDEN] = poison
            yield f"{name} of a {word}", x


def hidden_output(library):
    """Looks for poison behind a mask in the output."""
    call = Call(lengths=LENGTHS)
    expected = _exact(library, inputs.inputs(), call)
    leaks = []
    for name, x in _poisoned():
        if error(library.value(x, call)[0], expected) > CLOSE:
            leaks.append(name)
    return f"lets through {', '.join(leaks)}" if leaks else None


def hidden_gradient(library):
    """Looks for poison behind a mask in the gradient."""
    call = Call(lengths=LENGTHS)
    g = inputs.weights(inputs.inputs())
    expected = _exact_gradient(library, inputs.inputs(), call, g)
    leaks = []
    for name, x in _poisoned():
        if error(library.gradient(x, call, g), expected) > CLOSE:
            leaks.append(name)
    return f"lets through {', '.join(leaks)}" if leaks else None


def causal_offset(library):
    """Asks for an offset; where there is none, says how causal masks are aligned."""
    x = inputs.inputs()
    call = Call(causal=M - N)
    try:
        out = library.value(x, call)[0]
    except Unsupported as unsupported:
        alignment = _alignment(library, x)
        raise Unsupported(f"{unsupported}; aligned {alignment}") from None
    return inputs.off(out, _exact(library, x, call))


def _alignment(library, x):
    out = library.value(x, Call(causal=0))[0]
    for name, offset in (("top left", 0), ("bottom right", M - N)):
        if error(out, _exact(library, x, Call(causal=offset))) < CLOSE:
            return name
    return "neither top left nor bottom right"


def number_mask(library):
    """Passes a mask of numbers, which should be refused."""
    x = inputs.inputs()
    mask = DENSE.astype(np.float32)
    # A library that refuses the boolean mask too does not keep the line.
    library.value(x, Call(mask=DENSE))
    try:
        out = library.value(x, Call(mask=mask))[0]
    # However it is refused, the line is kept.
    except Exception:
        return None
    if error(out, _exact(library, x, Call(mask=DENSE))) < CLOSE:
        return "takes 0.0 and 1.0 as False and True"
    # Some libraries take numbers for a bias, which a user hardly expects.
    x["bias"] = mask.astype(np.float64)
    if error(out, _exact(library, x, Call())) < CLOSE:
        return "adds it to the scores"
    return "takes it, and makes something else of it"


def float64_exact(library):
    """Compares the output and the gradient in float64."""
    x = inputs.inputs()
    call = Call(causal=0)
    g = inputs.weights(x)
    out, _, (dtype, _) = library.value(x, call, dtype="float64")
    gradient = library.gradient(x, call, g, dtype="float64")
    errors = {
        "error": error(out, _exact(library, x, call)),
        "of gradients": error(gradient, _exact_gradient(library, x, call, g)),
    }
    if dtype != "float64":
        return f"returns {dtype}"
    if max(errors.values()) < 1e-12:
        return None
    return ", ".join(f"{name} {value:.1e}" for name, value in errors.items())


def lse_gradient(library):
    """Compares the gradient of a sum of LSEs."""
    x = inputs.inputs()
    call = Call(causal=0, lse=True)
    h = np.random.default_rng(5).normal(size=(B, N, H))
    gradient = library.gradient(x, call, h=h)
    # Some libraries stop gradients there without a word.
    if all((a == 0).all() for a in gradient.values()):
        return "its gradient is 0"
    g = np.zeros((B, N, H, K))
    return inputs.off(gradient, _exact_gradient(library, x, call, g, h))


def dropout_differs(library):
    """Compares which weights are dropped in each head and example.

    Scores are equal and v is the unit matrix, so that the output is the weights. Scores are
    small, as a stick that is broken 64 times must leave something, and above 0 for ReLU.
    """
    m = 64
    rate = 0.25
    unit = np.broadcast_to(np.eye(m)[None, :, None], (B, m, H, m)).copy()
    x = {"q": np.full((B, m, H, m), 0.1), "k": np.full((B, m, H, m), 0.1), "v": unit}
    out = library.value(x, Call(rate=rate, seed=1))[0]
    remains = np.moveaxis(out != 0, 2, 1)
    # 24,576 draws: 0.05 is eighteen standard deviations.
    if abs(remains.mean() - (1 - rate)) > 0.05:
        return f"at a rate of {rate} drops {1 - remains.mean():.2f}"
    flat = remains.reshape(B * H, -1)
    if (flat == flat[0]).all():
        return "the same in every head and example"
    alike = 0
    for i, j in itertools.combinations(range(B * H), 2):
        # Independent masks agree in 0.75² + 0.25² = 0.63 of their places.
        alike += (flat[i] == flat[j]).mean() > 0.75
    return f"alike in {alike} pairs of heads" if alike else None


def dropout_without_key(library):
    """Asks for dropout without a random key, which should be refused."""
    x = inputs.inputs()
    # A library that refuses dropout with a key too does not keep the line.
    library.value(x, Call(rate=0.5, seed=1))
    try:
        out = library.value(x, Call(rate=0.5))[0]
    # That says the library has no keys at all, which is no refusal.
    except Unsupported:
        raise
    except Exception:
        return None
    unchanged = error(out, _exact(library, x, Call())) < CLOSE
    return "drops nothing" if unchanged else "drops by a key of its own"


OPTIONS = {
    "mask": {"mask": DENSE},
    "lengths": {"lengths": LENGTHS},
    "causal": {"causal": 0},
    "window": {"window": (1, 1)},
    "bias": {},
    "dropout": {"rate": 0.5, "seed": 1},
}


def nothing_ignored(library):
    """Checks that each option changes the result, alone and beside each other one.

    An option may also be refused.
    """
    plain = library.value(inputs.inputs(), Call())[0]
    alone = {name: _with_options(library, name) for name in OPTIONS}
    ignored = [name for name, out in alone.items() if _equal(out, plain)]
    # What is refused alone is not ignored beside another either.
    accepted = [name for name, out in alone.items() if out is not None]
    for first, second in itertools.combinations(accepted, 2):
        both = _with_options(library, first, second)
        if _equal(both, alone[second]):
            ignored.append(f"{first} beside {second}")
        if _equal(both, alone[first]):
            ignored.append(f"{second} beside {first}")
    for name, has_an_effect in library.silent.items():
        if not _has_an_effect(has_an_effect):
            ignored.append(name)
    return f"ignores {', '.join(ignored)}" if ignored else None


def _with_options(library, *names):
    """Returns the output, or None where the options are refused."""
    options = {}
    for name in names:
        options |= OPTIONS[name]
    x = inputs.inputs(names=("bias",) if "bias" in names else ())
    try:
        return library.value(x, Call(**options))[0]
    except Exception:
        return None


def _equal(a, b):
    return a is not None and b is not None and error(a, b) < CLOSE


def _has_an_effect(function):
    try:
        return function()
    except Exception:
        # The library refuses the argument, so it does not ignore it.
        return True


def forward_mode(library):
    """Compares a derivative by forward mode."""
    x = inputs.inputs()
    call = Call(causal=0)
    dx = inputs.like(x)
    expected = _exact(library, _along(x, dx), call).imag / STEP
    return inputs.off(library.forward(x, dx, call), expected)


def _along(x, dx):
    return {name: a + 1j * STEP * dx[name] for name, a in x.items()}


def second_order(library):
    """Compares the derivative of a gradient."""
    x = inputs.inputs()
    call = Call(causal=0)
    dx = inputs.like(x)
    g = inputs.weights(x)
    gradient = _exact_gradient(library, _along(x, dx), call, g)
    expected = {name: a.imag / STEP for name, a in gradient.items()}
    return inputs.off(library.second(x, dx, call, g), expected)


def under_vmap(library):
    """Compares the gradients of three sets of inputs at once."""
    examples = [inputs.like(inputs.inputs(), seed) for seed in (6, 7, 8)]
    call = Call(causal=0)
    g = inputs.weights(examples[0])
    gradients = library.mapped(_stacked(examples), call, g)
    exact = [_exact_gradient(library, x, call, g) for x in examples]
    return inputs.off(gradients, _stacked(exact))


def _stacked(examples):
    stacked = {}
    for name in examples[0]:
        stacked[name] = np.stack([x[name] for x in examples])
    return stacked


def value_width(library):
    """Compares output and gradient where values are wider than keys."""
    width = K + 2
    x = inputs.inputs(v=width)
    call = Call(causal=0)
    g = inputs.weights(x, v=width)
    fault = inputs.off(library.value(x, call)[0], _exact(library, x, call))
    if fault:
        return fault
    gradient = library.gradient(x, call, g)
    expected = _exact_gradient(library, x, call, g)
    return inputs.off(gradient, expected, what="gradient off by")


def bias_gradient(library):
    """Compares the gradient to a bias."""
    return _gradient(library, Call(lengths=LENGTHS), "bias")


def additive(library):
    """Compares the gradients to the parameters of an additive score."""
    return _gradient(library, Call("additive", causal=0), "w_q", "w_k", "w_v")


def bilinear(library):
    """Compares the gradient to the matrix of a bilinear score."""
    return _gradient(library, Call("bilinear", causal=0), "w")


def _gradient(library, call, *names):
    x = inputs.inputs(names=names)
    g = inputs.weights(x)
    gradient = library.gradient(x, call, g)
    return inputs.off(gradient, _exact_gradient(library, x, call, g))


def longer_padding(library):
    """Appends 57 hidden keys to the 7."""
    x = inputs.inputs()
    longer = inputs.inputs(m=M + 57)
    # The queries are equal already, because they are drawn first.
    for name in "kv":
        longer[name][:, :M] = x[name]
    call = Call(lengths=LENGTHS)
    short_out = library.value(x, call)[0]
    long_out = library.value(longer, call)[0]
    return inputs.off(long_out, short_out, tolerance=2e-6, what="changes by")


def window_memory(library):
    """Measures the memory of a narrow window over many keys."""
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
