"""attn.attention against attn.contract.oracle in random cases, and that oracle against loops.

A case is drawn from its number: sizes, axes of the batch, heads that share keys, the score, the
mask, the bias, the dtype, the kernel and its blocks, with NaN where nobody looks.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Additive, Bilinear, Dot, Mask, ScaledDot, attention
from attn.contract import oracle as formulas
from attn.jax_versions import enable_x64
from attn.positions.biases import ALiBiBias, RelativeBias
from tests.attn import oracle as loops
from tests.attn.blocks import blocks_of
from tests.cases import the_rest_in_ci

TOLERANCES = {"float64": 1e-11, "float32": 1e-4, "float16": 0.02, "bfloat16": 0.1}
"""The greatest error, as a share of the greatest number or of 1."""
HUGE = 2**31 - 1


@dataclasses.dataclass
class Case:
    """Arguments of attention(), and what the oracle takes in their place.

    `scores(q, k, score)` and `biases(bias)` are differentiable in these values of attn.
    """

    kernel: str | None
    block: int
    at_once: int | None
    group: int
    dtype: str
    qkv: list
    score: Any
    scores: Callable
    mask: Mask
    visible: np.ndarray
    bias: Any
    biases: Callable
    pulls: list


class Draw:
    """Draws a case from its number."""

    def __init__(self, number):
        self.rng = np.random.default_rng(number)
        self.batch = self.pick((), (1,), (2,), (3,), (2, 2))
        self.n, self.m = (self.pick(0, 1, 3, 5, 7, 11, 13, 17) for _ in "nm")
        self.h = self.pick(1, 2, 3, 4)
        self.d_q, self.d_v = self.pick(1, 2, 5, 8, 64), self.pick(1, 2, 5, 8)

    def pick(self, *values):
        return values[self.rng.integers(len(values))]

    def normal(self, *shape):
        return self.rng.normal(size=shape)

    @property
    def full(self):
        return (*self.batch, self.h, self.n, self.m)

    def broadcast_shape(self):
        """Returns a shape that broadcasts to the full one: axes of 1, the first left out."""
        shape = [self.pick(1, size, size) for size in self.full]
        return shape[self.rng.integers(len(shape) - 1) :]

    def score(self):
        """Returns attn's score, and the function of all scores."""
        kind = self.pick(Dot, ScaledDot, ScaledDot, Bilinear, Additive)
        lead = self.pick(1, self.h, self.h)
        d = self.d_q
        if kind is Dot:
            return Dot(), lambda q, k, score: formulas.dot(q, k)
        if kind is ScaledDot:
            scale = self.pick(None, 0.3, self.normal(self.h))
            return ScaledDot(scale), lambda q, k, score: formulas.scaled_dot(
                q, k, score.scale
            )
        if kind is Bilinear:
            matrices = self.pick([(d, d)], [(d, 2), (2, d)])
            w, w_2 = [self.normal(lead, *shape) / 2 for shape in matrices] + [None] * (
                2 - len(matrices)
            )
            return Bilinear(w, w_2), lambda q, k, s: formulas.bilinear(q, k, s.w, s.w_2)
        a = self.pick(1, 3, 9)
        parameters = [self.normal(lead, *x) / 2 for x in ((d, a), (d, a), (a,))]
        value = Additive(*parameters, self.pick(None, self.normal(self.h, a)))
        return value, lambda q, k, s: formulas.additive(q, k, s.w_q, s.w_k, s.v, s.b)

    def part(self):
        """Returns a mask, and what it shows, broadcast to (*B, H, N, M)."""
        i = np.arange(self.n)[:, None]
        j = np.arange(self.m)[None]
        kind = self.pick("causal", "window", "offsets", "padding", "segments", "dense")
        if kind == "causal":
            offset = self.pick(0, 0, self.m - self.n, 1, -3, HUGE)
            return Mask.causal(offset), j <= i + offset
        if kind == "window":
            left, right = self.pick(0, 1, 3, -1, HUGE), self.pick(0, 1, 2, 0, -2, HUGE)
            return Mask.window(left, right), (i - left <= j) & (j <= i + right)
        if kind == "offsets":
            offsets = self.rng.integers(-3, self.m + 2, self.batch)
            return Mask.causal(offsets), j <= i + offsets[..., None, None, None]
        if kind == "padding":
            lengths = self.rng.integers(-1, self.m + 3, self.batch)
            return Mask.padding(lengths), j < lengths[..., None, None, None]
        if kind == "segments":
            q_ids = self.rng.integers(-1, 2, (*self.batch, self.n))
            k_ids = self.rng.integers(0, 3, (*self.batch, self.m))
            same = q_ids[..., :, None] == k_ids[..., None, :]
            return Mask.segments(q_ids, k_ids), same[..., None, :, :]
        array = self.rng.random(self.broadcast_shape()) < self.pick(0.0, 0.3, 0.9, 1.0)
        return Mask.dense(array), array

    def mask(self):
        """Returns several masks together, and what they show (*B, H, N, M)."""
        mask = Mask()
        visible = np.ones(self.full, bool)
        for _ in range(self.pick(0, 1, 1, 1, 2, 3)):
            part, seen = self.part()
            mask &= part
            visible &= seen
        return mask, visible

    def bias(self):
        """Returns attn's bias, and the function of its numbers."""
        offset = self.pick(0, 1, -2, 5)
        distance = np.arange(self.m)[None] - np.arange(self.n)[:, None] - offset
        kind = self.pick("none", "none", "dense", "alibi", "relative")
        if kind == "none":
            return None, lambda bias: 0.0
        if kind == "dense":
            x = self.normal(*self.broadcast_shape())
            x[self.rng.random(x.shape) < self.pick(0, 0.3)] = self.pick(-np.inf, -100)
            return x, lambda bias: bias
        if kind == "alibi":
            far = np.abs(distance)
            return ALiBiBias(
                self.normal(self.h), offset
            ), lambda bias: -bias.slopes[:, None, None] * far
        r = self.pick(0, 1, 3)
        place = np.clip(distance, -r, r) + r
        table = self.normal(self.h, 2 * r + 1)
        return RelativeBias(table, offset), lambda bias: bias.table[:, place]


