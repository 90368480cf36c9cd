"""The kernels that trace their tiles, in Pallas' interpreters: equal to the reference, with
gradients of everything, for each kind of score, mask, bias and normaliser.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import Mask, attention, platforms
from attn.jax_versions import has_mosaic_gpu, has_pallas_tpu
from attn.kernels import traced
from attn.kernels.pairs import Untraceable
from attn.normalisers import (
    Entmax,
    OffByOne,
    ReLU,
    ScalableSoftmax,
    Sigmoid,
    Sink,
)
from attn.positions.biases import ALiBiBias, BucketBias, RelativeBias
from attn.positions.forget import ForgetBias
from attn.positions.functional import FireBias, KerpleLogBias, KerplePowerBias
from attn.scores import Additive, Bilinear, QKNorm, ScaledDot, Softcap
from tests.cases import the_rest_in_ci

B = 2
H = 4
J = 2
K = 8
V = 6


NEEDS_PALLAS = pytest.mark.skipif(not has_pallas_tpu(), reason="needs JAX 0.10")


class Device(NamedTuple):
    """A kernel with tiles of which inputs need several, and what is a rounding error.

    In bfloat16 that is 2⁻⁸ of each term, of sums over pairs that cancel.
    """

    kernel: str
    dtype: Any
    queries: int
    keys: int
    n: int
    m: int
    tolerance: float


DEVICES = {
    "tpu": Device("pallas_tpu", jnp.float32, 4, 8, 10, 12, 3e-5),
    "gpu": Device("pallas_gpu", jnp.bfloat16, 64, 64, 100, 130, 5e-2),
}


@attn.score
class Distance:
    """score(q, k) = −temperature · ‖q − k‖², of README's kind: features of pairs."""

    temperature: Any

    def __call__(self, q, k):
        return -self.temperature * ((q[:, None] - k[None]) ** 2).sum(-1)


@attn.score
class Cosine:
    """score(q, k) = temperature · cos(q, k), as CONTRIBUTING has it: in float32."""

    temperature: Any

    def __call__(self, q, k):
        return self.temperature * (unit(q) @ unit(k).T)


def unit(x):
    x = x.astype(jnp.float32)
    return x / jnp.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def ids(seed, size):
    return jnp.asarray(np.sort(np.random.default_rng(seed).integers(0, 3, (B, size))))


KEY = jax.random.key(1)
EACH = jnp.arange(1.0, H + 1) / H
# Each of several kinds, as the kernels take each by itself.
CASES: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "nothing": lambda n, m: {},
    "softcap, ALiBi, segments, sink, dropout": lambda n, m: dict(
        score=Softcap(ScaledDot(), EACH),
        bias=ALiBiBias(EACH),
        mask=Mask.causal(1) & Mask.segments(ids(0, n), ids(1, m)),
        normaliser=Sink(EACH),
        dropout_rate=0.3,
        dropout_key=jax.random.key(5),
    ),
    "additive, window, off by one": lambda n, m: dict(
        score=Softcap(Additive.init(KEY, H, K, K, d_a=5, bias=True), EACH),
        mask=Mask.window(n // 3, 1) & Mask.padding(jnp.array([0, m - 3])),
        normaliser=OffByOne(),
    ),
    "qk_norm, Mask.of, table": lambda n, m: dict(
        score=QKNorm.init(KEY, H, K, K),
        mask=Mask.of(lambda i, j: (i - j) % 3 == 0),
        bias=RelativeBias.init(KEY, H, 3),
    ),
    "array of a mask, array of a bias, sigmoid": lambda n, m: dict(
        mask=Mask.dense(draw(3, B, 1, n, m) > 0) & Mask.causal(2),
        bias=draw(4, H, n, m),
        normaliser=Sigmoid(),
    ),
    "bilinear, prefix, KERPLE, scalable": lambda n, m: dict(
        score=Bilinear.init(KEY, H, K, K),
        mask=Mask.prefix(jnp.array([1, 5])),
        bias=KerpleLogBias.init(KEY, H),
        normaliser=ScalableSoftmax(0.4 * EACH),
    ),
    "FIRE, ReLU": lambda n, m: dict(
        mask=Mask.causal(-1),
        bias=FireBias.init(KEY, H, width=3, threshold=4.0),
        normaliser=ReLU(),
    ),
    "forget": lambda n, m: dict(
        mask=Mask.causal(), bias=ForgetBias(draw(5, B, n, H), draw(6, B, m, H))
    ),
    "buckets, one's own score": lambda n, m: dict(
        score=Distance(EACH), bias=BucketBias.init(KEY, H, 8, True, 6)
    ),
    "power, another own score": lambda n, m: dict(
        score=Cosine(EACH), bias=KerplePowerBias.init(KEY, H)
    ),
}
NAMES = the_rest_in_ci(list(CASES), first=4)


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    device = DEVICES[request.param]
    if device.kernel == "pallas_gpu" and not has_mosaic_gpu():
        pytest.skip("Mosaic GPU is interpreted from JAX 0.11 on")
    if not has_pallas_tpu():
        pytest.skip("needs JAX 0.10")
    set_tiles(monkeypatch, device)
    return device


