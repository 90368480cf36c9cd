"""The vocabulary: tokens shared by both languages (sentencepiece BPE), trained within the run.

Text is not normalised, and a character outside the vocabulary is spelled in bytes, so decoding gives back what was
encoded. Digits go in pairs, 1970 as 19 70, and join nothing else: numbers are spelled, not memorised, without being
as long as digit by digit.
"""

import hashlib
import io
import itertools
import re
from collections.abc import Iterable, Sequence

import numpy as np
import sentencepiece

from experiments.errors import UserError
from experiments.system import machine

PAD, BOS, EOS, UNK = range(4)
"""Ids of the control tokens. UNK exists because sentencepiece wants one; with bytes to fall back on it never occurs."""


PAIRS_OF_DIGITS = [f"{i:02d}" for i in range(100)]


class VocabularyError(UserError):
    """A vocabulary size that the text cannot support; the message says which it can."""


def train_vocabulary(sentences: Iterable[str], size: int) -> bytes:
    """A sentencepiece model of exactly `size` tokens, the same bytes for the same sentences.

    Raises:
        VocabularyError: the text has too few distinct tokens for `size`, or `size` is too small for its characters.
    """
    if not any(sentences := list(sentences)):
        raise VocabularyError(f"no text to train a vocabulary of {size} tokens on")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=UNK,
            byte_fallback=True,
            split_digits=True,
            user_defined_symbols=PAIRS_OF_DIGITS,
            character_coverage=0.99999,  # rarer characters go by their bytes and cost no token
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=1
            << 20,  # bytes; longer ones, which no model here could read, are not looked at
            num_threads=1,
            minloglevel=3,
        )
    except RuntimeError as error:
        raise VocabularyError(_complaint(size, str(error))) from None
    return model.getvalue()


def _complaint(size, error) -> str:
    if largest := re.search(r"set it to a value <= (\d+)", error):
        return f"vocabulary={size} is more than this text can fill; the largest possible is {largest[1]}"
    if smallest := re.search(r"smaller than required_chars\. \d+ vs (\d+)", error):
        return f"vocabulary={size} is too small for the characters of this text; it needs at least {smallest[1]}"
    return (
        f"vocabulary={size} cannot be trained on this text: {' '.join(error.split())}"
    )


def digest(model: bytes) -> str:
    """Sixteen hexadecimal digits by which a record names a vocabulary."""
    return hashlib.sha256(model).hexdigest()[:16]


class Vocabulary:
    """Sentences to ids and back, around the bytes of a sentencepiece model."""

    def __init__(self, model: bytes):
        self.model = model
        self.digest = digest(model)
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.size = self._processor.vocab_size()

    def encode(self, sentences: Iterable[str]) -> list[np.ndarray]:
        """The int32 ids of each sentence, without BOS and EOS."""
        return [
            np.array(ids, np.int32)
            for ids in self._processor.encode(list(sentences), num_threads=1)
        ]

    def flat(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The same for many at once: the int32 ids of all, one after the other, and each one's number of ids."""
        found = (
            self._processor.encode(sentences, num_threads=machine.cores())
            if sentences
            else []
        )
        lengths = np.fromiter(map(len, found), np.int32, len(found))
        return np.fromiter(
            itertools.chain.from_iterable(found), np.int32, int(lengths.sum())
        ), lengths

    def spans(self, sentence: str) -> list[tuple[int, int]]:
        """(first letter, one after the last) of each of its tokens, white space before a word being of the token."""
        return self._processor.encode(sentence, return_type="offset_mapping")["offsets"]

    def decode(self, ids: Iterable[Sequence[int]]) -> list[str]:
        """The sentence of each row of ids: what comes before its first EOS, padding and BOS left out."""
        rows = [_content(row) for row in ids]
        return (
            self._processor.decode(rows, num_threads=1) if rows else []
        )  # of no rows it would make one ""

    def is_byte(self, i: int) -> bool:
        """Whether token i is one byte, for characters that have no token."""
        return self._processor.is_byte(i)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The token of each id, control tokens included; a leading ▁ marks the start of a word."""
        return self._processor.id_to_piece(np.asarray(ids).tolist())


def _content(row) -> list[int]:
    # Sentencepiece itself leaves out padding and BOS, but goes on after EOS.
    row = np.asarray(row).tolist()
    return row[: row.index(EOS)] if EOS in row else row
