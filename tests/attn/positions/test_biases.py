"""Biases by position: against their definitions in numpy, in every kernel, and what
their gradients cost.
"""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attn import Mask, attention
from attn.jax_versions import enable_x64
from attn.kernels.query_blocks import BLOCK
from attn.positions import (
    ALiBiBias,
    BucketBias,
    RelativeBias,
    alibi_slopes,
    bucket_of_distance,
)
from tests.attn import oracle
from tests.attn.blocks import blocks_of

N = 11
M = 13
H = 3
K = 5
R = 4
DRAW = np.random.default_rng(0).normal
TABLE = DRAW(size=(H, 2 * R + 1))
BUCKETS = DRAW(size=(H, 8))
SLOPES = np.abs(DRAW(size=H))


def clipped(distance):
    return np.clip(distance, -R, R) + R


def t5_bucket(distance, buckets, bidirectional, max_distance):
    """From T5's description: half of the buckets exact, half logarithmic up to
    max_distance, later keys apart.
    """
    before = np.abs(distance) if bidirectional else np.maximum(-distance, 0)
    side = np.where(distance > 0, buckets // 2, 0) if bidirectional else 0
    half = buckets // 4 if bidirectional else buckets // 2
    far = np.log(np.maximum(before, half) / half) / np.log(max_distance / half)
    logarithmic = np.minimum(half + np.floor(half * far + 1e-9), 2 * half - 1).astype(
        int
    )
    return side + np.where(before < half, before, logarithmic)


# A bias of given parameters and offset; its parameters; which of them each distance
# takes, or what it multiplies.
BIASES = {
    "table": (RelativeBias, TABLE, clipped),
    "t5": (
        lambda table, offset: BucketBias(table, offset, max_distance=9),
        BUCKETS,
        lambda d: t5_bucket(d, 8, True, 9),
    ),
    "t5, one direction": (
        lambda table, offset: BucketBias(
            table, offset, bidirectional=False, max_distance=13
        ),
        BUCKETS,
        lambda d: t5_bucket(d, 8, False, 13),
    ),
    "alibi": (ALiBiBias, SLOPES, None),
}
MASKS = {"none": None, "causal": Mask.causal(offset=2), "window": Mask.window(1, 2)}
CASES = [("tiled", name, "causal") for name in BIASES]
CASES += [("tiled", "table", "none"), ("tiled", "table", "window")]
# The reference takes all biases alike: as one tile.
CASES += [("reference", "table", "causal"), ("reference", "alibi", "causal")]


def distances(offset, n=N, m=M):
    return np.arange(m)[None] - (np.arange(n)[:, None] + offset)


def dense(name, offset, n=N, m=M):
    """The bias (H, n, m) written out."""
    _, parameters, of = BIASES[name]
    d = distances(offset, n, m)
    return (
        -parameters[:, None, None] * np.abs(d) if of is None else parameters[:, of(d)]
    )


@pytest.fixture(autouse=True, scope="module")
def _blocks_of_four():
    """Of which one sees keys that touch neither end of them."""
    with blocks_of(4):
        yield


@pytest.fixture
def qkv():
    """In float64, and so with all that is made from them."""
    with enable_x64(True):
        yield tuple(
            jnp.asarray(np.random.default_rng(1).normal(size=(n, H, K)))
            for n in (N, M, M)
        )


def out_and_lse(qkv, bias, mask, implementation):
    options = dict(mask=MASKS[mask], implementation=implementation, return_lse=True)
    return attention(*qkv, bias=bias, **options)


def weighted(outputs):
    out, lse = outputs
    weight = np.random.default_rng(2).normal(size=(N, H, K))
    return (out * weight).sum() + (lse**2).sum()


@functools.partial(jax.jit, static_argnums=2)
@jax.grad
def gradient_of_dense(bias, qkv, mask):
    return weighted(out_and_lse(qkv, bias, mask, "reference"))


@pytest.mark.parametrize(("kernel", "name", "mask"), CASES)
def test_equals_the_oracle_with_its_gradient(qkv, kernel, name, mask):
    """The gradient is that of the dense bias, summed."""
    make, parameters, of = BIASES[name]
    visible = {
        "none": distances(0) < M,
        "causal": distances(2) <= 0,
        "window": abs(distances(0) - 0.5) < 2,
    }[mask]

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def both(parameters, offset):
        outputs = out_and_lse(qkv, make(parameters, offset), mask, kernel)
        return weighted(outputs), outputs

    for offset in (0, 2, -7):
        gradient, (out, lse) = both(parameters, offset)
        bias = dense(name, offset)
        for h in range(H):
            q, k, v = (np.asarray(x[:, h]) for x in qkv)
            # The last column is the place, which the oracle's score has to know.
            q, k = (
                np.concatenate([x, np.arange(len(x))[:, None]], axis=1) for x in (q, k)
            )
            score = lambda q, k, h=h, bias=bias: (
                oracle.scaled_dot(q[:-1], k[:-1]) + bias[h, int(q[-1]), int(k[-1])]
            )
            expected = oracle.attention(q, k, v, visible, score)
            np.testing.assert_allclose(out[:, h], expected[0], rtol=1e-11, atol=1e-13)
            np.testing.assert_allclose(lse[:, h], expected[1], rtol=1e-11, atol=1e-13)
        each = np.asarray(gradient_of_dense(bias, qkv, mask))
        if of is None:
            summed = (each * -np.abs(distances(offset))).sum((1, 2))
        else:
            summed = np.zeros_like(parameters)
            np.add.at(summed, (slice(None), of(distances(offset))), each)
        assert np.abs(summed).max() > 0.1
        np.testing.assert_allclose(gradient, summed, rtol=1e-10, atol=1e-12)


def test_second_order_gradients(qkv):
    q, k, v = (x[:n, :1] for x, n in zip(qkv, (5, 7, 7), strict=True))

    @jax.jit
    def f(table):
        return attention(
            q,
            k,
            v,
            bias=RelativeBias(table, 1),
            mask=Mask.window(3, 1),
            implementation="tiled",
        )

    check_grads(f, (jnp.asarray(TABLE[:1]),), order=2, modes=("fwd", "rev"))


@pytest.mark.parametrize("name", BIASES)
def test_any_tile_is_cut_from_the_whole(name):
    make, parameters, _ = BIASES[name]
    whole = dense(name, 5, 80, 60)
    for n in (1, 4, 5, 16, 17, 67) if name == "table" else (13,):
        m = 1 + 7 * n % 19
        i = 80 - n
        j = n % 11
        tile = jax.jit(make(np.float32(parameters[1]), 5).tile)(
            i + jnp.arange(n), j + jnp.arange(m)
        )
        np.testing.assert_allclose(tile, whole[1, i : i + n, j : j + m], rtol=1e-6)


@pytest.mark.parametrize("name", BIASES)
def test_steps_of_a_decoder_are_the_rows_of_the_whole(qkv, name):
    make, parameters, _ = BIASES[name]
    q, k, v = qkv
    bias = make(jnp.asarray(parameters), 0)

    @jax.jit
    def both(q, k, v):
        def step(t):
            own = dataclasses.replace(bias, offset=t)
            mask = Mask.causal(offset=t)
            return attention(q[t][None], k, v, bias=own, mask=mask)[0]

        whole = attention(q, k, v, bias=bias, mask=Mask.causal())
        return jax.lax.map(step, jnp.arange(N)), whole

    np.testing.assert_allclose(*both(q, k, v), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [("tiled", "table"), ("tiled", "alibi"), ("reference", "table")],
)
def test_lanes_have_biases_and_offsets_of_their_own(qkv, kernel, name):
    make, parameters, _ = BIASES[name]
    lanes = np.stack([parameters, 2 * parameters])
    offsets = jnp.array([0, 3])

    def loss(parameters, offset):
        return (
            attention(*qkv, bias=make(parameters, offset), implementation=kernel) ** 2
        ).sum()

    f = jax.value_and_grad(loss)

    @jax.jit
    def both(lanes, offsets):
        return jax.vmap(f)(lanes, offsets), jax.lax.map(
            lambda x: f(*x), (lanes, offsets)
        )

    for a, b in zip(*map(jax.tree.leaves, both(lanes, offsets)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_heads_may_share_a_table(qkv):
    shared, own = (
        attention(*qkv, bias=RelativeBias(jnp.asarray(table)))
        for table in (TABLE[:1], TABLE[[0, 0, 0]])
    )
    np.testing.assert_allclose(shared, own, rtol=1e-12)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (8, 20), (64, 1000), (4, 3)])
def test_bucket_of_distance_equal_the_formula(buckets, most, bidirectional):
    actual = bucket_of_distance(buckets, bidirectional, most)
    distance = np.arange(-most, most + 1)
    np.testing.assert_array_equal(
        actual, t5_bucket(distance, buckets, bidirectional, most)
    )
    assert (
        t5_bucket(np.array([-9 * most]), buckets, bidirectional, most) == actual[0]
    )  # nothing changes beyond


def test_bucket_of_distance_by_hand():
    """8 + ⌊2 log₂(d / 8)⌋ from 8 on, with 16 more for later keys; 16 + ⌊16 log₈(d /
    16)⌋ in one direction.
    """
    both = bucket_of_distance(32, True, 128)
    one = bucket_of_distance(32, False, 128)
    for distance, bucket in {
        0: 0,
        -1: 1,
        -7: 7,
        -8: 8,
        -11: 8,
        -12: 9,
        -16: 10,
        -32: 12,
        -64: 14,
        -90: 14,
        -91: 15,
        -128: 15,
        1: 17,
        8: 24,
        128: 31,
    }.items():
        assert both[distance + 128] == bucket
    for distance, bucket in {
        0: 0,
        1: 0,
        128: 0,
        -15: 15,
        -16: 16,
        -18: 16,
        -19: 17,
        -32: 21,
        -64: 26,
        -128: 31,
    }.items():
        assert one[distance + 128] == bucket


def test_alibi_slopes_are_the_papers():
    np.testing.assert_array_equal(alibi_slopes(8), 0.5 ** np.arange(1, 9))
    np.testing.assert_allclose(
        alibi_slopes(16), 0.5 ** (np.arange(1, 17) / 2), rtol=1e-7
    )
    np.testing.assert_array_equal(
        alibi_slopes(11), [*alibi_slopes(8), *alibi_slopes(16)[[0, 2, 4]]]
    )
    np.testing.assert_array_equal(alibi_slopes(1), [2**-8])
    with pytest.raises(ValueError, match="h=0 must be at least 1"):
        alibi_slopes(0)


def test_initial_tables():
    table = RelativeBias.init(jax.random.key(0), 3, 500).table
    assert table.shape == (3, 1001) and abs(table.std() - 0.02) < 1e-3
    bias = BucketBias.init(
        jax.random.key(0), 8, buckets=16, bidirectional=False, max_distance=50
    )
    assert (
        bias.table.shape == (8, 16)
        and not bias.bidirectional
        and bias.max_distance == 50
    )
    assert 0.45 < jnp.abs(bias.table).max() <= 0.5  # √(6 / (8 + 16))


def test_bfloat16_parameters_are_summed_and_multiplied_in_float32():
    def tile(make, n):
        return jax.jit(
            lambda parameters: make(parameters).tile(jnp.arange(n), jnp.arange(n))
        )

    out, pull = jax.vjp(tile(RelativeBias, 300), jnp.zeros(3, jnp.bfloat16))
    (gradient,) = pull(jnp.ones((300, 300)))
    assert out.dtype == jnp.float32 and gradient.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        gradient.astype(jnp.float32), [299 * 300 / 2, 300, 299 * 300 / 2], rtol=2**-8
    )
    np.testing.assert_array_equal(
        tile(ALiBiBias, 300)(jnp.bfloat16(1))[0], -np.arange(300)
    )