def set_tiles(monkeypatch, device, **options):
    options = dict(interpreted=True, spread=2**21, sums=128, memory=2**17) | options
    here = platforms.Tiles(device.kernel, device.queries, device.keys, **options)
    monkeypatch.setattr(traced, "tiles", lambda dtype: here)


def inputs(device, n=None, m=None):
    shapes = ((n or device.n, H, K), (m or device.m, J, K), (m or device.m, J, V))
    return [draw(i, B, *shape).astype(device.dtype) for i, shape in enumerate(shapes)]


def both(qkv, options, kernel):
    """Returns results, and the gradients of q, k, v and of all parameters."""
    has_lse = hasattr(options.get("normaliser", Sink(0.0)), "exponents")
    leaves, tree = jax.tree.flatten((qkv, options))
    places = [
        i
        for i, x in enumerate(leaves)
        if jnp.issubdtype(jnp.result_type(x), jnp.floating)
    ]
    floats = [jnp.asarray(leaves[i]) for i in places]

    @jax.jit
    def call(floats):
        every = list(leaves)
        for place, x in zip(places, floats, strict=True):
            every[place] = x
        qkv, options = tree.unflatten(every)
        fixed = {} if "dropout_rate" not in options else dict(dropout_rate=0.3)
        out = attention(
            *qkv, **(options | fixed), implementation=kernel, return_lse=has_lse
        )
        return out if has_lse else (out,)

    results, pull = jax.vjp(call, floats)
    cotangents = []
    for i, x in enumerate(results):
        cotangent = jnp.where(jnp.isfinite(x), draw(7 + i, *x.shape), 0)
        cotangents.append(cotangent.astype(x.dtype))
    return [*results, *pull(tuple(cotangents))[0]]


def check_equal(actual, expected, tolerance):
    for a, b in zip(actual, expected, strict=True):
        a, b = (np.asarray(x, np.float64) for x in (a, b))
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
        seen = np.isfinite(b)
        scale = max(1.0, np.abs(b[seen]).max(initial=0))
        np.testing.assert_allclose(a[seen], b[seen], atol=tolerance * scale)


@pytest.mark.parametrize("name", NAMES)
def test_equals_the_reference_with_gradients(device, name):
    m = device.n if name == "forget" else device.m
    options = CASES[name](device.n, m)
    qkv = inputs(device, m=m)
    actual, expected = (
        both(qkv, options, kernel) for kernel in ("pallas", "reference")
    )
    check_equal(actual, expected, device.tolerance)


def test_what_is_hidden_reaches_nothing_and_what_is_seen_does(device):
    q, k, v = inputs(device)
    # NaN in a key behind the mask of some queries, Inf in a value, NaN in a query.
    k, v = k.at[0, 5, 0].set(jnp.nan), v.at[1, 7].set(jnp.inf)
    q = q.at[1, 2, 3].set(jnp.nan)
    options = dict(mask=Mask.causal(1))
    actual, expected = (
        both([q, k, v], options, kernel) for kernel in ("pallas", "reference")
    )
    assert not np.isfinite(np.asarray(expected[0], np.float32)).all()
    # Gradients of what a NaN reaches are not compared.
    check_equal(actual[:2], expected[:2], device.tolerance)
    hidden = dict(mask=Mask.padding(jnp.array([5, 7])))
    q = inputs(device)[0]
    actual, expected = (
        both([q, k, v], hidden, kernel) for kernel in ("pallas", "reference")
    )
    check_equal(actual, expected, device.tolerance)
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in actual)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 1)])
def test_few_tokens(device, n, m):
    qkv = inputs(device, n, m)
    options = dict(mask=Mask.causal())
    actual, expected = (
        both(qkv, options, kernel) for kernel in ("pallas", "reference")
    )
    check_equal(actual, expected, device.tolerance)


