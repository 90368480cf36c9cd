"""Attention and its gradients in float64 numpy, from the formulas and nothing of attn.

Every result comes with a bound on what rounding may do to it: the unit roundoff of the
arithmetic times the number of roundings, times a sum of absolute values that is computed
beside the value itself. No bound is fitted to what attn gives.

B examples (all batch axes as one), N queries, M keys, H heads, Q the width of a query, K
of a key, V of a value, A features of an additive score. Arrays here are (B, H, …).
"""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """How attn computes: inputs in a narrow dtype, softmax and sums in a wide one."""

    unit: float  # relative error of a rounding in the inputs' dtype
    wide: float  # the same in the dtype of sums, float32 at least
    tiny: float  # absolute error where a number is too small for the inputs' dtype
    largest: float  # above it a number overflows in the inputs' dtype


# XLA flushes subnormal float32 and float64 to 0; float16's are kept by its conversions.
# float64 has twice its unit roundoff, because the oracle rounds as attn does.
ARITHMETIC = {
    "float64": Arithmetic(2.0**-52, 2.0**-52, 2.0**-1022, 2.0**1020),
    "float32": Arithmetic(2.0**-24, 2.0**-24, 2.0**-126, 2.0**125),
    "bfloat16": Arithmetic(2.0**-8, 2.0**-24, 2.0**-126, 2.0**125),
    "float16": Arithmetic(2.0**-11, 2.0**-24, 2.0**-24, 65504.0 / 2),
}

EXP = 8
"""Roundings in an exponential and the few products around it."""
TANH = 24
"""Roundings in tanh(a + b), where it is made of two exponentials and half a division."""


@dataclasses.dataclass(frozen=True)
class Bounded:
    """A value, and how far rounding may take a computed one from it."""

    value: np.ndarray
    error: np.ndarray


def exact(value) -> Bounded:
    """Returns the value with error 0."""
    value = np.asarray(value, np.float64)
    return Bounded(value, np.zeros_like(value))


SMALLEST = 2.0**-126
"""The smallest normal float32; in float64 so small an error is no error."""


def product(spec: str, a: Bounded, b: Bounded, unit, limit=np.inf, tiny=SMALLEST):
    """Computes einsum(spec, a, b) with its bound.

    `unit` is the relative and `tiny` the absolute error of each term. Where the absolute
    values sum to more than the `limit` it may overflow, and nothing is known of it.
    """
    size_a = np.abs(a.value)
    size_b = np.abs(b.value)
    value = np.einsum(spec, a.value, b.value)
    size = np.einsum(spec, size_a, size_b)
    error = np.einsum(spec, a.error, size_b + b.error)
    error = error + np.einsum(spec, size_a, b.error)
    # A product with 0 is exact.
    terms = np.einsum(spec, (size_a > 0) * 1.0, (size_b > 0) * 1.0)
    error = error + unit * size + tiny * terms
    return Bounded(value, np.where(size > limit, np.inf, error))


def plus(a: Bounded, b: Bounded, unit: float) -> Bounded:
    """Computes a + b."""
    size = np.abs(a.value) + np.abs(b.value)
    # −inf is exact: it comes of a bias, and no rounding moves it.
    size = np.where(np.isinf(size), 0, size)
    return Bounded(a.value + b.value, a.error + b.error + unit * size)


def summed(a: Bounded, axis, unit: float) -> Bounded:
    """Computes Σ a over some axes, with `unit` for the relative error of each term."""
    size = np.abs(a.value).sum(axis, keepdims=True)
    error = a.error.sum(axis, keepdims=True) + unit * size
    return Bounded(a.value.sum(axis, keepdims=True), error)


def unbroadcast(a: Bounded, shape, unit: float) -> Bounded:
    """Sums a to the shape that was broadcast to its own: the transpose of that."""
    lead = a.value.ndim - len(shape)
    aligned = (1,) * lead + tuple(shape)
    axes = []
    for axis, (size, to) in enumerate(zip(a.value.shape, aligned, strict=True)):
        if size != to:
            axes.append(axis)
    axes += [axis for axis in range(lead) if axis not in axes]
    count = math.prod(a.value.shape[axis] for axis in axes)
    a = summed(a, tuple(axes), (count + 1) * unit)
    return Bounded(a.value.reshape(shape), a.error.reshape(shape))


