"""What a function of queries and keys does for one pair of them, for kernels that loop over tiles.

A score, a mask, a bias or dropout is a function of some queries and keys that gives numbers
(n, m). Here it is traced once and taken apart:

    outside   all that depends on queries alone, on keys alone or on neither: it is computed
              before the kernel for all of them, by JAX, which differentiates it too. What is
              left of it are *atoms*, with a number or F features for a query, a key, or all;
    products  of two atoms with features, for the units of matrix products;
    sums      over features of something computed for a pair and a feature;
    pointwise all else that is computed for a pair, from atoms, products and sums.

What cannot be taken apart so is refused with the name of the primitive. N queries and M keys
in all, n and m of a tile, F features.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jaxtyping import Array

from attn.functions import FORMS

# No array of a trace has such an axis but for queries and keys.
N = 1_000_003
M = 1_000_033
SIZES = {"queries": N, "keys": M}

POINTWISE = {
    *("abs", "add", "add_any", "and", "ceil", "clamp", "convert_element_type", "copy"),
    *("copy_p", "cos", "div", "eq", "erf", "erf_inv", "exp", "exp2", "expm1", "floor"),
    *("ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt"),
    *("max", "min", "mul", "ne", "neg", "nextafter", "not", "or", "population_count"),
    *("pow", "rem", "round", "rsqrt", "select_n", "shift_left", "square", "sqrt"),
    *(
        "shift_right_arithmetic",
        "shift_right_logical",
        "sign",
        "sin",
        "sub",
        "tan",
        "tanh",
    ),
    *("xor", "stop_gradient", "bitcast_convert_type", "reduce_precision", "atan2"),
    *(
        "one_minus_square",
        "optimization_barrier",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
        "cbrt",
    ),
}
"""Primitives that make a number of numbers at the same place."""
CHEAP = {
    *("add", "and", "convert_element_type", "eq", "ge", "gt", "le", "lt", "max", "min"),
    *("mul", "ne", "neg", "not", "or", "sub"),
}
"""Of these what has no features and is of places alone is computed again for each pair."""
RESHAPES = {"broadcast_in_dim", "expand_dims", "reshape", "squeeze", "transpose"}
CALLS = {"pjit", "jit", "closed_call", "core_call", "checkpoint", "remat", "remat2"}


class Untraceable(Exception):
    """Raised for a function that is more than numbers of pairs; the message says why."""


class Atom(NamedTuple):
    """An array that is computed outside: (N,) or (N, F), (M,) or (M, F), () or (F,)."""

    side: str
    """"queries", "keys" or "all"."""
    features: int | None
    dtype: Any
    is_factor: bool
    """Whether it is of a product."""
    is_place: bool
    """Whether it is the places of queries or keys, which a kernel knows without it."""

    @property
    def is_float(self) -> bool:
        return jnp.issubdtype(self.dtype, jnp.floating)


@dataclasses.dataclass(frozen=True)
class Pointwise:
    """A function of tiles (n, m), number by number."""

    function: Callable
    """(*tiles) -> tuple of tiles, at the sizes of the trace."""
    avals: tuple[jax.ShapeDtypeStruct, ...]

    @functools.cached_property
    def jaxpr(self) -> core.ClosedJaxpr:
        return jax.make_jaxpr(self.function)(*self.avals)

    @functools.cached_property
    def backward(self) -> "Pointwise":
        """Returns the function (*tiles, *cotangents) -> cotangents of floating-point tiles."""
        count = len(self.avals)
        outs = self.jaxpr.out_avals
        given = tuple(
            jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outs if _is_float(x)
        )
        places = [i for i, x in enumerate(self.avals) if _is_float(x)]

        def function(*arguments):
            tiles, cotangents = arguments[:count], arguments[count:]

            def of_floats(*floats):
                every = list(tiles)
                for place, x in zip(places, floats, strict=True):
                    every[place] = x
                return tuple(x for x in self.function(*every) if _is_float(x))

            _, pull = jax.vjp(of_floats, *(tiles[i] for i in places))
            return pull(tuple(cotangents))

        return Pointwise(function, (*self.avals, *given))

    def __call__(self, *tiles: Any, rules: dict[str, Callable] | None = None) -> tuple:
        """Computes the function of tiles of any one size."""
        return _run(self.jaxpr, tiles, tiles[0].shape, rules)


class Product(NamedTuple):
    """Σ_f queries_f keys_f of two atoms with features, added up in `dtype`."""

    queries: int
    keys: int
    dtype: Any
    precision: Any


class Sum(NamedTuple):
    """Σ_f pointwise(what it is given for feature f), in `dtype`.

    What has no features is the same for all.
    """

    pointwise: Pointwise
    features: int
    dtype: Any


class Step(NamedTuple):
    """A step of a program: it adds values of pairs to those that are known.

    `what` is a Product, a Sum or a Pointwise with `inputs`. An input is ("atom", index),
    ("given", index) or ("value", index of a value of a step before).
    """

    what: Any
    inputs: tuple
    count: int


class Program(NamedTuple):
    """A function taken apart."""

    atoms: tuple[Atom, ...]
    outside: tuple
    """Of each atom the places of the leaves of (queries, keys, shared) that it needs, and the
    function of these that computes it for all N and M."""
    given: tuple
    """The dtypes of the tiles that it is called on, beside atoms."""
    steps: tuple[Step, ...]
    outputs: tuple
    """The places of its results, as inputs of a step."""


def program_of(
    function: Callable, queries: Any, keys: Any, shared: Any = (), given: Any = ()
) -> Program:
    """Takes function(queries, keys, shared, given) apart, which gives a tuple of (n, m).

    Args:
      function: of one head. It must do the same for any number of queries and keys.
      queries, keys: pytrees of arrays (N, …), of their shapes alone; the first of each are
        the places, from 0 on.
      shared: a pytree of arrays without such an axis; shapes too.
      given: a tuple of dtypes, of arrays (N, M) that the kernel has in tiles.

    Raises:
      Untraceable: a function of which a part is neither of the queries nor of the keys nor
        of pairs of them.
    """
    n, m = (jax.tree.leaves(x)[0].shape[0] for x in (queries, keys))
    # Of the one the arrays outside are computed, of the other it is read what they are.
    real = _Graph.of(function, queries, keys, shared, given, (n, m))
    unique = _Graph.of(function, queries, keys, shared, given, (N, M))
    if real.names != unique.names:
        raise Untraceable("it does something else for another number of tokens")
    return _Parts(unique, real).program()


class _Node:
    """An equation with what it is computed from, or an input of the function."""

    def __init__(self, eqn, inputs, avals, origin=""):
        self.eqn = eqn
        self.inputs = inputs
        self.avals = avals
        self.origin = origin
        """Of an input what it is of: "queries", "keys", "all" or "given"."""

    @property
    def name(self):
        return self.eqn.primitive.name if self.eqn else self.origin

    @property
    def params(self):
        return self.eqn.params


class _Ref(NamedTuple):
    """A result of a node."""

    node: _Node
    place: int

    @property
    def aval(self):
        return self.node.avals[self.place]


@dataclasses.dataclass(frozen=True, eq=False)
class _Value:
    """A constant."""

    value: Any

    @property
    def key(self):
        """What equal constants have in common; of arrays of JAX, which may be traced, identity."""
        if isinstance(self.value, jax.Array):
            return id(self.value)
        return np.asarray(self.value).tobytes(), str(self.aval)

    @property
    def aval(self):
        return jax.typeof(self.value)


class _Graph:
    """The equations of a function, calls written out."""

    def __init__(self):
        self.nodes: list[_Node] = []
        self.inputs: list[_Node] = []
        self.outputs: list[Any] = []
        self.known: dict[Any, _Node] = {}

    @classmethod
    def of(cls, function, queries, keys, shared, given, sizes):
        def sized(tokens, size):
            return jax.tree.map(
                lambda x: jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype), tokens
            )

        tiles = tuple(jax.ShapeDtypeStruct(sizes, dtype) for dtype in given)
        arguments = {
            "queries": sized(queries, sizes[0]),
            "keys": sized(keys, sizes[1]),
            "all": jax.tree.map(_shape_of, shared),
            "given": tiles,
        }
        closed = jax.make_jaxpr(function)(*arguments.values())
        origins = []
        for origin, tree in arguments.items():
            origins += [origin] * len(jax.tree.leaves(tree))
        graph = cls()
        for var, origin in zip(closed.jaxpr.invars, origins, strict=True):
            graph.inputs.append(_Node(None, (), (var.aval,), origin))
        refs = [_Ref(node, 0) for node in graph.inputs]
        graph.outputs = graph._add(closed, refs)
        return graph

    @property
    def names(self):
        return [node.name for node in self.nodes]

    def _add(self, closed, arguments):
        """Adds the equations of a jaxpr; returns its results."""
        env = dict(zip(closed.jaxpr.invars, arguments, strict=True))
        values = map(_Value, closed.consts)
        env |= dict(zip(closed.jaxpr.constvars, values, strict=True))

        def ref(var):
            return _Value(var.val) if isinstance(var, core.Literal) else env[var]

        for eqn in closed.jaxpr.eqns:
            inputs = [ref(var) for var in eqn.invars]
            called = _called(eqn)
            if called is None:
                node = self._node(eqn, inputs)
                results = [_Ref(node, i) for i in range(len(eqn.outvars))]
            else:
                results = self._add(called, inputs)
            env |= dict(zip(eqn.outvars, results, strict=True))
        return [ref(var) for var in closed.jaxpr.outvars]

    def _node(self, eqn, inputs):
        """Returns a node of an equation, the one that is there for an equal one."""
        key = None
        # What calls a function is equal to another by more than is printed of it.
        functions = (callable(x) or hasattr(x, "jaxpr") for x in eqn.params.values())
        if not any(functions):
            same = (x.key if isinstance(x, _Value) else x for x in inputs)
            key = eqn.primitive.name, repr(sorted(eqn.params.items())), *same
            if key in self.known:
                return self.known[key]
        node = _Node(eqn, inputs, [var.aval for var in eqn.outvars])
        self.nodes.append(node)
        if key is not None:
            self.known[key] = node
        return node


def _called(eqn):
    """Returns the closed jaxpr that is to stand in an equation's place; None for itself."""
    if eqn.primitive.name not in CALLS:
        return None
    called = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    form = FORMS.get(eqn.params.get("name"))
    if form is not None:
        called = jax.make_jaxpr(form)(*(_shape_of(var.aval) for var in eqn.invars))
    if not isinstance(called, core.ClosedJaxpr):
        called = core.ClosedJaxpr(called, ())
    return called


