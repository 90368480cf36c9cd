"""What attention() and its relatives take and refuse, and what they return of nothing."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from attn import (
    Dot,
    Mask,
    RelativeBias,
    argmax_attention,
    attention,
    inspect,
    sampled_attention,
)
from attn.arguments import is_never
from attn.jax_versions import enable_x64
from attn.masks import Padding

B = 2
N = 3
M = 5
H = 2  # as many as examples, so that a stray axis of either passes for the other
K = 7
V = 4

KERNELS = ["reference", "blocks"]


@pytest.fixture(autouse=True)
def without_type_checks():
    """Turns type checks off, as a user has it: they would speak before our errors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def inputs(n=N, m=M, h=H, d_k=K):
    draw = np.random.default_rng(0).normal
    shapes = (B, n, h, d_k), (B, m, h, d_k), (B, m, h, V)
    return [jnp.asarray(draw(size=shape), jnp.float32) for shape in shapes]


@pytest.fixture
def qkv():
    return inputs()


def ints(*shape):
    return np.zeros(shape, int)


# dtypes


@pytest.mark.parametrize("kernel", [*KERNELS, None])
def test_integers_are_taken_as_float32(kernel):
    q, k, v = (jnp.round(3 * x).astype(jnp.int32) for x in inputs())
    expected = attention(*(x.astype(jnp.float32) for x in (q, k, v)))
    actual = attention(q, k, v, implementation=kernel)
    assert actual.dtype == jnp.float32
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)


def test_integers_are_integers_under_x64_too(qkv):
    q = np.ones(qkv[0].shape, np.int64)
    with enable_x64(True):
        actual = attention(q, *qkv[1:])
    np.testing.assert_allclose(actual, attention(q.astype(np.float32), *qkv[1:]))


def test_hard_attention_and_statistics_take_integers(qkv):
    integers = [jnp.round(3 * x).astype(jnp.int32) for x in qkv]
    floats = [x.astype(jnp.float32) for x in integers]
    for function in (inspect.entropy, inspect.received):
        expected = function(*floats[:2])
        actual = function(*integers[:2])
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
    expected = argmax_attention(*floats)[0]
    np.testing.assert_array_equal(argmax_attention(*integers)[0], expected)


@pytest.mark.parametrize("dtype", [np.complex64, np.bool_])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_complex_and_boolean_inputs_are_refused(qkv, place, dtype):
    qkv[place] = qkv[place].astype(dtype)
    message = f"{'qkv'[place]} must be real numbers, not {np.dtype(dtype)}"
    with pytest.raises(TypeError, match=message):
        attention(*qkv)


# masks, scores and biases


def dense(*shape):
    return Mask.dense(np.ones(shape, bool))


MATRIX = "(*B, H, N, M) = (2, 2, 3, 5)"
QUERIES = "(*B, N) = (2, 3)"
KEYS = "(*B, M) = (2, 5)"
BATCH = "(*B) = (2,)"
MISFITS = {
    "too few queries": (
        Mask.segments(ints(B, 2), ints(B, M)),
        "q_ids",
        (2, 2),
        QUERIES,
    ),
    "too few keys": (Mask.segments(ints(B, N), ints(B, 4)), "k_ids", (2, 4), KEYS),
    "one key for all": (Mask.segments(ints(B, N), ints(B, 1)), "k_ids", (2, 1), KEYS),
    "too few rows": (dense(2, M), "array", (2, 5), MATRIX),
    "too many rows": (dense(8, M), "array", (8, 5), MATRIX),
    "too many columns": (dense(N, 8), "array", (3, 8), MATRIX),
    "too few columns": (dense(N, 4), "array", (3, 4), MATRIX),
    "too many axes": (dense(1, B, H, N, M), "array", (1, 2, 2, 3, 5), MATRIX),
    "other examples": (Mask.padding(ints(3)), "lengths", (3,), BATCH),
    "lengths for heads": (Mask.padding(ints(B, H)), "lengths", (2, 2), BATCH),
    "offsets for heads": (Mask.causal(ints(B, H)), "offset", (2, 2), BATCH),
    "within others": (
        Mask.causal() | ~Mask.padding(ints(B, H)),
        "lengths",
        (2, 2),
        BATCH,
    ),
}


@pytest.mark.parametrize("name", MISFITS)
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_masks_that_do_not_fit_are_refused(qkv, name, traced):
    def call(mask):
        return attention(*qkv, mask=mask)

    mask, what, shape, fits = MISFITS[name]
    function = jax.jit(call) if traced else call
    with pytest.raises(ValueError, match="the mask's") as error:
        function(mask)
    message = f"the mask's {what} of shape {shape} does not fit {fits}"
    assert str(error.value) == message


