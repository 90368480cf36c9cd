"""Scores and translations against what they must be."""

import numpy as np
import pytest
import sacrebleu

from experiments.data.vocabulary import EOS
from experiments.evaluation.decode import translate
from experiments.evaluation.metrics import (
    corpus_scores,
    detokenize,
    sentence_statistics,
)
from experiments.evaluation.perplexity import perplexity, sentence_losses
from tests.experiments import tiny


def test_scores_of_known_texts():
    references = ["the cat sat on the mat today", "a dog ran over the hill"]
    assert corpus_scores(references, references) == pytest.approx(
        dict(bleu=100, chrf=100, exact_match=1)
    )
    scores = corpus_scores(
        ["the cat sat on the mat today", "a cat walked over a mountain top"], references
    )
    assert (
        scores["exact_match"] == 0.5
        and 0 < scores["bleu"] < 100
        and scores["bleu"] != scores["chrf"]
    )
    with pytest.raises(ValueError, match="1 translations for 2 references"):
        corpus_scores(["x"], references)


def test_bleu_by_hand():
    """Precisions 4/5, 3/4, 2/3, 1/2 and no brevity penalty: the geometric mean is 66.87."""
    bleu = corpus_scores(["one two three four nine"], ["one two three four five"])[
        "bleu"
    ]
    assert bleu == pytest.approx(100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)


def test_bleu_of_tokens_by_hand():
    """Seven tokens of which the last is wrong, which are the five words "it's well-known one two three"."""
    translation, reference = (
        "it &apos;s well @-@ known one two " + last for last in ("three", "four")
    )
    scores = corpus_scores([translation], [reference], "en")
    assert scores["bleu"] == pytest.approx(
        100 * (7 / 8 * 6 / 7 * 5 / 6 * 4 / 5) ** 0.25
    )
    assert scores["bleu_detokenized"] == pytest.approx(
        100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    )
    assert "bleu_detokenized" not in corpus_scores([translation], [reference])


def test_detokenized_text_is_as_people_write():
    assert detokenize(["ein mann , der &quot; ja &quot; sagt ."], "de") == [
        'ein mann, der "ja" sagt.'
    ]
    assert detokenize(["un groupe d&apos; hommes ."], "fr") == ["un groupe d'hommes."]


def test_translations_come_back_in_order():
    vocabulary, sources = tiny.corpus().vocabulary(), tiny.corpus().test.ids.source
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
    found, blank = translate(
        echo,
        None,
        vocabulary,
        [empty, *sources, empty],
        rows=5,
        length=48,
        lanes=(1, 0),
    )
    texts = tiny.corpus().test.text.source
    wanted = [
        [(-2 * (len(source) + 1.0), text)]
        for source, text in zip(sources, texts, strict=True)
    ]
    assert found == [[(0, "")], *wanted, [(0, "")]]
    assert blank == [[(score / 2, "")] for [(score, _)] in found]
    assert set(sizes) == {(5, 48)}
    assert translate(echo, None, vocabulary, [empty], rows=5, length=48) == [
        [[(0, "")]]
    ]


def test_statistics_of_sentences_sum_up_to_bleu():
    references = [
        "the cat sat on the mat today",
        "a dog ran",
        "one two , three four",
        "",
    ]
    translations = ["the cat sat on a mat today", "a dog ran", "", "five"]
    for tokens_of in ("", "en"):
        found = sentence_statistics(translations, references, tokens_of)
        assert found.shape == (4, 10) and found.dtype == np.int32
        *counts, length, reference = found.sum(0).tolist()
        bleu = sacrebleu.BLEU.compute_bleu(
            counts[:4], counts[4:], length, reference, smooth_method="exp"
        ).score
        assert bleu == pytest.approx(
            corpus_scores(translations, references, tokens_of)["bleu"]
        )
    assert sentence_statistics([], []).shape == (0, 10)


def test_perplexity_is_over_tokens_not_batches():
    pairs = tiny.corpus().test.ids

    def losses(
        state, batch
    ):  # each real token costs its position, each other far too much
        found = np.where(batch.target_segments > 0, batch.target_positions / 10, 1e9)
        return np.stack([found, 2 * found])

    lengths = np.array([len(t) + 1 for t in pairs.target])
    wanted = np.exp((lengths * (lengths - 1) / 2).sum() / 10 / lengths.sum())
    for rows in (1, 5, 64):
        nll, tokens = sentence_losses(losses, None, pairs, rows, 48)
        np.testing.assert_allclose(nll[0], lengths * (lengths - 1) / 20, rtol=1e-12)
        assert tokens.tolist() == lengths.tolist()
        np.testing.assert_allclose(
            perplexity(nll, tokens), [wanted, wanted**2], rtol=1e-12
        )
