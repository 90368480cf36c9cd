"""The lines of attention's contract, each as a probe that any library can be put to.

A probe returns None where the library keeps the line, or else what was found, in a few words; it raises Unsupported
where the library does not offer what the line is about.
"""

import dataclasses
import itertools

import ml_dtypes
import numpy as np

from launch.bench import exact, given
from launch.bench.exact import error
from launch.bench.given import CLOSE, DENSE, EMPTY, HIDDEN, LENGTHS, B, H, K, M, N
from launch.bench.peers import Call, Unsupported
from launch.bench.workers import described


def equals_float64(peer):
    x = given.inputs(n=M)
    calls = {"full": Call(), "causal": Call(causal=0), "window": Call(window=(2, 1)), "padding": Call(lengths=LENGTHS)}
    found = {name: given.off(peer.value(x, call)[0], given.exact_output(x, call)[0]) for name, call in calls.items()}
    return ", ".join(f"{name} {text}" for name, text in found.items() if text) or None


def dense_mask(peer):
    x, call = given.inputs(), Call(mask=DENSE)
    return given.off(peer.value(x, call)[0], given.exact_output(x, call)[0])


def empty_output(peer):
    x = given.inputs()
    return _not_zero(peer.value(x, Call(lengths=EMPTY))[0][0], x)


def _not_zero(out, x):
    """What the outputs (..., H, V) of queries of example 0 that see nothing are, if not 0."""
    if (out == 0).all():
        return None
    if np.isnan(out).any():
        return "gives NaN"
    return "gives mean(v)" if error(out, x["v"][0].mean(0)) < CLOSE else f"gives up to {np.abs(out).max():.2g}"


def empty_gradient(peer):
    x = given.inputs()
    g = given.weights(x)
    g[1] = 0
    return _leak(peer.gradient(x, Call(lengths=EMPTY), g))


def _leak(gradient):
    bad = {name: np.abs(a).max() for name, a in gradient.items() if not (a == 0).all()}
    nan = [name for name, value in bad.items() if np.isnan(value)]
    if nan:
        return f"gradient NaN to {', '.join(nan)}"
    return ", ".join(f"gradient up to {value:.2g} to {name}" for name, value in bad.items()) or None


def empty_lse(peer):
    x, call = given.inputs(), Call(lengths=EMPTY, lse=True)
    lse = peer.value(x, call)[1]
    if not (lse[0] == -np.inf).all():
        return f"gives {lse[0].flat[0]:.3g}"
    h = np.zeros((B, N, H))
    h[0] = 1
    return _leak(peer.gradient(x, call, h=h))


def empty_bias(peer):
    x, call = given.inputs(names=("bias",)), Call()
    x["bias"][0, :, 1] = -np.inf
    g = np.zeros((B, N, H, K))
    g[0, 1] = given.weights(x)[0, 1]
    found = [_not_zero(peer.value(x, call)[0][0, 1], x), _leak(peer.gradient(x, call, g))]
    whole = peer.gradient(x, call, given.weights(x))
    found.append(None if all(np.isfinite(a).all() for a in whole.values()) else "gradients of all rows not finite")
    return "; ".join(filter(None, found)) or None


def _poisoned():
    """(name, x): NaN or Inf in a key or a value that LENGTHS hides."""
    for where, poison in itertools.product("kv", (np.nan, np.inf)):
        x = given.inputs()
        x[where][HIDDEN] = poison
        yield f"{poison} of a {'key' if where == 'k' else 'value'}".replace("nan", "NaN").replace("inf", "Inf"), x


def hidden_output(peer):
    call = Call(lengths=LENGTHS)
    wanted = given.exact_output(given.inputs(), call)[0]
    leaks = [name for name, x in _poisoned() if error(peer.value(x, call)[0], wanted) > CLOSE]
    return f"lets through {', '.join(leaks)}" if leaks else None