@pytest.mark.parametrize("size", [1.0, 12.0, 200.0])
def test_additive_scores_are_right_however_large_what_they_add_is(device, size):
    """Of −60 + 60 products of exponentials would say nothing."""
    q, k, v = inputs(device)
    score = Additive.init(KEY, H, K, K, d_a=5)
    # Queries and keys that cancel in a feature, and others that do not.
    shift = size * jnp.array([1.0, -1.0, 0.5, 0.0, 2.0])
    w_q = jnp.concatenate([score.w_q, jnp.tile(shift, (H, 1, 1))], 1)
    w_k = jnp.concatenate([score.w_k, jnp.tile(-shift, (H, 1, 1))], 1)
    q, k = (
        jnp.concatenate([x, jnp.ones((*x.shape[:3], 1), x.dtype)], -1) for x in (q, k)
    )
    options = dict(score=Additive(w_q, w_k, score.v))
    actual, expected = (
        both([q, k, v], options, kernel) for kernel in ("pallas", "reference")
    )
    check_equal(actual, expected, device.tolerance)


def test_products_in_float32_are_more_than_of_half_precision(device):
    """With 16 bits of each factor; scores of up to 20 by 8 bits would be off by 0.1."""
    call = functools.partial(attention, *inputs(device), score=Cosine(20 * EACH))
    actual, expected = (
        call(implementation=kernel, return_lse=True)[1]
        for kernel in ("pallas", "reference")
    )
    np.testing.assert_allclose(actual, expected, atol=20 * 2.0**-15)


def test_a_query_that_sees_nothing_gives_no_gradient(device):
    """It shares its block with others that see keys."""
    qkv = inputs(device)
    options = dict(mask=Mask.causal(-1))
    actual, expected = (
        both(qkv, options, kernel) for kernel in ("pallas", "reference")
    )
    check_equal(actual, expected, device.tolerance)


@pytest.mark.skipif(not has_mosaic_gpu(), reason="needs JAX 0.11")
@pytest.mark.parametrize(
    "name", ["softcap, ALiBi, segments, sink, dropout", "power, another own score"]
)
def test_of_wide_heads_sums_have_kernels_of_their_own_and_tiles_halves(
    monkeypatch, name
):
    device = DEVICES["gpu"]
    set_tiles(monkeypatch, device, sums=32)
    options = CASES[name](device.n, device.m)
    actual, expected = (
        both(inputs(device), options, kernel) for kernel in ("pallas", "reference")
    )
    check_equal(actual, expected, device.tolerance)


@pytest.mark.skipif(not has_mosaic_gpu(), reason="needs JAX 0.11")
def test_what_has_no_room_is_named(monkeypatch):
    """A slot less, and none."""
    device = DEVICES["gpu"]
    qkv = inputs(device)
    set_tiles(monkeypatch, device, memory=5 * 2**13)
    whole, expected = (
        attention(*qkv, implementation=kernel) for kernel in ("pallas", "reference")
    )
    check_equal([whole], [expected], device.tolerance)
    set_tiles(monkeypatch, device, memory=3 * 2**13)
    message = (
        r"heads of 64 features take 33,024 bytes of a processor's 24,576; 'blocks'"
    )
    with pytest.raises(ValueError, match=message):
        attention(*qkv, implementation="pallas")


def test_padding_gives_no_gradient_however_large_scores_are(device):
    """Exponentials of the scores themselves, of which some are above 100, are infinite."""
    qkv = inputs(device)
    options = dict(score=ScaledDot(20.0))
    actual = both(qkv, options, "pallas")
    assert np.asarray(actual[1]).max() > 100
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in actual)


