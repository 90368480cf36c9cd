"""The Transformer against the float64 oracle, the paper's arithmetic, and its own options."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    Context,
    Differential,
    Mask,
    Transformer,
    config,
    keys_of_rows,
    sinusoidal,
)
from attn.nn.norms import PostFinal, Pre
from attn.positions import LAYOUTS
from tests.attn import numpy_transformer
from tests.attn.nn.modules import apply, random_variables, sentences

SIZES = dict(N=2, d_model=10, d_ff=17, h=3, d_k=5, d_v=7)
D = SIZES["d_model"]
VOCABULARY = 29
LENGTH = 23


@functools.cache
def build(scan=False, **options):
    """Returns a model and random variables, biases, norms and tables too."""
    model = Transformer(
        config.Transformer(**SIZES | options), VOCABULARY, LENGTH, scan=scan
    )
    tokens = np.zeros((1, 2), np.int32)
    return model, random_variables(model, *sentences(tokens, tokens))


def hidden(model, variables, batch, mutable=False, **context):
    source, target, *contexts = sentences(*batch)
    contexts = [ctx.replace(**context) for ctx in contexts]
    return apply(model, variables, source, target, *contexts, mutable=mutable)


@pytest.fixture(scope="module")
def batch():
    """A pair of sentences, the source before what it is padded with; the same with one
    target token changed, for each of the tokens; and another pair.
    """
    draw = np.random.default_rng(0).integers
    source, target = draw(4, VOCABULARY, (2, 14)), draw(4, VOCABULARY, (2, 7))
    changed = np.where(np.eye(7, dtype=bool), 3, target[:1])
    sources = source[[0] * 8 + [1]]
    targets = np.concatenate([target[:1], changed, target[1:]])
    return sources, targets, np.array([11] * 8 + [14])


@pytest.fixture(scope="module")
def states(batch):
    return hidden(*build(), batch)


@pytest.mark.parametrize("row", [0, 8])
def test_logits_equal_the_oracle(batch, states, row):
    """Of a sentence alone: neither padding nor what is beside it in the batch counts."""
    model, variables = build()
    exact = jax.tree.map(np.float64, variables)
    tables = [
        exact["positions"][side]["table"]
        for side in ("source_positions", "target_positions")
    ]
    sources, targets, lengths = batch
    pair = sources[row, : lengths[row]], targets[row]
    expected = numpy_transformer.transformer(exact["params"], tables, *pair)
    actual = apply(model, variables, states, method="logits")[row]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_no_token_sees_the_future(states):
    states = np.asarray(states)
    # Row 1 + j has another token at place j.
    moved = np.abs(states[1:8] - states[0]).max(-1).T
    assert (moved[np.tri(7) > 0] > 1e-3).all()
    assert (moved[np.tri(7) == 0] < 1e-5).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layouts_of_the_sinusoids(layout):
    i = np.arange(4)
    angle = 7 / 10_000 ** (i / 3 if layout == "tensor2tensor" else 2 * i / 8)
    interleaved = layout == "interleaved"
    row = np.zeros(8)
    row[slice(0, None, 2) if interleaved else slice(4)] = np.sin(angle)
    row[slice(1, None, 2) if interleaved else slice(4, None)] = np.cos(angle)
    np.testing.assert_allclose(sinusoidal(50, 8, layout)[7], row, rtol=1e-6)


def test_layouts_that_make_no_sense():
    with pytest.raises(ValueError, match="unknown layout 'half'; known: interleaved"):
        sinusoidal(50, 8, "half")
    with pytest.raises(ValueError, match="needs a d_model of 4 at least, not 2"):
        sinusoidal(50, 2, "tensor2tensor")


@pytest.mark.ci
@pytest.mark.parametrize("options", [dict(scan=True), dict(remat=True)])
def test_scan_and_remat_change_no_number(batch, options):
    """Of layers that differ by their number; gradients are those of a language model's."""
    model, variables = build(norm=PostFinal(), heads=Differential())
    expected = hidden(model, variables, batch)
    actual = hidden(model.clone(**options), variables, batch)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_scanned_layers_draw_dropout_each_for_itself(batch):
    """Two layers without weights, so that all they do is to normalise: with one draw
    they would drop the same.
    """
    model, variables = build(scan=True, norm=Pre())
    params = dict(variables["params"])
    # Each feed-forward network gives 1 everywhere, so that what is not embedding counts
    # the layers that kept it.
    for name in ("encoder_0", "encoder_1", "embedding"):
        params[name] = jax.tree.map(jnp.zeros_like, params[name])
    for name in ("encoder_0", "encoder_1"):
        params[name]["feed_forward"]["w_2"]["bias"] = jnp.ones(D)
    params["encoder_norm"] = dict(scale=jnp.ones(D), bias=jnp.zeros(D))
    tables = jax.tree.map(jnp.zeros_like, variables["positions"])
    ctx = Context(
        numbers={"P_drop": 0.5},
        keys=keys_of_rows(jax.random.key(0), jnp.arange(1)),
    )
    source = jnp.asarray(batch[0][:1, :11])
    own = {"params": params, "positions": tables}
    (encoded,) = apply(model, own, source, ctx, method="encode")
    # Sums of two draws of 0 or 2 are 0, 2 or 4; of one draw taken twice, 0 or 4. The
    # norm keeps distinct ones distinct.
    assert len(set(np.round(np.asarray(encoded)[0], 4))) == 3