def _shape_of(x):
    dtype = x.dtype if hasattr(x, "dtype") else jnp.result_type(x)
    return jax.ShapeDtypeStruct(jnp.shape(x), dtype)


def _is_float(x):
    return jnp.issubdtype(x.dtype, jnp.floating)


class _Parts:
    """Takes a graph of unique sizes apart; `real` has the same nodes at real sizes."""

    def __init__(self, graph: _Graph, real: _Graph):
        self.graph = graph
        self.real = real
        self.given = [node for node in graph.inputs if node.origin == "given"]
        self.places = {
            next(node for node in graph.inputs if node.origin == side) for side in SIZES
        }
        self.sides: dict[_Node, str] = {}
        for node in graph.inputs + graph.nodes:
            self.sides[node] = self._side_of_node(node)
        self.atoms: list[tuple[Any, bool]] = []
        """Results of nodes, and whether they are factors of a product."""
        self.steps: list[Step] = []
        self.dtypes: list[Any] = []
        """Of the values that the steps give."""
        self.known: dict[_Node, tuple] = {}
        """The places of nodes that are a step's value."""

    def program(self) -> Program:
        outputs = self._pointwise_step(self.graph.outputs)
        atoms = tuple(self._atom(*key) for key in self.atoms)
        given = tuple(_shape_of(node.avals[0]).dtype for node in self.given)
        return Program(atoms, self._outside(atoms), given, tuple(self.steps), outputs)

    def _side_of_node(self, node):
        """Returns of what a node is: "queries", "keys", "all" (of neither) or "pairs"."""
        axes = {axis for aval in node.avals for axis in getattr(aval, "shape", ())}
        found = {side for side, size in SIZES.items() if size in axes}
        if node.eqn is None:
            if node.origin == "given":
                return "pairs"
            found.add(node.origin)
        else:
            found |= {self._side(x) for x in node.inputs}
        found.discard("all")
        if "pairs" in found or len(found) > 1:
            return "pairs"
        return found.pop() if found else "all"

    def _side(self, ref):
        return self.sides[ref.node] if isinstance(ref, _Ref) else "all"

    # Steps

    def _pointwise_step(self, refs):
        """Adds a step that computes these values of pairs; returns their places."""
        pointwise, inputs = self._pointwise(refs, has_features=False)
        return self._add(pointwise, inputs, [ref.aval.dtype for ref in refs])

    def _add(self, what, inputs, dtypes):
        first = len(self.dtypes)
        self.steps.append(Step(what, inputs, len(dtypes)))
        self.dtypes += dtypes
        return tuple(("value", first + i) for i in range(len(dtypes)))

    def _pointwise(self, refs, has_features):
        """Returns the function of tiles that makes these results, and its inputs' places.

        With features it does that for one feature, of which the inputs are then too.
        """
        leaves: dict[Any, tuple] = {}

        def explore(ref: Any):
            if ref in leaves or _is_literal(ref):
                return
            if self._side(ref) != "pairs":
                if isinstance(ref, _Ref) and self._is_cheap(ref):
                    for x in ref.node.inputs:
                        explore(x)
                else:
                    leaves[ref] = self._place_of_atom(ref, has_features)
            elif (inner := self._inner(ref, has_features)) is None:
                leaves[ref] = self._place(ref)
            else:
                for x in inner:
                    explore(x)

        for ref in refs:
            explore(ref)
        places = tuple(dict.fromkeys(leaves.values()))

        def function(*tiles):
            done: dict[Any, Any] = dict(zip(places, tiles, strict=True))

            def value(ref: Any):
                if ref in leaves:
                    return done[leaves[ref]]
                if isinstance(ref, _Value):
                    return ref.value
                if ref not in done:
                    node: _Node = ref.node
                    if node.name in RESHAPES:
                        done[ref] = value(node.inputs[0])
                    else:
                        results = _pointwise_call(node, [value(x) for x in node.inputs])
                        for i, x in enumerate(results):
                            done[_Ref(node, i)] = x
                return done[ref]

            like = (N, M)
            # A constant that was spread out over all pairs.
            return tuple(jnp.broadcast_to(value(ref), like) for ref in refs)

        avals = tuple(jax.ShapeDtypeStruct((N, M), self._dtype(p)) for p in places)
        return Pointwise(function, avals), places

    def _inner(self, ref, has_features):
        """Returns of what a value of pairs is computed number by number; None for a leaf."""
        node = ref.node
        if node in self.known or node.eqn is None:
            return None
        features = [axis for axis in ref.aval.shape if axis not in SIZES.values()]
        if sum(axis > 1 for axis in features) > 1:
            raise Untraceable(f"{node.name} has more than one axis of features a pair")
        if node.name in RESHAPES:
            return node.inputs[:1]
        if has_features and not features and self._is_computed(ref):
            # Once for all features.
            return None
        if node.name in ("reduce_sum", "dot_general"):
            return None
        if node.name in POINTWISE or self._is_pointwise_call(node):
            return node.inputs
        raise Untraceable(f"{node.name} is no function of one query and one key")

    def _is_cheap(self, ref):
        """Tells whether what is of one side is better computed again for each pair."""
        if not isinstance(ref, _Ref) or ref.node.eqn is None or _is_float(ref.aval):
            return False
        if math.prod(x for x in ref.aval.shape if x not in SIZES.values()) != 1:
            return False
        if ref.node.name not in CHEAP | RESHAPES or self._side(ref) == "all":
            return False

        def is_simple(x: Any):
            if isinstance(x, _Ref) and self._side(x) != "all":
                return x.node in self.places or self._is_cheap(x)
            return math.prod(x.aval.shape) == 1

        return all(map(is_simple, ref.node.inputs))

    def _is_computed(self, ref):
        """Tells whether a value of pairs is more than an atom that is spread out."""
        while isinstance(ref, _Ref) and ref.node.eqn and ref.node.name in RESHAPES:
            ref = ref.node.inputs[0]
        return self._side(ref) == "pairs"

    def _is_pointwise_call(self, node):
        if not node.name.startswith("custom_jvp_call"):
            return False
        shape = node.avals[0].shape
        shapes = [x.aval.shape for x in node.inputs]
        of_one = all(x in ((), shape) for x in shapes) and shape in shapes
        return of_one and all(x.shape == shape for x in node.avals)

    def _place(self, ref):
        """Returns the place of a value of pairs that is a given, a product or a sum."""
        node = ref.node
        if node in self.given:
            return "given", self.given.index(node)
        if node not in self.known:
            if node.name == "dot_general" and not self._has_pairs(node):
                self.known[node] = self._product(node)
            elif node.name in ("reduce_sum", "dot_general"):
                self.known[node] = self._sum(node)
            else:
                (self.known[node],) = self._pointwise_step([ref])
        return self.known[node]

    def _has_pairs(self, node):
        return any(self._side(x) == "pairs" for x in node.inputs)

    def _product(self, node):
        (contracted, batch) = node.params["dimension_numbers"]
        sides = [self._side(x) for x in node.inputs]
        if sorted(sides) != ["keys", "queries"] or batch[0] or len(contracted[0]) != 1:
            raise Untraceable(
                f"dot_general of {sides[0]} and {sides[1]} is no product of a query and a key"
            )
        by_side = dict(zip(sides, node.inputs, strict=True))
        queries, keys = (
            self._place_of_atom(by_side[side], True, is_factor=True)[1]
            for side in ("queries", "keys")
        )
        dtype = node.avals[0].dtype
        what = Product(queries, keys, dtype, node.params["precision"])
        (place,) = self._add(what, (), [dtype])
        return place

    def _sum(self, node):
        """Adds Σ_f of what is computed for a pair and a feature."""
        if node.name == "reduce_sum":
            (ref,) = node.inputs
            axes = [ref.aval.shape[axis] for axis in node.params["axes"]]
            refs = [ref]
        else:
            (contracted, _) = node.params["dimension_numbers"]
            refs = list(node.inputs)
            axes = [refs[0].aval.shape[axis] for axis in contracted[0]]
        if any(axis in SIZES.values() for axis in axes):
            raise Untraceable(f"{node.name} adds what all queries or all keys have")
        if len(axes) != 1:
            raise Untraceable(f"{node.name} adds over {len(axes)} axes")
        dtype = node.avals[0].dtype
        of_each, inputs = self._pointwise(refs, has_features=True)

        def product(*tiles):
            parts = [x.astype(dtype) for x in of_each.function(*tiles)]
            return (functools.reduce(jnp.multiply, parts),)

        what = Sum(Pointwise(product, of_each.avals), axes[0], dtype)
        (place,) = self._add(what, inputs, [dtype])
        return place

    def _dtype(self, place):
        kind, index = place
        if kind == "atom":
            return self.atoms[index][0].aval.dtype
        return (
            self.given[index].avals[0].dtype if kind == "given" else self.dtypes[index]
        )

    # Atoms

    def _place_of_atom(self, ref, has_features, is_factor=False):
        key = ref, is_factor
        if key not in self.atoms:
            self.atoms.append(key)
        index = self.atoms.index(key)
        if self._atom(*key).features is not None and not has_features:
            raise Untraceable(
                f"an array {tuple(ref.aval.shape)} has features where a number is needed"
            )
        return "atom", index

    def _atom(self, ref, is_factor):
        side = self._side(ref)
        sizes = [axis for axis in ref.aval.shape if axis not in SIZES.values()]
        if len(sizes) + (side != "all") != ref.aval.ndim:
            raise Untraceable("an array of all queries, or all keys, with themselves")
        count = math.prod(sizes)
        features = count if is_factor or count > 1 else None
        is_place = isinstance(ref, _Ref) and ref.node in self.places
        dtype = _dtype_of_factor(ref) if is_factor else ref.aval.dtype
        return Atom(side, features, dtype, is_factor, is_place)

    def _outside(self, atoms):
        """Returns of each atom the leaves that it needs, and the function of these."""
        twins = dict(
            zip(
                self.graph.inputs + self.graph.nodes,
                self.real.inputs + self.real.nodes,
                strict=True,
            )
        )
        inputs = [node for node in self.real.inputs if node.origin != "given"]
        outside = []
        for (ref, _), atom in zip(self.atoms, atoms, strict=True):
            twin = _Ref(twins[ref.node], ref.place) if isinstance(ref, _Ref) else ref
            needed = _inputs_of(twin)
            places = tuple(i for i, node in enumerate(inputs) if node in needed)
            nodes = [inputs[i] for i in places]
            function = functools.partial(_atom_of, ref, twin, atom, nodes)
            outside.append((places, function))
        return tuple(outside)


