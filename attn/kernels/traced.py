"""Attention by kernels that trace scores, masks, biases and dropout into their tiles.

What `pairs` leaves outside of the tiles is computed here, by JAX, with its derivatives; a
kernel computes a loop over tiles, and gradients of what it was given. B examples, N queries,
M keys, H heads of queries, J heads of keys and values, V = d_v.
"""

import dataclasses
import functools
import importlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attn.kernels.fused import only_first_derivatives, over_batch
from attn.kernels.pairs import Program, Untraceable, program_of
from attn.kernels.reference import Taint, by_head
from attn.kernels.tile import Tile
from attn.masks import Mask
from attn.normalisers import scaled
from attn.platforms import Tiles, tiles
from attn.pytrees import AnyArray, at_least_float32, map_leading, widened


@dataclasses.dataclass(frozen=True, eq=False)
class Form:
    """What is compiled in."""

    scores: Program
    """Gives exponents or, where the normaliser says no more, weights."""
    drop: Program | None
    """Gives what a weight is multiplied with."""
    has_exponents: bool
    kernel: Any
    """A module with `forward` and `backward`."""
    here: Tiles
    queries: int
    heads: int


class Operands(NamedTuple):
    """The arrays of a kernel, each (b, h, …) with b = B or 1 and h = H, J or 1."""

    v: Float[Array, "B J M V"]
    scores: list[Array]
    """The atoms of the scores."""
    drop: list[Array]
    given: list[Array]
    """(b, h, N, M), or (b, h, N + M) with a number for each distance j − i from 1 − N on,
    with the padding of N and M to whole blocks."""
    shown: Array
    """(b, h, queries' blocks, keys' blocks): whether a query of the block sees a key."""


def why_not(
    q: AnyArray, k: AnyArray, v: AnyArray, *, results: list[str], **values: Any
) -> str | None:
    """Returns the reason why these kernels cannot serve, or None where they can."""
    here = tiles(jnp.result_type(q, k, v))
    normaliser = values["normaliser"]
    if isinstance(here, str):
        return here
    if results[-1] in ("before", "after"):
        return "it does not return weights"
    if 0 in (k.shape[-1], v.shape[-1]):
        return "d_k and d_v must be at least 1"
    if not (hasattr(normaliser, "fused") or hasattr(normaliser, "weights")):
        return f"{type(normaliser).__name__} makes weights of a whole row of scores"
    call = functools.partial(in_batches, with_lse=False, is_finite=True)
    try:
        jax.eval_shape(call, q, k, v, **values)
    except Untraceable as error:
        return str(error)
    return None


def in_batches(
    q: Float[AnyArray, "*B N H K"],
    k: Float[AnyArray, "*B M J L"],
    v: Float[AnyArray, "*B M J V"],
    *,
    with_lse: bool,
    is_finite: bool,
    **values: Any,
) -> list[Array]:
    """Computes `attn.attention` by a kernel; with `with_lse` its LSE follows the output.

    Raises:
      Untraceable: a score, mask or bias that is more than numbers of pairs.
    """
    here = tiles(jnp.result_type(q, k, v))
    return _in_tiles(q, k, v, values, here, with_lse=with_lse, is_finite=is_finite)


@functools.partial(jax.jit, static_argnames=("here", "with_lse", "is_finite"))
def _in_tiles(q, k, v, values, here, *, with_lse, is_finite):
    batch = q.shape[:-3]
    (q, k, v), by_name = by_head(q, k, v, **values)
    q, k, v = (jnp.moveaxis(x, 2, 1) for x in (q, k, v))
    form, operands, rest = _taken_apart(q, k, v, by_name, here, is_finite)
    attended: Any = _attention(form, operands, rest)
    out, lse = attended
    results = [out]
    if with_lse:
        results.append(lse)
    results = [jnp.moveaxis(x, 1, 2) for x in results]
    return [x.reshape(*batch, *x.shape[1:]) for x in results]


