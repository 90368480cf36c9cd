"""Attention residuals against a Transformer in float64 numpy, sub-layer by sub-layer."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import LanguageModel, Transformer, config, keys_of_rows
from attn.jax_versions import enable_x64
from attn.nn.blocks import Layer
from attn.nn.norms import AttnRes, Pre, mean_over_depth
from attn.positions import NoPositions
from tests.attn import numpy_transformer, oracle
from tests.attn.nn.modules import (
    CAUSAL,
    apply,
    assert_slopes,
    random_variables,
    sentences,
)

N = 2
D, F, H, K, V = 6, 7, 2, 5, 3
SIZES = dict(N=N, d_model=D, d_ff=F, h=H, d_k=K, d_v=V, positions=NoPositions())
VOCABULARY = 11
DRAW = np.random.default_rng(0).integers
SOURCE = DRAW(1, VOCABULARY, (2, 5))
TARGET = DRAW(1, VOCABULARY, (2, 7))
PAIRS = sentences(SOURCE, TARGET)
every_block = pytest.mark.parametrize("block", [1, 2, 4, 100])


@functools.cache
def build(block, dtype=np.float32, **options):
    """Returns a model and random variables, the queries over depth too."""
    of = config.Transformer(**SIZES, norm=AttnRes(block=block))
    model = Transformer(of, VOCABULARY, 7, **options)
    variables = random_variables(model, *PAIRS, dtype=dtype)
    table = {"table": jnp.zeros((7, D), dtype)}
    tables = {"source_positions": table, "target_positions": table}
    return model, variables | {"positions": tables}


def mean(w, vectors):
    """The mean that a sub-layer reads, token by token."""
    rows = []
    for of_token in np.stack(vectors, axis=1):
        keys = [v / np.sqrt((v**2).mean() + 1e-6) for v in of_token]
        weights = oracle.softmax(np.array([w @ key for key in keys]))
        rows.append(weights @ of_token)
    return np.array(rows)


def stack(p, name, x, visible, block, memory=None):
    """The layers of the encoder or the decoder."""
    outputs, read = [], x
    for i in range(N):
        layer = p[f"{name}_{i}"]
        sublayers = {
            "self": numpy_transformer.multi_head(layer["self_attention"], visible)
        }
        if memory is not None:
            sublayers["cross"] = numpy_transformer.multi_head(
                layer["cross_attention"], np.ones((len(x), len(memory))), memory
            )
        sublayers["feed_forward"] = numpy_transformer.feed_forward(
            layer["feed_forward"]
        )
        for own, f in sublayers.items():
            around = layer[f"{own}_norm"]
            outputs.append(f(numpy_transformer.layer_norm(around["norm"], read)))
            parts = range(0, len(outputs), block)
            sums = [np.sum(outputs[j : j + block], axis=0) for j in parts]
            read = mean(around["query"], [x, *sums])
    return numpy_transformer.layer_norm(p[f"{name}_norm"], read)


def exact(p, source, target, block):
    embedding = p["embedding"]
    every = np.ones((len(source), len(source)))
    memory = stack(p, "encoder", embedding[source] * D**0.5, every, block)
    x = embedding[target] * D**0.5
    return stack(p, "decoder", x, np.tri(len(target)), block, memory)


def expected(p, block):
    pairs = zip(SOURCE, TARGET, strict=True)
    return np.stack([exact(p, source, target, block) for source, target in pairs])


@every_block
def test_outputs_and_gradients_equal_the_oracles(block):
    """Gradients by central differences in a random direction of each parameter."""
    pull = np.random.default_rng(6).normal(size=(*TARGET.shape, D))
    with enable_x64(True):
        model, variables = build(block, np.float64)

        @jax.jit
        @functools.partial(jax.grad, has_aux=True)
        def gradients(params):
            out = model.apply({**variables, "params": params}, *PAIRS)
            return (out * pull).sum(), out

        gradient, out = gradients(variables["params"])
    params, gradient = jax.tree.map(np.asarray, (variables["params"], gradient))
    np.testing.assert_allclose(out, expected(params, block), rtol=1e-9, atol=1e-9)

    def total(p):
        return (expected(p, block) * pull).sum()

    assert_slopes(total, params, gradient, 1e-6, rtol=1e-5, atol=1e-6)


def test_remat_equals_the_oracle():
    model, variables = build(2, remat=True)
    p = jax.tree.map(np.float64, variables["params"])
    out = apply(model, variables, *PAIRS)
    np.testing.assert_allclose(out, expected(p, 2), rtol=1e-4, atol=1e-4)


def test_at_first_each_sub_layer_reads_the_plain_mean():
    model, _ = build(1)
    params = jax.jit(model.init)(jax.random.key(0), *PAIRS)["params"]
    queries = [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if path[-1].key == "query"
    ]
    assert len(queries) == 5 * N and not np.any(queries)
    vectors = np.random.default_rng(1).normal(size=(3, 2, 4, D))
    found = mean_over_depth(jnp.zeros(D), list(jnp.asarray(vectors)), 1e-6)
    np.testing.assert_allclose(found, vectors.mean(0), rtol=1e-5, atol=1e-6)


def test_a_vector_counts_by_its_direction_and_not_by_its_size():
    """Huge vectors and tiny ones have the weights of their directions, in bfloat16 too."""
    w = jnp.asarray([3.0, 0, 0, 0])
    along, across = jnp.asarray([1e3, 0, 0, 0]), jnp.asarray([0, 1e-2, 0, 0])
    for dtype in (jnp.float32, jnp.bfloat16):
        vectors = [x[None, None].astype(dtype) for x in (along, across)]
        found = mean_over_depth(w, vectors, 1e-12)
        # RMSNorm brings both to length √4; scores of 6 have errors of 6 eps.
        share = 1 / (1 + np.exp(-6))
        wanted = [1e3 * share, 1e-2 * (1 - share), 0, 0]
        np.testing.assert_allclose(
            np.float32(found[0, 0]), wanted, rtol=float(8 * jnp.finfo(dtype).eps)
        )
        assert found.dtype == dtype


def test_products_are_counted():
    """Two for each feature of each vector that is read: after i outputs 1 + ⌈i/block⌉."""
    plain = config.Transformer(**SIZES, norm=Pre())
    for block, encoder, decoder in [(1, 14, 27), (2, 10, 18), (100, 8, 12)]:
        of = config.Transformer(**SIZES, norm=AttnRes(block=block))
        counts = [Transformer(x, VOCABULARY, 9).products(5, 7) for x in (of, plain)]
        assert counts[0] - counts[1] == 2 * D * (5 * encoder + 7 * decoder)


def test_outputs_drop_before_they_are_kept():
    """Each sub-layer's output, with keys of its own: at rate 1 the embedding alone is left."""
    model, variables = build(2)
    source, target, source_ctx, target_ctx = PAIRS
    keys = keys_of_rows(jax.random.key(1), jnp.arange(2))

    def dropped(rate):
        numbers = dict(keys=keys, numbers={"P_drop": rate})
        contexts = source_ctx, target_ctx.replace(**numbers)
        return apply(model, variables, source, target, *contexts)

    assert not np.allclose(dropped(0.5), dropped(0.0), atol=1e-3)
    p = jax.tree.map(np.float64, variables["params"])
    # The embeddings drop too, so all vectors are 0.
    nothing = numpy_transformer.layer_norm(p["decoder_norm"], np.zeros((7, D)))
    np.testing.assert_allclose(dropped(1.0)[0], nothing, atol=1e-6)