def _is_literal(ref):
    """Tells whether a constant is a number of the program itself, which needs no array."""
    if not isinstance(ref, _Value) or isinstance(ref.value, jax.Array):
        return False
    return np.ndim(ref.value) == 0


def _dtype_of_factor(ref):
    """Returns the dtype of a factor, before it was widened, which a product need not see."""
    inner = ref
    while isinstance(inner, _Ref) and inner.node.eqn and inner.node.name in RESHAPES:
        (inner,) = inner.node.inputs[:1]
    if isinstance(inner, _Ref) and inner.node.name == "convert_element_type":
        (before,) = inner.node.inputs
        if _is_float(before.aval) and before.aval.dtype.itemsize == 2:
            return before.aval.dtype
    return ref.aval.dtype


def _inputs_of(ref):
    """Returns the inputs from which a result is computed."""
    found, seen, left = set(), set(), [ref]
    while left:
        ref = left.pop()
        if isinstance(ref, _Ref) and ref.node not in seen:
            seen.add(ref.node)
            left += ref.node.inputs
            if ref.node.eqn is None:
                found.add(ref.node)
    return found


def _atom_of(ref, twin, atom, nodes, *leaves):
    """Computes an atom's array; `twin` is what `ref` is at real sizes."""
    done = {_Ref(node, 0): leaf for node, leaf in zip(nodes, leaves, strict=True)}

    def value(ref):
        if isinstance(ref, _Value):
            return ref.value
        if ref not in done:
            values = [value(x) for x in ref.node.inputs]
            of_node = _bind(ref.node.eqn, values)
            done.update({_Ref(ref.node, i): x for i, x in enumerate(of_node)})
        return done[ref]

    x = jnp.asarray(value(twin), atom.dtype)
    lead = ()
    if atom.side != "all":
        x = jnp.moveaxis(x, ref.aval.shape.index(SIZES[atom.side]), 0)
        lead = x.shape[:1]
    rest = () if atom.features is None else (atom.features,)
    return x.reshape(*lead, *rest)