def hidden_gradient(peer):
    call, g = Call(lengths=LENGTHS), given.weights(given.inputs())
    wanted = given.exact_gradient(given.inputs(), call, g)
    leaks = [name for name, x in _poisoned() if error(peer.gradient(x, call, g), wanted) > CLOSE]
    return f"lets through {', '.join(leaks)}" if leaks else None


def causal_offset(peer):
    x = given.inputs()
    try:
        found = peer.value(x, Call(causal=M - N))[0]
    except Unsupported as unsupported:
        out = peer.value(x, Call(causal=0))[0]
        ends = {"top left": 0, "bottom right": M - N}
        where = [name for name, at in ends.items() if error(out, given.exact_output(x, Call(causal=at))[0]) < CLOSE]
        where = where[0] if where else "neither top left nor bottom right"
        raise Unsupported(f"{unsupported}; aligned {where}") from None
    return given.off(found, given.exact_output(x, Call(causal=M - N))[0])


def number_mask(peer):
    x, mask = given.inputs(), DENSE.astype(np.float32)
    peer.value(x, Call(mask=DENSE))  # whoever refuses this one too keeps no line
    try:
        out = peer.value(x, Call(mask=mask))[0]
    except Exception:
        return None
    if error(out, given.exact_output(x, Call(mask=DENSE))[0]) < CLOSE:
        return "takes 0.0 and 1.0 as False and True"
    added = given.exact_output(x | {"bias": mask.astype(np.float64)}, Call())[0]
    return "adds it to the scores" if error(out, added) < CLOSE else "takes it, and makes something else of it"


def float64_exact(peer):
    x, call = given.inputs(), Call(causal=0)
    g = given.weights(x)
    out, _, (dtype, _) = peer.value(x, call, dtype="float64")
    far = {"error": error(out, given.exact_output(x, call)[0]),
           "of gradients": error(peer.gradient(x, call, g, dtype="float64"), given.exact_gradient(x, call, g))}
    if dtype != "float64":
        return f"returns {dtype}"
    return None if max(far.values()) < 1e-12 else ", ".join(f"{name} {value:.1e}" for name, value in far.items())


def _sharp():
    """Scores near 64 that differ by less than bfloat16 can tell there, from numbers that bfloat16 holds."""
    draw = np.random.default_rng(4)
    b, n, m, h, k = 2, 16, 32, 2, 32
    base = draw.choice([-1.0, 1.0], size=(b, 1, h, k)) * (64 * k**-0.5) ** 0.5
    x = {"q": base + draw.normal(size=(b, n, h, k), scale=0.3), "k": base + draw.normal(size=(b, m, h, k), scale=0.1),
         "v": draw.normal(size=(b, m, h, k))}
    return {name: a.astype(ml_dtypes.bfloat16).astype(np.float64) for name, a in x.items()}, np.ones((b, h, n, m), bool)


def bfloat16_softmax(peer):
    x, seen = _sharp()
    out, _, (dtype, _) = peer.value(x, Call(), dtype="bfloat16")
    wanted = exact.attention(x, seen)[0]
    q, k, v = (a.astype(np.float32) for a in x.values())
    s = np.einsum("bnhd,bmhd->bhnm", q, k) * np.float32(q.shape[-1] ** -0.5)
    e = np.exp(s - s.max(-1, keepdims=True))
    rounded = (e / e.sum(-1, keepdims=True)).astype(ml_dtypes.bfloat16).astype(np.float32)
    plain = np.einsum("bhnm,bmhv->bnhv", rounded, v).astype(ml_dtypes.bfloat16).astype(np.float64)
    times = error(out, wanted) / error(plain, wanted)
    if dtype != "bfloat16":
        return f"returns {dtype}"
    return None if times <= 2 else f"{times:.0f} times the error of a float32 softmax"


def bfloat16_lse(peer):
    x, seen = _sharp()
    _, lse, (_, dtype) = peer.value(x, Call(lse=True), dtype="bfloat16")
    far = np.abs(lse - exact.attention(x, seen)[1]).max()
    return None if dtype == "float32" and far < 0.01 else f"returns {dtype}, off by {far:.1e} at {lse.max():.0f}"


