"""Attention on TPUs: loops over tiles that `traced` has taken apart, by Pallas.

A tile has its queries in rows (sublanes) and its keys in columns (lanes). A program of the
grid has a block of queries and goes over the blocks of keys that one of them sees, or, for
the gradients of keys, the other way round. N queries and M keys with their padding, n and m
of a tile, F features.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from attn.kernels.pairs import compute, pull_back, results
from attn.kernels.traced import in_order

LEAST = -1e37
"""Stands for a maximum of −inf, of which two have no difference."""


class _Laid(NamedTuple):
    """An array (b, h, …) as it lies, of which a program sees a block."""

    kind: str
    """"rows" (N, F), "keys" (M, F), "columns" (F, M), "tiles" (N, M), "diagonals"
    (1, N + M), or "all" (1, F)."""
    array: Any


def forward(form: Any, operands: Any) -> tuple[Array, Array | None]:
    """Returns the output (B, H, N, V) and the LSE (B, H, N), None of weights."""
    plan = _Plan(form, operands)

    def start(accumulators, outs):
        acc, total, top = accumulators
        acc[...] = jnp.zeros_like(acc)
        total[...] = jnp.zeros_like(total)
        top[...] = jnp.full_like(top, LEAST)

    def step(at, ins, accumulators, outs):
        acc, total, top = accumulators
        w, _ = _scores(form, at, ins)
        v = ins.v[0, 0]
        if form.has_exponents:
            high = jnp.maximum(top[...], w.max(1, keepdims=True))
            shrink = jnp.exp(top[...] - high)
            w = jnp.exp(w - high)
            total[...] = total[...] * shrink + w.sum(1, keepdims=True)
            top[...] = high
            acc[...] *= shrink
        w = _times(w, _kept(form, at, ins))
        acc[...] += _product(w.astype(v.dtype), v, 1, 0)

    def finish(accumulators, outs):
        acc, total, top = (ref[...] for ref in accumulators)
        if form.has_exponents:
            is_empty = total == 0
            total = jnp.where(is_empty, 1.0, total)
            acc = acc / total
            outs[1][0, 0] = jnp.where(is_empty, -jnp.inf, top + jnp.log(total))
        outs[0][0, 0] = acc.astype(operands.v.dtype)

    width = operands.v.shape[-1]
    outs = [("rows", width)] + [("rows", 1)] * form.has_exponents
    accumulators = [("rows", width), ("rows", 1), ("rows", 1)]
    dtypes = [operands.v.dtype, jnp.float32]
    out, *lse = plan.call(plan.laid, outs, accumulators, start, step, finish, dtypes)
    return out, lse[0][..., 0] if lse else None


def backward(
    form: Any, operands: Any, g: Float[Array, "B H N V"], lse: Any, delta: Any
) -> dict[Any, Array]:
    """Returns gradients (B, H, …) for the cotangent g of the output.

    They are by the place of an atom, "v", and ("given", place). `delta` (B, H, N) is what to
    take from each cotangent of a query's weights; of weights that are no exponentials it
    and the LSE are None.
    """
    plan = _Plan(form, operands)
    of_queries = dict(g=g)
    if form.has_exponents:
        of_queries |= dict(lse=lse[..., None], delta=delta[..., None])
    more = {
        name: _Laid("rows", plan.padded(x, 2, plan.n)) for name, x in of_queries.items()
    }
    ins = plan.laid._replace(more=more)

    def start(accumulators, outs):
        # Of outputs that are added to block by block, too.
        for ref in (*accumulators, *outs[len(accumulators) :]):
            ref[...] = jnp.zeros_like(ref)

    def step(wanted, at, ins, accumulators, outs):
        x, values = _scores(form, at, ins)
        v = ins.v[0, 0]
        g = ins.more["g"][0, 0]
        kept = _kept(form, at, ins)
        d_w = _times(_product(g, v, 1, 1), kept)
        if form.has_exponents:
            w = jnp.exp(x - ins.more["lse"][0, 0])
            d_x = w * (d_w - ins.more["delta"][0, 0])
        else:
            w = x
            d_x = jnp.where(at.visible, d_w, 0.0)
        sums = dict(zip(wanted, accumulators, strict=False))
        tile = _Tile(form, at, ins.scores, sums)
        d_given = pull_back(form.scores, tile, _given(form, at, ins), values, [d_x])
        if at.by_queries:
            for place, out in zip(plan.of_given, outs[len(wanted) :], strict=True):
                _put_given(at, out, d_given[place])
        else:
            w = _times(w, kept)
            accumulators[-1][...] += _product(w.astype(v.dtype), g, 0, 0)

    def finish(accumulators, outs):
        for ref, out in zip(accumulators, outs, strict=False):
            out[(0,) * (out.ndim - 2)] = ref[...]

    found = {}
    for by_queries, sides in ((True, ("queries", "all")), (False, ("keys",))):
        wanted: list[Any] = plan.wanted(sides)
        sums = [plan.like(plan.laid.scores[index]) for index in wanted]
        tiles = []
        if by_queries:
            tiles = [plan.like(plan.laid.given[i]) for i in plan.of_given]
            names = [*wanted, *(("given", i) for i in plan.of_given)]
        else:
            names = [*wanted, "v"]
            sums.append(plan.like(plan.laid.v))
        if names:
            body = functools.partial(step, wanted)
            outs = [*sums, *tiles]
            got = plan.call(ins, outs, sums, start, body, finish, by_queries=by_queries)
            found |= dict(zip(names, got, strict=True))
    for place in set(found) & set(range(len(operands.scores))):
        found[place] = plan.as_atom(place, found[place])
    return found


class _Ins(NamedTuple):
    """The arrays of a kernel as they lie, or a program's references to its blocks."""

    v: Any
    scores: Any
    drop: Any
    given: Any
    more: Any