def _bind(eqn, values):
    """Computes an equation's results of its inputs'."""
    primitive = eqn.primitive
    params = primitive.get_bind_params(eqn.params)
    functions = ()
    if isinstance(params, tuple):
        # So JAX before 0.10 has it.
        functions, params = params
    of_node = primitive.bind(*functions, *values, **params)
    return of_node if primitive.multiple_results else [of_node]


def _pointwise_call(node, values):
    """Computes a pointwise node of tiles, with the derivatives that it has."""
    if node.name in POINTWISE:
        return _bind(node.eqn, values)
    call = node.params["call_jaxpr"]

    @jax.custom_jvp
    def function(*tiles):
        return _run(call, tiles, _shape_of_tiles(tiles))

    @function.defjvp
    def _(primals, tangents):
        shapes = [_shape_of(x) for x in call.in_avals]
        rule = jax.make_jaxpr(
            lambda *x: jax.jvp(
                lambda *y: _bind(node.eqn, y), x[: len(shapes)], x[len(shapes) :]
            )
        )(*shapes, *shapes)
        arguments = (*primals, *tangents)
        results = _run(rule, arguments, _shape_of_tiles(arguments))
        half = len(results) // 2
        return tuple(results[:half]), tuple(results[half:])

    return function(*values)


def _shape_of_tiles(values):
    return next(jnp.shape(x) for x in values if jnp.ndim(x) == 2)