def lse_gradient(peer):
    x, call = given.inputs(), Call(causal=0, lse=True)
    h = np.random.default_rng(5).normal(size=(B, N, H))
    found = peer.gradient(x, call, h=h)
    if all((a == 0).all() for a in found.values()):
        return "its gradient is 0"
    return given.off(found, given.exact_gradient(x, call, np.zeros((B, N, H, K)), h))


def dropout_differs(peer):
    """Equal scores and v the unit matrix, so that the output is the weights."""
    m, rate = 64, 0.25
    x = {"q": np.ones((B, m, H, m)), "k": np.ones((B, m, H, m)),
         "v": np.broadcast_to(np.eye(m)[None, :, None], (B, m, H, m)).copy()}
    kept = np.moveaxis(peer.value(x, Call(rate=rate, seed=1))[0] != 0, 2, 1)
    if abs(kept.mean() - (1 - rate)) > 0.05:
        return f"at a rate of {rate} drops {1 - kept.mean():.2f}"
    flat = kept.reshape(B * H, -1)
    if (flat == flat[0]).all():
        return "the same in every head and example"
    same = [pair for pair in itertools.combinations(range(B * H), 2) if (flat[pair[0]] == flat[pair[1]]).mean() > 0.75]
    return f"alike in {len(same)} pairs of heads" if same else None


def dropout_without_key(peer):
    x = given.inputs()
    peer.value(x, Call(rate=0.5, seed=1))  # whoever refuses this one too keeps no line
    try:
        out = peer.value(x, Call(rate=0.5))[0]
    except Unsupported:
        raise
    except Exception:
        return None
    return "drops nothing" if error(out, given.exact_output(x, Call())[0]) < CLOSE else "drops by a key of its own"


OPTIONS = {"mask": dict(mask=DENSE), "lengths": dict(lengths=LENGTHS), "causal": dict(causal=0),
           "window": dict(window=(1, 1)), "bias": {}, "dropout": dict(rate=0.5, seed=1)}


def nothing_ignored(peer):
    """Each option changes the result, alone and beside each other one, or is refused."""
    plain = peer.value(given.inputs(), Call())[0]
    alone = {name: _with_options(peer, name) for name in OPTIONS}
    ignored = [name for name, out in alone.items() if _equal(out, plain)]
    for one, other in itertools.combinations([name for name, out in alone.items() if out is not None], 2):
        both = _with_options(peer, one, other)
        ignored += [f"{name} beside {beside}" for name, beside in ((one, other), (other, one))
                    if _equal(both, alone[beside])]
    ignored += [name for name, has_an_effect in peer.silent.items() if not _has_an_effect(has_an_effect)]
    return f"ignores {', '.join(ignored)}" if ignored else None


def _with_options(peer, *names):
    """The output; None where the options are refused."""
    call = Call(**{key: value for name in names for key, value in OPTIONS[name].items()})
    try:
        return peer.value(given.inputs(names=("bias",) if "bias" in names else ()), call)[0]
    except Exception:
        return None


def _equal(one, other):
    return one is not None and other is not None and error(one, other) < CLOSE


def _has_an_effect(function):
    try:
        return function()
    except Exception:
        return True  # refused


def forward_mode(peer):
    x, call = given.inputs(), Call(causal=0)
    dx = given.like(x)
    return given.off(peer.forward(x, dx, call), given.exact_output(_along(x, dx), call)[0].imag / STEP)


STEP = 1e-30
"""Of complex-step derivatives: nothing is subtracted, so nothing is lost however small it is."""


def _along(x, dx):
    return {name: a + 1j * STEP * dx[name] for name, a in x.items()}


def second_order(peer):
    x, call = given.inputs(), Call(causal=0)
    dx, g = given.like(x), given.weights(x)
    wanted = {name: a.imag / STEP for name, a in given.exact_gradient(_along(x, dx), call, g).items()}
    return given.off(peer.second(x, dx, call, g), wanted)