class _At(NamedTuple):
    """Where a program stands."""

    plan: "_Plan"
    by_queries: bool
    i: Any
    """The first query."""
    j: Any
    spread: dict[int, Any]
    """Features of atoms of queries, (F, n, m)."""

    @property
    def shape(self):
        return self.plan.size, self.plan.width

    def spread_out(self, ins):
        """Spreads features of queries over the lanes, for all blocks of keys."""
        for index, ref in self.spread.items():
            for f in range(ref.shape[0]):
                x = ins.scores[index][0, 0, :, f : f + 1]
                ref[f] = jnp.broadcast_to(x, self.shape).astype(ref.dtype)

    @property
    def first_distance(self):
        """Where the distances of the tile begin in the numbers of all."""
        return self.j - self.i + self.plan.n - self.shape[0]

    @property
    def visible(self):
        """Which pairs are of tokens, and not of padding."""
        i = self.i + jax.lax.broadcasted_iota(jnp.int32, self.shape, 0)
        j = self.j + jax.lax.broadcasted_iota(jnp.int32, self.shape, 1)
        return (i < self.plan.queries) & (j < self.plan.keys)


class _Plan:
    """How arrays lie, and which blocks a program goes over."""

    def __init__(self, form, operands):
        v = operands.v
        self.form = form
        self.size, self.width = form.here.blocks
        self.examples = v.shape[0]
        self.queries, self.heads = form.queries, form.heads
        self.keys = v.shape[2]
        self.n = -(-self.queries // self.size) * self.size
        self.m = -(-self.keys // self.width) * self.width
        self.shown = operands.shown
        self.of_given = [
            i
            for i, x in enumerate(operands.given)
            if jnp.issubdtype(x.dtype, jnp.floating)
        ]
        if any(operands.given[i].ndim == 4 for i in self.of_given):
            # Each tile of the gradient is written.
            self.shown = jnp.ones_like(self.shown)
        lay = lambda program, atoms: [
            None if atom.is_place else self.lay(atom, x)
            for atom, x in zip(program.atoms, atoms, strict=True)
        ]
        self.laid = _Ins(
            v=_Laid("keys", self.padded(v, 2, self.m)),
            scores=lay(form.scores, operands.scores),
            drop=lay(form.drop, operands.drop) if form.drop else [],
            given=[self.lay_given(_number(x)) for x in operands.given],
            more={},
        )

    def padded(self, x, axis, size, **how):
        more = size - x.shape[axis]
        return jnp.pad(x, [(0, more if i == axis else 0) for i in range(x.ndim)], **how)

    def extended(self, x, axis, size):
        """Pads with the last number: what is computed of padding is as finite as the rest."""
        return self.padded(x, axis, size, mode="edge")

    def like(self, laid):
        return laid.kind, self.features(laid)

    def lay(self, atom, x):
        """Returns an atom's array (b, h, …) as it lies."""
        x = _number(x)
        if atom.features is None:
            x = x[..., None]
        if atom.side == "all":
            return _Laid("all", x[:, :, None])
        if atom.side == "queries":
            return _Laid("rows", self.extended(x, 2, self.n))
        x = self.extended(x, 2, self.m)
        if atom.is_factor:
            return _Laid("keys", x)
        return _Laid("columns", jnp.swapaxes(x, 2, 3))

    def lay_given(self, x):
        if x.ndim == 3:
            return _Laid("diagonals", x[:, :, None])
        return _Laid("tiles", self.extended(self.extended(x, 2, self.n), 3, self.m))

    def as_atom(self, index, x):
        """Returns a gradient that lies as an atom does as the atom itself is."""
        atom = self.form.scores.atoms[index]
        if self.laid.scores[index].kind == "columns":
            x = jnp.swapaxes(x, 2, 3)
        if atom.side == "all":
            x = x.sum((2, 3))
        return x if atom.features is not None else x[..., 0]

    def features(self, laid):
        return laid.array.shape[2 if laid.kind == "columns" else 3]

    def spreads(self):
        """Returns the atoms of queries whose features are spread over the lanes only once.

        That takes longer than what is then computed of them for each block of keys.
        """
        found = []
        room = self.form.here.spread
        for i, atom in enumerate(self.form.scores.atoms):
            if atom.side == "queries" and atom.features and not atom.is_factor:
                room -= atom.features * self.size * self.width
                if room >= 0 and atom.dtype == jnp.float32:
                    found.append(i)
        return found

    def wanted(self, sides):
        """Returns the atoms of these sides that have gradients."""
        atoms = enumerate(self.form.scores.atoms)
        return [
            i for i, x in atoms if x.side in sides and x.is_float and not x.is_place
        ]

    def call(
        self,
        ins: _Ins,
        outs: Sequence[tuple[str, int]],
        accumulators: Sequence[tuple[str, int]],
        start: Callable,
        step: Callable,
        finish: Callable,
        dtypes: Sequence[Any] = (),
        by_queries: bool = True,
    ) -> list[Array]:
        """Runs over all blocks; returns outputs of kinds and features, without padding."""
        shown = self.shown if by_queries else jnp.swapaxes(self.shown, 2, 3)
        counts, order = in_order(shown)
        grid = (self.examples, self.heads, *shown.shape[2:])
        spreads = self.spreads() if by_queries else []
        leaves, tree = jax.tree.flatten(ins, is_leaf=lambda x: isinstance(x, _Laid))
        place = functools.partial(self.blocks_of, by_queries)

        def kernel(counts, order, *refs):
            inputs = tree.unflatten(refs[: len(leaves)])
            results = refs[len(leaves) : len(leaves) + len(outs)]
            scratch = refs[len(leaves) + len(outs) :]
            spread = dict(zip(spreads, scratch[len(accumulators) :], strict=True))
            scratch = scratch[: len(accumulators)]
            b, h, outer, t = (pl.program_id(axis) for axis in range(4))
            i, j = place(b, h, outer, t, counts, order)
            at = _At(self, by_queries, i * self.size, j * self.width, spread)

            @pl.when(t == 0)
            def _():
                at.spread_out(inputs)
                start(scratch, results)

            count = counts[(*self.own(counts.shape, b, h), outer)]
            pl.when(t < count)(lambda: step(at, inputs, scratch, results))
            pl.when(t == grid[3] - 1)(lambda: finish(scratch, results))

        room = [self.block(*x) for x in accumulators]
        room += [
            (self.features(self.laid.scores[i]), self.size, self.width) for i in spreads
        ]
        arrays = pl.pallas_call(
            kernel,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=2,
                grid=grid,
                in_specs=[self.in_spec(place, laid) for laid in leaves],
                out_specs=[self.out_spec(place, *out) for out in outs],
                scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in room],
            ),
            out_shape=self.shapes(grid[2], outs, dtypes),
            interpret=self.form.here.interpreted,
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
            ),
        )(counts, order, *(laid.array for laid in leaves))
        kinds = (kind for kind, _ in outs)
        return list(map(self.without_padding, kinds, arrays))

    def own(self, shape, b, h):
        """Returns the example and the head of an array that several may share."""
        return _own(b, shape[0], self.examples), _own(h, shape[1], self.heads)

    def blocks_of(self, by_queries, b, h, outer, t, counts, order):
        """Returns the blocks of queries and of keys that a program of the grid has."""
        at = *self.own(counts.shape, b, h), outer
        # A block that was there before is not fetched again.
        inner = order[(*at, jnp.minimum(t, jnp.maximum(counts[at] - 1, 0)))]
        return (outer, inner) if by_queries else (inner, outer)

    def in_spec(self, place, laid):
        def index(b, h, *rest):
            own = self.own(laid.array.shape, b, h)
            return *own, *_block_index(laid.kind, *place(b, h, *rest))

        return pl.BlockSpec((1, 1, *self.block(*self.like(laid))), index)

    def out_spec(self, place, kind, features):
        block = self.block(kind, features)
        if kind in ("all", "diagonals"):
            # Each block of queries has its own, which are summed later.
            return pl.BlockSpec(
                (1, 1, 1, *block), lambda b, h, outer, *_: (b, h, outer, 0, 0)
            )

        def index(b, h, *rest):
            return b, h, *_block_index(kind, *place(b, h, *rest))

        return pl.BlockSpec((1, 1, *block), index)

    def shapes(self, blocks, outs, dtypes):
        """Returns the shapes of all outputs."""
        wholes = dict(rows=self.n, keys=self.m, columns=self.m, tiles=self.n)
        shapes = []
        for i, (kind, features) in enumerate(outs):
            lead = self.examples, self.heads
            if kind in ("all", "diagonals"):
                lead = *lead, blocks
            whole = self.block(kind, features, wholes.get(kind))
            dtype = dtypes[i] if dtypes else jnp.float32
            shapes.append(jax.ShapeDtypeStruct((*lead, *whole), dtype))
        return shapes

    def without_padding(self, kind, x):
        """Returns an output for N queries and M keys; parts of one sum added up."""
        if kind == "diagonals":
            return x.sum((2, 3))
        if kind == "tiles":
            return x[:, :, : self.queries, : self.keys]
        if kind == "columns":
            return x[..., : self.keys]
        sizes = dict(rows=self.queries, keys=self.keys)
        return x[:, :, : sizes[kind]] if kind in sizes else x

    def block(self, kind, features, whole=None):
        """Returns the shape of a block, or with a number of tokens that of all."""
        if kind in ("all", "diagonals"):
            return 1, features
        if kind == "tiles":
            return (self.n, self.m) if whole else (self.size, self.width)
        tokens = whole or (self.size if kind == "rows" else self.width)
        return (features, tokens) if kind == "columns" else (tokens, features)


