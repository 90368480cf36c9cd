"""The options of attention(): dropout and its weights, axes of a batch, devices, and its
errors. Sizes are different primes.
"""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from attn import Context, Mask, MultiHeadAttention, ScaledDot, attention, config
from attn.attention import IMPLEMENTATIONS
from attn.jax_versions import enable_x64, has_pallas_tpu
from tests.attn.cases import B, H, K, M, N, V

pytestmark = pytest.mark.quick


def test_weights_before_and_after_dropout(qkv):
    options = dict(dropout_rate=0.4, dropout_key=jax.random.key(1))
    out, before = attention(*qkv, return_weights="before", **options)
    _, after = attention(*qkv, return_weights="after", **options)
    _, plain = attention(*qkv, return_weights=True)
    np.testing.assert_array_equal(before, plain)
    kept = np.asarray(after) != 0
    assert 0.4 < kept.mean() < 0.8
    np.testing.assert_allclose(after, np.where(kept, before / 0.6, 0), rtol=1e-5)
    np.testing.assert_allclose(
        jnp.einsum("bhnm,bmhv->bnhv", after, qkv[2]), out, rtol=1e-4, atol=1e-5
    )


def test_kernels_lower_for_accelerators():
    shape = jax.ShapeDtypeStruct((2, 300, 2, 16), jnp.float32)
    here = set(IMPLEMENTATIONS) - (set() if has_pallas_tpu() else {"pallas"})
    for name in here:

        def loss(q, k, v, name=name):
            return attention(q, k, v, mask=Mask.causal(), implementation=name).sum()

        f = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
        lowered = f.trace(shape, shape, shape).lower(lowering_platforms=("tpu", "cuda"))
        assert "stablehlo" in lowered.as_text()


def test_dropout_is_drawn_for_each_element_head_and_example():
    ones = jnp.ones((2, 64, 2, 1))
    values = jnp.broadcast_to(
        jnp.eye(64)[None, :, None], (2, 64, 2, 64)
    )  # so that the output is the weights
    out = attention(
        ones, ones, values, dropout_rate=0.25, dropout_key=jax.random.key(0)
    )
    kept = np.asarray(out.transpose(0, 2, 1, 3) != 0)
    np.testing.assert_allclose(
        np.asarray(out)[np.asarray(out) != 0], 1 / 64 / 0.75, rtol=1e-5
    )
    assert abs(kept.mean() - 0.75) < 0.02
    flat = kept.reshape(4, -1)
    assert np.abs(np.corrcoef(flat) - np.eye(4)).max() < 0.05


@pytest.fixture
def without_type_checks():
    """Turns type checks off, as a user has it.

    These tests check annotations, which would speak before the library's own errors.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(q=(B, N, H)), "same number of axes"),
        (dict(k=(B, M, H, K + 1)), "d_k differs between queries and keys: 11 and 12"),
        (dict(v=(B, M + 1, H, V)), "7 keys, 8 values"),
        (dict(k=(B, M, H + 1, K)), "number of heads"),
    ],
)
def test_shapes_that_do_not_fit_are_named(change, message):
    shapes = dict(q=(B, N, H, K), k=(B, M, H, K), v=(B, M, H, V)) | change
    with pytest.raises(ValueError, match=message):
        attention(*(jnp.zeros(shapes[x]) for x in "qkv"))


@pytest.mark.usefixtures("without_type_checks")
def test_other_mistakes_are_named(qkv):
    with pytest.raises(
        ValueError,
        match="score has an array for 1 examples and 4 heads; there are 2 examples and 3",
    ):
        attention(*qkv, score=ScaledDot(jnp.ones(4)))
    with pytest.raises(ValueError, match=r"bias of shape \(2, 5, 7\) does not fit"):
        attention(*qkv, bias=jnp.zeros((2, N, M)))
    with pytest.raises(
        ValueError,
        match="unknown implementation 'flash'; known: reference, blocks, cudnn",
    ):
        attention(*qkv, implementation="flash")
    for old, new in (("tiled", "blocks"), ("jax_nn", "cudnn")):
        with pytest.raises(ValueError, match=f"implementation='{old}' is now '{new}'"):
            attention(*qkv, implementation=old)
    with pytest.raises(ValueError, match="never has all weights at once"):
        attention(*qkv, implementation="blocks", return_weights=True)
    with pytest.raises(
        ValueError, match="return_weights='both' must be 'before' or 'after' dropout"
    ):
        attention(*qkv, return_weights="both")
    with pytest.raises(ValueError, match="needs a dropout_key"):
        attention(*qkv, dropout_rate=0.1)
    with pytest.raises(ValueError, match="dropout_rate is 0"):
        attention(*qkv, dropout_key=jax.random.key(0))
    with pytest.raises(TypeError, match="boolean"):
        Mask.dense(jnp.zeros((N, M)))
    with pytest.raises(TypeError, match="lengths must be integers"):
        Mask.padding(jnp.ones(B))
    with pytest.raises(TypeError, match="offset must be integers"):
        Mask.causal(0.5)
    with pytest.raises(
        TypeError, match="'float' object cannot be interpreted as an integer"
    ):
        Mask.window(1.5, 0)


def test_dropout_scales_in_float64():
    """Weights kept are multiplied by 1/(1 − rate), exact to float64's digits."""
    with enable_x64(True):
        q = jnp.zeros((5, 1, 2), jnp.float64)
        options = dict(dropout_rate=0.1, dropout_key=jax.random.key(0))
        _, weights = attention(q, q, q, return_weights="after", **options)
        kept = weights[weights > 0]
        assert 0 < kept.size < 25
        np.testing.assert_allclose(kept, 0.2 / 0.9, rtol=1e-14)


@pytest.mark.parametrize("kernel", ["reference", "blocks", "cudnn"])
def test_finite_inputs_cost_no_passes_and_change_nothing(kernel):
    """Of a call, and of a model's layer, which promises them."""
    draw = np.random.default_rng(0).normal
    x = jnp.asarray(draw(size=(2, 6, 2, 4)), jnp.float32)
    options = dict(mask=Mask.causal() & Mask.padding(np.array([6, 3])))

    def attend(x, is_finite):
        kept = dict(options, implementation=kernel, is_finite=is_finite)
        return attention(x, x, x, **kept)

    np.testing.assert_array_equal(attend(x, True), attend(x, False))
    plain, promised = (str(jax.make_jaxpr(attend, 1)(x, on)) for on in (False, True))
    # JAX's logsumexp, in the form of cudnn for other devices, has one of its own.
    own = kernel == "cudnn"
    assert plain.count(" is_finite ") > promised.count(" is_finite ") == own
    module = MultiHeadAttention(config.Attention(d_model=8, h=2, d_k=4, d_v=4))
    key, ctx = jax.random.key(0), Context(Mask.causal())
    layer = jax.make_jaxpr(lambda x: module.init_with_output(key, x, ctx)[0][0])
    assert "is_finite" not in str(layer(x.reshape(2, 6, 8)))