def _taken_apart(q, k, v, values, here, is_finite):
    """Returns the form, the operands and what else is in the denominator, (b, H, N)."""
    normaliser = values["normaliser"]
    taint = None, None
    if not is_finite:
        taint, (q, k, v) = _cleaned(q, k, v)
    sight = _sight(values["mask"], q.shape[2], k.shape[2], here.blocks)
    factor = rest = None
    if hasattr(normaliser, "exponents"):
        factor, rest = _fused(normaliser, sight.count)
    given = _given(values, sight, here.blocks)
    places = [jnp.arange(x.shape[2])[None, None] for x in (q, k)]
    of_queries = places[0], q, taint[0], factor, sight.count
    of_keys = places[1], k, taint[1]
    # What is given stands for itself.
    mask = Mask() if "visible" in given else values["mask"]
    bias = None if "bias" in given else values["bias"]
    shared = values["score"], normaliser, mask, bias
    program, atoms = _program(
        functools.partial(_scores, tuple(given)),
        of_queries,
        of_keys,
        shared,
        [x.dtype for x in given.values()],
    )
    drop, of_drop = None, []
    if values["drop"] is not None:
        kept = functools.partial(_kept, k.shape[2])
        drop, of_drop = _program(kept, of_queries[:1], of_keys[:1], values["drop"])
        of_drop = [jax.lax.stop_gradient(x) for x in of_drop]
    has_exponents = hasattr(normaliser, "exponents")
    # With Pallas, which only this takes, and which not every JAX has for every device.
    kernel = importlib.import_module(f"attn.kernels.{here.kernel}")
    form = Form(program, drop, has_exponents, kernel, here, q.shape[2], q.shape[1])
    operands = Operands(v, atoms, of_drop, list(given.values()), sight.shown)
    return form, operands, rest