def visible(parts, data, batch, n, m, h) -> np.ndarray:
    """Returns which keys each query sees, (B, H, N, M).

    Args:
      parts: tuples of a kind and its numbers: ("causal", offset), ("window", left, right),
        ("causal_at", …), ("padding", …), ("segments", …), ("dense", …).
      data: the arrays of each part, a dictionary at its place.
      batch, n, m, h: the sizes.
    """
    i = np.arange(n)[:, None]
    j = np.arange(m)[None]
    seen = np.ones((*batch, h, n, m), bool)

    def of_examples(x):
        return np.broadcast_to(np.asarray(x, np.int64), batch)[..., None, None, None]

    for (kind, *numbers), arrays in zip(parts, data, strict=True):
        if kind == "causal":
            part = j <= i + numbers[0]
        elif kind == "window":
            part = (i - numbers[0] <= j) & (j <= i + numbers[1])
        elif kind == "causal_at":
            part = j <= i + of_examples(arrays["offset"])
        elif kind == "padding":
            part = j < of_examples(arrays["lengths"])
        elif kind == "segments":
            q_ids = np.broadcast_to(arrays["q_ids"], (*batch, n))
            k_ids = np.broadcast_to(arrays["k_ids"], (*batch, m))
            part = (q_ids[..., :, None] == k_ids[..., None, :])[..., None, :, :]
        else:
            part = arrays["array"]
        seen &= part
    return seen.reshape(math.prod(batch), h, n, m)


def bucket(distance: int, buckets: int, bidirectional: bool, max_distance: int) -> int:
    """Returns T5's bucket of the distance j − i (Raffel et al. 2020, section 2.1)."""
    start = 0
    if bidirectional:
        buckets = buckets // 2
        start = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    small = buckets // 2
    if distance < small:
        return start + distance
    share = math.log(distance / small) / math.log(max_distance / small)
    # A power of two lands on the edge of a bucket, and its logarithm just below.
    step = math.floor(share * (buckets - small) + 1e-9)
    return start + min(buckets - 1, small + step)