def test_gradients_keep_no_more_than_vectors():
    """Beside a plain model's, 2 queries, norms and sums a layer, not one a read vector."""

    def kept(norm):
        of = config.LanguageModel(**SIZES | dict(N=8), norm=norm)
        model = LanguageModel(of, VOCABULARY, 64)
        tokens = jnp.ones((1, 64), jnp.int32)
        variables = random_variables(model, tokens, CAUSAL)

        def loss(params):
            return model.apply({**variables, "params": params}, tokens, CAUSAL).sum()

        residuals = jax.eval_shape(lambda p: jax.vjp(loss, p)[1], variables["params"])
        return sum(x.shape == (1, 64, D) for x in jax.tree.leaves(residuals))

    # 16 sub-layers read 152 vectors; a plain model has its 16 sums, this one outputs and means.
    assert kept(AttnRes()) <= kept(Pre()) + 2 * 16


def test_of_an_open_block_one_sum_goes_on():
    """So that with remat, which keeps what layers pass on, blocks keep less."""
    block = config.Block(d_model=D, d_ff=F, h=H, d_k=K, d_v=V, norm=AttnRes(block=100))
    layer = Layer(block, causal=True)
    x = jnp.ones((1, 3, D))
    _, ctx = apply(layer, random_variables(layer, x, CAUSAL), x, CAUSAL)
    assert [leaf.shape for leaf in jax.tree.leaves(ctx.shared)] == [x.shape] * 2


def test_means_are_rounded_once():
    """In bfloat16: half a unit of the last place, beside float64 of the same vectors."""
    draw = np.random.default_rng(2).normal
    w = jnp.asarray(draw(size=D), jnp.float32)
    vectors = [jnp.asarray(draw(size=(2, 4, D)), jnp.bfloat16) for _ in range(40)]
    found = mean_over_depth(w, vectors, 1e-6)
    wide = [np.asarray(v, np.float64) for v in vectors]
    exact = [mean(np.float64(w), [v[b] for v in wide]) for b in range(2)]
    error = np.abs(np.asarray(found, np.float64) - exact)
    half = float(jnp.finfo(jnp.bfloat16).eps) / 2
    assert (error <= half * np.abs(exact) + 1e-6).all()


@dataclasses.dataclass(frozen=True)
class Own(AttnRes):
    """Sums in a way of its own, whose products it does not state."""

    def surround(self, layer):
        return super().surround(layer)


def test_products_of_an_own_sum_are_unknown():
    of = config.LanguageModel(**SIZES, norm=Own())
    assert LanguageModel(of, VOCABULARY, 9).products(0, 7) is None


def test_what_cannot_be_is_refused():
    of = config.LanguageModel(**SIZES, norm=AttnRes())
    model = LanguageModel(of, VOCABULARY, 7, scan=True)
    with pytest.raises(ValueError, match=r"norm=AttnRes.*scan must be False"):
        model.init(jax.random.key(0), jnp.asarray(TARGET), CAUSAL)
    mixed = config.LanguageModel(
        **SIZES, norm=AttnRes(), decoder={"layer_2": {"norm": Pre()}}
    )
    with pytest.raises(
        ValueError,
        match="reads the outputs of all layers: give all layers the same norm",
    ):
        mixed.check()
    with pytest.raises(ValueError, match="block=0 must be at least 1"):
        AttnRes(block=0)
