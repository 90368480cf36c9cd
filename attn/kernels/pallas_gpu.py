"""Attention on Hopper: loops over tiles that `traced` has taken apart, by Pallas' Mosaic GPU.

A program of the grid has the rows of a tile, a block of queries or, for the gradients of
keys, a block of keys, and goes over the blocks of the others, the columns, of which one sees
the other. Factors of products come to shared memory by bulk copies, which run ahead of the
products; numbers of rows stay in registers. n rows and m columns of a tile, F features.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from attn.jax_versions import interpret_mosaic, mosaic_load, mosaic_store
from attn.kernels.pairs import Product, Untraceable, compute, pull_back, results
from attn.kernels.rewritten import RULES
from attn.kernels.traced import in_order

LEAST = -1e37
"""Stands for a maximum of −inf, of which two have no difference."""
LAYOUT = plgpu.Layout.WGMMA
UNIT = 64
"""Features of factors come in multiples of this, 128 bytes of half precision."""


def forward(form: Any, operands: Any) -> tuple[Array, Array | None]:
    """Returns the output (B, H, N, V) and the LSE (B, H, N), None of weights."""
    plan = _Plan(form, operands, by_queries=True)
    width = plan.v.shape[-1]

    def start(at):
        return plan.zeros(at, width), at.full(LEAST), at.full(0.0)

    def step(at, carry):
        acc, top, total = carry
        w, _ = _scores(at)
        if form.has_exponents:
            high = jnp.maximum(top, w.max(axis=1))
            w = jnp.exp(w - at.spread(high))
            shrink = jnp.exp(top - high)
            total = total * shrink + w.sum(axis=1)
            acc = acc * lax.broadcast_in_dim(shrink, acc.shape, [0])
            top = high
        w = _times(w, _kept(at))
        return at.added(acc, w.astype(plan.v.dtype), at.columns["v"]), top, total

    def finish(at, carry):
        acc, top, total = carry
        if not form.has_exponents:
            return [acc]
        is_empty = total == 0
        total = jnp.where(is_empty, 1.0, total)
        lse = jnp.where(is_empty, -jnp.inf, top + jnp.log(total))
        return [acc / lax.broadcast_in_dim(total, acc.shape, [0]), lse]

    outs = [_Out(width, plan.v.dtype)] + [_Out()] * form.has_exponents
    out, *lse = plan.call(outs, start, step, finish)
    return out[..., : operands.v.shape[-1]], lse[0] if lse else None


def backward(
    form: Any, operands: Any, g: Float[Array, "B H N V"], lse: Any, delta: Any
) -> dict[Any, Array]:
    """Returns gradients (B, H, …) for the cotangent g of the output.

    They are by the place of an atom, "v", and ("given", place). `delta` (B, H, N) is what to
    take from each cotangent of a query's weights; of weights that are no exponentials it
    and the LSE are None.
    """
    of_queries = dict(lse=lse, delta=delta)
    found = {}
    for by_queries in (True, False):
        plan = _Plan(form, operands, by_queries, g, of_queries)
        for names in _passes(plan, _wanted(form, plan)):
            found |= _gradients(form, operands, plan, names)
    for i, x in enumerate(operands.given):
        if jnp.issubdtype(x.dtype, jnp.floating):
            plan = _Plan(form, operands, True, g, of_queries)
            found["given", i] = _gradient_of_given(form, plan, i)
    return found


def _pull_back(form, at):
    """Adds up the gradients of a tile.

    Returns its weights, what dropout multiplies them with, and the gradients of given tiles.
    """
    x, values = _scores(at)
    kept = _kept(at)
    rows, columns = ("g", "v") if at.plan.by_queries else ("v", "g")
    d_w = _times(at.product_of(at.rows[rows], at.columns[columns]), kept)
    if form.has_exponents:
        w = jnp.exp(x - at.number_of_query("lse"))
        d_x = w * (d_w - at.number_of_query("delta"))
    else:
        w, d_x = x, d_w
        visible = at.visible
        if visible is not None:
            d_x = jnp.where(visible, d_x, 0.0)
    return w, kept, pull_back(form.scores, at, at.given(), values, [d_x])


def _gradient_of_given(form, plan, place):
    """Returns the gradient of a given array, of distances or of pairs."""
    n, m = plan.shape
    if place not in plan.of_distances:
        return _gradient_of_pairs(form, plan, place)

    def start(at):
        return (plan.zeros(at, m),)

    def step(at, sums):
        *_, given = _pull_back(form, at)
        return (sums[0] + given[place],)

    tiles = plan.call([_Out(m)], start, step, lambda at, sums: sums, by_diagonals=True)
    tiles = tiles[0].reshape(*tiles[0].shape[:2], -1, n, m)
    return _sums_of_diagonals(tiles, n)


def _gradient_of_pairs(form, plan, place):
    """Returns the gradient (B, H, N, M) of an array of pairs, each tile as it comes."""
    plan.shown = jnp.ones_like(plan.shown)

    def step(at, sums):
        *_, given = _pull_back(form, at)
        some = (pl.ds(x, size) for x, size in zip(at.first, at.shape, strict=True))
        mosaic_store(at.whole.at[(*at.own, *some)], given[place])
        return sums

    none = lambda at, *_: ()
    (whole,) = plan.call([], none, step, none, with_whole=True)
    return whole[:, :, : plan.sizes[0], : plan.sizes[1]]


def _wanted(form, plan):
    """Returns the places of the rows' operands that have gradients, and "v" of keys."""
    sides = ("queries", "all") if plan.by_queries else ("keys",)
    wanted = [
        i
        for i, x in enumerate(form.scores.atoms)
        if x.side in sides and x.is_float and not x.is_place
    ]
    return wanted if plan.by_queries else [*wanted, "v"]


