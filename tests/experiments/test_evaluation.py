"""Scores and translations against what they must be."""

import numpy as np
import pytest

from experiments import evaluation
from experiments.tokens import BOS, EOS
from tests.experiments import tiny


def test_scores_of_known_texts():
    references = ["the cat sat on the mat today", "a dog ran over the hill"]
    assert evaluation.score(references, references) == pytest.approx((100, 100, 1))
    scores = evaluation.score(["the cat sat on the mat today", "a cat walked over a mountain top"], references)
    assert scores.exact_match == 0.5 and 0 < scores.bleu < 100 and scores.bleu != scores.chrf
    with pytest.raises(ValueError, match="1 translations for 2 references"):
        evaluation.score(["x"], references)


def test_bleu_by_hand():
    """Precisions 4/5, 3/4, 2/3, 1/2 and no brevity penalty: the geometric mean is 66.87."""
    bleu = evaluation.score(["one two three four nine"], ["one two three four five"]).bleu
    assert bleu == pytest.approx(100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)


def test_translations_come_back_in_order():
    vocabulary, sources = tiny.corpus().vocabulary(), tiny.corpus().test.ids.source
    sizes = []

    def echo(state, source, lengths):
        sizes.append(source.shape)
        assert (source[np.arange(len(source)), np.maximum(lengths - 1, 0)] == np.where(lengths, EOS, 0)).all()
        return np.where(source == BOS, 0, source)

    empty = np.zeros(0, np.int32)
    found = evaluation.translate(echo, None, vocabulary, [empty, *sources, empty], rows=5, length=48)
    assert found == ["", *tiny.corpus().test.text.source, ""]
    assert set(sizes) == {(5, 48)}
    assert evaluation.translate(echo, None, vocabulary, [empty], rows=5, length=48) == [""]


def test_perplexity_is_over_pieces_not_batches():
    pairs = tiny.corpus().test.ids

    def sums(state, batch):  # each real piece costs its position
        real = batch.target_segments > 0
        return (batch.target_positions * real).sum() / 10, real.sum()

    lengths = np.array([len(t) + 1 for t in pairs.target])
    wanted = np.exp((lengths * (lengths - 1) / 2).sum() / 10 / lengths.sum())
    for rows in (1, 5, 64):
        assert evaluation.perplexity(sums, None, pairs, rows, 48) == pytest.approx(wanted, rel=1e-12)
