"""Metrics: known texts, scores by hand, and sentences that sum up to the corpus' score."""

import numpy as np
import pytest
import sacrebleu

from experiments.evaluation.metrics import (
    BLEU,
    CHRF,
    EXACT_MATCH,
    METRICS,
    PERPLEXITY,
    Metric,
    Texts,
    corpus_scores,
    detokenized,
    sentence_arrays,
    signatures,
    summary,
)

pytestmark = pytest.mark.quick

REFERENCES = [
    "the cat sat on the mat today",
    "a dog ran",
    "one two , three four",
    "",
    "no",
]
TRANSLATIONS = ["the cat sat on a mat today", "a dog ran", "", "five", "yes, no"]
OF_SENTENCES = [m for m in METRICS if m.split == "test" and m.columns]


def test_exact_match_is_a_share():
    references = ["the cat sat on the mat today", "a dog ran over the hill"]
    translations = [references[0], "a cat walked over a mountain top"]
    assert corpus_scores(Texts(translations, references))["exact_match"] == 0.5


def test_translations_and_references_are_as_many():
    with pytest.raises(ValueError, match="1 translations for 2 references"):
        corpus_scores(Texts(["x"], ["x", "y"]))


def test_bleu_by_hand():
    """Precisions 4/5, 3/4, 2/3, 1/2 and no brevity penalty: the geometric mean is 66.87."""
    translations = ["one two three four nine"]
    references = ["one two three four five"]
    bleu = corpus_scores(Texts(translations, references))["bleu"]
    assert bleu == pytest.approx(100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)


def test_bleu_of_tokens_by_hand():
    """Of eight tokens the last is wrong; they are the words "it's well-known one two three"."""
    beginning = "it &apos;s well @-@ known one two "
    translations = [beginning + "three"]
    references = [beginning + "four"]
    scores = corpus_scores(Texts(translations, references, "en"))
    bleu = 100 * (7 / 8 * 6 / 7 * 5 / 6 * 4 / 5) ** 0.25
    detokenized = 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    assert scores["bleu"] == pytest.approx(bleu)
    assert scores["bleu_detokenized"] == pytest.approx(detokenized)


def test_plain_text_has_no_detokenized_bleu():
    assert "bleu_detokenized" not in corpus_scores(Texts(["one"], ["one"]))


def test_chrf_by_hand():
    """Of "ab" for "ac", 1 of 2 characters and 0 of 1 pair are right: P = R = 1/4."""
    assert corpus_scores(Texts(["ab"], ["ac"]))["chrf"] == pytest.approx(25)


@pytest.mark.parametrize(
    ("language", "tokens", "text"),
    [
        ("de", "ein mann , der &quot; ja &quot; sagt .", 'ein mann, der "ja" sagt.'),
        ("fr", "un groupe d&apos; hommes .", "un groupe d'hommes."),
    ],
)
def test_detokenized_text_is_as_people_write(language, tokens, text):
    assert detokenized(Texts([tokens], [], language)).translations == [text]


@pytest.mark.parametrize("tokens_of", ["", "en"])
@pytest.mark.parametrize("metric", OF_SENTENCES, ids=lambda metric: metric.key)
def test_sums_over_sentences_give_the_corpus_score(metric, tokens_of):
    texts = Texts(TRANSLATIONS, REFERENCES, tokens_of)
    statistics = metric.statistics(sentence_arrays(texts, [metric]))
    assert statistics.shape == (len(REFERENCES), metric.columns)
    score = metric.of_sums(statistics.sum(0), len(REFERENCES))
    assert score == pytest.approx(metric.of_corpus(texts), rel=1e-14)


@pytest.mark.parametrize("metric", OF_SENTENCES, ids=lambda metric: metric.key)
def test_sums_of_resampled_sentences_give_the_resamples_score(metric):
    """Sums may have axes before; each score is that of the corpus with repeated sentences."""
    chosen = [[0, 0, 2, 3, 4], [3, 3, 3, 3, 3], [1, 1, 4, 4, 0]]
    arrays = sentence_arrays(Texts(TRANSLATIONS, REFERENCES), [metric])
    statistics = metric.statistics(arrays)
    sums = np.stack([statistics[indices].sum(0) for indices in chosen])
    expected = []
    for indices in chosen:
        translations = [TRANSLATIONS[i] for i in indices]
        references = [REFERENCES[i] for i in indices]
        expected.append(metric.of_corpus(Texts(translations, references)))
    scores = metric.of_sums(sums, len(REFERENCES))
    np.testing.assert_allclose(scores, expected, rtol=1e-14)


def test_perplexity_joins_two_arrays():
    stored = dict(validation_nll=np.float32([2, 4]), validation_tokens=np.int32([1, 2]))
    statistics = PERPLEXITY.statistics(stored)
    assert statistics.tolist() == [[2, 1], [4, 2]]
    assert PERPLEXITY.of_sums(statistics.sum(0), 2) == pytest.approx(np.exp(2))


def test_a_perplexity_of_hundreds_of_digits_has_few():
    assert summary({"perplexity": 1.25e98, "bleu": 27.25}, METRICS) == (
        "perplexity 1.25e+98  BLEU 27.2"
    )


def test_missing_arrays_have_no_statistics():
    assert PERPLEXITY.statistics(dict(validation_nll=np.zeros(3))) is None


@pytest.mark.parametrize(
    ("metric", "shapes"),
    [
        (BLEU, [(3, 9)]),
        (BLEU, [(3,)]),
        (EXACT_MATCH, [()]),
        (CHRF, [(3, 18, 1)]),
        (PERPLEXITY, [(3,), (4,)]),
    ],
)
def test_other_shapes_are_refused(metric, shapes):
    named = zip(metric.arrays, shapes, strict=True)
    stored = {name: np.zeros(shape) for name, shape in named}
    with pytest.raises(ValueError, match=rf"not \(S, {metric.columns}\)"):
        metric.statistics(stored)


def test_a_custom_metric_is_scored_and_kept():
    """By default the score is the mean over sentences."""

    class Characters(Metric):
        key = heading = "characters"

        def of_sentences(self, texts):
            return np.array([len(text) for text in texts.translations])

    texts = Texts(["ab", "abcd"], ["a", "b"])
    metric = Characters()
    assert corpus_scores(texts, [metric]) == {"characters": 3}
    stored = sentence_arrays(texts, [metric])
    assert metric.statistics(stored).tolist() == [[2], [4]]
    assert stored.keys() == {"test_characters"}


def test_signatures_say_how_scores_were_computed():
    texts = Texts(["ein Hund ."], ["ein Hund ."])
    version = f"version:{sacrebleu.__version__}"
    bleu = "nrefs:1|case:mixed|eff:no|tok:{}|smooth:exp|" + version
    plain = signatures(corpus_scores(texts), "")
    assert plain.keys() == {"bleu", "chrf"}
    assert plain["bleu"] == bleu.format("13a")
    assert plain["chrf"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|")
    tokens = signatures(corpus_scores(texts._replace(tokens_of="de")), "de")
    assert tokens["bleu"] == bleu.format("none")
    assert tokens["bleu_detokenized"] == bleu.format("13a")