def _passes(plan, names):
    """Splits what has gradients into kernels in whose registers their sums have room."""
    passes: list[list] = []
    for name in names:
        if passes and sum(map(plan.width_of, [*passes[-1], name])) <= 2 * plan.sums:
            passes[-1].append(name)
        else:
            passes.append([name])
    return passes


def _gradients(form, operands, plan, wanted):
    """Returns the gradients of the rows' operands that are wanted, by their places."""
    atoms = form.scores.atoms
    arrays = {**dict(enumerate(operands.scores)), "v": operands.v}
    featured = {
        i: atoms[i].features
        for i in wanted
        if not plan.width_of(i) and atoms[i].features is not None
    }
    names = [i for i in wanted if i not in featured]

    def start(at):
        for ref in at.featured.values():
            for f in range(ref.shape[0]):
                ref[f] = at.full(0.0)
        return tuple(
            plan.zeros(at, plan.width_of(i)) if plan.width_of(i) else at.full(0.0)
            for i in names
        )

    def step(at, sums):
        at.sums = dict(zip(names, sums, strict=True))
        w, kept, _ = _pull_back(form, at)
        if "v" in at.sums:
            w = _times(w, kept).astype(plan.v.dtype)
            at.sums["v"] = at.added(at.sums["v"], w, at.columns["g"])
        return tuple(at.sums[name] for name in names)

    def finish(at, sums):
        return sums

    outs = [plan.out_of(i, arrays[i]) for i in names]
    got = plan.call(outs, start, step, finish, featured)
    found = dict(zip([*names, *featured], got, strict=True))
    for i in wanted:
        if plan.width_of(i):
            found[i] = found[i][..., : arrays[i].shape[3]]
        elif i in featured:
            found[i] = jnp.swapaxes(found[i], 2, 3)
        if i != "v" and atoms[i].side == "all":
            found[i] = found[i].sum(2)
    return found


class _Out(NamedTuple):
    """An output, of a row's features, or None for a number."""

    width: int | None = None
    dtype: Any = jnp.float32

    def block(self, rows):
        """Returns the shape of so many rows."""
        return (rows,) if self.width is None else (rows, self.width)