@pytest.mark.parametrize(
    "call",
    [
        lambda q, k, v, mask: argmax_attention(q, k, v, mask=mask),
        lambda q, k, v, mask: sampled_attention(
            q, k, v, mask=mask, key=jax.random.key(0)
        ),
        lambda q, k, v, mask: inspect.entropy(q, k, mask=mask),
        lambda q, k, v, mask: inspect.top_weights(q, k, mask=mask),
        lambda q, k, v, mask: inspect.received(q, k, mask=mask),
        lambda q, k, v, mask: inspect.weight_rows(q, k, [0], mask=mask),
    ],
    ids=["argmax", "sampled", "entropy", "top_weights", "received", "weight_rows"],
)
def test_relatives_of_attention_refuse_them_too(qkv, call):
    with pytest.raises(ValueError, match=r"array of shape \(8, 5\) does not fit"):
        call(*qkv, dense(8, M))
    q, k, v = qkv
    message = "d_k differs between queries and keys: 7 and 6"
    with pytest.raises(ValueError, match=message):
        call(q, k[..., 1:], v, None)


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        (np.ones((N, M), bool), r"an array of bool \(3, 5\)"),
        (Padding(np.array(3)), "a Padding"),
    ],
    ids=["array", "part"],
)
def test_what_is_no_mask_is_refused(qkv, mask, kind):
    with pytest.raises(
        TypeError, match=rf"must be an attn.Mask, not {kind}; Mask.dense"
    ):
        attention(*qkv, mask=mask)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ("dot", r"score='dot' must be a value .* Dot.init\(key, h, d_q, d_k\) makes"),
        (Dot, r"score=Dot must be a value .* Dot.init\(key, h, d_q, d_k\) makes"),
        (max, "of a class that attn.score makes, not a builtin_function_or_method"),
    ],
    ids=["name", "class", "function"],
)
def test_what_is_no_score_is_refused(qkv, score, message):
    with pytest.raises(TypeError, match=message):
        attention(*qkv, score=score)


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (np.ones((N, M), bool), r"bias is boolean .* give mask=Mask.dense\(bias\)"),
        (np.ones((N, M), np.complex64), "bias must be real numbers, not complex64"),
        (Mask.causal(), "bias is a Mask, .* give it as mask="),
    ],
    ids=["boolean", "complex", "mask"],
)
def test_what_is_no_bias_is_refused(qkv, bias, message):
    with pytest.raises(TypeError, match=message):
        attention(*qkv, bias=bias)


@pytest.mark.parametrize("shape", [(4, M), (1, 1, 1, N, M), (3, 1, 1, 1)])
def test_biases_that_do_not_fit_are_refused(qkv, shape):
    with pytest.raises(
        ValueError, match=r"does not fit \(\*B, H, N, M\) = \(2, 2, 3, 5\)"
    ):
        attention(*qkv, bias=np.zeros(shape, np.float32))


def test_an_offset_of_a_bias_has_no_axis(qkv):
    bias = RelativeBias(jnp.zeros((H, 5)))
    for offset in (ints(H), ints(B, H)):
        with pytest.raises(
            ValueError, match=r"the bias's offset of shape .* one number"
        ):
            attention(*qkv, bias=dataclasses.replace(bias, offset=offset))


# keys and rates


@pytest.mark.parametrize("kernel", KERNELS)
def test_legacy_keys_drop_like_typed_ones(qkv, kernel):
    def call(key):
        return attention(*qkv, dropout_rate=0.5, dropout_key=key, implementation=kernel)

    for function in (call, lambda key: sampled_attention(*qkv, key=key)):
        both = function(jax.random.PRNGKey(7)), function(jax.random.key(7))
        jax.tree.map(np.testing.assert_array_equal, *both)


@pytest.mark.parametrize("key", [0, np.zeros(2, np.float32), np.uint32(1)])
def test_what_is_no_key_is_refused(qkv, key):
    with pytest.raises(
        TypeError, match=r"a random key is needed, as jax.random.key\(0\)"
    ):
        attention(*qkv, dropout_rate=0.5, dropout_key=key)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("traced", [False, True], ids=["known", "traced"])
def test_rate_1_drops_everything(qkv, kernel, traced):
    key = jax.random.key(0)

    def loss(q, k, v, rate):
        return attention(
            q, k, v, dropout_rate=rate, dropout_key=key, implementation=kernel
        ).sum()

    gradient = jax.value_and_grad(loss, argnums=(0, 1, 2))
    value, gradients = (jax.jit(gradient) if traced else gradient)(*qkv, 1.0)
    assert value == 0
    for actual in gradients:
        np.testing.assert_array_equal(actual, np.zeros(actual.shape))


@pytest.mark.parametrize("rate", [1.5, -0.5, float("nan"), np.float32(2), 2])
def test_rates_that_are_no_probability_are_refused(qkv, rate):
    with pytest.raises(ValueError, match=f"dropout_rate={rate} must be a probability"):
        attention(*qkv, dropout_rate=rate, dropout_key=jax.random.key(0))


def test_a_rate_for_each_head_is_refused(qkv):
    with pytest.raises(ValueError, match=r"dropout_rate of shape \(2,\) must be one"):
        attention(*qkv, dropout_rate=jnp.ones(H), dropout_key=jax.random.key(0))


