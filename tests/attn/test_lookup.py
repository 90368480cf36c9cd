"""Gradients of what many tokens share: sums in float32, also where all else is bfloat16.

4,000 terms of 1 are 4,000; a sum that is rounded to bfloat16 at each stays at 256.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    RNN,
    Bilinear,
    Context,
    LanguageModel,
    Mask,
    Recurrence,
    argmax_attention,
    attention,
    config,
    platforms,
)
from attn.jax_versions import enable_x64
from attn.lookup import entries
from attn.positions import T5, Learned, Relative

ROWS, TOKENS = 40, 100
ALL = ROWS * TOKENS
D = 2
NOTHING = jnp.zeros((ROWS, TOKENS), jnp.int32)
"""Rows of tokens that are all the same, and all at one place."""
half = functools.partial(jnp.asarray, dtype=jnp.bfloat16)


def gradients(function, tree):
    """Returns the gradients of the sum of what the function gives of a tree."""

    def total(tree):
        return function(tree).astype(jnp.float32).sum()

    return jax.jit(jax.grad(total))(tree)


@pytest.fixture(params=["cpu", "gpu"])
def platform(request):
    platforms.compile_for(request.param)
    yield request.param
    platforms.compile_for(None)


def embedder(vocabulary):
    """Returns the variables of a model without layers, and what it makes of rows."""
    sizes = dict(d_model=D, d_ff=2, h=1, d_k=2, d_v=2, N=1)
    of = config.LanguageModel(**sizes, positions=Learned(), embedding_scale=1.0)
    model = LanguageModel(of, vocabulary=vocabulary, length=2)
    ctx = Context(places=NOTHING)
    variables = model.init(jax.random.key(0), NOTHING, ctx)
    params = {"embedding": variables["params"]["embedding"]}

    def hidden(variables):
        def embed(module):
            table, drop = module.target_positions, module.drop
            return module._embed(module.embedding, NOTHING, table, drop, ctx)

        return model.apply(variables, method=embed)

    return variables | {"params": params}, hidden


def test_4000_equal_tokens_count_4000_times(platform):
    variables, hidden = embedder(3)
    changes = gradients(hidden, jax.tree.map(half, variables))
    for table in jax.tree.leaves(changes):
        assert table.dtype == jnp.bfloat16
        np.testing.assert_array_equal(table[0], [ALL] * D)
        assert not table[1:].any()


def test_in_float32_the_gradients_are_right_to_rounding(platform):
    variables, hidden = embedder(3)
    weights = np.random.default_rng(0).normal(size=(ROWS, TOKENS, D)).astype(np.float32)
    changes = gradients(lambda tree: hidden(tree) * weights, variables)
    exact = weights.astype(np.float64).sum((0, 1))
    for table in jax.tree.leaves(changes):
        # 4,000 numbers of size 1, whose sum is of size 63.
        np.testing.assert_allclose(table[0], exact, rtol=0, atol=1e-4)


def test_a_gpu_sums_places_by_a_product_of_all_bits():
    """By default it would round a product's float32 factors to 11 bits."""
    variables, hidden = embedder(3)
    platforms.compile_for("gpu")
    jaxpr = str(jax.make_jaxpr(functools.partial(gradients, hidden))(variables))
    platforms.compile_for(None)
    # The scatter is of the embedding.
    assert jaxpr.count("scatter-add") == 1 and "HIGHEST" in jaxpr


def test_rows_of_a_batch_share_one_table_of_gradients():
    variables, hidden = embedder(1000)
    jaxpr = jax.make_jaxpr(functools.partial(gradients, hidden))(variables)
    shapes = str(jaxpr)
    assert f"[1000,{D}]" in shapes and f"[{ROWS},1000,{D}]" not in shapes


def test_4000_equal_tokens_of_an_rnn():
    model = RNN(config.RNN(d_model=D), vocabulary=3, length=2)
    embed = lambda matrix: model._embed(matrix, NOTHING)
    change = gradients(embed, half(np.ones((3, D))))
    # The factor √2 is rounded.
    np.testing.assert_allclose(np.float32(change[0]), ALL * D**0.5, rtol=2**-7)


