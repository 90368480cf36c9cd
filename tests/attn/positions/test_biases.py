"""Biases by position against their formulas in float64 numpy, in every kernel, and what
their gradients cost.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from attn import FireBias, KerpleLogBias, KerplePowerBias, Mask, attention
from attn.functions.relu_sum import relu_sum
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
F = 7
R = 4


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


# A bias of given parameters and offset; the shapes of its parameters, of which the heads
# share those of length 1; what it adds at a distance d from the place i, of one head.
BIASES = {
    "table": (
        RelativeBias,
        {"table": (H, 2 * R + 1)},
        lambda p, d, i: p["table"][min(max(d, -R), R) + R],
    ),
    "t5": (
        functools.partial(BucketBias, max_distance=9),
        {"table": (H, 8)},
        lambda p, d, i: p["table"][t5_bucket(d, 8, True, 9)],
    ),
    "t5, one direction": (
        functools.partial(BucketBias, bidirectional=False, max_distance=13),
        {"table": (H, 8)},
        lambda p, d, i: p["table"][t5_bucket(d, 8, False, 13)],
    ),
    "alibi": (ALiBiBias, {"slopes": (H,)}, lambda p, d, i: -p["slopes"] * abs(d)),
    "log": (KerpleLogBias, {"log_r_1": (H,), "log_r_2": (H,)}, kerple_log),
    "power": (KerplePowerBias, {"log_r_1": (H,), "logit_r_2": (H,)}, kerple_power),
    "fire": (
        functools.partial(FireBias, first_threshold=4.0),
        {
            "w_1": (1, F),
            "b_1": (1, F),
            "w_2": (H, F),
            "b_2": (H,),
            "c": (1,),
            "threshold": (1,),
        },
        fire,
    ),
}
MASKS = {"none": None, "causal": Mask.causal(offset=2), "window": Mask.window(1, 2)}
every_bias = pytest.mark.parametrize("name", BIASES)


def parameters(name):
    draw = np.random.default_rng(7).normal
    return {key: draw(size=shape) for key, shape in BIASES[name][1].items()}


def of_first_head(name):
    """Returns the parameters in float32 of the first head, with its axis."""
    return {key: jnp.asarray(x[:1], jnp.float32) for key, x in parameters(name).items()}


def distances(offset, n=N, m=M):
    return np.arange(m)[None] - (np.arange(n)[:, None] + offset)


def dense(name, p, offset, heads=H, n=N, m=M):
    """Returns the bias (H, n, m), number by number."""
    out = np.zeros((heads, n, m))
    for h, i, j in np.ndindex(out.shape):
        # The heads share an array of length 1.
        own = {key: x[h] if len(x) == H else x[0] for key, x in p.items()}
        out[h, i, j] = BIASES[name][2](own, j - i - offset, i + offset)
    return out


@pytest.fixture(autouse=True, scope="module")
def _blocks_of_four():
    """Of which one sees keys that touch neither end of them."""
    with blocks_of(4):
        yield


@pytest.fixture
def qkv():
    """In float64, and so with all that is made from them."""
    with enable_x64(True):
        draw = np.random.default_rng(1).normal
        yield [jnp.asarray(draw(size=(n, H, K))) for n in (N, M, M)]


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.ci)


@functools.partial(jax.jit, static_argnums=(2, 3))
@functools.partial(jax.grad, has_aux=True, allow_int=True)
def gradient_of(bias, qkv, mask, implementation):
    """Returns that of a weighted sum of outputs and LSE, and these."""
    options = dict(mask=MASKS[mask], return_lse=True, implementation=implementation)
    out, lse = attention(*qkv, bias=bias, **options)
    weight = np.random.default_rng(2).normal(size=(N, H, K))
    return (out * weight).sum() + (lse**2).sum(), (out, lse)


@pytest.mark.parametrize(
    ("kernel", "name", "mask"),
    [
        *(("blocks", name, "causal") for name in BIASES if name != "power"),
        slow("blocks", "power", "causal"),
        ("blocks", "table", "none"),
        ("blocks", "table", "window"),
        # The reference takes all biases alike: as one tile.
        ("reference", "table", "causal"),
        slow("reference", "fire", "causal"),
    ],
)
def test_equals_the_oracle_with_its_gradients(qkv, kernel, name, mask):
    """Gradients of each number of the dense bias are carried on by finite differences."""
    p = parameters(name)
    visible = {
        "none": distances(0) < M,
        "causal": distances(2) <= 0,
        "window": abs(distances(0) - 0.5) < 2,
    }[mask]
    for offset in (2, -7) if name != "fire" else (2,):
        value = BIASES[name][0](**p, offset=offset)
        gradients, (out, lse) = gradient_of(value, qkv, mask, kernel)
        bias = dense(name, p, offset)
        seen = np.broadcast_to(visible, bias[None].shape)
        exact = oracle.each_head(*(x[None] for x in qkv), seen, bias=bias[None])
        np.testing.assert_allclose(out, exact[0][0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(lse, exact[1][0], rtol=1e-10, atol=1e-12)
        each, _ = gradient_of(jnp.asarray(bias), qkv, mask, "reference")
        for key, x in p.items():
            for at in np.ndindex(*x.shape):
                step = np.zeros_like(x)
                step[at] = 1e-6
                ends = [dense(name, p | {key: x + s}, offset) for s in (step, -step)]
                slope = (np.asarray(each) * (ends[0] - ends[1])).sum() / 2e-6
                gradient = getattr(gradients, key)[at]
                np.testing.assert_allclose(gradient, slope, rtol=1e-5, atol=1e-6)


def test_second_order_gradients(qkv):
    q, k, v = (x[:n, :1] for x, n in zip(qkv, (5, 7, 7), strict=True))
    options = dict(mask=Mask.window(3, 1), implementation="blocks")

    @jax.jit
    def f(table):
        return attention(q, k, v, bias=RelativeBias(table, 1), **options)

    table = jnp.asarray(parameters("table")["table"][:1])
    check_grads(f, (table,), order=2, modes=("fwd", "rev"))


@pytest.mark.parametrize(
    ("kernel", "name"),
    [("blocks", "table"), ("blocks", "alibi"), ("reference", "table")],
)
def test_lanes_have_biases_and_offsets_of_their_own(qkv, kernel, name):
    lanes = {key: np.stack([x, 2 * x]) for key, x in parameters(name).items()}
    offsets = jnp.array([0, 3])

    @jax.value_and_grad
    def f(p, offset):
        bias = BIASES[name][0](**p, offset=offset)
        return (attention(*qkv, bias=bias, implementation=kernel) ** 2).sum()

    @jax.jit
    def both(lanes, offsets):
        one_by_one = jax.lax.map(lambda x: f(*x), (lanes, offsets))
        return jax.vmap(f)(lanes, offsets), one_by_one

    for a, b in zip(*map(jax.tree.leaves, both(lanes, offsets)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


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


@every_bias
def test_gradients_cost_no_more_than_the_diagonals(name):
    """Neither memory nor scattered numbers by the square: 8,192 queries and keys have
    256 MiB of scores, and of an MLP's units F times as much. And it lowers for accelerators.
    """
    x = jax.ShapeDtypeStruct((8192, 1, 16), jnp.float32)

    def loss(p, q, k, v):
        bias = BIASES[name][0](**p)
        return attention(q, k, v, bias=bias, implementation="blocks").sum()

    with blocks_of(BLOCK):
        traced = jax.jit(jax.grad(loss)).trace(of_first_head(name), x, x, x)
    lowered = traced.lower()
    most = {"log": 60, "power": 80, "fire": 100}.get(name, 40)
    assert lowered.compile().memory_analysis().temp_size_in_bytes / 2**20 < most
    # The types behind a scatter's region: what is scattered into, the indices, the numbers.
    pattern = r"stablehlo\.scatter\".*?\}\) : \(tensor<.*?>, tensor<.*?>, tensor<([\dx]*)x\w+>\)"
    scatters = re.findall(pattern, lowered.as_text(), re.DOTALL)
    assert bool(scatters) == ("table" in BIASES[name][1])
    for shape in scatters:
        assert np.prod([int(x) for x in shape.split("x")]) <= 2 * 8192
    assert "stablehlo" in traced.lower(lowering_platforms=("tpu", "cuda")).as_text()


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
        (
            KerpleLogBias(jnp.zeros((H, 2)), jnp.zeros(H)),
            "share of log_r_1 must have 0 axes",
        ),
    ],
)
def test_mistakes_are_named(bias, message):
    with pytest.raises(ValueError, match=message):
        attention(*jnp.zeros((3, 7, H, K)), bias=bias)
