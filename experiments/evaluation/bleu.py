"""BLEU (Papineni et al. 2002) as sacreBLEU computes it, by the tokenizer of a language.

S sentences.
"""

import re
from collections.abc import Sequence
from types import ModuleType

import numpy as np

ORDERS = 4
"""BLEU counts 1 to 4 tokens in a row."""

TOKENIZERS = {
    "zh": ("zh", "zho", "cmn", "yue"),
    "char": (
        *("ja", "jpn", "ko", "kor"),
        *("th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bo", "bod", "dz", "dzo"),
    ),
}
"""sacreBLEU's tokenizers and the languages, in ISO 639, that have one other than 13a."""


def tokenizer_of(language: str) -> str:
    """Returns the name of sacreBLEU's tokenizer for a language, such as "de" or "zh_Hans".

    13a, the default, splits at blanks and punctuation, so that it takes a sentence of a
    script without blanks for a word. Chinese has zh, which splits at each of its characters.
    Others of that kind, and Korean, have char, which splits at every character: what sacreBLEU
    itself has for Japanese and Korean needs MeCab, and two machines, one with it and one
    without, would give one table two BLEUs. "" and all others have 13a.
    """
    # The ending of a file may be more than a language: tok.zh, zh-CN.
    code = re.split(r"[-_]", language.rpartition(".")[2])[0].lower()
    for tokenizer, languages in TOKENIZERS.items():
        if code in languages:
            return tokenizer
    return "13a"


def bleu_of_corpus(
    translations: Sequence[str],
    references: Sequence[str],
    tokens_of: str,
    language: str = "",
) -> float:
    """Computes BLEU, 0 to 100, by the language's tokenizer; of Moses tokens as they stand.

    Papers that publish tokenised text give BLEU over those tokens.
    """
    metric = _metric(tokens_of, language)
    return metric.corpus_score(translations, [references]).score


def bleu_of_sentences(
    translations: Sequence[str],
    references: Sequence[str],
    tokens_of: str,
    language: str = "",
) -> np.ndarray:
    """Counts correct 1- to 4-grams, all 1- to 4-grams, length and reference length.

    Returns int32 (S, 10).
    """
    # sacreBLEU warns of sentence scores without effective_order; the counts are the
    # same.
    metric = _metric(tokens_of, language, effective_order=True)
    rows = []
    for translation, reference in zip(translations, references, strict=True):
        score = metric.sentence_score(translation, [reference])
        rows.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
    return np.array(rows, np.int32).reshape(-1, 2 * ORDERS + 2)


def bleu_of_sums(sums: np.ndarray, sentences: int) -> np.ndarray:
    """Computes sacreBLEU's corpus BLEU (0 to 100), smoothed by its "exp".

        BLEU = 100 · min(1, e^(1 − reference length / length)) · (Π p_k)^(1/4)

    with p_k = correct / total k-grams, from sums (..., 10) of `bleu_of_sentences`. The z-th
    order without a correct k-gram has p_k = 1 / (2^z · total). Without any correct k-gram,
    or without 4-grams, BLEU is 0.
    """
    correct = sums[..., :ORDERS]
    total = sums[..., ORDERS : 2 * ORDERS]
    length = sums[..., -2]
    reference = sums[..., -1]
    missed = correct == 0
    # The sum counts the orders without a match so far: the z of the formula.
    smoothed = np.where(missed, 0.5 ** np.cumsum(missed, axis=-1), correct)
    mean_log = np.log(smoothed / np.maximum(total, 1)).mean(-1)
    brevity = np.minimum(0, 1 - reference / np.maximum(length, 1))
    defined = (total > 0).all(-1) & ~missed.all(-1)
    return np.where(defined, 100 * np.exp(mean_log + brevity), 0.0)


def bleu_signature(tokens_of: str, language: str = "") -> str:
    """Returns sacreBLEU's signature, which names the tokenizer."""
    return signature(_metric(tokens_of, language))


def bleu_note(references: Sequence[str], tokens_of: str, language: str = "") -> str:
    """Returns why BLEU says nothing of translations with these references; "" if it does."""
    # No tokenizer joins what blanks part, and most texts need no tokenizer to tell.
    if any(len(reference.split()) >= ORDERS for reference in references):
        return ""
    tokenize = _metric(tokens_of, language).tokenizer
    if any(len(tokenize(reference).split()) >= ORDERS for reference in references):
        return ""
    name = _tokenizer_name(tokens_of, language)
    return (
        f"BLEU counts {ORDERS} tokens in a row and no reference has as many (tokenizer "
        f"{name}), so that right translations have BLEU 0 too; data.target names the language, "
        "which chooses the tokenizer"
    )


def sacrebleu() -> ModuleType:
    """Imports sacreBLEU: a run begins without it, and it takes a fifth of a second."""
    import sacrebleu

    return sacrebleu


def signature(metric) -> str:
    """Returns the signature of a metric of sacreBLEU, as papers print it."""
    # It knows the number of references only once it has scored something.
    metric.corpus_score(["a"], [["a"]])
    return metric.get_signature().format()


def _metric(tokens_of, language, **options):
    # sacreBLEU advises against text that ends in " .", as tokenised text does.
    tokenize = _tokenizer_name(tokens_of, language)
    return sacrebleu().BLEU(tokenize=tokenize, force=True, **options)


def _tokenizer_name(tokens_of, language):
    return "none" if tokens_of else tokenizer_of(language)
