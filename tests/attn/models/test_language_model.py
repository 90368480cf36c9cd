"""The language model against the float64 oracle and against itself piece by piece, and
what is drawn from it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    T5,
    ALiBi,
    Convolutional,
    DeltaNet,
    Design,
    LanguageModel,
    Mask,
    Recurrent,
    Relative,
    Restricted,
    Rotary,
    SeparableConvolutional,
    Shape,
    Sinusoidal,
    sample,
)
from attn.models.sampling import allowed_tokens
from tests.attn import numpy_transformer

SHAPE = Shape(N=2, d_model=10, d_ff=17, h=2, d_k=6, d_v=5)
VOCABULARY = 23
LENGTH = 15
BOS = 1
EOS = 2
DESIGNS = [
    Design(),
    Design(norm="pre", embeddings="separate", positions=Rotary(), biases=True),
    Design(norm="post_final", positions=ALiBi(), scale_embeddings=False),
    Design(positions=T5(), score="additive"),
    Design(positions=Relative(), decoder_mixing=Restricted(2)),
    Design(decoder_mixing=Convolutional(1)),
    Design(decoder_mixing=Recurrent("lstm")),
    Design(decoder_mixing=DeltaNet(), norm="pre"),
    Design(decoder_mixing=SeparableConvolutional(), combine="mean"),
]


@functools.cache
def build(design=DESIGNS[0], **options):
    """Random parameters, biases and norms too."""
    model = LanguageModel(SHAPE, VOCABULARY, LENGTH, design=design, **options)
    ids = jnp.zeros((1, 2), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), ids, ids)["params"]
    draw = np.random.default_rng(2)
    params = jax.tree.map_with_path(
        lambda path, x: jnp.asarray(
            0.4 * draw.normal(size=x.shape) + ("scale" in str(path)), jnp.float32
        ),
        shapes,
    )
    table = Sinusoidal().table(jax.random.key(0), LENGTH, SHAPE.d_model)
    return model, dict(params=params, positions=dict(target_positions={"table": table}))


def text(count=1, length=9, seed=0):
    return jnp.asarray(
        np.random.default_rng(seed).integers(3, VOCABULARY, (count, length))
    )


@functools.partial(jax.jit, static_argnums=0)
def logits(model, variables, pieces, mask=Mask.causal()):
    hidden = model.apply(
        variables,
        pieces,
        jnp.broadcast_to(jnp.arange(pieces.shape[-1]), pieces.shape),
        mask,
    )
    return model.apply(variables, hidden, method="logits")


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_logits_equal_the_oracle(norm):
    model, variables = build(Design(norm=norm))
    exact = jax.tree.map(lambda x: np.asarray(x, np.float64), variables)
    (pieces,) = text()
    p = exact["params"]
    n = len(pieces)

    def around(own, x, sublayer):
        if norm == "pre":
            return x + sublayer(numpy_transformer.layer_norm(own["norm"], x, 1e-6))
        return numpy_transformer.layer_norm(own["norm"], x + sublayer(x), 1e-6)

    x = (
        p["embedding"][pieces] * SHAPE.d_model**0.5
        + exact["positions"]["target_positions"]["table"][:n]
    )
    for i in range(SHAPE.N):
        layer = p[f"decoder_{i}"]
        x = around(
            layer["self_norm"],
            x,
            numpy_transformer.multi_head(layer["self_attention"], np.tri(n)),
        )
        x = around(
            layer["feed_forward_norm"],
            x,
            numpy_transformer.feed_forward(layer["feed_forward"], "relu"),
        )
    x = (
        x
        if norm == "post"
        else numpy_transformer.layer_norm(p["decoder_norm"], x, 1e-6)
    )
    np.testing.assert_allclose(
        logits(model, variables, text())[0], x @ p["embedding"].T, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    "design",
    [*DESIGNS[:2], *(pytest.param(one, marks=pytest.mark.ci) for one in DESIGNS[2:])],
)
def test_all_in_one_pass_are_one_by_one(design):
    """After each beginning by itself, and piece after piece over the cache, two texts
    side by side.
    """
    model, variables = build(design)
    pieces = text(2)
    expected = logits(model, variables, pieces)
    for t in (0, 3, 8):
        actual = logits(model, variables, pieces[:, : t + 1])[:, t]
        np.testing.assert_allclose(actual, expected[:, t], rtol=1e-4, atol=1e-4)
    room = (1,), 2 * 9, jnp.float32, 2
    caches = model.apply(variables, *room, method="empty_caches")
    step = jax.jit(functools.partial(model.apply, method="decode_step"))
    for t in range(9):
        own = (jnp.arange(18)[None] % 2 == jnp.arange(2)[:, None]) & (
            jnp.arange(18)[None] < 2 * (t + 1)
        )
        hidden, caches = step(
            variables, pieces[None, :, t], jnp.int32(t), caches, own[None]
        )
        actual = model.apply(variables, hidden, method="logits")[0]
        np.testing.assert_allclose(actual, expected[:, t], rtol=1e-4, atol=1e-4)


def test_packed_texts_do_not_see_each_other():
    model, variables = build()
    first = text(length=4)[0]
    second = text(length=5, seed=1)[0]
    segments = jnp.array([1] * 4 + [2] * 5)
    places = jnp.concatenate([jnp.arange(4), jnp.arange(5)])
    mask = Mask.causal() & Mask.segments(segments, segments)
    hidden = model.apply(variables, jnp.concatenate([first, second]), places, mask)
    actual = model.apply(variables, hidden, method="logits")
    for part, own in ((actual[:4], first), (actual[4:], second)):
        np.testing.assert_allclose(
            part, logits(model, variables, own[None])[0], rtol=1e-4, atol=1e-4
        )


@pytest.mark.ci
@pytest.mark.parametrize("options", [dict(remat=True), dict(scan=True)])
def test_remat_and_scan_change_nothing(options):
    model, variables = build()
    other = model.clone(**options)

    def loss(model):
        square = lambda v: (logits.__wrapped__(model, v, text()) ** 2).sum()
        return jax.jit(jax.value_and_grad(square))(variables)

    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3),
        loss(model),
        loss(other),
    )


def test_parameters():
    _, variables = build()
    N, d_model, d_ff, h, d_k, d_v = SHAPE[:6]
    assert sum(
        x.size for x in jax.tree.leaves(variables["params"])
    ) == VOCABULARY * d_model + N * (
        2 * d_model * h * (d_k + d_v) + 2 * d_model * d_ff + d_ff + 5 * d_model
    )


def test_a_design_that_makes_no_sense_is_refused():
    ids = jnp.zeros((1, 2), jnp.int32)
    with pytest.raises(
        ValueError, match="decoder_mixing='lstm' must be a Mixer, such as"
    ):
        LanguageModel(SHAPE, 5, 5, design=Design(decoder_mixing="lstm")).init(
            jax.random.key(0), ids, ids
        )


# Sampling


@functools.cache
def sampler(max_length=8):
    model, _ = build()
    return jax.jit(
        functools.partial(sample, model, max_length=max_length, bos=BOS, eos=EOS)
    )


def draw(count, key=0, beginning=(), **cut):
    row = jnp.asarray([*beginning, 0])[None]
    return sampler()(
        build()[1],
        jax.random.key(key),
        jnp.repeat(row, count, 0),
        jnp.full(count, len(beginning)),
        **cut,
    )


@functools.cache
def next_probabilities(beginning):
    """Returns the scores of each token after `bos` and a prefix, −inf if never drawn."""
    scores = np.asarray(
        logits(*build(), jnp.asarray([[BOS, *beginning]]))[0, -1], np.float64
    )
    scores[[0, BOS]] = -np.inf
    return scores


@pytest.mark.parametrize(
    "cut",
    [
        dict(),
        dict(temperature=0.5),
        dict(top_k=3),
        dict(top_p=0.6),
        dict(top_k=4, top_p=0.8),
        dict(temperature=2.0, top_p=0.5),
    ],
)
def test_pieces_are_drawn_with_their_probabilities(cut):
    count = 20_000
    beginning = (5, 9)
    drawn = np.asarray(draw(count, beginning=beginning, **cut).tokens)
    assert (drawn[:, :2] == beginning).all()
    scores = next_probabilities(beginning) / cut.get("temperature", 1.0)
    probabilities = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    order = np.argsort(-probabilities, kind="stable")
    few = min(
        cut.get("top_k", 99),
        1 + np.searchsorted(np.cumsum(probabilities[order]), cut.get("top_p", 1.0)),
    )
    probabilities[order[few:]] = 0
    probabilities /= probabilities.sum()
    seen = np.bincount(drawn[:, 2], minlength=VOCABULARY) / count
    assert (seen[probabilities == 0] == 0).all() and (probabilities > 0).sum() > 1
    spread = np.sqrt(probabilities * (1 - probabilities) / count)
    assert (
        np.abs(seen - probabilities)[probabilities > 0] / spread[probabilities > 0]
    ).max() < 4.5


def test_a_temperature_of_zero_takes_the_likeliest():
    tokens = np.asarray(draw(2, temperature=0.0).tokens)
    np.testing.assert_array_equal(tokens[0], tokens[1])
    before = []
    for piece in tokens[0][
        : np.argmax(tokens[0] == EOS) + 1 if EOS in tokens[0] else None
    ]:
        assert piece == next_probabilities(tuple(before)).argmax()
        before.append(piece)


def test_a_text_has_the_probability_that_the_model_gives_it():
    texts = draw(50, beginning=(7,), temperature=1.5, top_k=9)
    ended = 0
    for row, log_prob in zip(np.asarray(texts.tokens), texts.log_probs, strict=True):
        size = int((row > 0).sum())
        assert (
            (row[size:] == 0).all() and (row[: size - 1] != EOS).all() and row[0] == 7
        )
        ended += row[size - 1] == EOS
        assert size == 8 or row[size - 1] == EOS
        each = jax.nn.log_softmax(logits(*build(), jnp.asarray([[BOS, *row[:-1]]]))[0])
        np.testing.assert_allclose(
            log_prob, sum(each[t, row[t]] for t in range(1, size)), rtol=1e-4, atol=1e-4
        )
    assert 0 < ended < 50


def test_neighbours_do_not_matter_and_keys_do():
    one = draw(6).tokens
    other = sampler()(
        build()[1],
        jax.random.key(0),
        jnp.array([[0], [5], [0], [0], [0], [0]]),
        jnp.array([0, 1, 0, 0, 0, 0]),
    ).tokens
    keep = np.array([0, 2, 3, 4, 5])
    np.testing.assert_array_equal(one[keep], other[keep])
    assert (draw(6, key=1).tokens != one).any() and len(
        {tuple(row) for row in np.asarray(one).tolist()}
    ) > 1


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        (dict(), [0, 1, 2, 4]),
        (dict(top_k=2), [1, 2]),
        (dict(top_p=0.5), [1]),
        (dict(top_p=0.75), [1, 2]),
        (dict(top_p=0.0), [1]),
        (dict(top_k=3, top_p=0.5), [1]),
        (dict(top_k=1), [1]),
    ],
)
def test_what_may_be_drawn(cut, expected):
    """The probabilities are 0.1, 0.5, 0.25, nothing and 0.15."""
    scores = jnp.log(jnp.array([0.1, 0.5, 0.25, 0.0, 0.15]))
    allowed = allowed_tokens(
        scores, **{**dict(temperature=1.0, top_k=0, top_p=1.0), **cut}
    )
    np.testing.assert_array_equal(np.flatnonzero(allowed), expected)


def test_of_equals_the_first_are_allowed_tokens():
    np.testing.assert_array_equal(
        np.flatnonzero(allowed_tokens(jnp.zeros(5), 1.0, 2, 1.0)), [0, 1]
    )


def test_without_a_cut_the_unlikeliest_are_kept_too():
    """Though before them float32 has probabilities that sum to 1."""
    assert allowed_tokens(jnp.array([60.0, 0.0, -1.0]), 1.0, 0, 1.0).all()


def test_the_pieces_of_a_text_are_drawn_each_for_itself():
    """At a great temperature all are equally likely, and one in 21 has the piece before it."""
    tokens = np.asarray(draw(200, temperature=1e6).tokens)
    assert 0 < (tokens[:, 1:3] == tokens[:, :2]).mean() < 0.2


def test_more_pieces_than_positions_are_refused():
    model, variables = build()
    with pytest.raises(ValueError, match="max_length=16 is more than the length=15"):
        sample(
            model,
            variables,
            jax.random.key(0),
            jnp.zeros((1, 1), int),
            jnp.zeros(1, int),
            max_length=16,
            bos=BOS,
            eos=EOS,
        )


def test_learned_positions_are_looked_up():
    model, variables = build()
    shifted = {
        **variables,
        "positions": jax.tree.map(lambda x: x + 1, variables["positions"]),
    }
    assert (
        np.abs(logits(model, variables, text()) - logits(model, shifted, text())).max()
        > 1e-3
    )


def test_from_no_prefix_at_all():
    model, variables = build()
    lengths = jnp.zeros(4, jnp.int32)

    def drawn(prefix):
        options = dict(max_length=6, bos=BOS, eos=EOS)
        return sample(
            model, variables, jax.random.key(0), prefix, lengths, **options
        ).tokens

    expected = drawn(jnp.zeros((4, 1), jnp.int32))
    np.testing.assert_array_equal(drawn(jnp.zeros((4, 0), jnp.int32)), expected)
