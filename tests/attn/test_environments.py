"""Values and gradients in the settings that others compute in: strict dtypes, shard_map,
and meshes with explicit axes. What is expected is what attention() gives without them.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from attn import Mask, ScaledDot, attention
from attn.jax_versions import VERSION
from attn.positions.biases import ALiBiBias
from tests.attn.blocks import blocks_of
from tests.attn.cases import DENSE, LENGTHS, SCORES, B, K, M, N, V
from tests.cases import the_rest_in_ci

H = 2
"""The heads, which two devices share."""
DRAW = np.random.default_rng(0).normal
MASKS = {
    "none": Mask(),
    "causal": Mask.causal(),
    "padding": Mask.padding(LENGTHS),
    "segments": Mask.segments(np.ones((B, N), int), np.arange(B * M).reshape(B, M) % 3),
    "dense": Mask.dense(DENSE[:, :H]),
    "dense for all": Mask.causal() & Mask.dense(DENSE[0, 0]),
}
# Each kernel, mask and score once or twice: every case is compiled for each environment.
CASES = [
    ("blocks", "causal", "additive"),
    pytest.param("reference", "padding", "bilinear", marks=pytest.mark.ci),
    pytest.param("blocks", "dense", "scaled dot", marks=pytest.mark.ci),
    pytest.param("blocks", "padding", "scaled dot", marks=pytest.mark.ci),
    pytest.param("reference", "segments", "additive", marks=pytest.mark.ci),
    pytest.param("reference", "none", "scaled dot", marks=pytest.mark.ci),
    pytest.param("reference", "dense for all", "dot", marks=pytest.mark.ci),
]

explicit_meshes = pytest.mark.skipif(
    VERSION < (0, 10),
    reason="JAX before 0.10 loses the mesh where it transposes what is differentiated",
)


@pytest.fixture(scope="module", autouse=True)
def _small_blocks():
    """Blocks of 3 queries: N = 5 makes two, and two runs under a causal mask."""
    with blocks_of(3):
        yield


def inputs(dtype=jnp.float32):
    shapes = (B, N, H, K), (B, M, H, K), (B, M, H, V)
    return [jnp.asarray(DRAW(size=shape), dtype) for shape in shapes]


def score_of(name):
    """Returns a score of H heads."""

    def of_heads(leaf):
        return jnp.asarray(leaf[:H]) if jnp.ndim(leaf) else leaf

    return jax.tree.map(of_heads, SCORES[name][0])


def value_and_gradients(function, q, k, v, score):
    """Returns the output of `function`, and the gradients of a sum of its squares."""

    def loss(q, k, v, score):
        out = function(q, k, v, score)
        return (out.astype(jnp.float32) ** 2).sum(), out

    gradient = jax.grad(loss, argnums=(0, 1, 2, 3), allow_int=True, has_aux=True)
    return jax.tree.leaves(jax.jit(gradient)(q, k, v, score))


def plain(mask, kernel, **options):
    def function(q, k, v, score):
        return attention(
            q, k, v, score=score, mask=mask, implementation=kernel, **options
        )

    return function


def assert_alike(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(
            np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=1e-5, atol=1e-5
        )


@functools.cache
def expected_of(kernel, mask, score):
    arrays = inputs_once()
    return value_and_gradients(plain(MASKS[mask], kernel), *arrays, score_of(score))


@functools.cache
def inputs_once():
    return tuple(inputs())


def two_devices(axis_type):
    devices = jax.devices()[:2]
    return jax.make_mesh((2,), ("x",), axis_types=(axis_type,), devices=devices)


@pytest.mark.parametrize(("kernel", "mask", "score"), CASES)
def test_strict_promotion_of_dtypes(kernel, mask, score):
    with jax.numpy_dtype_promotion("strict"):
        actual = value_and_gradients(
            plain(MASKS[mask], kernel), *inputs_once(), score_of(score)
        )
    assert_alike(actual, expected_of(kernel, mask, score))


@pytest.mark.parametrize(
    ("kernel", "score"),
    the_rest_in_ci([("blocks", "additive"), ("reference", "bilinear")], first=1),
)
def test_strict_promotion_of_bfloat16_with_bias_and_dropout(kernel, score):
    bias = ALiBiBias(jnp.array([0.5, 0.25]))
    options = dict(bias=bias, dropout_rate=0.3, dropout_key=jax.random.key(1))
    function = plain(MASKS["padding"], kernel, **options)
    arrays = inputs(jnp.bfloat16)
    expected = value_and_gradients(function, *arrays, score_of(score))
    with jax.numpy_dtype_promotion("strict"):
        actual = value_and_gradients(function, *arrays, score_of(score))
    assert_alike(actual, expected)


@pytest.mark.parametrize(("kernel", "mask", "score"), CASES)
def test_shard_map_over_the_batch(kernel, mask, score):
    """The arguments that all devices share, as the score, have the sum of their gradients."""

    def local(q, k, v, score, mask):
        return attention(q, k, v, score=score, mask=mask, implementation=kernel)

    def spec(leaf):
        return P("x") if leaf.shape[0] == B else P()

    # `check_vma` is True unless told otherwise.
    sharded = jax.shard_map(
        local,
        mesh=two_devices(AxisType.Auto),
        in_specs=(P("x"), P("x"), P("x"), P(), jax.tree.map(spec, MASKS[mask])),
        out_specs=P("x"),
    )

    def function(q, k, v, score):
        return sharded(q, k, v, score, MASKS[mask])

    actual = value_and_gradients(function, *inputs_once(), score_of(score))
    assert_alike(actual, expected_of(kernel, mask, score))


both_specs = pytest.mark.parametrize(
    "spec", [P("x"), P(None, None, "x")], ids=["over the batch", "over heads"]
)


def assert_sharded_is_alike(function, expected, score, spec=P("x"), arrays=None):
    mesh = two_devices(AxisType.Explicit)
    with jax.set_mesh(mesh):
        sharding = NamedSharding(mesh, spec)
        arrays = [jax.device_put(x, sharding) for x in arrays or inputs_once()]
        assert_alike(value_and_gradients(function, *arrays, score), expected)


@explicit_meshes
@both_specs
@pytest.mark.parametrize(("kernel", "mask", "score"), CASES)
def test_explicit_sharding(kernel, mask, score, spec):
    expected = expected_of(kernel, mask, score)
    function = plain(MASKS[mask], kernel)
    assert_sharded_is_alike(function, expected, score_of(score), spec)


@explicit_meshes
def test_explicit_sharding_of_dropout():
    options = dict(dropout_rate=0.3, dropout_key=jax.random.key(1))
    function = plain(MASKS["padding"], "blocks", **options)
    score = score_of("additive")
    expected = value_and_gradients(function, *inputs_once(), score)
    assert_sharded_is_alike(function, expected, score)


@pytest.mark.ci
@explicit_meshes
def test_explicit_sharding_of_heads_that_wait_their_turn():
    """One head at a time, as with long inputs."""
    expected = expected_of("blocks", "causal", "additive")
    function = plain(MASKS["causal"], "blocks")
    with blocks_of(3, at_once=1):
        assert_sharded_is_alike(function, expected, score_of("additive"))


@explicit_meshes
@both_specs
def test_explicit_sharding_of_heads_that_share_keys(spec):
    """Four heads of queries and two of keys, over two devices."""
    shapes = (B, N, 4, K), (B, M, 2, K), (B, M, 2, V)
    arrays = [jnp.asarray(DRAW(size=shape), jnp.float32) for shape in shapes]
    function = plain(MASKS["padding"], "blocks")
    expected = value_and_gradients(function, *arrays, ScaledDot())
    assert_sharded_is_alike(function, expected, ScaledDot(), spec, arrays)