def _run(closed, values, shape, rules=None):
    """Computes a pointwise jaxpr of tiles of a shape that need not be its own.

    `rules` has functions of other ways to compute some primitives, by name.
    """
    rules = rules or {}
    env = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    env |= dict(zip(closed.jaxpr.invars, values, strict=True))

    def value(var):
        return var.val if isinstance(var, core.Literal) else env[var]

    for eqn in closed.jaxpr.eqns:
        name = eqn.primitive.name
        inputs = [value(var) for var in eqn.invars]
        called = _called(eqn)
        if called is None and name.startswith("custom_jvp_call"):
            called = eqn.params["call_jaxpr"]
        if called is not None:
            results = _run(called, inputs, shape, rules)
        elif name in RESHAPES:
            (x,) = inputs
            is_tile = jnp.ndim(x) == 2 or not eqn.outvars[0].aval.shape
            results = [x if is_tile else jax.lax.broadcast_in_dim(x, shape, ())]
        elif name in rules:
            results = [rules[name](*inputs, **eqn.params)]
        elif name in POINTWISE:
            results = _bind(eqn, inputs)
        else:
            raise Untraceable(f"{name} is no function of one query and one key")
        env |= dict(zip(eqn.outvars, results, strict=True))
    return tuple(value(var) for var in closed.jaxpr.outvars)