def _block_index(kind, i, j):
    """Returns which block of an array a program sees, that has queries' block i, keys' j."""
    if kind == "tiles":
        return i, j
    if kind in ("all", "diagonals"):
        return 0, 0
    if kind == "columns":
        return 0, j
    return (i if kind == "rows" else j), 0


def _own(index, size, whole):
    """Returns an example's, or a head's, place along an axis that several may share."""
    return 0 if size == 1 else index // (whole // size)


def _number(x):
    return x.astype(jnp.int32) if x.dtype == bool else x


class _Tile:
    """What `pairs` asks of a machine."""

    rules: ClassVar[dict[str, Callable]] = {}

    def __init__(self, form, at, refs, sums=None, program=None):
        self.form = form
        self.program = program or form.scores
        self.at = at
        self.shape = at.shape
        self.refs = refs
        self.sums = sums or {}

    def atom(self, index, feature=None):
        atom = self.program.atoms[index]
        axis = 0 if atom.side == "queries" else 1
        if atom.is_place:
            first = self.at.i if axis == 0 else self.at.j
            return first + jax.lax.broadcasted_iota(jnp.int32, self.shape, axis)
        f = feature or 0
        if self.program is self.form.scores and index in self.at.spread:
            return self.at.spread[index][f]
        ref = self.refs[index]
        if atom.side == "keys" and not atom.is_factor:
            x = ref[0, 0, f : f + 1, :]
        else:
            x = ref[0, 0, :, f : f + 1]
        x = jnp.broadcast_to(x, self.shape)
        return x != 0 if atom.dtype == jnp.bool_ else x

    def product(self, what):
        q, k = (self.refs[index][0, 0] for index in (what.queries, what.keys))
        return _product(q, k, 1, 1, what.precision).astype(what.dtype)

    def loop(self, count, body, carry):
        for f in range(count):
            carry = body(f, carry)
        return carry

    def wants(self, index):
        return index in self.sums

    def add(self, index, cotangent, feature=None):
        atom = self.program.atoms[index]
        x = cotangent.astype(jnp.float32)
        f = feature or 0
        ref = self.sums[index]
        if atom.side == "queries":
            ref[:, f : f + 1] += x.sum(1, keepdims=True)
        elif atom.side == "keys":
            ref[f : f + 1, :] += x.sum(0, keepdims=True)
        else:
            ref[:, f : f + 1] += x.sum(keepdims=True)

    def add_product(self, what, cotangent):
        q, k = (self.refs[index][0, 0] for index in (what.queries, what.keys))
        if what.queries in self.sums:
            self.sums[what.queries][...] += _product(
                cotangent.astype(k.dtype), k, 1, 0, what.precision
            )
        if what.keys in self.sums:
            self.sums[what.keys][...] += _product(
                cotangent.astype(q.dtype), q, 0, 0, what.precision
            )