def draw_case(number) -> Case:
    """Returns a random case."""
    of = Draw(number)
    group = of.pick(*(g for g in range(1, of.h + 1) if of.h % g == 0))
    dtype = of.pick("float64", "float32", "float32", "bfloat16", "float16")
    wide = jnp.promote_types(dtype, jnp.float32)
    widths = (of.h, of.d_q), (of.h // group, of.d_q), (of.h // group, of.d_v)
    lengths = of.n, of.m, of.m
    mask, visible = of.mask()
    bias, biases = of.bias()
    score, scores = of.score()

    def cast(tree):
        is_float = lambda x: isinstance(x, np.ndarray) and x.dtype == float
        return jax.tree.map(lambda x: x.astype(wide) if is_float(x) else x, tree)

    qkv = [
        jnp.asarray(of.normal(*of.batch, length, *width), dtype)
        for length, width in zip(lengths, widths, strict=True)
    ]
    out = *of.batch, of.n, of.h
    pulls = [of.normal(*out, of.d_v), of.normal(*out)]
    return Case(
        of.pick(None, "reference", "blocks", "blocks", "blocks"),
        *(of.pick(2, 3, 5), of.pick(None, 1, 2)),
        *(group, dtype, qkv, cast(score), scores, mask, visible, cast(bias), biases),
        pulls,
    )


def exact(case: Case):
    """Returns output, LSE and gradients to (q, k, v), score and bias, in float64."""
    *batch, h, n, m = case.visible.shape
    rows = math.prod(batch)

    def heads_first(x):
        return jnp.moveaxis(x.reshape(rows, *x.shape[-3:]), 2, 1)

    def results(qkv, score, bias):
        q, k, v = map(heads_first, qkv)
        k, v = (jnp.repeat(x, case.group, axis=1) for x in (k, v))
        added = jnp.broadcast_to(case.biases(bias), case.visible.shape)
        s = case.scores(q, k, score)
        seen = case.visible.reshape(rows, h, n, m)
        out, lse, _ = formulas.attention(s, v, seen, added.reshape(seen.shape))
        out, lse = (jnp.moveaxis(x, 1, 2) for x in (out, lse))
        return out.reshape(*batch, *out.shape[1:]), lse.reshape(*batch, *lse.shape[1:])

    def widened(x):
        is_float = jnp.issubdtype(jnp.result_type(x), jnp.floating)
        return jnp.asarray(x, float) if is_float else x

    wide = jax.tree.map(widened, (case.qkv, case.score, case.bias))
    return with_gradients(results, case.pulls, wide)


def of_kernel(case: Case, qkv):
    """Returns the same of attention(), with the queries, keys and values."""

    def results(qkv, score, bias):
        options = dict(mask=case.mask, return_lse=True, implementation=case.kernel)
        return attention(*qkv, score=score, bias=bias, **options)

    return with_gradients(results, case.pulls, (qkv, case.score, case.bias))


def with_gradients(results, pulls, arguments):
    """Returns results, and the gradients of their sum with factors, LSEs of −inf aside."""

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1, 2), has_aux=True, allow_int=True)
    def gradient(*arguments):
        out, lse = results(*arguments)
        total = (out * jnp.asarray(pulls[0], out.dtype)).sum()
        finite = jnp.where(lse == -jnp.inf, 0, lse)
        return total + (finite * jnp.asarray(pulls[1], lse.dtype)).sum(), (out, lse)

    gradients, both = gradient(*arguments)
    leaves = jax.tree.leaves((both, gradients))
    # Offsets have gradients of no type.
    return [np.asarray(x, np.float64) for x in leaves if x.dtype != jax.dtypes.float0]