@pytest.mark.parametrize("name", BIASES)
def test_gradient_costs_no_more_than_the_diagonals(name):
    """Neither memory nor scattered numbers by the square: 8,192 queries and keys have
    256 MiB of scores. And it lowers for accelerators.
    """
    make, parameters, _ = BIASES[name]
    x = jax.ShapeDtypeStruct((8192, 1, 16), jnp.float32)

    def loss(parameters, q, k, v):
        return attention(
            q, k, v, bias=make(parameters, 0), implementation="tiled"
        ).sum()

    own = jax.ShapeDtypeStruct((1, *parameters.shape[1:]), jnp.float32)
    with blocks_of(BLOCK):
        traced = jax.jit(jax.grad(loss)).trace(own, x, x, x)
    lowered = traced.lower()
    assert lowered.compile().memory_analysis().temp_size_in_bytes / 2**20 < 40
    # The types behind a scatter's region: what is scattered into, the indices, the numbers.
    pattern = r"stablehlo\.scatter\".*?\}\) : \(tensor<.*?>, tensor<.*?>, tensor<([\dx]*)x\w+>\)"
    scatters = re.findall(pattern, lowered.as_text(), re.DOTALL)
    assert bool(scatters) == (name != "alibi")
    for shape in scatters:
        assert np.prod([int(x) for x in shape.split("x")]) <= 2 * 8192
    for_others = traced.lower(lowering_platforms=("tpu", "cuda"))
    assert "stablehlo" in for_others.as_text()


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (
            RelativeBias(jnp.zeros(H)),
            r"share of table must have 1 axes, not shape \(\); before them comes one for the",
        ),
        (
            RelativeBias(jnp.zeros((H, 6))),
            r"a table of 6 numbers has no middle: 2r \+ 1 are needed",
        ),
        (
            RelativeBias(jnp.zeros((H - 1, 5))),
            "bias has an array for 1 examples and 2 heads",
        ),
        (BucketBias(jnp.zeros((H, 7))), "buckets=7 must be even"),
        (
            BucketBias(jnp.zeros((H, 2))),
            "buckets=2, max_distance=128: a direction needs 2 buckets",
        ),
        (
            BucketBias(jnp.zeros((H, 32)), max_distance=8),
            "buckets=32, max_distance=8: .* above half their number",
        ),
        (
            ALiBiBias(jnp.zeros((H, 1))),
            r"share of slopes must have 0 axes, not shape \(1,\)",
        ),
    ],
)
def test_mistakes_are_named(bias, message):
    with pytest.raises(ValueError, match=message):
        attention(*jnp.zeros((3, 7, H, K)), bias=bias)