class _At:
    """A program's tile: what `pairs` asks of a machine."""

    def __init__(self, plan, refs, rows, columns, place, first, shape, featured=None):
        self.plan = plan
        self.form = plan.form
        self.shape = shape
        """Of a tile, of which the columns may be a part of a block."""
        self.rules = RULES
        self.refs = refs
        self.rows = rows
        self.columns = columns
        self.place = place
        self.first = first
        """The first row and the first column."""
        self.own: tuple[Any, Any] = (0, 0)
        self.whole: Any = None
        self.program = plan.form.scores
        self.names = "scores"
        self.sums: dict[Any, Any] = {}
        """The gradients so far, of atoms that are factors or numbers."""
        self.featured = featured or {}
        """Those of atoms with features, (F, n), in shared memory."""

    def of(self, name):
        """Returns the same for the program of dropout."""
        here = self.refs, self.rows, self.columns, self.place, self.first, self.shape
        other = _At(self.plan, *here)
        other.program, other.names = getattr(self.form, name), name
        return other

    def axis_of(self, side):
        return int((side == "queries") != self.plan.by_queries)

    def iota(self, axis):
        x = plgpu.broadcasted_iota(jnp.int32, self.shape, axis, layout=LAYOUT)
        return x + self.first[axis]

    def full(self, value):
        x = jnp.full(self.shape[:1], value, jnp.float32)
        return plgpu.layout_cast(x, LAYOUT.reduce(1))

    def spread(self, x, axis=0):
        return lax.broadcast_in_dim(x, self.shape, [axis])

    def atom(self, index, feature=None):
        atom = self.program.atoms[index]
        if atom.is_place:
            return self.iota(self.axis_of(atom.side))
        ref = self.refs[self.names][index]
        own = self.place(ref)
        if atom.side == "all":
            x = ref[own if feature is None else (*own, feature)]
            x = jnp.full(self.shape, x)
        else:
            axis = self.axis_of(atom.side)
            some = pl.ds(self.first[axis], self.shape[axis])
            at = (*own, some) if feature is None else (*own, feature, some)
            x = mosaic_load(ref.at[at], LAYOUT.reduce(1 - axis))
            x = self.spread(x, axis)
        return x != 0 if atom.dtype == jnp.bool_ else x

    def number_of_query(self, name):
        ref = self.refs["more"][name]
        axis = self.axis_of("queries")
        at = (*self.place(ref), pl.ds(self.first[axis], self.shape[axis]))
        return self.spread(mosaic_load(ref.at[at], LAYOUT.reduce(1 - axis)), axis)

    def product(self, what):
        a, b = str(what.queries), str(what.keys)
        if not self.plan.by_queries:
            a, b = b, a

        return self.product_of(self.rows[a], self.columns[b]).astype(what.dtype)

    def product_of(self, row, column):
        """Returns the product of factors, of pieces without that of the last two."""

        def product(acc):
            pieces = max(len(row), len(column))
            for i, a in enumerate(row):
                for b in column[: pieces - i]:
                    plgpu.wgmma(acc, a, b.transpose((1, 0)))
            return acc[...]

        return pl.run_scoped(
            product, plgpu.WGMMAAccumulatorRef(self.shape, jnp.float32)
        )

    def wants(self, index):
        return index in self.sums or index in self.featured

    def add(self, index, cotangent, feature=None):
        x = cotangent.astype(jnp.float32).sum(axis=1)
        if feature is None:
            self.sums[index] = self.sums[index] + x
        else:
            ref = self.featured[index].at[feature]
            ref[...] = mosaic_load(ref, LAYOUT.reduce(1)) + x

    def add_product(self, what, cotangent):
        row, column = (
            (what.queries, what.keys)
            if self.plan.by_queries
            else (what.keys, what.queries)
        )
        if row in self.sums:
            other = self.columns[str(column)]
            factor = cotangent.astype(self.plan.rows[str(row)].dtype)
            self.sums[row] = self.added(self.sums[row], factor, other)

    def added(self, acc, factor, pieces):
        """Returns acc + factor other, of a factor in registers and one in shared memory."""
        if self.form.here.interpreted:
            # The interpreter has no products that are added to a value. Its own reading is
            # to be over before a copy writes there, as a product's is.
            pieces = [x[...] for x in pieces]
            plgpu.commit_smem()
            dot = functools.partial(jnp.dot, preferred_element_type=jnp.float32)
            return acc + sum(dot(factor, x) for x in pieces)

        def product(ref):
            for other in pieces:
                plgpu.wgmma(ref, factor, other)

        return pl.run_state(product)(plgpu.WGMMAAccumulatorRef.init(acc))

    def loop(self, count, body, carry):
        return lax.fori_loop(0, count, body, carry)

    @property
    def visible(self):
        """Which pairs are of tokens, and not of padding; None for all."""
        sizes = self.plan.sizes
        seen = None
        for axis, (size, block) in enumerate(zip(sizes, self.shape, strict=True)):
            if size % block:
                own = self.iota(axis) < size
                seen = own if seen is None else seen & own
        return seen

    def given(self):
        tiles = []
        row, column = self.first
        n, m = self.shape
        for i, ref in enumerate(self.refs["given"]):
            if i in self.plan.of_distances:
                rows = slice(None)
                columns = pl.ds(column - row + self.plan.wholes[0] - n, m)
            else:
                rows, columns = pl.ds(row, n), pl.ds(column, m)
            x = mosaic_load(ref.at[(*self.place(ref), rows, columns)], LAYOUT)
            dtype = self.form.scores.given[i]
            tiles.append(x != 0 if dtype == jnp.bool_ else x)
        return tiles


