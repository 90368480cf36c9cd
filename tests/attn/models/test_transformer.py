"""The Transformer against the float64 oracle, the paper's arithmetic, and its own cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    SCORES,
    T5,
    Design,
    Differential,
    Learned,
    Mask,
    NoPositions,
    Recurrent,
    Rotary,
    Shape,
    Sinusoidal,
    Transformer,
    sinusoidal,
)
from attn.models.activations import ACTIVATIONS
from attn.models.design import NORMS
from attn.models.embeddings import EMBEDDINGS
from attn.models.heads import GATES
from attn.positions import LAYOUTS
from attn.random_bits import cheap_key
from tests.attn import numpy_transformer

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
    model = Transformer(shape, VOCABULARY, LENGTH, design, P_drop, **options)
    ids = jnp.zeros((1, 2), jnp.int32)
    return model, jax.jit(model.init)(
        cheap_key(jax.random.key(0)), ids, ids, ids, ids, **masks()
    )


@pytest.fixture(scope="module")
def pair():
    draw = np.random.default_rng(0).integers
    return draw(4, VOCABULARY, 11), draw(4, VOCABULARY, 7)


@pytest.mark.parametrize("encoding", [Sinusoidal(), Learned(), NoPositions()])
def test_logits_equal_the_oracle(pair, encoding):
    model, variables = build(Design(positions=encoding))
    source, target = (jnp.asarray(x) for x in pair)
    hidden = model.apply(
        variables, source, target, places(source), places(target), **masks()
    )
    logits = model.apply(variables, hidden, method=Transformer.logits)
    exact = jax.tree.map(lambda x: np.asarray(x, np.float64), variables)
    tables = [
        exact["positions"][side]["table"]
        for side in ("source_positions", "target_positions")
    ]
    expected = numpy_transformer.transformer(exact["params"], tables, *pair)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_padding_and_batch_change_nothing(pair):
    model, variables = build()
    source, target = (jnp.asarray(x) for x in pair)
    alone = model.apply(
        variables, source, target, places(source), places(target), **masks()
    )
    padded = jnp.stack([jnp.pad(source, (0, 3), constant_values=9), jnp.arange(14)])
    targets = jnp.stack([target, target])
    batch = model.apply(
        variables,
        padded,
        targets,
        places(padded),
        places(targets),
        **masks(jnp.array([11, 14])),
    )
    np.testing.assert_allclose(batch[0], alone, rtol=1e-4, atol=1e-5)


def test_no_piece_sees_the_future(pair):
    model, variables = build()
    source, target = (jnp.asarray(x) for x in pair)

    def hidden(table):
        changed = {
            **variables,
            "positions": {
                **variables["positions"],
                "target_positions": {"table": table},
            },
        }
        return model.apply(
            changed, source, target, places(source), places(target), **masks()
        )

    # One table row feeds one target place, so its gradient is that place's reach.
    # Weighted, because the plain sum of what a LayerNorm gives is constant.
    weights = jnp.arange(SHAPE.d_model, dtype=jnp.float32)
    reach = jax.jacobian(lambda t: hidden(t) @ weights)(
        variables["positions"]["target_positions"]["table"]
    )
    seen = np.abs(np.asarray(reach)).sum(-1)[:, : len(target)] > 0
    np.testing.assert_array_equal(seen, np.tri(len(target)) > 0)


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


RICH = Design(
    norm="pre",
    embeddings="separate",
    biases=True,
    activation="gelu",
    score="bilinear",
    positions=T5(),
    # Layers differ by it.
    heads=Differential(),
)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("design", "scan", "remat"),
    [
        (Design(), False, True),
        (RICH, True, False),
        (Design(norm="post_final"), True, True),
    ],
)
def test_scan_and_remat_change_no_number(pair, design, scan, remat):
    """Neither parameters, nor the output, nor a gradient; what is kept is less."""
    source, target = (jnp.asarray(x) for x in pair)
    plain, variables = build(design=design)
    other, same = build(design=design, scan=scan, remat=remat)
    assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, same)

    def loss(model):
        def weighted(params):
            hidden = model.apply(
                {**variables, "params": params},
                source,
                target,
                places(source),
                places(target),
                **masks(),
            )
            return (
                hidden * jnp.cos(jnp.arange(hidden.size)).reshape(hidden.shape)
            ).sum()

        return jax.jit(jax.value_and_grad(weighted))

    expected = loss(plain)(variables["params"])
    actual = loss(other)(variables["params"])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        actual,
        expected,
    )


def test_scanned_layers_draw_dropout_each_for_itself(pair):
    """Two layers without weights, so that all they do is to normalise: with one draw
    they would drop the same.
    """
    source = jnp.asarray(pair[0])
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
    tables = jax.tree.map(jnp.zeros_like, variables["positions"])

    encode = jax.jit(functools.partial(model.apply, method=Transformer.encode))
    encoded = encode(
        {
            "params": {**variables["params"], **layers, "embedding": nothing},
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


def test_what_is_compiled_with_scan_does_not_grow_with_layers(pair):
    source, target = (jnp.asarray(x) for x in pair)

    def size(layers, scan):
        model = Transformer(SHAPE._replace(N=layers), VOCABULARY, LENGTH, scan=scan)
        args = source, target, places(source), places(target)
        variables = jax.eval_shape(
            lambda key: model.init(key, *args, **masks()), jax.random.key(0)
        )
        return len(jax.jit(model.apply).lower(variables, *args, **masks()).as_text())

    assert size(4, scan=True) < 1.3 * size(2, scan=True)
    assert size(4, scan=False) > 1.5 * size(2, scan=False)


@pytest.mark.ci
@pytest.mark.parametrize("where", ["P_attention", "P_ff"])
def test_dropout_at_other_places(pair, where):
    source, target = (jnp.asarray(x) for x in pair)
    model, variables = build(P_drop=0.0, **{where: 0.5})

    def hidden(model, **rngs):
        return jax.jit(model.apply)(
            variables,
            source,
            target,
            places(source),
            places(target),
            **masks(),
            rngs=rngs,
        )

    plain = hidden(build(P_drop=0.0)[0])
    np.testing.assert_array_equal(hidden(model), plain)
    np.testing.assert_array_equal(
        hidden(build(P_drop=0.0)[0], dropout=cheap_key(jax.random.key(0))), plain
    )
    assert not jnp.allclose(hidden(model, dropout=cheap_key(jax.random.key(0))), plain)


def test_untied_matrices_are_used_where_they_belong(pair):
    source, target = (jnp.asarray(x) for x in pair)
    model, variables = build(design=Design(embeddings="separate"))

    def reach(name):
        def logits(matrix):
            own = {**variables, "params": {**variables["params"], name: matrix}}
            hidden = model.apply(
                own, source, target, places(source), places(target), **masks()
            )
            return model.apply(own, hidden, method=Transformer.logits).std()

        return set(
            np.flatnonzero(
                np.abs(jax.jit(jax.grad(logits))(variables["params"][name])).sum(-1)
            )
        )

    assert reach("source_embedding") == set(source.tolist())
    assert reach("embedding") == set(target.tolist())
    assert reach("output") == set(range(VOCABULARY))


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


def test_dropout_happens_with_an_rng_only(pair):
    model, variables = build(P_drop=0.5)
    source, target = (jnp.asarray(x) for x in pair)

    def hidden(**rngs):
        return jax.jit(model.apply)(
            variables,
            source,
            target,
            places(source),
            places(target),
            **masks(),
            rngs=rngs,
        )

    assert (hidden() == hidden()).all()
    assert not jnp.allclose(
        hidden(dropout=cheap_key(jax.random.key(0))),
        hidden(dropout=cheap_key(jax.random.key(1))),
    )


def test_weights_are_kept_when_asked(pair):
    model, variables = build()
    source, target = (jnp.asarray(x) for x in pair)
    args = (variables, source, target, places(source), places(target))
    plain = model.apply(*args, **masks())
    hidden, kept = model.apply(*args, **masks(), mutable=["weights"])
    np.testing.assert_allclose(hidden, plain, rtol=1e-5, atol=1e-6)
    cross = kept["weights"]["decoder_1"]["cross_attention"]["weights"]
    assert cross.shape == (SHAPE.h, 7, 11)
    np.testing.assert_allclose(cross.sum(-1), 1, rtol=1e-5)