def _scores(form, at, ins):
    """Returns exponents or weights of a tile, and the values of the steps to them."""
    tile = _Tile(form, at, ins.scores)
    values = compute(form.scores, tile, _given(form, at, ins))
    (x,) = results(form.scores, values)
    return jnp.where(at.visible, x, -jnp.inf if form.has_exponents else 0.0), values


def _given(form, at, ins):
    tiles = []
    for ref, dtype in zip(ins.given, form.scores.given, strict=True):
        x = _of_diagonals(at, ref) if ref.shape[2] == 1 else ref[0, 0]
        tiles.append(x != 0 if dtype == jnp.bool_ else x)
    return tiles


def _of_diagonals(at, ref):
    """Returns the tile (r, c) -> x[c - r + n - 1] of the numbers of its distances x."""
    n, m = at.shape
    x = ref[0, 0, :, pl.ds(at.first_distance, n + m)]
    x = jnp.broadcast_to(x, (n, n + m))
    return pltpu.roll(x, m + 1, 1, stride=1, stride_axis=0)[:, :m]


def _put_given(at, out, x):
    """Writes the gradient of a given tile, or adds it to that of its distances."""
    n, m = at.shape
    if len(out.shape) == 4:
        out[0, 0] = x.astype(out.dtype)
        return
    x = jnp.concatenate([x, jnp.zeros((n, n), x.dtype)], 1)
    # Diagonals become columns: row r moves by n - 1 - r, which a strided roll cannot do.
    moves = n - 1 - jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    for bit in range((n - 1).bit_length()):
        x = jnp.where(moves >> bit & 1 == 1, pltpu.roll(x, 1 << bit, 1), x)
    at_distances = (0, 0, 0, slice(None), pl.ds(at.first_distance, n + m))
    out[at_distances] += x.sum(0, keepdims=True)


def _kept(form, at, ins):
    """Returns what dropout multiplies the weights of a tile with; None for 1."""
    if form.drop is None:
        return None
    tile = _Tile(form, at, ins.drop, program=form.drop)
    (kept,) = results(form.drop, compute(form.drop, tile))
    return kept


def _times(w, kept):
    return w if kept is None else w * kept


def _product(a, b, axis, other, precision=None):
    """Returns the product of two matrices over an axis of each, summed in float32."""
    dims = (((axis,), (other,)), ((), ()))
    return jax.lax.dot_general(
        a, b, dims, precision=precision, preferred_element_type=jnp.float32
    )
