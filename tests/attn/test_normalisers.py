"""Normalisers against a float64 oracle in numpy, under every mask and on every kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import attn
from attn import Mask, inspect
from attn.contract import check_normaliser
from attn.functions.top_k import is_in_top
from attn.normalisers import TopK, normaliser_init
from tests.attn import oracle
from tests.attn.cases import MASKS, B, H, K, M, N, V
from tests.cases import the_rest_in_ci

HEADS = np.arange(1, H + 1) / 2  # a number for each head, none of them an initial value


def entmax(s, alpha):
    """Finds τ by bisection: Σ w falls from 1 at least to 0 as it grows."""
    s = (alpha - 1) * s
    low, high = s.max() - 1, s.max()
    for _ in range(100):
        tau = (low + high) / 2
        total = (np.maximum(s - tau, 0) ** (1 / (alpha - 1))).sum()
        low, high = (tau, high) if total > 1 else (low, tau)
    return np.maximum(s - low, 0) ** (1 / (alpha - 1))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def stick_breaking(s):
    """Breaks a stick, from the last key to the first."""
    weights = np.zeros_like(s)
    left = 1.0
    for j in reversed(range(len(s))):
        weights[j] = sigmoid(s[j]) * left
        left -= weights[j]
    return weights


def of_the_best(s, k):
    # Of equal scores the first, as numpy sorts stably.
    best = np.argsort(-s, kind="stable")[:k]
    weights = np.zeros_like(s)
    weights[best] = oracle.softmax(s[best])
    return weights


# {case: (normaliser of H heads, weights of the scores that a query of head h sees)}
CASES = {
    "softmax": (attn.Softmax(), lambda s, h: oracle.softmax(s)),
    "off_by_one": (attn.OffByOne(), lambda s, h: np.exp(s) / (1 + np.exp(s).sum())),
    "sink": (
        attn.Sink(HEADS),
        lambda s, h: np.exp(s) / (np.exp(HEADS[h]) + np.exp(s).sum()),
    ),
    "sink, one number": (
        attn.Sink(-0.3),
        lambda s, h: np.exp(s) / (np.exp(-0.3) + np.exp(s).sum()),
    ),
    "scalable_softmax": (
        attn.ScalableSoftmax(HEADS),
        lambda s, h: oracle.softmax(HEADS[h] * np.log(len(s)) * s),
    ),
    "sigmoid": (attn.Sigmoid(), lambda s, h: sigmoid(s - np.log(len(s)))),
    "sigmoid, bias": (attn.Sigmoid(HEADS), lambda s, h: sigmoid(s + HEADS[h])),
    "relu": (attn.ReLU(), lambda s, h: np.maximum(s, 0) / len(s)),
    "top_k": (TopK(2), lambda s, h: of_the_best(s, 2)),
    "sparsemax": (attn.Sparsemax(), lambda s, h: entmax(s, 2.0)),
    "entmax": (attn.Entmax(), lambda s, h: entmax(s, 1.5)),
    "entmax 1.25": (attn.Entmax(1.25), lambda s, h: entmax(s, 1.25)),
    "entmax 1": (attn.Entmax(1), lambda s, h: oracle.softmax(s)),
    "adaptive_entmax": (
        attn.AdaptiveEntmax(HEADS),
        lambda s, h: entmax(s, 1 + sigmoid(HEADS[h])),
    ),
    "asentmax": (
        attn.ASEntmax(HEADS, HEADS[::-1], -HEADS),
        lambda s, h: entmax(
            s * (HEADS[h] + HEADS[::-1][h] * np.log(max(2, len(s))) ** -HEADS[h]), 1.5
        ),
    ),
    "stick_breaking": (attn.StickBreaking(), lambda s, h: stick_breaking(s)),
}
# Those that do the same with other numbers are for .ci/run.
ALSO = ("softmax", "sink, one number", "sigmoid, bias", "entmax 1.25", "entmax 1")
# These go the way of a sink, of softmax and of entmax, but for their numbers.
ALIKE = (*ALSO, "off_by_one", "scalable_softmax", "adaptive_entmax", "asentmax")


def in_ci(cases, *more):
    """Returns all cases, each with what it has `more`; of them these are marked ci."""
    return [
        pytest.param(case, *more, marks=pytest.mark.ci if case in cases else ())
        for case in CASES
    ]


# It has parts of three kinds, and queries that see nothing.
ONE_MASK = "causal & padding & dense"
# They count the keys that are seen, take them in their order, or have no denominator.
BY_THE_MASK = ("sink", "scalable_softmax", "sigmoid", "asentmax", "stick_breaking")
OTHER_MASKS = [
    pytest.param(case, mask, marks=pytest.mark.ci)
    for case in BY_THE_MASK
    for mask in MASKS
    if mask != ONE_MASK
]
EXPONENTIAL = ["softmax", "off_by_one", "sink", "scalable_softmax"]
NO_PROBABILITIES = ["off_by_one", "sink", "sigmoid", "relu", "stick_breaking"]


in_float64 = pytest.mark.usefixtures("float64")


def qkv(n=N, m=M):
    draw = np.random.default_rng(0).normal
    shapes = (B, n, H, K), (B, m, H, K), (B, m, H, V)
    return [jnp.asarray(2 * draw(size=shape)) for shape in shapes]


def expected(q, k, visible, weights_of):
    """Returns the weights (B, H, N, M), query by query."""
    q, k = np.asarray(q), np.asarray(k)
    weights = np.zeros((*visible.shape[:2], q.shape[1], k.shape[1]))
    for b, h, i in np.ndindex(weights.shape[:3]):
        seen = np.flatnonzero(visible[b, h, i])
        if len(seen):
            s = np.array([oracle.scaled_dot(q[b, i, h], k[b, j, h]) for j in seen])
            weights[b, h, i, seen] = weights_of(s, h)
    return weights


@in_float64
@pytest.mark.parametrize(("case", "mask"), [*in_ci(ALSO, ONE_MASK), *OTHER_MASKS])
def test_weights_and_outputs_equal_the_oracle(case, mask):
    normaliser, weights_of = CASES[case]
    mask, visible = MASKS[mask]
    q, k, v = qkv()
    exact = expected(q, k, visible, weights_of)
    options = dict(normaliser=normaliser, mask=mask)
    out, weights = attn.attention(q, k, v, return_weights=True, **options)
    np.testing.assert_allclose(weights, exact, atol=1e-11)
    exact_out = np.einsum("bhnm,bmhv->bnhv", exact, v)
    np.testing.assert_allclose(out, exact_out, atol=1e-10)
    blocks = attn.attention(q, k, v, implementation="blocks", **options)
    np.testing.assert_allclose(blocks, exact_out, atol=1e-10)


@in_float64
@pytest.mark.parametrize("case", in_ci(ALIKE))
def test_gradients_are_those_of_differences(case):
    normaliser, _ = CASES[case]
    leaves, tree = jax.tree.flatten(normaliser)
    leaves = [jnp.asarray(leaf, float) for leaf in leaves]
    q, k, v = qkv()

    def function(leaves, q, k, v):
        return attn.attention(
            q,
            k,
            v,
            normaliser=tree.unflatten(leaves),
            mask=Mask.causal(1),
            implementation="blocks",
        )

    check_grads(function, (leaves, q, k, v), order=1, modes=["fwd", "rev"], eps=1e-6)


@in_float64
@pytest.mark.parametrize("case", [name for name in CASES if name in EXPONENTIAL])
def test_the_lse_is_the_log_of_the_denominator(case):
    normaliser, _ = CASES[case]
    q, k, v = qkv()
    mask, visible = MASKS["causal & padding & dense"]
    s = np.einsum("bnhk,bmhk->bhnm", q, k) * K**-0.5
    rest = {"off_by_one": np.zeros(H), "sink": HEADS}.get(case, np.full(H, -np.inf))
    exact = np.zeros((B, H, N))
    for b, h, i in np.ndindex(exact.shape):
        seen = s[b, h, i, visible[b, h, i]]
        if case == "scalable_softmax" and len(seen):
            seen = seen * HEADS[h] * np.log(len(seen))
        exact[b, h, i] = np.logaddexp.reduce([rest[h], *seen])
    for kernel in ("reference", "blocks"):
        options = dict(mask=mask, return_lse=True, implementation=kernel)
        _, lse = attn.attention(q, k, v, normaliser=normaliser, **options)
        np.testing.assert_allclose(lse, np.moveaxis(exact, 1, 2), atol=1e-12)
    _, lse = attn.attention(
        q, k[:, :0], v[:, :0], normaliser=normaliser, return_lse=True
    )
    np.testing.assert_allclose(lse, np.broadcast_to(rest, (B, N, H)))


@in_float64
def test_identities():
    s = jnp.asarray(np.random.default_rng(5).normal(size=(40, 9)) * 3)
    same = np.testing.assert_allclose
    same(attn.OffByOne()(s), attn.Sink(0.0)(s), rtol=1e-14)
    same(attn.Sink(-1e9)(s), attn.Softmax()(s), rtol=1e-14)
    same(attn.Entmax(1)(s), attn.Softmax()(s), rtol=1e-14)
    # α-entmax goes to softmax as α goes to 1, with an error of the order of α − 1.
    same(attn.Entmax(1 + 1e-6)(s), attn.Softmax()(s), atol=1e-4)
    same(attn.Entmax(2)(s), attn.Sparsemax()(s), rtol=1e-14)
    same(attn.AdaptiveEntmax(0.0)(s), attn.Entmax(1.5)(s), atol=1e-12)
    same(attn.ASEntmax(1.0, 0.0, 1.0)(s), attn.Entmax(1.5)(s), rtol=1e-14)
    same(attn.ScalableSoftmax(1 / np.log(9))(s), attn.Softmax()(s), rtol=1e-12)
    same(attn.Sigmoid(0.5)(s), sigmoid(np.asarray(s) + 0.5), rtol=1e-14)


@in_float64
@pytest.mark.parametrize("alpha", the_rest_in_ci([1.01, 2, 1.5, 1.25, 1.9], first=2))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_entmax_sums_to_1_and_is_sparse_whatever_the_scores(alpha, dtype):
    draw = np.random.default_rng(6).normal
    for scale in (1e-3, 1, 30, 1e4):
        s = jnp.asarray(draw(size=(20, 1000)) * scale, dtype)
        weights = np.asarray(attn.Entmax(alpha)(s), float)
        # u is a difference of numbers up to 1 and a·|s|, of which a weight is a power: its
        # rounding grows with 1/a, and counts for each of the weights that are not 0.
        count = (weights > 0).sum(-1).max()
        largest = 1 + (alpha - 1) * float(np.abs(s - s.max()).max())
        rounding = np.finfo(dtype).eps * (largest if count > 1 else 1)
        share = rounding * count / (alpha - 1)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=share)
        assert (weights >= 0).all()
    assert (attn.Entmax(2)(s) == 0).mean() > 0.9
    equal = attn.Entmax(alpha)(jnp.zeros((1, 7), dtype))
    np.testing.assert_allclose(equal, 1 / 7, rtol=1e-5)


@in_float64
@pytest.mark.parametrize("case", in_ci(ALIKE))
def test_statistics_are_those_of_the_weights(case):
    normaliser, weights_of = CASES[case]
    q, k, _ = qkv()
    mask, visible = MASKS["causal & padding & dense"]
    weights = expected(q, k, visible, weights_of)
    options = dict(normaliser=normaliser, mask=mask)
    total = weights.sum(-1, keepdims=True)
    shares = weights / np.where(total == 0, 1, total)
    entropy = -(shares * np.log(np.where(shares == 0, 1, shares))).sum(-1)
    np.testing.assert_allclose(
        inspect.entropy(q, k, **options), np.moveaxis(entropy, 1, 2), atol=1e-10
    )
    received = np.moveaxis(weights.sum(2), 1, 2)
    np.testing.assert_allclose(inspect.received(q, k, **options), received, atol=1e-10)
    rows = inspect.weight_rows(q, k, [0, N - 1], **options)
    np.testing.assert_allclose(rows, weights[:, :, [0, N - 1]], atol=1e-11)
    top, index = inspect.top_weights(q, k, top=2, **options)
    largest = -np.sort(-weights, axis=-1)[..., :2]
    np.testing.assert_allclose(top, np.moveaxis(largest, 1, 2), atol=1e-11)
    hidden = np.moveaxis(visible.sum(-1), 1, 2)[..., None] <= np.arange(2)
    np.testing.assert_array_equal(np.asarray(index) == -1, hidden)


@in_float64
@pytest.mark.parametrize("name", ["scalable_softmax", "entmax", "sparsemax"])
def test_keys_are_sampled_by_their_weights(name):
    normaliser, weights_of = CASES[name]
    count = 4000
    draw = np.random.default_rng(8).normal
    q = jnp.broadcast_to(draw(size=K), (1, count, H, K))
    k, v = jnp.asarray(draw(size=(1, M, H, K))), jnp.asarray(draw(size=(1, M, H, V)))
    exact = expected(q[:, :1], k, np.ones((1, H, 1, M), bool), weights_of)[0, :, 0]
    out, index, log_prob = attn.sampled_attention(
        q, k, v, key=jax.random.key(3), normaliser=normaliser
    )
    for h in range(H):
        drawn = np.bincount(np.asarray(index)[0, :, h], minlength=M) / count
        # Six standard deviations of a share of `count` draws.
        np.testing.assert_allclose(drawn, exact[h], atol=6 * 0.5 / count**0.5)
        chosen = exact[h][np.asarray(index)[0, :, h]]
        np.testing.assert_allclose(np.exp(log_prob[0, :, h]), chosen, atol=1e-10)
    np.testing.assert_array_equal(
        out, np.take_along_axis(v, np.asarray(index)[..., None], axis=1)
    )


@in_float64
def test_what_cannot_be_asked_for_is_refused_in_one_line():
    q, k, v = qkv()
    for name in NO_PROBABILITIES:
        with pytest.raises(ValueError, match="need not sum to 1"):
            attn.sampled_attention(
                q, k, v, key=jax.random.key(0), normaliser=CASES[name][0]
            )
    with pytest.raises(ValueError, match="weight of StickBreaking: no key is the best"):
        attn.argmax_attention(q, k, v, normaliser=attn.StickBreaking())
    with pytest.raises(ValueError, match="Entmax has no exponentials, and so no LSE"):
        attn.attention(q, k, v, normaliser=attn.Entmax(), return_lse=True)
    with pytest.raises(ValueError, match="and not Entmax"):
        attn.attention(q, k, v, normaliser=attn.Entmax(1.5), implementation="cudnn")
    for wrong in ("sink", attn.Sink):
        with pytest.raises(TypeError, match=r"which Sink.init\(key, h\) makes"):
            attn.attention(q, k, v, normaliser=wrong)
    with pytest.raises(
        TypeError, match=r"class that attn\.normaliser makes, not a float"
    ):
        attn.attention(q, k, v, normaliser=0.5)
    with pytest.raises(ValueError, match="unknown normaliser 'nope'; known: softmax"):
        normaliser_init("nope")
    for alpha in (0.5, 2.5):
        with pytest.raises(ValueError, match=f"alpha={alpha} must be from 1"):
            attn.Entmax(alpha)
    with pytest.raises(ValueError, match="normaliser has an array for"):
        attn.attention(q, k, v, normaliser=attn.Sink(jnp.zeros(H + 1)))


@in_float64
def test_a_stick_is_broken_from_the_last_key_on():
    # So many that the sums go over several blocks.
    s = jnp.asarray(3 * np.random.default_rng(5).normal(size=(4, 75)))
    s = s.at[:, 40].set(-jnp.inf).at[3].set(-jnp.inf)
    weights = attn.StickBreaking()(s)
    for row, seen in zip(weights[:3], s[:3], strict=True):
        keys = np.isfinite(seen)
        exact = stick_breaking(np.asarray(seen)[keys])
        np.testing.assert_allclose(row[keys], exact, rtol=1e-12)
        # What nobody has broken off is left.
        left = (1 - sigmoid(np.asarray(seen)[keys])).prod()
        np.testing.assert_allclose(row.sum(), 1 - left, rtol=1e-12)
    np.testing.assert_array_equal(weights[3], 0)
    # Scores of any size have weights and gradients that are finite.
    far = jnp.array([[800.0, -800.0, 3.0, 800.0]])
    np.testing.assert_array_equal(attn.StickBreaking()(far), [[0, 0, 0, 1]])
    gradient = jax.grad(lambda s: (attn.StickBreaking()(s) ** 2).sum())(far)
    assert jnp.isfinite(gradient).all()


@pytest.mark.ci
@pytest.mark.parametrize(
    ("wrong", "row"),
    [
        (lambda s: s, "hidden keys have weight 0"),
        (lambda s: jax.nn.softmax(s) / 2, "weights sum to 1 where sums_to_one says so"),
        (
            lambda s: jnp.where(s == -jnp.inf, 0, 1 / s.shape[-1]),
            "hidden keys change no other's weight",
        ),
    ],
)
def test_the_contract_sees_what_is_wrong(wrong, row):
    @attn.normaliser
    class Wrong:
        def __call__(self, s):
            return wrong(s)

    failed = [row.what for row in check_normaliser(Wrong, ["float64"]) if not row.ok]
    assert row in failed


@pytest.mark.parametrize(
    "fused", [lambda n: (jnp.log(n + 1), None), lambda n: (None, 0.1)]
)
def test_the_contract_sees_a_wrong_fused_form(fused):
    @attn.normaliser
    class Wrong:
        def exponents(self, s):
            return s, None

        def fused(self, n):
            return fused(n)

    failed = [row.what for row in check_normaliser(Wrong, []) if not row.ok]
    # Kernels of tiles go by that form, where JAX has them.
    assert failed[0] == "fused, where it is there, says what exponents does"
    assert all("pallas" in what for what in failed[1:])


@in_float64
def test_parameters_of_a_normaliser_are_the_modules():
    x = jnp.asarray(np.random.default_rng(9).normal(size=(2, 5, 8)))

    def module(normaliser):
        of = attn.config.Attention(8, 2, 4, 4, normaliser=normaliser)
        return attn.MultiHeadAttention(of)

    ctx = attn.Context()
    variables = module("asentmax").init(jax.random.key(0), x, ctx)
    kept = variables["params"]["normaliser"]
    assert {name: leaf.shape for name, leaf in kept.items()} == dict(
        delta=(2,), beta=(2,), gamma=(2,)
    )

    def loss(params):
        return module("asentmax").apply({"params": params}, x, ctx)[0].sum()

    gradient = jax.grad(loss)(variables["params"])["normaliser"]
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert jnp.abs(gradient["delta"]).min() > 0
    with pytest.raises(ValueError, match="parameters are of another normaliser"):
        module("sink").apply(variables, x, ctx)


@pytest.mark.parametrize("k", [1, 3, 8, 20])
def test_the_greatest_scores_are_those_of_a_stable_sort(k):
    """Of equal ones the first, 0 and −0 among them; NaN is the greatest of all."""
    draw = np.random.default_rng(k)
    s = draw.normal(size=(200, 9)).round(1).astype(np.float32)
    for value, share in ((-np.inf, 0.2), (np.inf, 0.05), (-0.0, 0.1), (0.0, 0.1)):
        s[draw.random(s.shape) < share] = value
    chosen = np.asarray(is_in_top(jnp.asarray(s), k))
    order = np.argsort(-s, axis=-1, kind="stable")[:, :k]
    expected = np.zeros_like(chosen)
    np.put_along_axis(expected, order, True, -1)
    np.testing.assert_array_equal(chosen, expected)
    with_nan = jnp.asarray([[1.0, -jnp.nan, 3.0, 2.0]])
    assert is_in_top(with_nan, 1).tolist() == [[False, True, False, False]]
