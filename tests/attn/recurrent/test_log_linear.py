"""Log-linear attention against a Fenwick tree in float64, span by span."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attn import Context, Mask, config
from attn.mixers import LogLinear, LogLinearHeads, Mamba2
from attn.recurrent.log_linear import log_linear, log_linear_step
from tests.attn import numpy_linear
from tests.attn.recurrent.sharded import assert_shards

K, V = 5, 3
BEGINS = (0, 5, 6, 20)
in_float64 = pytest.mark.usefixtures("float64")


def drawn(n=37, levels=7):
    """Returns queries, keys, values, logs of decays and scales."""
    draw = np.random.default_rng(0)
    q, k = draw.normal(size=(2, n, K))
    v = draw.normal(size=(n, V))
    return q, k, v, -draw.random((n, 1)), draw.normal(size=(n, levels))


def expected(arrays, begins=(0,), own=True):
    q, k, v, log_decay, scales = arrays
    arrays = q, k, v, np.exp(log_decay), scales
    parts = [
        numpy_linear.log_linear(*(x[run] for x in arrays), own=own)
        for run in np.split(np.arange(len(q)), begins[1:])
    ]
    return np.concatenate(parts)


@in_float64
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("levels", [2, 4, 7])
@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_chunks_of_any_size_are_the_fenwick_tree(chunk, levels, own):
    arrays = drawn(levels=levels)
    rule = jax.jit(functools.partial(log_linear, chunk=chunk, own=own))
    actual = rule(*arrays)
    np.testing.assert_allclose(actual, expected(arrays, own=own), atol=1e-13)
    begins = np.isin(np.arange(37), BEGINS)
    packed = rule(*arrays, begins=begins)
    np.testing.assert_allclose(packed, expected(arrays, BEGINS, own), atol=1e-13)


@in_float64
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 16])
def test_every_length_and_every_way_to_pack_it(n):
    """Runs of all lengths, whose rooms are packed by size: none may meet another."""
    arrays = drawn(n)
    rule = jax.jit(functools.partial(log_linear, chunk=2))
    for seed in range(8):
        begins = np.random.default_rng(seed).random(n) < 0.4
        begins[0] = True
        exact = expected(arrays, np.flatnonzero(begins))
        np.testing.assert_allclose(rule(*arrays, begins=begins), exact, atol=1e-13)


@in_float64
@pytest.mark.parametrize("levels", [2, 3, 7])
def test_steps_are_the_fenwick_tree(levels):
    arrays = drawn(levels=levels)
    step = jax.jit(log_linear_step)
    state = jnp.zeros((levels * K + 1, V))
    outputs = []
    for token in zip(*arrays, strict=True):
        state, out = step(state, *token)
        outputs.append(out)
    np.testing.assert_allclose(outputs, expected(arrays), atol=1e-13)


@in_float64
def test_equal_scales_are_gated_linear_attention():
    q, k, v, log_decay, scales = drawn()
    rule = jax.jit(functools.partial(log_linear, chunk=8))
    actual = rule(q, k, v, log_decay, np.ones_like(scales))
    exact = numpy_linear.recurrence(q, k, v, np.exp(log_decay))
    np.testing.assert_allclose(actual, exact, atol=1e-13)


@in_float64
def test_gradients_are_those_of_differences():
    begins = jnp.isin(jnp.arange(7), jnp.array([0, 2]))
    function = jax.jit(functools.partial(log_linear, begins=begins, chunk=2))
    check_grads(function, drawn(7, 3), order=1, modes=["fwd", "rev"], eps=1e-6)


def test_decays_of_any_strength_are_safe():
    """In float32, products of decays down to e^−16,000, between decays of 1."""
    q, k, v, log_decay, scales = drawn(40)
    strength = np.where(np.arange(40)[:, None] % 3 == 0, 1000.0, 1e-3)
    arrays = q, k, v, log_decay * strength, scales
    narrow = [jnp.asarray(x, jnp.float32) for x in arrays]
    function = functools.partial(log_linear, chunk=8)
    actual = jax.jit(function)(*narrow)
    np.testing.assert_allclose(actual, expected(arrays), rtol=0, atol=3e-3)

    def total(*arrays):
        return (function(*arrays) ** 2).sum()

    for gradient in jax.jit(jax.grad(total, range(5)))(*narrow):
        assert jnp.isfinite(gradient).all()


def test_halves_are_summed_in_float32():
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in drawn()]
    actual = jax.jit(log_linear)(*arrays)
    assert actual.dtype == jnp.float32
    wide = [np.asarray(x, np.float64) for x in arrays]
    np.testing.assert_allclose(actual, expected(wide), atol=1e-5)


def test_no_tokens_and_no_chunks():
    assert jax.jit(log_linear)(*drawn(0)).shape == (0, V)
    for chunk in (0, 3):
        with pytest.raises(ValueError, match=f"chunk={chunk} must be a power of 2"):
            jax.jit(functools.partial(log_linear, chunk=chunk))(*drawn(4))


def test_memory_grows_with_n_and_not_its_square():
    def memory(n):
        def total(*arrays):
            return (log_linear(*arrays) ** 2).sum()

        arrays = [jnp.asarray(x, jnp.float32) for x in drawn(n, 12)]
        gradient = jax.jit(jax.grad(total, range(5)))
        compiled = gradient.lower(*arrays).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert memory(8192) < 6 * memory(2048)
    assert "while" not in jax.jit(log_linear).lower(*drawn(512)).as_text()


def test_products_are_those_of_the_spans_that_are_read():
    block = config.Block(d_model=6, h=2, d_k=5, d_v=3)
    plain = Mamba2()
    for levels in (2, 3, 5, 12):
        mixer = LogLinear(levels=levels)
        for n in (1, 2, 7, 8, 20):
            spans = [set(numpy_linear.spans(t, levels)) for t in range(n)]
            # Mamba-2's state counts for the token's own.
            read = sum(len({level for level, *_ in s}) - 1 for s in spans)
            for causal, ways in ((True, 1), (False, 2)):
                more = mixer.products(n, causal, block) - plain.products(
                    n, causal, block
                )
                assert more == n * 6 * 2 * levels + ways * read * 2 * 5 * 3
    with pytest.raises(ValueError, match="levels=1 must be at least 2"):
        LogLinear(levels=1).check(block)
    heads = LogLinearHeads(6, 2, 5, 3, True, levels=26)
    with pytest.raises(ValueError, match="levels=26 must be at least 2 and at most 25"):
        heads.init(jax.random.key(0), jnp.ones((1, 2, 6)), Context(Mask.causal()))


def test_derivatives_keep_the_arguments_alone():
    def kept(n):
        arrays = [jnp.asarray(x, jnp.float32) for x in drawn(n)]
        residuals = jax.eval_shape(lambda *x: jax.vjp(log_linear, *x)[1], *arrays)
        return sum(x.size for x in jax.tree.leaves(residuals))

    # Beside constants; each further level has a few numbers.
    assert kept(2048) - kept(1024) <= 1024 * (2 * K + V + 1 + 7) + 8


@in_float64
def test_a_count_of_tokens_never_ends():
    """2^24 tokens in, where a count in float32 stands still, a step is as any other."""
    levels = 25
    q, k, v, log_decay, scales = drawn(4, levels)
    far = jnp.zeros((levels * K + 1, V), jnp.float32).at[-1].set(2.0**23 - 2)
    state, counts = far, []
    step = jax.jit(log_linear_step)
    for token in zip(q, k, v, log_decay, scales, strict=True):
        state, _ = step(state, *(jnp.asarray(x, jnp.float32) for x in token))
        counts.append(int(state[-1, 0]))
    # It begins anew when all levels below the last have become one with it.
    assert counts == [2**23 - 1, 0, 1, 2]
    assert np.abs(state[(levels - 1) * K : levels * K]).max() > 0


@pytest.mark.ci
def test_shard_map_over_sequences():
    assert_shards(log_linear, drawn())