def _scores(at):
    """Returns exponents or weights of a tile, and the values of the steps to them."""
    values = compute(at.program, at, at.given())
    (x,) = results(at.program, values)
    visible = at.visible
    if visible is not None:
        x = jnp.where(visible, x, -jnp.inf if at.form.has_exponents else 0.0)
    return x, values


def _kept(at):
    """Returns what dropout multiplies the weights of a tile with; None for 1."""
    if at.form.drop is None:
        return None
    (kept,) = results(at.form.drop, compute(at.form.drop, at.of("drop")))
    return kept


def _times(w, kept):
    return w if kept is None else w * kept


class _Plan:
    """How arrays lie, and which blocks a program goes over."""

    def __init__(self, form, operands, by_queries, g=None, of_queries=None):
        self.form = form
        self.by_queries = by_queries
        size, width = form.here.blocks
        queries, keys = form.queries, operands.v.shape[2]
        self.shape = (size, width) if by_queries else (width, size)
        self.sizes = (queries, keys) if by_queries else (keys, queries)
        self.wholes = [
            -(-x // b) * b for x, b in zip(self.sizes, self.shape, strict=True)
        ]
        self.examples, self.heads = operands.v.shape[0], form.heads
        self.shown = (
            operands.shown if by_queries else jnp.swapaxes(operands.shown, 2, 3)
        )
        self.v = self.factor(operands.v, 1 if by_queries else 0)
        programs = {"scores": form.scores, "drop": form.drop}
        self.split = split = _split(form.scores)
        # Products of pieces are more of them, and want registers too.
        self.sums = form.here.sums // (2 if split else 1)
        self.arrays = {}
        self.rows, self.columns = {}, {}
        for name, program in programs.items():
            arrays = []
            for i, atom in enumerate(program.atoms if program else ()):
                x = getattr(operands, name)[i]
                axis = int((atom.side == "queries") != by_queries)
                if atom.is_place:
                    x = None
                elif atom.is_factor:
                    x = self.factor(x, axis)
                    if i in split:
                        x = _in_pieces(x)
                    (self.columns if axis else self.rows)[str(i)] = x
                    x = None
                else:
                    x = self.numbers(atom, x, axis)
                arrays.append(x)
            self.arrays[name] = arrays
        self.arrays["given"] = [self.tiles(x) for x in operands.given]
        self.of_distances = [i for i, x in enumerate(operands.given) if x.ndim == 3]
        (self.columns if by_queries else self.rows)["v"] = self.v
        axis = 0 if by_queries else 1
        if g is not None:
            (self.rows if by_queries else self.columns)["g"] = self.factor(g, axis)
        self.arrays["more"] = {
            name: self.extended(x, 2, self.wholes[axis])
            for name, x in (of_queries or {}).items()
            if x is not None
        }

    def extended(self, x, axis, size):
        """Pads with the last number: what is computed of padding is as finite as the rest."""
        more = size - x.shape[axis]
        return jnp.pad(
            x, [(0, more if i == axis else 0) for i in range(x.ndim)], mode="edge"
        )

    def factor(self, x, axis):
        x = self.extended(x, 2, self.wholes[axis])
        more = -x.shape[3] % UNIT
        return jnp.pad(x, [(0, 0)] * 3 + [(0, more)])

    def numbers(self, atom, x, axis):
        """Returns an atom (b, h, N), (b, h, F, N) or (b, h, F)."""
        x = x.astype(jnp.int32) if x.dtype == jnp.bool_ else x
        if atom.side == "all":
            return x
        x = self.extended(x, 2, self.wholes[axis])
        return x if atom.features is None else jnp.swapaxes(x, 2, 3)

    def tiles(self, x):
        x = x.astype(jnp.int32) if x.dtype == jnp.bool_ else x
        if x.ndim == 3:
            if not self.by_queries:
                # Of keys in rows distances fall along the columns.
                x = jnp.roll(jnp.flip(x, 2), -1, 2)
            return _of_diagonals(x, self.shape[0])
        if not self.by_queries:
            x = jnp.swapaxes(x, 2, 3)
        return self.extended(self.extended(x, 2, self.wholes[0]), 3, self.wholes[1])

    def pieces_of(self, name):
        """Returns the number of pieces that a factor consists of."""
        return 2 if name in map(str, self.split) else 1

    def width_of(self, place):
        """Returns the features of a sum of the rows' factors, 0 of what is none."""
        x = self.rows.get(str(place))
        return 0 if x is None else x.shape[3] // self.pieces_of(str(place))

    def out_of(self, place, operand):
        """Returns the output of a gradient, wide where several heads add to it."""
        width = self.width_of(place)
        if not width:
            return _Out()
        x = self.rows[str(place)]
        is_alone = operand.shape[:2] == (self.examples, self.heads)
        is_alone &= operand.dtype == x.dtype
        return _Out(width, x.dtype if is_alone else jnp.float32)

    def zeros(self, at, width):
        return plgpu.layout_cast(jnp.zeros((self.shape[0], width), jnp.float32), LAYOUT)

    def call(
        self,
        outs: Sequence[_Out],
        start: Callable,
        step: Callable,
        finish: Callable,
        featured: dict[int, int] | None = None,
        by_diagonals: bool = False,
        with_whole: bool = False,
    ) -> list[Array]:
        """Runs over all blocks; returns the outputs.

        Those that are added up feature by feature, (F, n), follow. By diagonals a program
        has the tiles of one distance, of which it gives one tile. With the whole there is
        room for a number for each pair, which steps write.
        """
        featured = featured or {}
        shown = _by_diagonals(self.shown) if by_diagonals else self.shown
        # What stays, and what is fetched step by step, with the axis of its tokens.
        fixed = {} if by_diagonals else self.rows
        moving = {f"1 {name}": x for name, x in self.columns.items()}
        if by_diagonals:
            moving |= {f"0 {name}": x for name, x in self.rows.items()}
        operands = (*in_order(shown), fixed, moving, self.arrays)
        leaves, tree = jax.tree.flatten(operands)
        parts = 1 + (sum(x.width or 0 for x in outs) > self.sums)
        scratch = self.scratch(fixed, moving, outs, featured, parts)

        def kernel(*refs):
            counts, order, fixed, moving, arrays = tree.unflatten(refs[: len(leaves)])
            grid = [lax.axis_index(name) for name in ("batch", "heads", "rows")]
            where = _Where(self, by_diagonals, counts, order, *grid)
            steps = start, step, finish
            refs = fixed, moving, arrays, refs[len(leaves) :]
            loop = functools.partial(_loop, where, steps, parts, *refs)
            pl.run_scoped(loop, *scratch)

        arrays = plgpu.kernel(
            kernel,
            out_type=self.shapes(shown.shape[2], outs, featured, with_whole),
            grid=(self.heads, shown.shape[2], self.examples),
            grid_names=("heads", "rows", "batch"),
            compiler_params=plgpu.CompilerParams(approx_math=True),
            interpret=interpret_mosaic() if self.form.here.interpreted else None,
        )(*leaves)
        if by_diagonals or with_whole:
            return arrays
        results = [x[:, :, : self.sizes[0]] for x in arrays[: len(outs)]]
        return results + [x[..., : self.sizes[0]] for x in arrays[len(outs) :]]

    def scratch(self, fixed, moving, outs, featured, parts):
        """Returns shared memory and barriers of what stays, of what is fetched, of outputs.

        What is fetched has two slots, or one where there is no room for two.

        Raises:
          Untraceable: of more features than there is room for.
        """
        n = self.shape[0]

        def with_slots(slots):
            def of_slots(name, x):
                shape = slots, self.shape[int(name[0])], x.shape[3]
                return _shared(shape, x.dtype, parts)

            return (
                {
                    name: _shared((n, x.shape[3]), x.dtype, parts)
                    for name, x in fixed.items()
                },
                {name: plgpu.Barrier() for name in fixed},
                {name: of_slots(name, x) for name, x in moving.items()},
                {name: plgpu.Barrier(num_barriers=slots) for name in moving},
                [plgpu.SMEM(x.block(n), x.dtype) for x in outs],
                {i: plgpu.SMEM((f, n), jnp.float32) for i, f in featured.items()},
            )

        most = self.form.here.memory
        for slots in (2, 1):
            scratch = with_slots(slots)
            size = _bytes_of(scratch)
            if size <= most:
                return scratch
        widths = sorted({x.shape[3] for x in (*fixed.values(), *moving.values())})
        raise Untraceable(
            f"heads of {widths[-1]} features take {size:,} bytes of a processor's {most:,}"
        )

    def shapes(self, blocks, outs, featured, with_whole):
        """Returns the shapes of all outputs."""
        lead = self.examples, self.heads
        rows = blocks * self.shape[0]
        found = [(*lead, *x.block(rows)) for x in outs]
        found += [(*lead, features, rows) for features in featured.values()]
        found += [(*lead, *self.wholes)] * with_whole
        dtypes = [x.dtype for x in outs] + [jnp.float32] * (len(found) - len(outs))
        return [
            jax.ShapeDtypeStruct(shape, dtype)
            for shape, dtype in zip(found, dtypes, strict=True)
        ]


class _Where(NamedTuple):
    """Where a program stands in the grid, and which blocks it goes over."""

    plan: _Plan
    by_diagonals: bool
    counts: Any
    order: Any
    b: Any
    h: Any
    t: Any

    @property
    def count(self):
        """The number of blocks."""
        return self.counts[(*self.place(self.counts), self.t)]

    @property
    def rows(self):
        """The program's part of an axis of rows."""
        n = self.plan.shape[0]
        return pl.ds(self.t * n, n)

    def place(self, ref):
        """Returns the example and the head of an array that several may share."""
        b = _own(self.b, ref.shape[0], self.plan.examples)
        return b, _own(self.h, ref.shape[1], self.plan.heads)

    def first(self, s):
        """Returns the first row and the first column of a step's tile."""
        n, m = self.plan.shape
        inner = self.order[(*self.place(self.order), self.t, s)]
        if self.by_diagonals:
            distance = self.t - (self.plan.shown.shape[2] - 1)
            return inner * n, (inner + distance) * m
        return self.t * n, inner * m


def _loop(where, steps, parts, fixed, moving, arrays, results, *memory):
    """Goes over a program's blocks, with its memory, and writes what it has of them.

    A step has a part of a block's columns.
    """
    start, step, finish = steps
    kept, kept_barriers, slots, barriers, buffers, sums = memory
    n, m = where.plan.shape
    m //= parts
    slots = _Slots(where, moving, slots, barriers)
    for name, ref in fixed.items():
        some = ref.at[(*where.place(ref), where.rows)]
        plgpu.copy_gmem_to_smem(some, kept[name], kept_barriers[name])
    slots.begin()
    for name in fixed:
        plgpu.barrier_wait(kept_barriers[name])

    def at(rows, columns, first):
        rows, columns = (
            {name: _in_parts(x, where.plan.pieces_of(name)) for name, x in refs.items()}
            for refs in (rows, columns)
        )
        place = where.place, first, (n, m)
        here = _At(where.plan, arrays, rows, columns, *place, sums)
        here.own, here.whole = (where.b, where.h), results[-1]
        return here

    def one(s, carry):
        rows, columns = slots.wait(s)
        row, column = where.first(s)
        for part in range(parts):
            some = {name: x.at[pl.ds(part * m, m)] for name, x in columns.items()}
            here = at({**kept, **rows}, some, (row, column + part * m))
            carry = step(here, carry)
        slots.go_on(s)
        return carry

    here = at(kept, {}, (where.t * n, 0))
    carry = lax.fori_loop(jnp.int32(0), where.count, one, start(here))
    _store(where, finish(here, carry), buffers, sums, results)


def _store(where, values, buffers, sums, results):
    """Writes a program's outputs, and those that are added up feature by feature."""
    for value, buffer in zip(values, buffers, strict=True):
        buffer[...] = value.astype(buffer.dtype)
    plgpu.commit_smem()
    place = where.b, where.h
    for buffer, ref in zip(buffers, results, strict=False):
        plgpu.copy_smem_to_gmem(buffer, ref.at[(*place, where.rows)])
    of_features = results[len(buffers) :]
    for buffer, ref in zip(sums.values(), of_features, strict=False):
        plgpu.copy_smem_to_gmem(buffer, ref.at[(*place, slice(None), where.rows)])
    plgpu.wait_smem_to_gmem(0)


class _Slots(NamedTuple):
    """Blocks that come to shared memory ahead of their steps."""

    where: _Where
    arrays: dict[str, Any]
    buffers: dict[str, Any]
    barriers: dict[str, Any]

    @property
    def count(self):
        """The number of blocks that have room."""
        return next(iter(self.buffers.values())).shape[0]

    def begin(self):
        """Fetches the first blocks."""
        for slot in range(self.count):
            fetch = functools.partial(self.fetch, jnp.int32(slot), slot)
            pl.when(slot < self.where.count)(fetch)

    def fetch(self, s, slot):
        first = self.where.first(s)
        for name, ref in self.arrays.items():
            axis = int(name[0])
            some = pl.ds(first[axis], self.where.plan.shape[axis])
            plgpu.copy_gmem_to_smem(
                ref.at[(*self.where.place(ref), some)],
                self.buffers[name].at[slot],
                self.barriers[name].at[slot],
            )

    def wait(self, s):
        """Returns a step's blocks of rows and of columns, when they are there."""
        slot = lax.rem(s, jnp.int32(self.count))
        here: tuple[dict, dict] = {}, {}
        for name, x in self.buffers.items():
            plgpu.barrier_wait(self.barriers[name].at[slot])
            here[int(name[0])][name[2:]] = x.at[slot]
        return here

    def go_on(self, s):
        """Fetches a later step's blocks in place of those of a step that is done."""
        slot = lax.rem(s, jnp.int32(self.count))
        later = s + self.count
        fetch = functools.partial(self.fetch, later, slot)
        pl.when(later < self.where.count)(fetch)


def _split(program):
    """Returns the atoms that are factors of products in float32.

    Those are multiplied as pieces of half precision, a + b for each number, to about 2⁻¹⁶.
    """
    found = set()
    for step in program.steps:
        if isinstance(step.what, Product):
            both = step.what.queries, step.what.keys
            if any(program.atoms[i].dtype.itemsize > 2 for i in both):
                found |= set(both)
    return found


def _in_pieces(x):
    """Returns (a, b) of half precision for a factor a + b."""
    first = x.astype(jnp.bfloat16)
    second = (x.astype(jnp.float32) - first.astype(jnp.float32)).astype(jnp.bfloat16)
    return jnp.concatenate([first, second], -1)


def _in_parts(x, count):
    """Returns the parts, of as many features each, of a factor in shared memory."""
    width = x.shape[1] // count
    return [x.at[:, pl.ds(i * width, width)] for i in range(count)]


def _by_diagonals(shown):
    """Returns of each distance of blocks which of its tiles are shown, by their rows."""
    rows, columns = shown.shape[2:]
    row = jnp.arange(rows)[None]
    column = row + jnp.arange(rows + columns - 1)[:, None] - (rows - 1)
    exists = (column >= 0) & (column < columns)
    return shown[:, :, row, jnp.clip(column, 0, columns - 1)] & exists[None, None]


def _of_diagonals(x, n):
    """Returns (b, h, n, L) whose row r is x moved by r − (n − 1), of the numbers x (b, h, L)."""
    places = jnp.arange(x.shape[2])[None] - jnp.arange(n)[:, None] + n - 1
    return jnp.take(x, places, axis=2, mode="clip")


def _sums_of_diagonals(tiles, n):
    """Returns (b, h, L), the sums of the diagonals of tiles (b, h, L / n − 1, n, n)."""
    tiles = jnp.flip(tiles, 3)
    b, h, count = tiles.shape[:3]
    # A row longer by one each, so that a diagonal's numbers come to stand in a column.
    wide = jnp.pad(tiles, [(0, 0)] * 4 + [(0, n)]).reshape(b, h, count, -1)
    sums = wide[..., : n * (2 * n - 1)].reshape(b, h, count, n, 2 * n - 1).sum(3)
    own = jnp.pad(sums, [(0, 0)] * 3 + [(0, 1)]).reshape(b, h, count, 2, n)
    first = jnp.pad(own[:, :, :, 0], [(0, 0)] * 2 + [(0, 1), (0, 0)])
    second = jnp.pad(own[:, :, :, 1], [(0, 0)] * 2 + [(1, 0), (0, 0)])
    return (first + second).reshape(b, h, -1)


def _bytes_of(scratch):
    """Returns the bytes of shared memory; a barrier's are few."""
    is_memory = lambda x: not isinstance(x, plgpu.Barrier)
    leaves = jax.tree.leaves(scratch, is_leaf=lambda x: hasattr(x, "dtype"))
    return sum(
        math.prod(x.shape) * jnp.dtype(x.dtype).itemsize for x in leaves if is_memory(x)
    )


def _shared(shape, dtype, parts):
    """Returns shared memory of a factor, as products of half precision read it.

    Of parts of a block's columns they read as many fewer tokens or features at once.
    """
    width = UNIT // parts
    transforms = plgpu.TilingTransform((8, width)), plgpu.SwizzleTransform(2 * width)
    return plgpu.SMEM(shape, dtype, transforms=transforms)


def _own(index, size, whole):
    """Returns an example's, or a head's, place along an axis that several may share."""
    if size == 1:
        return 0
    return index if size == whole else lax.div(index, jnp.int32(whole // size))