def _given(values, sight, blocks):
    """Returns the arrays of pairs and of distances, by what they are."""
    mask, bias = values["mask"], values["bias"]
    n, m = sight.sizes
    given = {}
    if hasattr(bias, "by_distance"):
        whole = (
            -(-x // block) * block for x, block in zip((n, m), blocks, strict=True)
        )
        given["bias"] = _diagonals(bias, *whole)
    elif bias is not None and not hasattr(bias, "tile"):
        given["bias"] = jnp.broadcast_to(bias, (*bias.shape[:2], n, m))
    if mask.has_pairs:
        given["visible"] = sight.visible
    return given


def _scores(names, queries, keys, shared, given):
    """Computes exponents or weights of one head, with the given arrays of these names."""
    i, q, q_taint, factor, count = queries
    j, k, k_taint = keys
    score, normaliser, mask, bias = shared
    named = dict(zip(names, given, strict=True))
    score, q, k = score.prepare(q, k)
    tile = Tile(
        score=score,
        normaliser=normaliser,
        q=q,
        k=k.T,
        v=None,
        taint=None if q_taint is None else Taint(q_taint, k_taint),
        bias=named.get("bias", bias),
        mask=mask,
        drop=None,
        i=i,
        runs=(j,),
        columns=None,
    )
    s = tile.scores()
    if "visible" in named:
        s = jnp.where(named["visible"], s, -jnp.inf)
    if hasattr(normaliser, "exponents"):
        return (s if factor is None else scaled(s, factor[:, None]),)
    return (normaliser.weights(s, count[:, None]),)


def _kept(columns, queries, keys, drop, given):
    """Computes what dropout multiplies weights with."""
    (i,), (j,) = queries, keys
    return (drop.tile(jnp.ones((len(i), len(j))), i, j, columns),)


def _program(function, queries, keys, shared, given=()):
    """Takes a function of one head apart, whose arguments are (b, h, …); returns atoms too."""
    one = (jax.tree.map(_of_one_head, x) for x in (queries, keys, shared))
    of_queries, of_keys, of_all = one
    program = program_of(function, of_queries, of_keys, of_all, tuple(given))
    leaves = jax.tree.leaves((queries, keys, shared))
    atoms = []
    for atom, (places, compute) in zip(program.atoms, program.outside, strict=True):
        if atom.is_place:
            atoms.append(jnp.zeros((1, 1, 0), jnp.int32))
        else:
            atoms.append(_by_head_of(compute, [leaves[place] for place in places]))
    return program, atoms


def _of_one_head(x):
    return jax.ShapeDtypeStruct(x.shape[2:], x.dtype)


def _by_head_of(function, leaves):
    """Maps a function of one head over leaves (b, h, …)."""
    heads = {x.shape[1] for x in leaves} - {1}
    if len(heads) > 1:
        # Keys that several heads share, and what each of these makes of them.
        h = max(heads)
        leaves = [
            x.repeat(h // x.shape[1], axis=1) if x.shape[1] > 1 else x for x in leaves
        ]
    if not leaves:
        return function()[None, None]
    return map_leading(functools.partial(map_leading, function), *leaves)


def _cleaned(q, k, v):
    """Returns NaN for each token that holds NaN or Inf, and all with 0 in their place."""
    dtype = at_least_float32(v.dtype)
    finite = [jnp.isfinite(x).all(-1) for x in (q, k, v)]
    taint = [
        jnp.where(x, 0, jnp.nan).astype(dtype)
        for x in (finite[0], finite[1] & finite[2])
    ]
    return taint, [jnp.where(jnp.isfinite(x), x, 0) for x in (q, k, v)]


def _diagonals(bias, n, m):
    """Returns what a bias adds at each distance, (b, h, n + m)."""

    def of_head(bias):
        return bias.by_distance(jnp.arange(n + m) - (n - 1))

    return map_leading(functools.partial(map_leading, of_head), bias)


def _fused(normaliser, count):
    """Returns the factor (b, h, N) of the exponents and the rest (b, h, 1); None for neither."""

    def of_head(normaliser, count):
        return jax.tree.map(jnp.asarray, normaliser.fused(count))

    factor, rest = map_leading(
        functools.partial(map_leading, of_head), normaliser, count
    )
    if rest is not None:
        rest = jnp.broadcast_to(
            rest.reshape(*rest.shape[:2], -1), (*rest.shape[:2], count.shape[2])
        ).astype(count.dtype)
    return factor, rest


class Sight(NamedTuple):
    """What queries see, (b, h, …) with an axis of 1 where all see the same."""

    count: Float[Array, "b h N"]
    """The number of keys, and 1 where a query sees none."""
    shown: Array
    """(b, h, queries' blocks, keys' blocks)."""
    visible: Any
    """(b, h, N, M) of a mask that is an array already."""
    sizes: tuple[int, int]
    """N and M."""


def _sight(mask: Mask, n: int, m: int, blocks: tuple[int, int]) -> Sight:
    shown = _shown_by_reach(mask, n, m, blocks)[None, None]
    i, j = jnp.arange(n), jnp.arange(m)
    if not mask.parts:
        return Sight(jnp.full((1, 1, n), float(m)), shown, None, (n, m))

    def of_head(mask):
        seen = mask.tile(i, j)
        padded = jnp.pad(
            seen, [(0, -x % b) for x, b in zip((n, m), blocks, strict=True)]
        )
        rows, columns = (-(-x // b) for x, b in zip((n, m), blocks, strict=True))
        # Both are sums of what is compared, of which compilers make no array.
        some = padded.reshape(rows, blocks[0], columns, blocks[1]).any((1, 3))
        return seen.sum(1), some, seen if mask.has_pairs else None

    found: Any
    if jax.tree.leaves(mask):
        found = map_leading(functools.partial(map_leading, of_head), mask)
    else:
        found = jax.tree.map(lambda x: x[None, None], of_head(mask))
    count, some, visible = found
    if not mask.is_band:
        shown = some
    count = jnp.maximum(count, 1).astype(jnp.float32)
    return Sight(count, shown, visible, (n, m))


def _shown_by_reach(mask, n, m, blocks):
    """Returns the blocks that a mask's reach lets see each other, which is known outright."""
    left, right = mask.reach()
    first, width = (
        np.arange(0, size, block)[:, None]
        if axis == 0
        else np.arange(0, size, block)[None]
        for axis, (size, block) in enumerate(zip((n, m), blocks, strict=True))
    )
    shown = np.ones((first.size, width.size), bool)
    if right is not None:
        shown &= width <= np.minimum(first + blocks[0], n) - 1 + right
    if left is not None:
        shown &= np.minimum(width + blocks[1], m) - 1 >= first - left
    return jnp.asarray(shown)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(form: Form, operands: Operands, rest: Array | None):
    """Returns the output (B, H, N, V) and, of exponents, the LSE (B, H, N), which is wide."""
    return _forward(form, operands, rest)[0]


def _forward(form, operands, rest):
    operands = only_first(operands)
    out, lse = over_batch(functools.partial(_values, form))(operands.v, operands)
    if rest is not None:
        lse, own = jnp.logaddexp(lse, rest), lse
        out = (out * jnp.exp(own - lse)[..., None]).astype(out.dtype)
    return (out, lse), (operands, rest, out, lse)


def _values(form, v, operands):
    return form.kernel.forward(form, operands._replace(v=v))


def _backward(form, kept, cotangents):
    operands, rest, out, lse = kept
    g, d_lse = cotangents
    d_rest = None
    delta = None
    if form.has_exponents:
        # Of another denominator the kernel gives the right gradients, as it takes weights
        # from the LSE and Σ w dw from the output.
        delta = jnp.einsum("bhnv,bhnv->bhn", *widened((g, out))) - d_lse
        if rest is not None:
            d_rest = _summed(-jnp.exp(rest - lse) * delta, rest)
        # Of a query that sees nothing the exponents are −inf, and the weights 0.
        lse = jnp.where(lse == -jnp.inf, 0.0, lse)
    operands, g = only_first((operands, g))
    gradients = over_batch(functools.partial(_gradients, form))(
        operands.v, operands, g, lse, delta
    )
    gradients = jax.tree.map(_like, operands, gradients)
    return gradients, d_rest


_attention.defvjp(_forward, _backward)


def _gradients(form, v, operands, g, lse, delta):
    """Returns the gradients (B, H, …) of the operands, 0 of what the kernel has none of."""
    operands = operands._replace(v=v)
    found = form.kernel.backward(form, operands, g.astype(v.dtype), lse, delta)

    def of(name, x):
        zeros = (*g.shape[:2], *x.shape[2:])
        return found[name] if name in found else jnp.zeros(zeros)

    return Operands(
        v=of("v", v),
        scores=[of(i, x) for i, x in enumerate(operands.scores)],
        drop=[of(None, x) for x in operands.drop],
        given=[of(("given", i), x) for i, x in enumerate(operands.given)],
        shown=of(None, operands.shown),
    )


def in_order(shown: Array) -> tuple[Array, Array]:
    """Returns how many blocks of the last axis are shown, and all, these first."""
    order = jnp.argsort(~shown, axis=-1, stable=True)
    return shown.sum(-1, dtype=jnp.int32), order.astype(jnp.int32)


def _like(x, gradient):
    """Returns the gradient (B, H, …) of an operand (b, h, …); integers have none."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return np.zeros(x.shape, jax.dtypes.float0)
    return _summed(gradient, x).astype(x.dtype)


def _summed(gradient, x):
    """Adds up what examples and heads share of x."""
    b, h = x.shape[:2]
    shape = gradient.shape
    parts = gradient.reshape(b, shape[0] // b, h, shape[1] // h, *shape[2:])
    return parts.sum((1, 3)).reshape(b, h, *shape[2:])


def only_first(tree: Any) -> Any:
    """Returns the tree; what would differentiate it again raises NotImplementedError."""
    return jax.tree.map(
        lambda x: (
            only_first_derivatives(x) if jnp.issubdtype(x.dtype, jnp.floating) else x
        ),
        tree,
    )
