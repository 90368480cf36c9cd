"""BLEU by the tokenizer of a language: in corpus scores, in those of resampled sentences, in
the signature, and in what a trial writes."""

import numpy as np
import pytest
import sacrebleu

from experiments.data.corpora import Pairs
from experiments.evaluation import evaluator
from experiments.evaluation.metrics import (
    BLEU,
    Bleu,
    Texts,
    corpus_scores,
    notes,
    of_objective,
    sentence_arrays,
    signatures,
    tokenizer_of,
)
from experiments.objectives import Translate
from experiments.settings import resolve
from tests.experiments import tiny

pytestmark = pytest.mark.quick

TEXTS = {
    "zh": ["我们明天去图书馆。", "这本书很有意思。", "他昨天买了一辆新车 3 km。"],
    "ja": ["私たちは明日図書館へ行きます。", "この本はとても面白いです。"],
    "ko": ["우리는 내일 도서관에 갑니다.", "이 책은 아주 재미있습니다."],
    "th": ["พรุ่งนี้เราจะไปห้องสมุด", "หนังสือเล่มนี้น่าสนใจมาก"],
    "de": ["Wir gehen morgen in die Bücherei.", "Dieses Buch ist sehr spannend."],
}
TOKENIZERS = dict(zh="zh", ja="char", ko="char", th="char", de="13a")


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [
        ("", "13a"),
        ("en", "13a"),
        ("pt_BR", "13a"),
        ("zh", "zh"),
        ("zh_Hans_CN", "zh"),
        ("zh-TW", "zh"),
        ("zho_Hant", "zh"),
        ("tok.zh", "zh"),
        ("JA", "char"),
        ("kor_Hang", "char"),
        ("my", "char"),
    ],
)
def test_the_language_chooses_the_tokenizer(language, tokenizer):
    assert tokenizer_of(language) == tokenizer


@pytest.mark.parametrize("language", TEXTS)
def test_right_translations_have_all_points_and_wrong_ones_sacrebleus(language):
    texts = TEXTS[language]
    right = corpus_scores(Texts(texts, texts), of_objective(Translate(), language))
    assert right["bleu"] == pytest.approx(100)
    # One character less and one more.
    worse = [f"{texts[0][:-3]}{texts[0][-2:]}", *texts[2:], f"{texts[1]}{texts[1][-1]}"]
    references = [texts[0], *texts[2:], texts[1]]
    expected = sacrebleu.corpus_bleu(
        worse, [references], tokenize=TOKENIZERS[language]
    ).score
    scores = corpus_scores(
        Texts(worse, references), of_objective(Translate(), language)
    )
    assert 0 < scores["bleu"] == pytest.approx(expected)
    # Those that a report draws again have the same tokens: one formula for all languages.
    arrays = sentence_arrays(
        Texts(worse, references), of_objective(Translate(), language)
    )
    sums = BLEU.statistics(arrays).sum(0)
    assert BLEU.of_sums(sums, len(texts)) == pytest.approx(scores["bleu"])
    signature = signatures(scores, "", of_objective(Translate(), language))["bleu"]
    assert f"|tok:{TOKENIZERS[language]}|" in signature


def test_moses_tokens_are_taken_as_they_stand_and_detokenised_by_language():
    texts = ["我们 明天 去 图书馆 。", "这 本 书 很 有意思 。"]
    metrics = of_objective(Translate(), "zh")
    scores = corpus_scores(Texts(texts, texts, "zh"), metrics)
    signed = signatures(scores, "zh", metrics)
    assert "|tok:none|" in signed["bleu"] and "|tok:zh|" in signed["bleu_detokenized"]
    assert scores["bleu_detokenized"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("references", "language", "tokens_of", "name"),
    [
        (["a dog ran", "no", ""], "de", "", "13a"),
        (TEXTS["zh"][:2], "de", "", "13a"),
        (["十", "二三"], "zh", "", "zh"),
        (["eins zwei drei", "it's"], "de", "de", "none"),
    ],
)
def test_text_of_few_tokens_has_a_note(references, language, tokens_of, name):
    metrics = of_objective(Translate(), language)
    texts = Texts(references, references, tokens_of)
    assert corpus_scores(texts, metrics)["bleu"] == 0
    found = notes(references, tokens_of, metrics)
    assert found.keys() == {"bleu"}
    assert f"no reference has as many (tokenizer {name})" in found["bleu"]


def test_four_tokens_need_no_note():
    assert notes(["no", "one two three four"], "", of_objective(Translate())) == {}
    assert notes(TEXTS["zh"], "", of_objective(Translate(), "zh")) == {}


@pytest.mark.parametrize(
    ("data", "language"),
    [
        ({"corpus": "cldr", "target": "zh"}, "zh"),
        *(
            ({"corpus": corpus, "directory": "x", "target": "ja"}, "ja")
            for corpus in ("files", "tsv", "csv", "jsonl")
        ),
        ({"corpus": "tfds", "dataset": "wmt14_translate/de-en", "target": "ko"}, "ko"),
        ({"corpus": "huggingface", "dataset": "x", "target": "zh"}, "zh"),
        ({"corpus": "copy", "form": "pairs"}, ""),
    ],
)
def test_every_corpus_says_its_language(data, language):
    settings = resolve({"data": data})
    assert settings.data.language == language
    if language:
        (metric, *_) = evaluator.metrics_of(settings)
        assert metric == Bleu(language)


def test_a_trial_says_so(monkeypatch):
    """In its notes; those of a language model without translations say nothing of BLEU."""
    short = Pairs(["one"] * 3, ["eins", "eins zwei", "eins zwei drei"])
    prepared = tiny.corpus()
    prepared = prepared._replace(test=prepared.test._replace(text=short))
    assert "tokenizer 13a" in evaluator.score_notes(tiny.resolve(), prepared)["bleu"]
    settings = resolve({"model": {"kind": "language"}})
    assert evaluator.score_notes(settings, prepared) == {}


def test_the_counts_of_sentences_are_by_tokens():
    arrays = sentence_arrays(
        Texts(["我们去。"], ["我们去。"]), of_objective(Translate(), "zh")
    )
    np.testing.assert_array_equal(arrays["test_bleu"], [[4, 3, 2, 1, 4, 3, 2, 1, 4, 4]])