def under_vmap(peer):
    each, call = [given.like(given.inputs(), seed) for seed in (6, 7, 8)], Call(causal=0)
    g = given.weights(each[0])
    found = peer.mapped({name: np.stack([x[name] for x in each]) for name in each[0]}, call, g)
    wanted = [given.exact_gradient(x, call, g) for x in each]
    return given.off(found, {name: np.stack([x[name] for x in wanted]) for name in found})


def value_width(peer):
    x, call = given.inputs(v=K + 2), Call(causal=0)
    g = given.weights(x, v=K + 2)
    return (given.off(peer.value(x, call)[0], given.exact_output(x, call)[0])
            or given.off(peer.gradient(x, call, g), given.exact_gradient(x, call, g), what="gradient off by"))


def bias_gradient(peer):
    return _gradient(peer, Call(lengths=LENGTHS), "bias")


def additive(peer):
    return _gradient(peer, Call("additive", causal=0), "w_q", "w_k", "w_v")


def bilinear(peer):
    return _gradient(peer, Call("bilinear", causal=0), "w")


def _gradient(peer, call, *names):
    x = given.inputs(names=names)
    g = given.weights(x)
    return given.off(peer.gradient(x, call, g), given.exact_gradient(x, call, g))


def longer_padding(peer):
    """57 keys more, all hidden, behind the 7."""
    x, more = given.inputs(), given.inputs(m=M + 57)
    for name in "kv":
        more[name][:, :M] = x[name]
    short, long = (peer.value(keys, Call(lengths=LENGTHS))[0] for keys in (x, more))
    return given.off(long, short, most=2e-6, what="changes by")


def window_memory(peer):
    n = 4096
    x = {name: np.random.default_rng(9).normal(size=(1, n, 1, 16)) for name in "qkv"}
    used = peer.memory(x, Call(window=(64, 64)))
    if used is None:
        raise Unsupported("memory cannot be measured on this system")
    return None if used < n**2 else f"takes {used / 2**20:.0f} MiB; a boolean of n² is {n**2 // 2**20}"


LINES = {
    "output equals float64 to rounding: full, causal, window, padding": equals_float64,
    "output equals float64 to rounding: dense mask": dense_mask,
    "a query that sees nothing: output 0": empty_output,
    "a query that sees nothing: no gradient through it": empty_gradient,
    "a query that sees nothing: LSE −inf, no gradient through it": empty_lse,
    "a row of bias −inf: output 0, no gradient through it": empty_bias,
    "NaN or Inf in a hidden key or value reaches no output": hidden_output,
    "NaN or Inf in a hidden key or value reaches no gradient": hidden_gradient,
    "causal alignment is explicit where N ≠ M": causal_offset,
    "a mask that is not boolean is an error": number_mask,
    "float64 in, float64 out, exact to 1e-12": float64_exact,
    "bfloat16: softmax in float32": bfloat16_softmax,
    "bfloat16: LSE in float32": bfloat16_lse,
    "LSE is differentiable": lse_gradient,
    "dropout differs between heads and examples": dropout_differs,
    "dropout without a key is an error": dropout_without_key,
    "no argument is ignored in silence": nothing_ignored,
    "forward mode": forward_mode,
    "second order": second_order,
    "gradients under vmap": under_vmap,
    "d_v ≠ d_k": value_width,
    "gradient to the bias": bias_gradient,
    "more hidden keys change the output by rounding only": longer_padding,
    "a window of 64 at n = 4096 takes less than n² memory": window_memory,
    "additive score, with gradients to its parameters": additive,
    "bilinear score, with gradients to its parameters": bilinear,
}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """How a library stands to a line."""

    kind: str
    """"keeps", "breaks", "cannot" (the library does not offer it, or refuses it), or "absent" (it is not installed)."""
    finding: str = ""


def attempt(peer, line: str) -> Verdict:
    """The verdict on one line."""
    try:
        finding = LINES[line](peer)
    except Unsupported as error:
        return Verdict("cannot", str(error))
    except Exception as error:
        return Verdict("cannot", f"raises {described(error)}")
    return Verdict("keeps") if finding is None else Verdict("breaks", finding)
