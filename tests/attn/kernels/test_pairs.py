"""What a function of queries and keys is taken apart into, and what is refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Mask, ScaledDot
from attn.functions.tanh_sum import tanh_sum
from attn.kernels.drop import Drop
from attn.kernels.pairs import (
    Pointwise,
    Product,
    Sum,
    Untraceable,
    compute,
    program_of,
    pull_back,
    results,
)
from attn.kernels.rewritten import RULES

pytestmark = pytest.mark.quick

N = 6
M = 9
F = 4
DRAW = np.random.default_rng(0).standard_normal
Q, K = (jnp.asarray(DRAW((size, F)), jnp.float32) for size in (N, M))
ROWS, COLUMNS = jnp.arange(N), jnp.arange(M)
QUERIES, KEYS = (ROWS, Q), (COLUMNS, K)


class Machine:
    """The whole as one tile, in plain JAX; adds up gradients by atom and feature."""

    shape = (N, M)
    rules = RULES

    def __init__(self, program, queries, keys, shared):
        leaves = jax.tree.leaves((queries, keys, shared))
        self.program = program
        self.arrays = [
            compute(*(leaves[place] for place in places))
            for places, compute in program.outside
        ]
        self.sums = {}

    def atom(self, index, feature=None):
        x = self.arrays[index]
        if feature is not None:
            x = x[..., feature]
        side = self.program.atoms[index].side
        return jnp.broadcast_to(x[:, None] if side == "queries" else x, (N, M))

    def product(self, what):
        return self.arrays[what.queries] @ self.arrays[what.keys].T

    def loop(self, count, body, carry):
        for f in range(count):
            carry = body(f, carry)
        return carry

    def wants(self, index):
        return True

    def add(self, index, cotangent, feature=None):
        atom = self.program.atoms[index]
        axes = {"queries": (1,), "keys": (0,), "all": (0, 1)}[atom.side]
        x = cotangent.sum(axes)
        if feature is None:
            self.sums[index] = self.sums.get(index, 0) + x
        else:
            zeros = jnp.zeros_like(self.arrays[index])
            sums = self.sums.get(index, zeros)
            self.sums[index] = sums.at[..., feature].add(x)

    def add_product(self, what, cotangent):
        q, k = self.arrays[what.queries], self.arrays[what.keys]
        self.sums[what.queries] = self.sums.get(what.queries, 0) + cotangent @ k
        self.sums[what.keys] = self.sums.get(what.keys, 0) + cotangent.T @ q


def kinds(program):
    return [type(step.what) for step in program.steps]


def sides(program):
    return [(atom.side, atom.features) for atom in program.atoms if not atom.is_place]


def check(function, shared=(), queries=QUERIES, keys=KEYS, given=()):
    """Compares values and gradients with the function's own; returns the program."""
    program = program_of(function, queries, keys, shared, [x.dtype for x in given])
    machine = Machine(program, queries, keys, shared)
    values = compute(program, machine, given)
    tokens = queries[1], keys[1]

    def of_floats(tokens, shared, given):
        return function((queries[0], tokens[0]), (keys[0], tokens[1]), shared, given)

    expected, pull = jax.vjp(of_floats, tokens, shared, given)
    for a, b in zip(results(program, values), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    cotangents = tuple(jnp.asarray(DRAW((N, M)), jnp.float32) for _ in expected)
    d_given = pull_back(program, machine, given, values, cotangents)
    d_tokens, d_shared, d_own = pull(cotangents)
    for a, b in zip(d_given, d_own, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    # What is outside JAX differentiates: here by the atoms' own pullbacks.
    leaves = jax.tree.leaves((queries, keys, shared))
    totals = [jnp.zeros(x.shape, jnp.float32) for x in leaves]
    for index, sums in machine.sums.items():
        places, outside = program.outside[index]
        values, pull = jax.vjp(outside, *(leaves[place] for place in places))
        if not jnp.issubdtype(values.dtype, jnp.floating):
            continue
        parts = pull(jnp.asarray(sums, values.dtype).reshape(values.shape))
        for place, part in zip(places, parts, strict=True):
            if part.dtype != jax.dtypes.float0:
                totals[place] += part
    # Of places there are none.
    found = [totals[1], totals[3], *totals[4:]]
    exact = [*d_tokens, *jax.tree.leaves(d_shared)]
    for a, b in zip(found, exact, strict=True):
        if b.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    return program


def test_a_product_of_what_queries_and_keys_are_made_into():
    def cosine(queries, keys, shared, given):
        q, k = (
            x / jnp.linalg.norm(x, axis=-1, keepdims=True)
            for x in (queries[1], keys[1])
        )
        return (shared * (q @ k.T),)

    program = check(cosine, jnp.float32(2.0))
    assert kinds(program) == [Product, Pointwise]
    assert sorted(sides(program)) == [("all", None), ("keys", F), ("queries", F)]


SCALE = jnp.float32(0.5)
WEIGHTS = jnp.arange(1.0, F + 1)


def test_arrays_of_a_module_are_atoms_as_parameters_are():
    """A kernel may hold no array that it is not given."""

    def of_module(queries, keys, shared, given):
        return (SCALE * ((queries[1] * WEIGHTS[None]) @ keys[1].T),)

    assert ("all", None) in sides(check(of_module))


def test_features_of_pairs_are_a_sum_and_no_array_of_theirs_is_made():
    def distance(queries, keys, shared, given):
        q, k = queries[1], keys[1]
        return (-shared * ((q[:, None] - k[None]) ** 2).sum(-1),)

    program = check(distance, jnp.float32(0.5))
    assert kinds(program) == [Sum, Pointwise]

    def weighted(queries, keys, shared, given):
        x = jnp.tanh(queries[1][:, None] + keys[1][None])
        return (jnp.einsum("nmf,f->nm", x, shared),)

    program = check(weighted, jnp.arange(1.0, F + 1))
    assert program.steps[0].what.features == F and ("all", F) in sides(program)


def test_a_function_with_a_form_for_kernels_is_traced_as_that():
    def additive(queries, keys, shared, given):
        return (tanh_sum(queries[1].T, keys[1].T, shared),)

    assert kinds(check(additive, jnp.arange(1.0, F + 1))) == [Sum, Pointwise]


def test_sums_may_be_of_what_was_computed_for_the_pair():
    def of_scores(queries, keys, shared, given):
        s = jnp.tanh(queries[1] @ keys[1].T)
        return ((jax.nn.relu(s[..., None] * shared) ** 2).sum(-1) + s,)

    program = check(of_scores, jnp.arange(1.0, 4.0)[None, None])
    # The score is computed once, and not again for each feature.
    assert kinds(program) == [Product, Pointwise, Sum, Pointwise]


def test_what_is_written_twice_is_one_atom():
    def twice(queries, keys, shared, given):
        first, second = (shared * jnp.exp(queries[1].sum(-1))[:, None] for _ in "ab")
        return (first * jnp.exp(keys[1].sum(-1))[None] + second,)

    program = check(twice, jnp.float32(0.1))
    assert len(program.atoms) == 2


def test_masks_are_numbers_of_tokens_and_places_are_not_fetched():
    ids = jnp.asarray(DRAW(M) > 0, jnp.int32)
    mask = Mask.causal(1) & Mask.segments(ids[:N], ids) | Mask.first(2)

    def visible(queries, keys, shared, given):
        (i, q), (j, k) = queries, keys
        s = ScaledDot()(q, k)
        return (jnp.where(shared.tile(i, j), s, 0.0),)

    program = check(visible, mask)
    places = [atom for atom in program.atoms if atom.is_place]
    assert len(places) == 2
    # The factors, and the ids of queries and of keys; the rest is the same for all.
    found = [x for x in sides(program) if x[0] != "all"]
    assert sorted(found, key=str) == [
        ("keys", F),
        ("keys", None),
        ("queries", F),
        ("queries", None),
    ]


def test_dropout_is_the_library_s_own():
    drop = Drop(jnp.float32(0.4), jax.random.key(1))
    program = program_of(
        lambda q, k, s, g: (s.tile(jnp.ones((len(q[0]), len(k[0]))), q[0], k[0], M),),
        (ROWS,),
        (COLUMNS,),
        drop,
    )
    machine = Machine(program, (ROWS,), (COLUMNS,), drop)
    (actual,) = results(program, compute(program, machine))
    np.testing.assert_array_equal(actual, drop(jnp.ones((N, M))))


def test_arrays_of_pairs_are_given():
    def biased(queries, keys, shared, given):
        return (jnp.tanh(queries[1] @ keys[1].T + given[0]),)

    check(biased, given=(jnp.asarray(DRAW((N, M)), jnp.float32),))


def test_rules_of_custom_derivatives_hold():
    @jax.custom_jvp
    def straight_through(x):
        return jnp.round(x)

    straight_through.defjvp(lambda x, t: (straight_through(*x), *t))

    def rounded(queries, keys, shared, given):
        return (straight_through(shared * (queries[1] @ keys[1].T)),)

    check(rounded, jnp.float32(3.0))


REFUSED = {
    "sort": (lambda s: jnp.sort(s, -1), "sort is no function of one query and one key"),
    "mean": (
        lambda s: s - s.mean(-1, keepdims=True),
        "reduce_sum adds what all queries",
    ),
    "queries": (lambda s: s @ s.T @ s, "dot_general adds what all queries or all keys"),
    "cumsum": (lambda s: jnp.cumsum(s, 1), "cumsum is no function"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_more_than_pairs_is_refused_by_the_primitive(name):
    function, message = REFUSED[name]
    with pytest.raises(Untraceable, match=message):
        program_of(lambda q, k, s, g: (function(q[1] @ k[1].T),), QUERIES, KEYS)


def test_a_function_of_the_number_of_tokens_is_refused():
    def peculiar(queries, keys, shared, given):
        s = queries[1] @ keys[1].T
        return (jnp.sin(s) if len(keys[0]) == M else s,)

    with pytest.raises(Untraceable, match="another number of tokens"):
        program_of(peculiar, QUERIES, KEYS)


def test_half_precision_is_multiplied_as_it_is():
    q, k = Q.astype(jnp.bfloat16), K.astype(jnp.bfloat16)

    def wide(queries, keys, shared, given):
        return (queries[1].astype(jnp.float32) @ keys[1].astype(jnp.float32).T,)

    program = program_of(wide, (ROWS, q), (COLUMNS, k))
    assert {atom.dtype for atom in program.atoms} == {jnp.dtype(jnp.bfloat16)}


X = np.concatenate([-np.logspace(2, -30, 200), [0.0], np.logspace(-30, 2, 200)])
EXACT = {
    "log1p": (np.log1p, X[X > -0.5]),
    "expm1": (np.expm1, X[X < 80]),
    "square": (np.square, X),
    "sign": (np.sign, X),
    "one_minus_square": (lambda x: 1 - x * x, X[np.abs(X) < 0.5]),
}


@pytest.mark.parametrize("name", EXACT)
def test_what_a_compiler_lacks_is_rewritten_to_rounding(name):
    exact, x = EXACT[name]
    x = x.astype(np.float32)
    actual = np.asarray(RULES[name](jnp.asarray(x)), np.float64)
    # A rounding of 1, or some of the result.
    expected = exact(x.astype(np.float64))
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1.3e-7)


@pytest.mark.parametrize("power", [-3, -1, 0, 1, 2, 5])
def test_integer_powers_are_products(power):
    x = np.array([-1.5, 0.3, 2.0], np.float32)
    actual = RULES["integer_pow"](jnp.asarray(x), y=power)
    np.testing.assert_allclose(actual, x.astype(np.float64) ** power, rtol=1e-6)
