"""The language model against the float64 oracle and against itself piece by piece, and
what is drawn from it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attn.models.sampling import allowed_tokens

from attn import (
    T5,
    ALiBi,
    Convolutional,
    DeltaNet,
    Design,
    Differential,
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
from tests.attn import numpy_transformer
from tests.attn.models.random_variables import random_variables

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
def build(design=DESIGNS[0], shape=SHAPE, **options):
    """Random parameters, biases and norms too."""
    model = LanguageModel(shape, VOCABULARY, LENGTH, design=design, **options)
    ids = jnp.zeros((1, 2), jnp.int32)
    variables = random_variables(model, ids, ids)
    table = Sinusoidal().table(jax.random.key(0), LENGTH, SHAPE.d_model)
    return model, variables | dict(positions=dict(target_positions={"table": table}))


def text(count=2, length=9, seed=0):
    return jnp.asarray(
        np.random.default_rng(seed).integers(3, VOCABULARY, (count, length))
    )


@functools.partial(jax.jit, static_argnums=0)
def logits(model, variables, pieces, mask=Mask.causal(), places=jnp.arange(9)):
    places = jnp.broadcast_to(places, pieces.shape)
    hidden = model.apply(variables, pieces, places, mask)
    return model.apply(variables, hidden, method="logits")


def logits_of(rows):
    """Returns those of texts of 9 pieces at most, two by two through one program."""
    rows = np.asarray(rows)
    count, length = rows.shape
    whole = np.zeros((count + count % 2, 9), np.int32)
    whole[:count, :length] = rows
    pairs = [logits(*build(), pair) for pair in whole.reshape(-1, 2, 9)]
    return np.concatenate(pairs)[:count, :length]


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_logits_equal_the_oracle(norm):
    model, variables = build(Design(norm=norm))
    exact = jax.tree.map(lambda x: np.asarray(x, np.float64), variables)
    pieces = text()[0]
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
    shape = SHAPE if design in DESIGNS[:2] else SHAPE._replace(N=1)
    model, variables = build(design, shape)
    pieces = text()
    expected = logits(model, variables, pieces)
    for t in (0, 3, 7):
        other = pieces.at[:, t + 1 :].set(2)
        actual = logits(model, variables, other)[:, : t + 1]
        np.testing.assert_allclose(actual, expected[:, : t + 1], rtol=1e-4, atol=1e-4)

    @jax.jit
    def step(*arguments):
        hidden, caches = model.apply(variables, *arguments, method="decode_step")
        return model.apply(variables, hidden, method="logits")[0], caches

    room = (1,), 2 * 9, jnp.float32, 2
    caches = model.apply(variables, *room, method="empty_caches")
    own = np.arange(18)[None] % 2 == np.arange(2)[:, None]
    for t in range(9):
        seen = own & (np.arange(18)[None] < 2 * (t + 1))
        actual, caches = step(pieces[None, :, t], jnp.int32(t), caches, seen[None])
        np.testing.assert_allclose(actual, expected[:, t], rtol=1e-4, atol=1e-4)


def test_packed_texts_do_not_see_each_other():
    model, variables = build()
    first, second = text(length=5)
    row = jnp.concatenate([first[:4], second])
    segments = jnp.array([1] * 4 + [2] * 5)
    places = jnp.concatenate([jnp.arange(4), jnp.arange(5)])
    mask = Mask.causal() & Mask.segments(segments, segments)
    actual = logits(model, variables, row, mask, places)
    expected = logits_of([first, second])
    for part, own in ((actual[:4], expected[0, :4]), (actual[4:], expected[1])):
        np.testing.assert_allclose(part, own, rtol=1e-4, atol=1e-4)


@functools.cache
def loss_and_gradients(**options):
    """Of layers that differ by their number."""
    model, variables = build(Design(norm="pre", heads=Differential()))
    other = model.clone(**options)

    def loss(variables):
        return (logits(other, variables, text()) ** 2).sum()

    return jax.jit(jax.value_and_grad(loss))(variables)


@pytest.mark.ci
@pytest.mark.parametrize("options", [dict(remat=True), dict(scan=True)])
def test_remat_and_scan_change_nothing(options):
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3),
        loss_and_gradients(**options),
        loss_and_gradients(),
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


COUNT = 200


@functools.cache
def sampler(max_length):
    model, variables = build()
    options = dict(max_length=max_length, bos=BOS, eos=EOS)
    return jax.jit(functools.partial(sample, model, variables, **options))


def draw(key=0, prefix=(), count=COUNT, max_length=8, **cut):
    """Returns texts, all with one prefix; two programs serve every test."""
    row = np.zeros(2, np.int32)
    row[: len(prefix)] = prefix
    cut = dict(temperature=1.0, top_k=0, top_p=1.0) | cut
    lengths = np.full(count, len(prefix))
    rows = jnp.asarray(np.tile(row, (count, 1)))
    return sampler(max_length)(jax.random.key(key), rows, lengths, **cut)


@functools.cache
def next_probabilities(prefix):
    """Returns the scores of each token after `bos` and a prefix, −inf if never drawn."""
    scores = np.asarray(logits_of([[BOS, *prefix]])[0, -1], np.float64)
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
    prefix = (5, 9)
    drawn = np.asarray(draw(prefix=prefix, count=count, max_length=3, **cut).tokens)
    assert (drawn[:, :2] == prefix).all()
    scores = next_probabilities(prefix) / cut.get("temperature", 1.0)
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
    tokens = np.asarray(draw(temperature=0.0).tokens)
    np.testing.assert_array_equal(tokens[0], tokens[1])
    before = []
    for piece in tokens[0][
        : np.argmax(tokens[0] == EOS) + 1 if EOS in tokens[0] else None
    ]:
        assert piece == next_probabilities(tuple(before)).argmax()
        before.append(piece)


def test_a_text_has_the_probability_that_the_model_gives_it():
    texts = draw(prefix=(7,), temperature=1.5, top_k=9)
    tokens = np.asarray(texts.tokens)
    read = np.insert(tokens[:, :-1], 0, BOS, axis=1)
    each_of = np.asarray(jax.nn.log_softmax(logits_of(read)))
    ended = 0
    for row, each, log_prob in zip(tokens, each_of, texts.log_probs, strict=True):
        size = int((row > 0).sum())
        assert (
            (row[size:] == 0).all() and (row[: size - 1] != EOS).all() and row[0] == 7
        )
        ended += row[size - 1] == EOS
        assert size == 8 or row[size - 1] == EOS
        np.testing.assert_allclose(
            log_prob, sum(each[t, row[t]] for t in range(1, size)), rtol=1e-4, atol=1e-4
        )
    assert 0 < ended < COUNT


def test_neighbours_do_not_matter_and_keys_do():
    one = np.asarray(draw().tokens)
    prefix, lengths = np.zeros((COUNT, 2), np.int32), np.zeros(COUNT, int)
    prefix[1, 0], lengths[1] = 5, 1
    cut = dict(temperature=1.0, top_k=0, top_p=1.0)
    other = sampler(8)(jax.random.key(0), jnp.asarray(prefix), lengths, **cut).tokens
    keep = np.arange(COUNT) != 1
    np.testing.assert_array_equal(one[keep], other[keep])
    assert (draw(key=1).tokens != one).any()
    assert len({tuple(row) for row in one.tolist()}) > 1


allowed_of_five = jax.jit(allowed_tokens)


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
    allowed = allowed_of_five(
        scores, **{**dict(temperature=1.0, top_k=0, top_p=1.0), **cut}
    )
    np.testing.assert_array_equal(np.flatnonzero(allowed), expected)


def test_of_equals_the_first_are_allowed_tokens():
    np.testing.assert_array_equal(
        np.flatnonzero(allowed_of_five(jnp.zeros(5), 1.0, 2, 1.0)), [0, 1]
    )


def test_without_a_cut_the_unlikeliest_are_kept_too():
    """Though before them float32 has probabilities that sum to 1."""
    scores = jnp.array([60.0, 0.0, -1.0, -1.0, -1.0])
    assert allowed_of_five(scores, 1.0, 0, 1.0).all()


def test_the_pieces_of_a_text_are_drawn_each_for_itself():
    """At a great temperature all are equally likely, and one in 21 has the piece before it."""
    tokens = np.asarray(draw(temperature=1e6).tokens)
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
    prefix, lengths = jnp.zeros((COUNT, 0), jnp.int32), np.zeros(COUNT, int)
    drawn = sampler(8)(jax.random.key(0), prefix, lengths)
    np.testing.assert_array_equal(drawn.tokens, draw().tokens)