@pytest.mark.parametrize("zero", [0, 0.0, np.float32(0), np.int64(0)])
def test_a_rate_of_0_needs_no_key(qkv, zero):
    assert is_never("rate", zero)
    np.testing.assert_array_equal(attention(*qkv, dropout_rate=zero), attention(*qkv))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_traced_rate_has_no_gradient(qkv, kernel):
    def loss(rate):
        key = jax.random.key(0)
        return attention(
            *qkv, dropout_rate=rate, dropout_key=key, implementation=kernel
        ).sum()

    assert jax.grad(loss)(0.3) == 0


# nothing to attend to, nothing to ask


SIZES = {"no keys": dict(m=0), "no queries": dict(n=0), "neither": dict(n=0, m=0)}
SIZES["no heads"] = dict(h=0)


@pytest.mark.parametrize("kernel", [*KERNELS, "cudnn", None])
@pytest.mark.parametrize("name", SIZES)
def test_without_keys_or_queries_outputs_are_0(kernel, name):
    q, k, v = (x[..., :V] for x in inputs(**SIZES[name]))

    def call(q, k, v):
        mask = Mask.causal() & Mask.padding(ints(B))
        return attention(q, k, v, mask=mask, implementation=kernel)

    np.testing.assert_array_equal(call(q, k, v), np.zeros((*q.shape[:-1], V)))
    gradients = jax.grad(lambda *x: call(*x).sum(), argnums=(0, 1, 2))(q, k, v)
    for actual, x in zip(gradients, (q, k, v), strict=True):
        np.testing.assert_array_equal(actual, np.zeros(x.shape))


def test_without_keys_there_are_no_weights_and_the_lse_is_of_nothing():
    q, k, v = inputs(m=0)
    _, lse, weights = attention(q, k, v, return_lse=True, return_weights=True)
    np.testing.assert_array_equal(lse, np.full((B, N, H), -np.inf))
    assert lse.dtype == weights.dtype == jnp.float32
    assert weights.shape == (B, H, N, 0)


def test_without_keys_nothing_is_selected():
    q, k, v = inputs(m=0)
    out, index = argmax_attention(q, k, v, straight_through=True)
    np.testing.assert_array_equal(out, np.zeros((B, N, H, V)))
    np.testing.assert_array_equal(index, np.full((B, N, H), -1))
    out, index, log_prob = sampled_attention(q, k, v, key=jax.random.key(0))
    np.testing.assert_array_equal(out, np.zeros((B, N, H, V)))
    np.testing.assert_array_equal(index, np.full((B, N, H), -1))
    np.testing.assert_array_equal(log_prob, np.zeros((B, N, H)))


def test_without_keys_statistics_are_those_of_nothing():
    q, k, _ = inputs(m=0)
    np.testing.assert_array_equal(inspect.entropy(q, k), np.zeros((B, N, H)))
    weights, index = inspect.top_weights(q, k, top=2)
    np.testing.assert_array_equal(weights, np.zeros((B, N, H, 2)))
    np.testing.assert_array_equal(index, np.full((B, N, H, 2), -1))
    assert inspect.received(q, k).shape == (B, 0, H)
    assert inspect.weight_rows(q, k, [1, 2]).shape == (B, H, 2, 0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_vectors_without_numbers_are_all_alike(kernel):
    q, k, v = inputs(d_k=0)
    expected = jnp.broadcast_to(v.mean(1, keepdims=True), (B, N, H, V))
    actual = attention(q, k, v, implementation=kernel)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


# bounds that are no limit


FAR = [2**31 - 3, sys.maxsize, np.int64(2**31 - 1)]


@pytest.mark.parametrize("kernel", [*KERNELS, "cudnn"])
@pytest.mark.parametrize("far", FAR, ids=str)
def test_the_largest_integers_are_no_limit(qkv, kernel, far):
    qkv = [x[..., :V] for x in qkv]
    masks = [
        (Mask.causal(far), Mask()),
        (Mask.window(far, far), Mask()),
        (Mask.window(None, None), Mask()),
        (Mask.window(far, 0), Mask.causal()),
        (Mask.window(None, 0), Mask.causal()),
        (Mask.window(1, None), Mask.window(1, M)),
    ]
    for mask, same in masks:
        expected = attention(*qkv, mask=same)
        actual = attention(*qkv, mask=mask, implementation=kernel)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_largest_offset_as_data_is_no_limit(qkv, kernel):
    mask = Mask.causal(jnp.array([2**31 - 1, -(2**31)], jnp.int32))
    actual = attention(*qkv, mask=mask, implementation=kernel)
    np.testing.assert_allclose(actual[0], attention(*qkv)[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(actual[1], np.zeros((N, H, V)))


@pytest.mark.parametrize("kernel", KERNELS)
def test_bounds_far_to_the_other_side_hide_everything(qkv, kernel):
    for mask in (Mask.causal(-sys.maxsize), Mask.window(-sys.maxsize, None)):
        actual = attention(*qkv, mask=mask, implementation=kernel)
        np.testing.assert_array_equal(actual, np.zeros((B, N, H, V)))
