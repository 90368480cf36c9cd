"""TODO."""

import numpy as np
import sacrebleu
import sacremoses


def sentence_statistics(
    translations: list[str], references: list[str], tokens_of: str = ""
) -> np.ndarray:
    """What BLEU is made of, for each sentence: correct 1- to 4-grams, all 1- to 4-grams, length, reference's length.

    int32 (sentences, 10). The `bleu` of `score` is that of their sum, see sacrebleu.BLEU.compute_bleu.
    """
    bleu = sacrebleu.BLEU(tokenize="none" if tokens_of else "13a", effective_order=True)
    found = [
        bleu.sentence_score(t, [r])
        for t, r in zip(translations, references, strict=True)
    ]
    rows = [[*one.counts, *one.totals, one.sys_len, one.ref_len] for one in found]
    return np.array(rows, np.int32).reshape(-1, 10)


def corpus_scores(
    translations: list[str], references: list[str], tokens_of: str = ""
) -> dict[str, float]:
    """Corpus scores of translations against one reference each, by name.

    `bleu` and `chrf` as sacreBLEU's defaults give them (0 to 100), and `exact_match`, the share (0 to 1). For text in
    Moses tokens of the language `tokens_of`, `bleu` is over the tokens as they stand, as papers give it that publish
    such text, and `bleu_detokenized` is sacreBLEU's default on both sides detokenised.
    """
    if len(translations) != len(references):
        raise ValueError(
            f"{len(translations)} translations for {len(references)} references"
        )
    exact = sum(t == r for t, r in zip(translations, references, strict=True)) / len(
        references
    )
    scores = dict(
        bleu=_bleu(translations, references, tokenize="none" if tokens_of else "13a"),
        chrf=sacrebleu.CHRF().corpus_score(translations, [references]).score,
        exact_match=exact,
    )
    if tokens_of:
        plain = [detokenize(side, tokens_of) for side in (translations, references)]
        scores["bleu_detokenized"] = _bleu(*plain, tokenize="13a")
    return scores


def _bleu(translations, references, tokenize):
    # force: silences sacrebleu's advice about tokenised text, which ends sentences in " ." as CLDR never does.
    return (
        sacrebleu.BLEU(tokenize=tokenize, force=True)
        .corpus_score(translations, [references])
        .score
    )


def detokenize(sentences: list[str], language: str) -> list[str]:
    """Sentences in Moses tokens as plain text."""
    detokenizer = sacremoses.MosesDetokenizer(lang=language)
    return [detokenizer.detokenize(sentence.split()) for sentence in sentences]