def test_a_recurrence_counts_every_step():
    module = Recurrence(D, "tanh")
    x = jnp.ones((1, ALL, D), jnp.bfloat16)
    ctx = Context(Mask.causal())
    variables = module.init(jax.random.key(0), jnp.ones((1, 2, D)), ctx)
    # So every state is 0, and tanh has the slope 1 there.
    variables = jax.tree.map(lambda w: half(jnp.zeros_like(w)), variables)
    changes = gradients(lambda tree: module.apply(tree, x, ctx)[0], variables)
    inputs = changes["params"]["forward"]["rnn"]["i"]
    np.testing.assert_array_equal(inputs["kernel"], [[ALL] * D] * D)


def test_a_value_that_all_queries_select():
    q, k = half(np.zeros((ALL, 1, 1))), half(np.zeros((2, 1, 1)))
    change = gradients(
        lambda v: argmax_attention(q, k, v)[0], half(np.zeros((2, 1, D)))
    )
    np.testing.assert_array_equal(change[:, 0], [[ALL] * D, [0] * D])


def test_a_state_that_all_positions_take():
    places = jnp.ones((ALL, 1), jnp.int32)
    change = gradients(lambda x: entries(x, places, -2), half(np.zeros((3, D))))
    np.testing.assert_array_equal(change, [[0] * D, [ALL] * D, [0] * D])


@pytest.mark.parametrize("positions", [Relative(reach=1), T5(4, max_distance=3)])
def test_a_bias_that_most_pairs_share(positions):
    """Half of all pairs, but 96 of them, are a query and a key far behind it."""
    n = jnp.arange(96)
    bias = positions.bias(jax.random.key(0), 1, causal=False)
    leaves, tree = jax.tree.flatten(bias)
    change = gradients(
        lambda table: tree.unflatten([table, *leaves[1:]]).tile(n, n),
        half(leaves[0][0]),
    )
    most = np.sort(np.float32(change))[-2:]
    np.testing.assert_allclose(most, 96 * 95 / 2, rtol=0.05)


def test_parameters_that_parts_and_blocks_share(monkeypatch):
    """Parts of heads and blocks of queries come one after another, and add to one gradient."""
    module = sys.modules["attn.attention"]
    monkeypatch.setattr(module, "heads_at_once", lambda n, m, score: 1)
    monkeypatch.setattr(sys.modules["attn.kernels.query_blocks"], "BLOCK", 2)
    jax.clear_caches()
    draw = np.random.default_rng(0).normal
    of_tokens = (128, 32, 2, 4), (128, 32, 1, 4), (128, 32, 1, 4)
    arrays = [draw(size=shape) for shape in of_tokens]
    arrays.append(draw(size=(2, 4, 4)))
    # The terms are of one sign, so that rounding shows.
    cotangent = np.abs(draw(size=(128, 32, 2, 4)))

    def of(kernel, dtype):
        def loss(q, k, v, w):
            out = attention(q, k, v, score=Bilinear(w), implementation=kernel)
            return (out * jnp.asarray(cotangent, dtype)).astype(at_least).sum()

        at_least = jnp.promote_types(dtype, jnp.float32)
        light = [jnp.asarray(half(x), dtype) for x in arrays]
        return jax.jit(jax.grad(loss, (0, 1, 2, 3)))(*light)

    with enable_x64(True):
        exact = of("reference", jnp.float64)
        ours, textbook = (
            of(kernel, jnp.bfloat16) for kernel in ("blocks", "reference")
        )
    jax.clear_caches()

    def error(change, right):
        return np.sqrt(((np.float64(change) - np.asarray(right)) ** 2).mean())

    for one, other, right in zip(ours, textbook, exact, strict=True):
        assert error(one, right) <= 2 * error(other, right)
