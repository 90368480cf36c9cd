"""KERPLE and FIRE against their formulas in float64 numpy, in every kernel."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attn import FireBias, KerpleLogBias, KerplePowerBias, Mask, attention
from attn.functions.relu_sum import relu_sum
from attn.jax_versions import enable_x64
from attn.positions import bias_row
from tests.attn import oracle
from tests.attn.blocks import blocks_of

N = 11
M = 13
H = 3
K = 5
F = 7
DRAW = np.random.default_rng(0).normal


def kerple_log(p, d, i):
    return -np.exp(p["log_r_1"]) * np.log(1 + np.exp(p["log_r_2"]) * abs(d))


def kerple_power(p, d, i):
    r_2 = 2 / (1 + np.exp(-p["logit_r_2"]))
    return -np.exp(p["log_r_1"]) * abs(d) ** r_2


def fire(p, d, i):
    def psi(x):
        return np.log(abs(p["c"]) * x + 1)

    x = psi(abs(d)) / (psi(max(i, abs(p["threshold"] * 4.0))) + 1e-6)
    hidden = np.maximum(x * p["w_1"] + p["b_1"], 0)
    return hidden @ p["w_2"] + p["b_2"]


PARAMETERS = {
    "log": {"log_r_1": (H,), "log_r_2": (H,)},
    "power": {"log_r_1": (H,), "logit_r_2": (H,)},
    "fire": {
        "w_1": (1, F),
        "b_1": (1, F),
        "w_2": (H, F),
        "b_2": (H,),
        "c": (1,),
        "threshold": (1,),
    },
}
MAKERS = {
    "log": KerpleLogBias,
    "power": KerplePowerBias,
    "fire": lambda **p: FireBias(first_threshold=4.0, **p),
}
EXACT = {"log": kerple_log, "power": kerple_power, "fire": fire}
every_bias = pytest.mark.parametrize("name", MAKERS)


def parameters(name):
    draw = np.random.default_rng(7).normal
    return {key: draw(size=shape) for key, shape in PARAMETERS[name].items()}


def dense(name, p, offset, n=N, m=M):
    """Returns the bias (H, n, m), number by number."""
    out = np.zeros((H, n, m))
    for h, i, j in np.ndindex(H, n, m):
        # The heads share an array of length 1.
        own = {key: x[h] if len(x) == H else x[0] for key, x in p.items()}
        out[h, i, j] = EXACT[name](own, j - i - offset, i + offset)
    return out


@pytest.fixture(autouse=True, scope="module")
def _blocks_of_four():
    with blocks_of(4):
        yield


@pytest.fixture
def qkv():
    with enable_x64(True):
        draw = np.random.default_rng(1).normal
        yield [jnp.asarray(draw(size=(n, H, K))) for n in (N, M, M)]


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.ci)


@functools.partial(jax.jit, static_argnums=2)
@functools.partial(jax.grad, has_aux=True)
def gradient_of(bias, qkv, implementation):
    """Of a weighted sum of outputs and LSE, which it gives too."""
    options = dict(mask=Mask.causal(offset=2), return_lse=True)
    out, lse = attention(*qkv, bias=bias, implementation=implementation, **options)
    weight = np.random.default_rng(2).normal(size=(N, H, K))
    return (out * weight).sum() + lse.sum(), (out, lse)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("tiled", "log"),
        ("tiled", "fire"),
        slow("tiled", "power"),
        # It takes all biases alike: as one tile.
        slow("reference", "fire"),
    ],
)
def test_equals_the_oracle_with_its_gradients(qkv, kernel, name):
    """Gradients of each number of the dense bias are carried on by finite differences."""
    p = parameters(name)
    offset = 2
    visible = np.arange(M)[None] <= np.arange(N)[:, None] + offset
    value = MAKERS[name](**p, offset=float(offset))
    gradients, (out, lse) = gradient_of(value, qkv, kernel)
    bias = dense(name, p, offset)
    for h in range(H):
        q, k, v = (np.asarray(x[:, h]) for x in qkv)
        places = [np.arange(len(x))[:, None] for x in (q, k)]
        q, k = (np.append(x, at, axis=1) for x, at in zip((q, k), places, strict=True))

        def score(q, k, h=h):
            return oracle.scaled_dot(q[:-1], k[:-1]) + bias[h, int(q[-1]), int(k[-1])]

        expected = oracle.attention(q, k, v, visible, score)
        np.testing.assert_allclose(out[:, h], expected[0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(lse[:, h], expected[1], rtol=1e-10, atol=1e-12)
    each, _ = gradient_of(jnp.asarray(bias), qkv, "reference")
    for key, x in p.items():
        for at in np.ndindex(*x.shape):
            step = np.zeros_like(x)
            step[at] = 1e-6
            more, less = (dense(name, p | {key: x + s}, offset) for s in (step, -step))
            slope = (np.asarray(each) * (more - less)).sum() / 2e-6
            gradient = getattr(gradients, key)[at]
            np.testing.assert_allclose(gradient, slope, rtol=1e-5, atol=1e-7)


@every_bias
def test_any_tile_is_cut_from_the_whole(name):
    p = parameters(name)
    whole = dense(name, p, 5, 80, 60)
    # The first head: the only one of an array that all share.
    one = jax.tree.map(lambda x: np.float32(x[0]), p)
    tile = jax.jit(MAKERS[name](**one, offset=5).tile)
    for i, n, j, m in ((0, 1, 0, 1), (67, 13, 8, 19), (3, 5, 40, 20)):
        part = tile(i + jnp.arange(n), j + jnp.arange(m))
        expected = whole[0, i : i + n, j : j + m]
        np.testing.assert_allclose(part, expected, rtol=2e-4, atol=2e-5)


@every_bias
def test_the_row_of_a_step_is_that_of_the_whole(name):
    p = parameters(name)
    bias = MAKERS[name](**jax.tree.map(np.float32, p))
    row = bias_row(bias, H, jnp.int32(9), M)
    np.testing.assert_allclose(row, dense(name, p, 0)[:, 9], rtol=2e-4, atol=2e-5)


def test_initial_kernels_are_those_of_the_papers_code():
    bias = KerpleLogBias.init(jax.random.key(0), 500)
    for log, most in ((bias.log_r_1, 2), (bias.log_r_2, 1)):
        r = np.exp(log)
        assert 0.01 <= r.min() < 0.05 < most - 0.05 < r.max() <= most
    bias = KerplePowerBias.init(jax.random.key(0), 500)
    r_2 = 2 * jax.nn.sigmoid(bias.logit_r_2)
    assert 0.01 <= r_2.min() < 0.1 < 1.9 < r_2.max() < 2
    bias = FireBias.init(jax.random.key(0), 500, width=7, threshold=64.0)
    assert bias.c == np.float32(0.1) and bias.threshold * bias.first_threshold == 64
    assert bias.w_2.shape == (500, 7) and 0.37 < abs(bias.w_2).max() <= 7**-0.5
    assert bias.w_1.shape == (1, 7) and bias.b_2.shape == (500,)


def test_a_power_of_1_is_alibi():
    """r_2 = 2 σ(0) = 1 and r_1 is the slope."""
    i = jnp.arange(N)
    bias = KerplePowerBias(jnp.float32(np.log(0.3)), jnp.float32(0))
    distance = abs(np.arange(N)[None] - np.arange(N)[:, None])
    np.testing.assert_allclose(bias.tile(i, i), -0.3 * distance, rtol=1e-6)


def test_fire_beyond_its_threshold_keeps_its_range():
    """The farthest key of any long text is at 1, that of a short one nearer."""
    seen = []
    bias = FireBias(
        # One unit, which gives its input back.
        *(jnp.ones(1), jnp.zeros(1), jnp.ones(1), jnp.zeros(())),
        *(jnp.float32(0.1), jnp.float32(1)),
        first_threshold=64.0,
    )
    for i in (16, 64, 100, 1000):
        seen.append(float(bias.tile(jnp.array([i]), jnp.arange(1))[0, 0]))
    assert seen[0] < 0.6
    np.testing.assert_allclose(seen[1:], 1, rtol=1e-5)


@pytest.mark.ci
def test_relu_sum_has_gradients_of_both_orders():
    with enable_x64(True):
        draw = np.random.default_rng(0).normal
        x, w, b, v = (jnp.asarray(draw(size=s)) for s in ((3, 5), F, F, F))
        hidden = np.maximum(np.asarray(x)[..., None] * np.asarray(w) + np.asarray(b), 0)
        np.testing.assert_allclose(
            relu_sum(x, w, b, v), hidden @ np.asarray(v), rtol=1e-12
        )
        compiled = jax.jit(relu_sum)
        check_grads(compiled, (x, w, b, v), order=2, modes=("fwd", "rev"))


@pytest.mark.parametrize(("name", "most"), [("log", 60), ("power", 80), ("fire", 100)])
def test_gradients_take_no_memory_of_the_square(name, most):
    """8,192 queries and keys have 256 MiB of scores; of an MLP's units F times as much."""
    x = jax.ShapeDtypeStruct((8192, 1, 16), jnp.float32)
    p = jax.tree.map(lambda x: jnp.asarray(x[:1], jnp.float32), parameters(name))

    def loss(p, q, k, v):
        return attention(q, k, v, bias=MAKERS[name](**p), implementation="tiled").sum()

    compiled = jax.jit(jax.grad(loss)).lower(p, x, x, x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes / 2**20 < most


def test_a_share_of_the_wrong_shape_is_named():
    bias = dataclasses.replace(
        KerpleLogBias.init(jax.random.key(0), H), log_r_1=jnp.ones((H, 2))
    )
    with pytest.raises(ValueError, match=r"share of log_r_1 must have 0 axes"):
        attention(*jnp.zeros((3, 7, H, K)), bias=bias)