@pytest.mark.parametrize(
    "mask",
    [
        Mask(),
        Mask.causal(),
        Mask.causal(-3),
        Mask.window(3, None),
        Mask.window(4, -1),
        Mask.window(0, 0) & Mask.causal(2),
        Mask.window(-5, 9),
        Mask.causal() | Mask.first(2),
        Mask.of(lambda i, j: i == 2 * j),
    ],
)
def test_blocks_are_shown_where_a_query_sees_a_key(mask):
    n, m = 21, 17
    visible = np.zeros((24, 20), bool)
    visible[:n, :m] = mask.tile(jnp.arange(n), jnp.arange(m))
    expected = visible.reshape(6, 4, 4, 5).any((1, 3))
    sight = traced._sight(mask, n, m, (4, 5))
    np.testing.assert_array_equal(sight.shown[0, 0], expected)
    count = np.maximum(visible[:n].sum(1), 1)
    np.testing.assert_array_equal(sight.count[0, 0], count)


def test_maps_become_a_part_of_the_batch(device):
    qkv = [jnp.stack([x, 2 * x]) for x in inputs(device)]
    call = functools.partial(attention, mask=Mask.causal())
    mapped = jax.vmap(functools.partial(call, implementation="pallas"))(*qkv)
    each = [call(*(x[i] for x in qkv), implementation="reference") for i in range(2)]
    check_equal([mapped], [jnp.stack(each)], device.tolerance)


def test_a_causal_mask_and_segments_leave_blocks_out(device):
    """What is skipped is never read: NaN in place of it would reach everything."""
    q, k, v = inputs(device, 2 * device.keys, 2 * device.keys)
    late = slice(device.keys, None)
    k, v = (x.at[:, late].set(jnp.nan) for x in (k, v))
    options = dict(mask=Mask.causal(), is_finite=True, implementation="pallas")
    out = attention(q, k, v, **options)
    assert np.isfinite(np.asarray(out[:, : device.queries], np.float32)).all()


@NEEDS_PALLAS
def test_only_first_derivatives_and_the_remedy():
    q, k, v = inputs(DEVICES["tpu"])
    call = lambda q: attention(q, k, v, implementation="pallas").sum()
    with pytest.raises(TypeError, match="implementation='blocks' has all others"):
        jax.jvp(call, (q,), (q,))
    with pytest.raises(NotImplementedError, match="implementation='blocks'"):
        jax.grad(lambda q: jax.grad(call)(q).sum())(q)


@attn.score
class Sorted:
    """A score of whole rows."""

    def __call__(self, q, k):
        return jnp.sort(q @ k.T, axis=-1)


@attn.score
class OfAllKeys:
    """A score of a query, a key and all other keys."""

    def __call__(self, q, k):
        s = q @ k.T
        return s - s.mean(-1, keepdims=True)


@NEEDS_PALLAS
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(score=Sorted()), "sort is no function of one query and one key"),
        (dict(score=OfAllKeys()), "reduce_sum adds what all queries or all keys have"),
        (dict(normaliser=Entmax()), "Entmax makes weights of a whole row of scores"),
        (dict(return_weights=True), "it does not return weights"),
    ],
)
def test_what_it_cannot_do_is_named(options, message):
    qkv = inputs(DEVICES["tpu"])
    with pytest.raises(ValueError, match=message) as raised:
        attention(*qkv, implementation="pallas", **options)
    assert "'blocks' can" in str(raised.value)


@NEEDS_PALLAS
def test_untraceable_is_what_pairs_raises():
    qkv = inputs(DEVICES["tpu"])
    values = dict(score=Sorted(), normaliser=attn.Softmax(), mask=Mask(), bias=None)
    with pytest.raises(Untraceable):
        traced.in_batches(*qkv, **values, drop=None, with_lse=False, is_finite=True)


@pytest.mark.skipif(has_pallas_tpu(), reason="JAX 0.10 has them")
def test_an_older_jax_is_named():
    with pytest.raises(ValueError, match=r"it needs JAX 0\.10; 'blocks' can"):
        attention(*inputs(DEVICES["tpu"]), implementation="pallas")
