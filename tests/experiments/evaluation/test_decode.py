"""Scores and translations against what they must be."""

import numpy as np
import pytest

from experiments.data.vocabulary import EOS
from experiments.evaluation.decode import translate
from experiments.evaluation.perplexity import perplexity, sentence_losses
from tests.experiments import tiny

pytestmark = pytest.mark.quick


def test_translations_come_back_in_order():
    vocabulary = tiny.corpus().vocabulary()
    sources = tiny.corpus().test.ids.source
    sizes = []

    def echo(state, source, lengths):
        sizes.append(source.shape)
        assert (
            source[np.arange(len(source)), np.maximum(lengths - 1, 0)]
            == np.where(lengths, EOS, 0)
        ).all()
        twice = np.stack([source, np.where(source == EOS, 0, source)], axis=1)
        scores = np.stack([-lengths, np.full(len(lengths), -np.inf)], axis=1)
        return np.stack([np.zeros_like(twice), twice]), np.stack([scores, 2 * scores])

    empty = np.zeros(0, np.int32)
    translations, blank = translate(
        echo,
        None,
        vocabulary,
        [empty, *sources, empty],
        batch_size=5,
        length=48,
        lanes=(1, 0),
    )
    texts = tiny.corpus().test.text.source
    expected = [
        [(-2 * (len(source) + 1.0), text)]
        for source, text in zip(sources, texts, strict=True)
    ]
    assert translations == [[(0, "")], *expected, [(0, "")]]
    assert blank == [[(score / 2, "")] for [(score, _)] in translations]
    assert set(sizes) == {(5, 48)}
    assert translate(echo, None, vocabulary, [empty], batch_size=5, length=48) == [
        [[(0, "")]]
    ]


def test_perplexity_is_over_tokens_not_batches():
    pairs = tiny.corpus().test.ids

    def losses(
        state, batch
    ):  # each real token costs its position, each other far too much
        loss = np.where(batch.target_segments > 0, batch.target_positions / 10, 1e9)
        return np.stack([loss, 2 * loss])

    lengths = np.array([len(t) + 1 for t in pairs.target])
    expected = np.exp((lengths * (lengths - 1) / 2).sum() / 10 / lengths.sum())
    for rows in (1, 5, 64):
        nll, tokens = sentence_losses(losses, None, pairs, rows, 48)
        np.testing.assert_allclose(nll[0], lengths * (lengths - 1) / 20, rtol=1e-12)
        assert tokens.tolist() == lengths.tolist()
        np.testing.assert_allclose(
            perplexity(nll, tokens), [expected, expected**2], rtol=1e-12
        )