# Programs on a tile


def compute(program: Program, machine: Any, given: Sequence[Array] = ()) -> list[Array]:
    """Returns the values of all steps, for one tile.

    The machine has `shape` (n, m), `rules` (see `_run`), and methods

      atom(index, feature=None): the atom's numbers, spread out over the tile;
      product(what): the tile of a `Product`;
      loop(count, body, carry): carry after body(f, carry) for each feature f.
    """
    values: list[Array] = []
    for step in program.steps:
        if isinstance(step.what, Product):
            values.append(machine.product(step.what))
        elif isinstance(step.what, Sum):
            values.append(_sum_of_features(program, machine, given, values, step))
        else:
            tiles = [_tile(machine, given, values, place) for place in step.inputs]
            values += step.what(*tiles, rules=machine.rules)
    return values


def results(program: Program, values: Sequence[Array]) -> list[Array]:
    """Returns what the program's function gives, of the values of its steps."""
    return [values[index] for _, index in program.outputs]


def _tile(machine, given, values, place, feature=None):
    kind, index = place
    if kind == "atom":
        return machine.atom(index, feature)
    return given[index] if kind == "given" else values[index]


def _sum_of_features(program, machine, given, values, step):
    what = step.what
    # What is the same for all features is not fetched for each.
    fixed = {
        place: _tile(machine, given, values, place)
        for place in step.inputs
        if not _has_features(program, place)
    }

    def body(f, total):
        tiles = [
            fixed[place] if place in fixed else machine.atom(place[1], f)
            for place in step.inputs
        ]
        return total + what.pointwise(*tiles, rules=machine.rules)[0]

    return machine.loop(what.features, body, jnp.zeros(machine.shape, what.dtype))


