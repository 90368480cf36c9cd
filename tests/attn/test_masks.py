"""Masks as values, and by `&`, `|`, `~`, a prefix, the first keys and one's own function: what
each shows, how far it reaches, and attention with it against the float64 oracle.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import Mask, argmax_attention, attention, inspect
from attn.kernels.query_blocks import BLOCK
from attn.masks import mask_part
from tests.attn import cases, oracle
from tests.attn.blocks import blocks_of
from tests.attn.cases import (
    COLUMN,
    DENSE,
    LENGTHS,
    ROW,
    B,
    H,
    M,
    N,
    draw_qkv,
)

CAUSAL = Mask.causal()
PAST = COLUMN <= ROW
PADDING = LENGTHS[:, None, None, None] > COLUMN
NEAR = (ROW - 1 <= COLUMN) & PAST
NOTHING = ~Mask()


def third(i, j):
    return (i + j) % 3 == 0


# Each beside what it shows, broadcastable to (B, H, N, M), and how far it reaches.
MASKS = {
    "function": (Mask.of(third), (ROW + COLUMN) % 3 == 0, (None, None)),
    "prefix": (
        Mask.prefix(np.array([3, 6])),
        PAST | (COLUMN < [[[[3]]], [[[6]]]]),
        None,
    ),
    "first": (Mask.first(2), COLUMN < 2, (None, None)),
    "sinks": (
        (Mask.window(1, 0) | Mask.first(2)) & CAUSAL,
        (NEAR | (COLUMN < 2)) & PAST,
        (None, 0),
    ),
    "not causal": (~CAUSAL, ~PAST, (None, None)),
    "not padding": (~Mask.padding(LENGTHS), ~PADDING, (None, None)),
    "not dense": (~Mask.dense(DENSE), ~DENSE, (None, None)),
    "two windows": (
        Mask.window(3, -2) | Mask.window(-1, 2),
        ((ROW - 3 <= COLUMN) & (COLUMN <= ROW - 2))
        | ((ROW + 1 <= COLUMN) & (COLUMN <= ROW + 2)),
        (3, 2),
    ),
    "padding or dense": (
        (Mask.padding(LENGTHS) & Mask.dense(DENSE)) | CAUSAL,
        (PADDING & DENSE) | PAST,
        (None, None),
    ),
    "all": (
        ~(Mask.dense(DENSE) | ~Mask.padding(LENGTHS)) | Mask.window(1, 0),
        (~DENSE & PADDING) | NEAR,
        (None, None),
    ),
}
MASKS["several bounds"] = (
    Mask.window(2, 4) & Mask.padding(LENGTHS) & Mask.causal(1) & Mask.window(3, 5),
    (ROW - 2 <= COLUMN) & (COLUMN <= ROW + 1) & PADDING,
    (2, 1),
)
PLAIN = {
    name: (mask or Mask(), seen, None) for name, (mask, seen) in cases.MASKS.items()
}


def shown(name):
    return np.broadcast_to((PLAIN | MASKS)[name][1], (B, H, N, M))


@pytest.fixture(scope="module", autouse=True)
def _blocks_of_two():
    with blocks_of(2):
        yield


@pytest.fixture(params=["reference", "blocks"])
def kernel(request):
    return request.param


@pytest.mark.parametrize("name", [*PLAIN, *MASKS])
def test_what_is_shown_and_how_far_it_reaches(name):
    mask, _, reach = (PLAIN | MASKS)[name]
    mask.check((B,), H, N, M)
    flat = jax.tree.map(
        lambda x: np.broadcast_to(x, (B, H, *x.shape[2:])), mask.flat((B,))
    )
    for b, h in np.ndindex(B, H):
        own = jax.tree.map(lambda x, b=b, h=h: jnp.asarray(x[b, h]), flat)
        whole = own.tile(jnp.arange(N), jnp.arange(M))
        np.testing.assert_array_equal(whole, shown(name)[b, h])
        part = own.tile(jnp.arange(2, 4), jnp.arange(3, 6))
        np.testing.assert_array_equal(part, shown(name)[b, h, 2:4, 3:6])
    if name in MASKS:
        assert mask.reach() == (reach or (None, None))


def of_oracle(name):
    is_quick = name in ("sinks", "prefix", "all")
    return pytest.param(name, marks=() if is_quick else pytest.mark.ci)


@pytest.mark.parametrize("name", [*map(of_oracle, MASKS)])
def test_equals_the_oracle(qkv, kernel, name):
    options = dict(mask=MASKS[name][0], return_lse=True, implementation=kernel)
    expected = oracle.each_head(*qkv, shown(name))
    for x, right in zip(attention(*qkv, **options), expected, strict=False):
        np.testing.assert_allclose(x, right, rtol=3e-5, atol=3e-6)


def test_identities():
    window = Mask.window(1, 2)
    assert ~~window is window
    i, j = jnp.arange(N), jnp.arange(M)
    for one, other in (
        (window | NOTHING, window),
        (NOTHING | window, window),
        (window | window, window),
        (window & ~window, NOTHING),
        (window | ~window, Mask()),
        (window | Mask(), Mask()),
        (Mask.prefix(np.array(0)), CAUSAL),
        (Mask.first(0), NOTHING),
        (Mask.first(M), Mask()),
        (~(window | CAUSAL), ~window & ~CAUSAL),
    ):
        np.testing.assert_array_equal(one.tile(i, j), other.tile(i, j))


LONG = 40


@pytest.mark.parametrize(
    "kind", ["a value", pytest.param("an array", marks=pytest.mark.ci)]
)
def test_sinks_and_a_window_slide_over_long_inputs(kind):
    """With biases and dropout, which go by the places of keys."""
    draw = np.random.default_rng(4).normal
    q, k, v = (jnp.asarray(draw(size=(LONG, 1, 5)), jnp.float32) for _ in range(3))
    bias = jnp.asarray(draw(size=(1, LONG, LONG)), jnp.float32)
    if kind == "a value":
        bias = attn.RelativeBias(bias[:, 0, : 2 * 9 + 1])
    mask = (Mask.window(4, 0) | Mask.first(3)) & CAUSAL
    assert mask.spans() == (3, 4, 0)
    seen = np.tri(LONG, dtype=bool) & ~np.tri(LONG, k=-5, dtype=bool)
    seen[:, :3] = np.tri(LONG, dtype=bool)[:, :3]

    def loss(k, mask, kernel):
        dropout = dict(dropout_rate=0.3, dropout_key=jax.random.key(0))
        options = dict(mask=mask, bias=bias, implementation=kernel)
        out = attention(q, k, v, **options, **dropout)
        return (out**2).sum(), out

    f = jax.grad(loss, has_aux=True)
    with blocks_of(4):
        results = f(k, mask, "blocks"), f(k, Mask.dense(seen), "reference")
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_window_with_sinks_takes_the_keys_that_it_shows_alone():
    """Of 4,096 keys, a block of 256 queries has scores with 4 and 256 + 60 of them."""
    x = jax.ShapeDtypeStruct((4096, 1, 8), jnp.float32)
    mask = (Mask.window(60, 0) | Mask.first(4)) & CAUSAL

    def f(q, k, v):
        return attention(q, k, v, mask=mask, implementation="blocks")

    with blocks_of(BLOCK):
        text = jax.jit(f).lower(x, x, x).as_text()
    assert "256x320" in text
    assert "256x4096" not in text


@pytest.mark.ci
def test_statistics_and_hard_attention_know_where_the_keys_are():
    q, k, _ = draw_qkv()
    q, k = (jnp.concatenate([x] * 8, axis=1) for x in (q, k))
    mask = (Mask.window(2, 0) | Mask.first(3)) & CAUSAL
    n, m = q.shape[1], k.shape[1]
    dense = Mask.dense(mask.tile(jnp.arange(n), jnp.arange(m)))
    results = []
    for one in (mask, dense):
        _, index = argmax_attention(q, k, k, mask=one)
        top = inspect.top_weights(q, k, mask=one, top=2)
        results.append((index, top))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), *results)


def test_a_function_of_equal_code_is_one_program():
    def near(r):
        return Mask.of(lambda i, j: abs(i - j) <= r)

    traces = []

    @jax.jit
    def f(mask):
        traces.append(mask)
        return mask.tile(jnp.arange(N), jnp.arange(M))

    results = [f(near(r)) for r in (1, 1, 2, 1)]
    assert len(traces) == 2
    np.testing.assert_array_equal(results[0], results[3])
    assert (results[2] != results[0]).any()
    assert near(1) == near(1) != near(2)


@dataclasses.dataclass(frozen=True)
class Near:
    radius: int

    def sees(self, i, j):
        return abs(i - j) <= self.radius


class Changing(Near):
    """No dataclass itself, and so with the hash of an object."""

    __hash__ = object.__hash__

    def __init__(self, radius):
        object.__setattr__(self, "radius", radius)


def test_a_method_is_of_its_object():
    q = jnp.asarray(np.random.default_rng(0).normal(size=(1, N, 1, 4)), jnp.float32)
    narrow, wide = (Mask.of(Near(radius).sees) for radius in (0, 2))
    assert narrow == Mask.of(Near(0).sees) != wide
    for mask, radius in ((narrow, 0), (wide, 2)):
        exact = attention(q, q, q, mask=Mask.window(radius, radius))
        np.testing.assert_allclose(attention(q, q, q, mask=mask), exact, atol=1e-6)


@pytest.mark.parametrize(
    "make", [lambda x: x.sees, lambda x: lambda i, j: abs(i - j) <= x.radius]
)
def test_a_function_of_an_object_that_may_change_is_refused(make):
    with pytest.raises(TypeError, match="Changing has attributes, and is no frozen"):
        Mask.of(make(Changing(1)))


def test_a_function_that_closes_over_an_array_is_refused():
    array = jnp.ones(M)
    with pytest.raises(TypeError, match=r"an array belongs into a part of one's own"):
        Mask.of(lambda i, j: array[j] > 0)


Q_IDS = np.array([[1, 1, 2], [3, 3, 3]])
K_IDS = np.array([[1, 2, 2, 0], [3, 3, 0, 0]])


@pytest.mark.parametrize(
    ("mask", "picture"),
    [
        (Mask(), "●●●● ●●●● ●●●●"),
        (Mask.causal(), "●··· ●●·· ●●●·"),
        (Mask.causal(offset=np.array([1, 0])), "●●·· ●●●· ●●●●"),
        (Mask.window(1, 0), "●··· ●●·· ·●●·"),
        (Mask.padding(np.array([3, 1])), "●●●· ●●●· ●●●·"),
        (Mask.segments(Q_IDS, K_IDS), "●··· ●··· ·●●·"),
        (Mask.dense(np.arange(24).reshape(2, 1, 3, 4) % 2 == 0), "●·●· ●·●· ●·●·"),
        (Mask.dense(np.array([True, False, True, True])), "●·●● ●·●● ●·●●"),
        (Mask.window(0, 0) | Mask.first(1), "●··· ●●·· ●·●·"),
        (Mask.prefix(np.array([2, 0])), "●●·· ●●·· ●●●·"),
        (
            Mask.causal(1) & Mask.padding(np.array([3, 1])) & Mask.window(1, 4),
            "●●·· ●●●· ·●●·",
        ),
    ],
)
def test_pictures(mask, picture):
    assert mask.picture(3, 4).split("\n") == picture.split()


def test_a_dense_mask_is_not_copied_for_every_example_and_head():
    """Temporary MiB at 2,048 tokens, 4 examples and 4 heads, with a mask of 4 MiB: for
    each of them it would be 64.
    """
    shape = jax.ShapeDtypeStruct((4, 2048, 4, 16), jnp.float32)
    array = jax.ShapeDtypeStruct((2048, 2048), jnp.bool_)

    def masked(q, k, v, array):
        return attention(q, k, v, mask=Mask.dense(array))

    with blocks_of(BLOCK):
        compiled = jax.jit(masked).lower(shape, shape, shape, array).compile()
    assert compiled.memory_analysis().temp_size_in_bytes / 2**20 < 24


def test_axes_may_be_named():
    """A part of one's own whose field has a name for its axis is held to its length."""

    @mask_part(real="M")
    class Real:
        real: Any

        def tile(self, i, j):
            return self.real[j]

    q, k = jnp.ones((2, 3, 1, 4)), jnp.ones((2, 5, 1, 4))
    v = jnp.arange(5.0)[None, :, None, None] * jnp.ones((2, 1, 1, 1))
    real = np.array([[True, True, True, False, False], [False] * 4 + [True]])
    actual = attention(q, k, v, mask=Mask((Real(jnp.array(real)),)))
    np.testing.assert_allclose(actual[:, :, 0, 0], [[1.0] * 3, [4.0] * 3], rtol=1e-6)
    message = r"real of shape \(2, 4\) does not fit \(\*B, M\) = \(2, 5\)"
    with pytest.raises(ValueError, match=message):
        attention(q, k, v, mask=Mask((Real(jnp.array(real[:, :4])),)))