def test_what_is_compiled_with_scan_does_not_grow_with_layers(batch):
    def size(layers, scan):
        model, variables = build(scan=scan, N=layers)
        lowered = jax.jit(model.apply).lower(variables, *sentences(*batch))
        return len(lowered.as_text())

    layer = size(3, scan=False) - size(2, scan=False)
    assert layer > 10_000
    assert size(3, scan=True) - size(2, scan=True) < layer / 2


def test_each_rate_drops_with_keys_only(batch, states):
    model, variables = build()
    rows = np.arange(9)
    keys = [keys_of_rows(jax.random.key(i), rows) for i in range(2)]
    for name in config.Transformer.numbers:
        first, again, other, without = (
            hidden(model, variables, batch, numbers={name: 0.5}, keys=of)
            for of in (keys[0], keys[0], keys[1], {})
        )
        np.testing.assert_array_equal(first, again)
        assert not np.allclose(first, other)
        assert not np.allclose(first, states)
        np.testing.assert_allclose(without, states, atol=1e-5)
    never = dict.fromkeys(config.Transformer.numbers, 0.0)
    actual = hidden(model, variables, batch, numbers=never, keys=keys[0])
    np.testing.assert_allclose(actual, states, atol=1e-5)


def test_untied_matrices_are_used_where_they_belong(batch):
    model, variables = build(embeddings="separate")
    names = "source_embedding", "embedding", "output"
    pair = batch[0][:1, :11], batch[1][:1]

    @jax.jit
    @jax.grad
    def gradients(matrices):
        own = {**variables, "params": {**variables["params"], **matrices}}
        states = model.apply(own, *sentences(*pair))
        return model.apply(own, states, method="logits").std()

    matrices = {name: variables["params"][name] for name in names}
    reach = {
        name: set(np.flatnonzero(np.abs(gradient).sum(-1)))
        for name, gradient in gradients(matrices).items()
    }
    assert reach["source_embedding"] == set(pair[0][0].tolist())
    assert reach["embedding"] == set(pair[1][0].tolist())
    assert reach["output"] == set(range(VOCABULARY))


def test_weights_are_kept_when_asked(batch, states):
    actual, kept = hidden(*build(), batch, mutable=("weights",))
    np.testing.assert_allclose(actual, states, rtol=1e-5, atol=1e-6)
    cross = kept["weights"]["decoder_1"]["cross_attention"]["weights"]
    assert cross.shape == (9, SIZES["h"], 7, 14)
    np.testing.assert_allclose(cross.sum(-1), 1, rtol=1e-5)
    assert (cross[0, :, :, 11:] == 0).all()


def test_sentences_of_a_packed_row_are_as_alone(batch, states):
    model, variables = build()
    sources, targets, lengths = batch
    both = [0, 8]
    row = [
        np.concatenate([sources[b, : lengths[b]] for b in both])[None],
        np.concatenate([targets[b] for b in both])[None],
    ]
    texts, contexts = [], []
    for side, count in zip(row, ([11, 14], [7, 7]), strict=True):
        texts.append(np.repeat([1, 2], count)[None])
        places = jnp.asarray(np.concatenate([np.arange(n) for n in count])[None])
        mask = Mask.segments(texts[-1], texts[-1])
        contexts.append(Context(mask, places))
        assert side.shape == places.shape
    of_target = contexts[1].replace(
        mask=contexts[1].mask & Mask.causal(),
        memory_mask=Mask.segments(texts[1], texts[0]),
    )
    (actual,) = apply(model, variables, *row, contexts[0], of_target)
    for part, b in ((actual[:7], 0), (actual[7:], 8)):
        np.testing.assert_allclose(part, states[b], rtol=1e-4, atol=1e-5)