def _has_features(program, place):
    kind, index = place
    return kind == "atom" and program.atoms[index].features is not None


def pull_back(
    program: Program,
    machine: Any,
    given: Sequence[Array],
    values: Sequence[Array],
    cotangents: Sequence[Array],
) -> list[Array | None]:
    """Adds up the gradients of a tile, for cotangents (n, m) of the program's results.

    Returns those of the given tiles, None for 0. The machine has the methods

      wants(index): whether the gradient of an atom is asked for;
      add(index, cotangent, feature=None): adds to an atom's gradient what is a cotangent of
        its numbers, spread out;
      add_product(what, cotangent): adds to the gradients of both factors.
    """
    known: dict[tuple, Array] = {}

    def deposit(place, cotangent):
        kind, index = place
        if kind == "atom":
            if machine.wants(index):
                machine.add(index, cotangent)
        else:
            known[place] = known[place] + cotangent if place in known else cotangent

    for place, cotangent in zip(program.outputs, cotangents, strict=True):
        deposit(place, cotangent)
    first = len(values)
    for step in reversed(program.steps):
        first -= step.count
        own = [known.pop(("value", first + i), None) for i in range(step.count)]
        if all(x is None for x in own):
            continue
        if isinstance(step.what, Product):
            machine.add_product(step.what, own[0])
        elif isinstance(step.what, Sum):
            _pull_sum(program, machine, given, values, step, own[0], deposit)
        else:
            tiles = [_tile(machine, given, values, place) for place in step.inputs]
            dtypes = [x.dtype for x in step.what.jaxpr.out_avals]
            floats = [
                jnp.zeros(machine.shape, dtype) if x is None else x
                for x, dtype in zip(own, dtypes, strict=True)
                if jnp.issubdtype(dtype, jnp.floating)
            ]
            pulled = step.what.backward(*tiles, *floats, rules=machine.rules)
            places = [
                p
                for p, x in zip(step.inputs, step.what.avals, strict=True)
                if _is_float(x)
            ]
            for place, cotangent in zip(places, pulled, strict=True):
                deposit(place, cotangent)
    return [known.get(("given", i)) for i in range(len(program.given))]


def _pull_sum(program, machine, given, values, step, cotangent, deposit):
    """Adds up the gradients of a sum over features."""
    pointwise = step.what.pointwise
    fixed = {
        place: _tile(machine, given, values, place)
        for place in step.inputs
        if not _has_features(program, place)
    }
    floats = [
        p for p, x in zip(step.inputs, pointwise.avals, strict=True) if _is_float(x)
    ]
    kept = [place for place in floats if place in fixed]

    def body(f, totals):
        tiles = [
            fixed[place] if place in fixed else machine.atom(place[1], f)
            for place in step.inputs
        ]
        pulled = pointwise.backward(*tiles, cotangent, rules=machine.rules)
        totals = dict(zip(kept, totals, strict=True))
        for place, x in zip(floats, pulled, strict=True):
            if place in totals:
                totals[place] = totals[place] + x
            elif machine.wants(place[1]):
                machine.add(place[1], x, f)
        return tuple(totals[place] for place in kept)

    zeros = tuple(jnp.zeros(machine.shape, fixed[place].dtype) for place in kept)
    totals = machine.loop(step.what.features, body, zeros)
    for place, total in zip(kept, totals, strict=True):
        deposit(place, total)