def _bias_index(kind, options, width, n, m, offset):
    """Returns the place in a bias's table for each query and key, (N, M)."""
    distance = np.arange(m)[None] - np.arange(n)[:, None] - int(offset)
    if kind == "relative":
        return np.clip(distance, -(width // 2), width // 2) + width // 2
    flat = [bucket(int(d), width, *options) for d in distance.ravel()]
    return np.array(flat, np.int64).reshape(n, m)


def bias_value(bias, array, batch, n, m, h):
    """Returns the bias (B, H, N, M) in float64, or None."""
    if bias is None:
        return None
    kind, *options, offset = bias
    numbers = np.asarray(array, np.float64)
    if kind == "dense":
        full = np.broadcast_to(numbers, (*batch, h, n, m))
        return full.reshape(math.prod(batch), h, n, m)
    if kind == "alibi":
        distance = np.abs(np.arange(m)[None] - np.arange(n)[:, None] - offset)
        return (-numbers[:, None, None] * distance)[None]
    index = _bias_index(kind, options, numbers.shape[1], n, m, offset)
    return numbers[:, index][None]


def _bias_gradient(bias, array, ds, batch, unit, wide):
    """Returns the gradient of the bias's array from that of the scores (B, H, N, M)."""
    kind, *options, offset = bias
    examples, h, n, m = ds.value.shape
    numbers = np.asarray(array)
    if kind == "dense":
        full = Bounded(*(x.reshape(*batch, h, n, m) for x in (ds.value, ds.error)))
        return unbroadcast(full, numbers.shape, unit)
    if kind == "alibi":
        distance = np.abs(np.arange(m)[None] - np.arange(n)[:, None] - offset)
        terms = product("bhnm,nm->bhnm", ds, exact(-distance), 2 * wide)
        terms = summed(terms, (0, 2, 3), (examples * n * m + 2) * wide)
        return unbroadcast(_squeezed(terms, h), numbers.shape, wide)
    index = _bias_index(kind, options, numbers.shape[1], n, m, offset)
    columns = []
    for place in range(numbers.shape[1]):
        there = exact(index == place)
        terms = product("bhnm,nm->bhnm", ds, there, 0.0)
        terms = summed(terms, (0, 2, 3), (examples * n * m + 2) * wide)
        columns.append(_squeezed(terms, h))
    table = Bounded(
        np.stack([x.value for x in columns], 1), np.stack([x.error for x in columns], 1)
    )
    return unbroadcast(table, numbers.shape, wide)


def _squeezed(a, h):
    return Bounded(a.value.reshape(h), a.error.reshape(h))


def _per_head(parameter, h, core):
    """Returns a parameter with an axis of heads, whether it has one or is shared."""
    parameter = np.asarray(parameter, np.float64)
    shape = parameter.shape[parameter.ndim - core :]
    return exact(np.broadcast_to(parameter, (h, *shape)))


class _Product:
    """Scores that are products: dot, scaled dot, bilinear."""

    def __init__(self, kind, static, parameters, q, k, h, arithmetic):
        self.arithmetic = arithmetic
        self.parameters = parameters
        self.h = h
        unit = arithmetic.unit
        wide = arithmetic.wide
        self.steps = [q]  # the queries before and after each factor
        self.factors = []
        limits = {"limit": arithmetic.largest, "tiny": arithmetic.tiny}
        if kind == "scaled":
            scale = parameters.get("scale", static)
            if scale is None:
                scale = max(1, q.value.shape[-1]) ** -0.5
            self.factors.append(("scale", _per_head(scale, h, 0)))
            scaled = product("bhnk,h->bhnk", q, self.factors[0][1], 3 * unit, **limits)
            self.steps.append(scaled)
        for name in ("w", "w_2"):
            if name not in parameters:
                continue
            w = _per_head(parameters[name], h, 2)
            count = w.value.shape[1] + 2
            error = 3 * unit + count * wide
            step = product("bhnq,hqr->bhnr", self.steps[-1], w, error, **limits)
            self.factors.append((name, w))
            self.steps.append(step)
        self.k = k

    def scores(self):
        count = self.k.value.shape[-1] + 2
        error = count * self.arithmetic.wide
        return product("bhnk,bhmk->bhnm", self.steps[-1], self.k, error)

    def gradients(self, ds):
        """Returns those of q, k and the parameters by name."""
        unit = self.arithmetic.unit
        wide = self.arithmetic.wide
        limits = {"limit": self.arithmetic.largest, "tiny": self.arithmetic.tiny}
        examples, _, n, m = ds.value.shape
        error = 3 * unit + (n + m + 4) * wide
        dk = product("bhnm,bhnk->bhmk", ds, self.steps[-1], error, **limits)
        dq = product("bhnm,bhmk->bhnk", ds, self.k, error, **limits)
        gradients = {}
        places = range(len(self.factors))
        for place in reversed(places):
            name, w = self.factors[place]
            before = self.steps[place]
            if name == "scale":
                # The sum over queries and features may be in the queries' dtype.
                count = examples * n * before.value.shape[-1] + 4
                grad = product("bhnk,bhnk->h", before, dq, count * unit, **limits)
                dq = product("bhnk,h->bhnk", dq, w, 3 * unit, **limits)
            else:
                error = (examples + 4) * unit + (examples * n + 4) * wide
                grad = product("bhnq,bhnr->hqr", before, dq, error, **limits)
                error = 3 * unit + (w.value.shape[2] + 2) * wide
                dq = product("bhnr,hqr->bhnq", dq, w, error, **limits)
            if name in self.parameters:
                gradients[name] = grad
        return dq, dk, gradients


class _Additive:
    """vᵀ tanh(W_q q + W_k k + b)."""

    def __init__(self, kind, static, parameters, q, k, h, arithmetic):
        wide = arithmetic.wide
        self.arithmetic = arithmetic
        self.q = q
        self.k = k
        self.w_q = _per_head(parameters["w_q"], h, 2)
        self.w_k = _per_head(parameters["w_k"], h, 2)
        self.v = _per_head(parameters["v"], h, 1)
        self.parameters = parameters
        a = product("bhnq,hqa->bhna", q, self.w_q, (q.value.shape[-1] + 2) * wide)
        b = product("bhmk,hka->bhma", k, self.w_k, (k.value.shape[-1] + 2) * wide)
        if "b" in parameters:
            add = _per_head(parameters["b"], h, 1)
            a = plus(
                a, Bounded(add.value[None, :, None], add.error[None, :, None]), wide
            )
        x = plus(
            Bounded(a.value[..., None, :], a.error[..., None, :]),
            Bounded(b.value[..., None, :, :], b.error[..., None, :, :]),
            wide,
        )
        # tanh has slope 1 at most.
        tanh = np.tanh(x.value)
        self.tanh = Bounded(tanh, np.minimum(2, x.error + TANH * wide))
        # 1 − tanh² has slope 4/√27 < 1 at most.
        slope = np.minimum(2, x.error + 2 * TANH * wide)
        self.slope = Bounded(1 - tanh**2, slope)

    def scores(self):
        # Two features share a division, so the error of one has the other's weight: the
        # sum of all |v| covers both.
        wide = self.arithmetic.wide
        features = self.v.value.shape[-1]
        s = product("bhnma,ha->bhnm", self.tanh, self.v, (features + 10) * wide)
        spread = np.abs(self.v.value).sum(-1)[None, :, None, None]
        return Bounded(s.value, s.error + (TANH + features) * wide * spread)

    def gradients(self, ds):
        """Returns those of q, k and the parameters by name."""
        unit = self.arithmetic.unit
        wide = self.arithmetic.wide
        limits = {"limit": self.arithmetic.largest, "tiny": self.arithmetic.tiny}
        examples, _, n, m = ds.value.shape
        features = self.v.value.shape[-1]
        count = examples * n * m + features + 10
        pair = product("bhnma,ha->bhnma", self.slope, self.v, 4 * wide)
        da = product("bhnm,bhnma->bhna", ds, pair, (m + 10) * wide)
        db = product("bhnm,bhnma->bhma", ds, pair, (n + 10) * wide)
        dv = product("bhnm,bhnma->ha", ds, self.tanh, count * wide)
        error = 3 * unit + (features + 4) * wide
        dq = product("bhna,hqa->bhnq", da, self.w_q, error, **limits)
        dk = product("bhma,hka->bhmk", db, self.w_k, error, **limits)
        gradients = {
            "w_q": product("bhnq,bhna->hqa", self.q, da, count * wide),
            "w_k": product("bhmk,bhma->hka", self.k, db, count * wide),
            "v": dv,
        }
        if "b" in self.parameters:
            db = summed(da, (0, 2), count * wide)
            gradients["b"] = Bounded(db.value[0, :, 0], db.error[0, :, 0])
        return dq, dk, gradients


def attention(structure, data) -> tuple[dict[str, Bounded], np.ndarray]:
    """Computes the results and gradients of a case.

    Args:
      structure: has batch, n, m, h, score (its kind first), mask, bias and dtype.
      data: arrays by name: q, k and v as attn takes them, "score" and "bias" by name,
        "mask" a dictionary for each part, and the cotangents g_out, g_lse, g_weights.

    Returns:
      out (*B, N, H, V), lse (*B, N, H), weights (*B, H, N, M) and "d q", "d k", "d v",
      "d score.…", "d bias", each with its bound; and which queries (B, H, N) see a key or
      value that is not finite, whose results must not be finite either.
    """
    with np.errstate(all="ignore"):
        return _attention(structure, data)


def _attention(structure, data):
    arithmetic = ARITHMETIC[structure.dtype]
    unit = arithmetic.unit
    wide = arithmetic.wide
    batch = structure.batch
    n = structure.n
    m = structure.m
    h = structure.h
    heads_first = {}
    for name in ("q", "k", "v", "g_out"):
        x = np.asarray(data[name], np.float64)
        x = x.reshape(math.prod(batch), *x.shape[-3:])
        heads_first[name] = np.moveaxis(x, -2, 1)
        if name in "kv":
            heads_first[name] = heads_first[name].repeat(structure.group, axis=1)
    seen = visible(structure.mask, data["mask"], batch, n, m, h)

    bad = np.zeros((math.prod(batch), h, m), bool)
    for name in "kv":
        bad |= ~np.isfinite(heads_first[name]).all(-1)
    tainted = (seen & bad[:, :, None]).any(-1)
    q, k, v, g_out = (
        exact(np.where(np.isfinite(x), x, 0)) for x in heads_first.values()
    )

    kind, *options = structure.score
    static = next((x for x in options if isinstance(x, float)), None)
    make = _Additive if kind == "additive" else _Product
    score = make(kind, static, data["score"], q, k, h, arithmetic)
    s = score.scores()
    bias = bias_value(structure.bias, data["bias"], batch, n, m, h)
    if bias is not None:
        size = np.abs(np.where(np.isinf(bias), 0, bias))
        s = plus(s, Bounded(bias, 2 * wide * size), wide)
    w, lse = _softmax(s, seen, arithmetic)

    error = 3 * unit + (m + EXP) * wide
    out = product("bhnm,bhmv->bhnv", w, v, error, tiny=arithmetic.tiny)
    results = {
        "out": _back(out, batch, "out"),
        "lse": _back(lse, batch, "lse"),
        "weights": _back(w, batch, "weights"),
    }

    # Back: dP = g vᵀ + g_weights, dS = w ∘ (dP − Σ w dP + g_lse).
    error = 4 * unit + (v.value.shape[-1] + m + EXP) * wide
    limits = {"limit": arithmetic.largest, "tiny": arithmetic.tiny}
    dp = product("bhnv,bhmv->bhnm", g_out, v, error, **limits)
    if "g_weights" in data:
        extra = np.asarray(data["g_weights"], np.float64).reshape(seen.shape)
        dp = plus(dp, exact(extra), wide)
    mean = product("bhnm,bhnm->bhn", w, dp, error)
    inner = plus(dp, Bounded(-mean.value[..., None], mean.error[..., None]), 4 * wide)
    if "g_lse" in data:
        g_lse = np.asarray(data["g_lse"], np.float64).reshape(math.prod(batch), n, h)
        g_lse = np.moveaxis(g_lse, -1, 1)[..., None]
        inner = plus(inner, exact(g_lse), 4 * wide)
    ds = product("bhnm,bhnm->bhnm", w, inner, 4 * unit + EXP * wide, **limits)
    error = 4 * unit + (n + EXP) * wide
    dv = product("bhnm,bhnv->bhmv", w, g_out, error, **limits)
    dq, dk, d_score = score.gradients(ds)
    dk, dv = (_shared(x, structure.group, max(wide, unit)) for x in (dk, dv))
    for name, x in (("q", dq), ("k", dk), ("v", dv)):
        results[f"d {name}"] = _back(x, batch, "out")
    for name, x in d_score.items():
        shape = np.shape(data["score"][name])
        if len(shape) < x.value.ndim or shape[0] != h:
            x = unbroadcast(x, shape, wide)
        results[f"d score.{name}"] = x
    if structure.bias is not None:
        bias_unit = max(wide, unit if structure.bias[0] == "dense" else 0)
        gradient = _bias_gradient(
            structure.bias, data["bias"], ds, batch, bias_unit, wide
        )
        results["d bias"] = gradient
    return results, tainted


def _softmax(s, seen, arithmetic):
    """Returns the weights (B, H, N, M) and LSE (B, H, N) of the scores that are seen."""
    wide = arithmetic.wide
    m = s.value.shape[-1]
    value = np.where(seen, s.value, -np.inf)
    hidden = value == -np.inf
    empty = hidden.all(-1, keepdims=True)
    lse = _logsumexp(value)
    near = np.where(np.isinf(lse), 0, lse)
    # One rounding each in s − max, and in s − LSE where the weights are made again.
    size = np.abs(np.where(hidden, 0, value)) + np.abs(near)
    size = size + np.log(max(m, 1)) + 1
    error = np.where(hidden, 0, s.error + 4 * wide * size)
    # Any scores within their errors have weights between these two.
    lowest = _logsumexp(value - error)
    highest = _logsumexp(value + error)
    zero = hidden | empty
    w = np.where(zero, 0, np.exp(value - near))
    top = np.where(zero, 0, np.exp(np.minimum(0, value + error - lowest)))
    bottom = np.where(zero, 0, np.exp(value - error - highest))
    w_error = np.maximum(top - w, w - bottom) + (m + EXP) * wide * w
    # A weight too small for the dtype is 0; one that is hidden is 0 exactly.
    w_error = np.where(zero, 0, w_error + arithmetic.tiny)
    lse_error = np.maximum(highest - lse, lse - lowest) + (m + EXP) * wide
    lse_error = np.where(empty, 0, lse_error + 4 * wide * np.abs(near))
    return Bounded(w, w_error), Bounded(lse[..., 0], lse_error[..., 0])


def _logsumexp(s):
    if s.shape[-1] == 0:
        return np.full((*s.shape[:-1], 1), -np.inf)
    top = s.max(-1, keepdims=True)
    top = np.where(np.isinf(top), 0, top)
    return np.log(np.exp(s - top).sum(-1, keepdims=True)) + top


def _shared(a, group, unit):
    """Sums the gradients (B, H, …) of `group` heads that share keys or values."""
    if group == 1:
        return a
    shape = a.value.shape[0], a.value.shape[1] // group, group, *a.value.shape[2:]
    a = summed(Bounded(a.value.reshape(shape), a.error.reshape(shape)), 2, group * unit)
    return Bounded(a.value[:, :, 0], a.error[:, :, 0])


def _back(a, batch, layout):
    """Returns a (B, H, …) result laid out as attn does it."""

    def back(x):
        if layout != "weights":
            x = np.moveaxis(x, 1, 2)
        return x.reshape(*batch, *x.shape[1:])

    return Bounded(back(a.value), back(a.error))
