"""The Transformer against the float64 oracle, the paper's arithmetic, and its own cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attn.models.activations import ACTIVATIONS
from attn.models.design import NORMS
from attn.models.heads import GATES

from attn import (
    SCORES,
    Design,
    Differential,
    Mask,
    Recurrent,
    Rotary,
    Shape,
    Transformer,
    sinusoidal,
)
from attn.nn.layers import EMBEDDINGS
from attn.positions import LAYOUTS
from attn.random_bits import cheap_key
from tests.attn import numpy_transformer
from tests.attn.models.random_variables import random_variables

SHAPE = Shape(N=2, d_model=10, d_ff=17, h=3, d_k=5, d_v=7)
VOCABULARY = 29
LENGTH = 23


def places(ids):
    return jnp.broadcast_to(jnp.arange(ids.shape[-1]), ids.shape)


def masks(lengths=None):
    seen = Mask() if lengths is None else Mask.padding(lengths)
    return dict(source_mask=seen, target_mask=Mask.causal(), cross_mask=seen)


@functools.cache
def build(design=Design(), shape=SHAPE, P_drop=0.1, **options):
    """A model with random parameters, biases and norms too, and random tables."""
    model = Transformer(shape, VOCABULARY, LENGTH, design, P_drop, **options)
    ids = jnp.zeros((1, 2), jnp.int32)
    return model, random_variables(model, ids, ids, ids, ids, **masks())


def hidden(model, variables, batch, **options):
    source, target, lengths = map(jnp.asarray, batch)
    args = source, target, places(source), places(target)
    return model.apply(variables, *args, **masks(lengths), **options)


@functools.partial(jax.jit, static_argnums=0)
def hidden_and_logits(model, variables, batch):
    states = hidden(model, variables, batch)
    return states, model.apply(variables, states, method=Transformer.logits)


@pytest.fixture(scope="module")
def batch():
    """A pair of sentences, the source before what it is padded with; the same with one
    target piece changed, for each of the pieces; and another pair.
    """
    draw = np.random.default_rng(0).integers
    source, target = draw(4, VOCABULARY, (2, 14)), draw(4, VOCABULARY, (2, 7))
    changed = np.where(np.eye(7, dtype=bool), 3, target[:1])
    sources = source[[0] * 8 + [1]]
    targets = np.concatenate([target[:1], changed, target[1:]])
    return sources, targets, np.array([11] * 8 + [14])


@pytest.fixture(scope="module")
def outputs(batch):
    return hidden_and_logits(*build(), batch)


@pytest.mark.parametrize("row", [0, 8])
def test_logits_equal_the_oracle(batch, outputs, row):
    """Of a sentence alone: neither padding nor what is beside it in the batch counts."""
    _, variables = build()
    exact = jax.tree.map(lambda x: np.asarray(x, np.float64), variables)
    tables = [
        exact["positions"][side]["table"]
        for side in ("source_positions", "target_positions")
    ]
    sources, targets, lengths = batch
    pair = sources[row, : lengths[row]], targets[row]
    expected = numpy_transformer.transformer(exact["params"], tables, *pair)
    np.testing.assert_allclose(outputs[1][row], expected, rtol=1e-4, atol=1e-4)


def test_no_piece_sees_the_future(outputs):
    states = np.asarray(outputs[0])
    # Row 1 + j has another piece at place j.
    moved = np.abs(states[1:8] - states[0]).max(-1).T
    assert (moved[np.tri(7) > 0] > 1e-3).all()
    assert (moved[np.tri(7) == 0] < 1e-5).all()


def test_sinusoids():
    table = sinusoidal(50, 8)
    np.testing.assert_allclose(table[7, 4], np.sin(7 / 10_000 ** (4 / 8)), rtol=1e-6)
    np.testing.assert_allclose(table[7, 5], np.cos(7 / 10_000 ** (4 / 8)), rtol=1e-6)
    # PE(pos + k) is PE(pos) turned by an angle that depends on k alone (the paper's section 3.5).
    turn = 3 * 10_000.0 ** (-np.arange(0, 8, 2) / 8)
    sin = table[:-3, ::2]
    cos = table[:-3, 1::2]
    np.testing.assert_allclose(
        table[3:, ::2], sin * np.cos(turn) + cos * np.sin(turn), atol=2e-6
    )
    with pytest.raises(ValueError, match="d_model=7 must be even"):
        sinusoidal(50, 7)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layouts_of_the_sinusoids(layout):
    i = np.arange(4)
    angle = 7 / 10_000 ** (i / 3 if layout == "tensor2tensor" else 2 * i / 8)
    row = np.zeros(8)
    row[slice(0, None, 2) if layout == "interleaved" else slice(4)] = np.sin(angle)
    row[slice(1, None, 2) if layout == "interleaved" else slice(4, None)] = np.cos(
        angle
    )
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
    model, variables = build(Design(norm="post_final", heads=Differential()))
    expected = hidden_and_logits(model, variables, batch)
    actual = hidden_and_logits(model.clone(**options), variables, batch)
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-4, atol=1e-5)


def test_scanned_layers_draw_dropout_each_for_itself(batch):
    """Two layers without weights, so that all they do is to normalise: with one draw
    they would drop the same.
    """
    source = jnp.asarray(batch[0][0, :11])
    model, variables = build(Design(norm="pre"), P_drop=0.5, scan=True)
    # Each feed-forward network gives 1 everywhere, so that what is not embedding counts
    # the layers that kept it.
    layers = {
        name: jax.tree.map(jnp.zeros_like, variables["params"][name])
        for name in ("encoder_0", "encoder_1")
    }
    for layer in layers.values():
        layer["feed_forward"]["w_2"]["bias"] = jnp.ones(SHAPE.d_model)
    nothing = jnp.zeros_like(variables["params"]["embedding"])
    norm = dict(scale=jnp.ones(SHAPE.d_model), bias=jnp.zeros(SHAPE.d_model))
    tables = jax.tree.map(jnp.zeros_like, variables["positions"])

    encode = jax.jit(functools.partial(model.apply, method=Transformer.encode))
    encoded = encode(
        {
            "params": {
                **variables["params"],
                **layers,
                "embedding": nothing,
                "encoder_norm": norm,
            },
            "positions": tables,
        },
        source,
        places(source),
        Mask(),
        rngs={"dropout": cheap_key(jax.random.key(0))},
    )
    # Sums of two draws of 0 or 2 are 0, 2 or 4; of one draw taken twice, 0 or 4. The
    # norm keeps distinct ones distinct.
    assert len(set(np.round(np.asarray(encoded)[0], 4))) == 3


def test_what_is_compiled_with_scan_does_not_grow_with_layers(batch):
    def size(layers, scan):
        model = Transformer(SHAPE._replace(N=layers), VOCABULARY, LENGTH, scan=scan)
        _, variables = build(shape=model.shape)
        return len(hidden_and_logits.lower(model, variables, batch).as_text())

    layer = size(3, scan=False) - size(2, scan=False)
    assert layer > 10_000
    assert size(3, scan=True) - size(2, scan=True) < layer / 2


def test_dropout_happens_with_an_rng_only(batch):
    """At each of its places by itself, and as the key draws it."""
    small, variables = build(shape=SHAPE._replace(N=1))
    plain = hidden_and_logits(small, variables, batch)[0]

    @jax.jit
    def dropped(rates, key):
        model = Transformer(small.shape, VOCABULARY, LENGTH, Design(), *rates)
        return hidden(model, variables, batch, rngs={"dropout": key})

    keys = [cheap_key(jax.random.key(i)) for i in range(2)]
    np.testing.assert_allclose(dropped((0.0, 0.0, 0.0), keys[0]), plain, atol=1e-5)
    for rates in np.eye(3) / 2:
        first, again, other = (dropped(tuple(rates), keys[i]) for i in (0, 0, 1))
        np.testing.assert_array_equal(first, again)
        assert not np.allclose(first, other)
        assert not np.allclose(first, plain)


def test_untied_matrices_are_used_where_they_belong(batch):
    model, variables = build(design=Design(embeddings="separate"))
    names = "source_embedding", "embedding", "output"
    source, target = batch[0][0, :11], batch[1][0]
    pair = source, target, 11

    @jax.jit
    @jax.grad
    def gradients(matrices):
        own = {**variables, "params": {**variables["params"], **matrices}}
        _, logits = hidden_and_logits(model, own, pair)
        return logits.std()

    matrices = {name: variables["params"][name] for name in names}
    reach = {
        name: set(np.flatnonzero(np.abs(gradient).sum(-1)))
        for name, gradient in gradients(matrices).items()
    }
    assert reach["source_embedding"] == set(source.tolist())
    assert reach["embedding"] == set(target.tolist())
    assert reach["output"] == set(range(VOCABULARY))


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("norm", NORMS),
        ("embeddings", EMBEDDINGS),
        ("activation", [name for name in ACTIVATIONS if name != "none"]),
        ("head_activation", ACTIVATIONS),
        ("score", SCORES),
        ("gate", GATES),
    ],
)
def test_an_unknown_design_is_named(name, known):
    with pytest.raises(
        ValueError, match=f"unknown {name} 'nope'; known: {', '.join(known)}"
    ):
        build(design=Design(**{name: "nope"}))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(positions="rotary"), "positions='rotary' must be a Positions, such as"),
        (dict(encoder_mixing="lstm"), "encoder_mixing='lstm' must be a Mixer, such"),
        (dict(positions=Rotary()), "d_k=5 must be even: rotary positions turn pairs"),
        (dict(decoder_mixing=Recurrent("rnn")), "unknown cell 'rnn'; known: gru"),
    ],
)
def test_a_value_that_does_not_fit_is_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        build(design=Design(**wrong))


def test_weights_are_kept_when_asked(batch, outputs):
    model, variables = build()

    @jax.jit
    def watched(variables):
        return hidden(model, variables, batch, mutable=["weights"])

    states, kept = watched(variables)
    np.testing.assert_allclose(states, outputs[0], rtol=1e-5, atol=1e-6)
    cross = kept["weights"]["decoder_1"]["cross_attention"]["weights"]
    assert cross.shape == (9, SHAPE.h, 7, 14)
    np.testing.assert_allclose(cross.sum(-1), 1, rtol=1e-5)
    assert (cross[0, :, :, 11:] == 0).all()
