"""What is drawn from a language model: which tokens, and with what probability."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import sample
from attn.nn.sampling import allowed_tokens
from tests.attn.nn.test_language_model import VOCABULARY, build, logits

BOS = 1
EOS = 2
MARKS = dict(bos=BOS, eos=EOS)
COUNT = 200


def logits_of(rows):
    """Returns those of texts of 9 tokens at most, two by two through one program."""
    rows = np.asarray(rows)
    count, length = rows.shape
    whole = np.zeros((count + count % 2, 9), np.int32)
    whole[:count, :length] = rows
    pairs = [logits(*build(), pair) for pair in whole.reshape(-1, 2, 9)]
    return np.concatenate(pairs)[:count, :length]


@functools.cache
def sampler(max_length):
    model, variables = build()
    options = dict(max_length=max_length, **MARKS)
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
def test_tokens_are_drawn_with_their_probabilities(cut):
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
    ends = np.append(np.flatnonzero(tokens[0] == EOS), 7)
    for token in tokens[0][: ends[0] + 1]:
        assert token == next_probabilities(tuple(before)).argmax()
        before.append(token)


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


def test_the_tokens_of_a_text_are_drawn_each_for_itself():
    """At a great temperature all are equally likely, and one in 21 has the token before it."""
    tokens = np.asarray(draw(temperature=1e6).tokens)
    assert 0 < (tokens[:, 1:3] == tokens[:, :2]).mean() < 0.2


def test_more_tokens_than_positions_are_refused():
    model, variables = build()
    prefix = jnp.zeros((1, 1), int), jnp.zeros(1, int)
    with pytest.raises(ValueError, match="max_length=16 is more than the length=15"):
        sample(model, variables, jax.random.key(0), *prefix, max_length=16, **MARKS)


def test_from_no_prefix_at_all():
    prefix, lengths = jnp.zeros((COUNT, 0), jnp.int32), np.zeros(COUNT, int)
    drawn = sampler(8)(jax.random.key(0), prefix, lengths)
    np.testing.assert_array_equal(drawn.tokens, draw().tokens)