def poisoned(case: Case, rng):
    """Returns queries, keys and values with NaN or Inf where a mask hides them from all."""
    q, k, v = case.qkv
    of_groups = case.visible.any(-2)
    *batch, h, m = of_groups.shape
    seen = of_groups.reshape(*batch, h // case.group, case.group, m).any(-2)
    hidden = ~np.moveaxis(seen, -1, -2)[..., None]
    blind = ~np.moveaxis(case.visible.any(-1), -1, -2)[..., None]
    poison = (np.nan, np.inf, -np.inf)[rng.integers(3)]
    return [
        jnp.where(where, jnp.asarray(poison, x.dtype), x)
        for where, x in ((blind, q), (hidden, k), (hidden, v))
    ]


@pytest.mark.parametrize("number", the_rest_in_ci(range(60), first=12))
def test_a_random_case_equals_the_oracle(number):
    with enable_x64(True):
        case = draw_case(number)
        with jax.numpy_rank_promotion("allow"):
            expected = exact(case)
        bad = poisoned(case, np.random.default_rng([number, 1]))
        with blocks_of(case.block, case.at_once):
            actual = of_kernel(case, bad)
    kinds = [type(x).__name__ for x in (case.score, case.bias)]
    parts = [type(part).__name__ for part in case.mask.parts]
    named = f"{case.kernel}, {case.dtype}, {case.visible.shape}, {kinds}, mask {parts}"
    for place, (a, b) in enumerate(zip(actual, expected, strict=True)):
        most = TOLERANCES[case.dtype] * np.abs(b[np.isfinite(b)]).max(initial=1)
        np.testing.assert_allclose(a, b, rtol=0, atol=most, err_msg=f"{place}: {named}")


B, N, M, H, K, V, A = 2, 5, 7, 3, 4, 6, 2
# Of the first example no query but one sees a key.
SEEN = np.random.default_rng(1).random((B, H, N, M)) < 0.6
SEEN[0, :, 1:] = False
SHAPES = {
    "dot": {},
    "scaled_dot": {},
    "bilinear": {"w": (H, K, K)},
    "additive": {"w_q": (H, K, A), "w_k": (H, K, A), "v": (H, A), "b": (H, A)},
}


def of_pair(score, parameters, h):
    """Returns the score of one query and one key."""
    p = {name: x[h] for name, x in parameters.items()}
    return {
        "dot": lambda q, k: q @ k,
        "scaled_dot": loops.scaled_dot,
        "bilinear": lambda q, k: q @ p["w"] @ k,
        "additive": lambda q, k: p["v"] @ np.tanh(q @ p["w_q"] + k @ p["w_k"] + p["b"]),
    }[score]


@pytest.mark.parametrize("score", SHAPES)
def test_the_formulas_are_those_of_loops(score):
    normal = np.random.default_rng(0).normal
    parameters = {name: normal(size=shape) for name, shape in SHAPES[score].items()}
    q, k = normal(size=(B, H, N, K)), normal(size=(B, H, M, K))
    v, bias = normal(size=(B, H, M, V)), normal(size=(B, H, N, M))
    bias[1, 2, 3] = -np.inf
    with enable_x64(True):
        s = formulas.SCORES[score](q, k, **parameters)
        results = formulas.attention(s, v, SEEN, bias)
        expected = loops.each_head(
            *(np.moveaxis(x, 1, 2) for x in (q, k, v)),
            SEEN & (bias > -np.inf),
            functools.partial(of_pair, score, parameters),
            np.where(bias > -np.inf, bias, 0),
        )
    for found, right in zip(results, expected, strict=True):
        found = np.moveaxis(found, 1, 2) if found.shape != right.shape else found
        np.testing.assert_allclose(found, right, rtol=1e-10, atol=1e-14)
