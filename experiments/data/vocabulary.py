"""The vocabulary: tokens that both languages share, a model of sentencepiece.

It is trained within the run (BPE), holds the text's characters, or is another model's.

Text is not normalised, and a character outside the vocabulary is spelled in bytes, so that
decoding gives back what was encoded. Digits go in pairs, 1970 as 19 70, and join nothing
else: numbers are spelled, not memorised, in half of the tokens that digits would take.
"""

import hashlib
import io
import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import sentencepiece

from experiments.errors import UserError
from experiments.objectives import NOTHING, NOTHING_ID
from experiments.system import machine

PAD, BOS, EOS, UNK = range(4)
"""Ids of the control tokens. UNK is needed by sentencepiece; as unknown characters are
spelled in bytes, it never occurs."""

PAIRS_OF_DIGITS = [f"{i:02d}" for i in range(100)]

BLANK = "▁"
"""How sentencepiece writes a blank."""

BYTES = 256
"""The tokens that spell what is no token."""


OF_THE_TEXT = ("bpe", "characters")
"""The vocabularies that are made of the training text."""

FILE = "vocabulary.model"
"""The file of a trial's directory that has its vocabulary."""


class VocabularyError(UserError):
    """Raised for a size that the text cannot support, naming one that it can, and for a file
    that is no vocabulary."""


def made_vocabulary(kind: str, sentences: Iterable[str], size: int) -> bytes:
    """Returns the vocabulary `kind`, one of OF_THE_TEXT, of some sentences.

    Raises VocabularyError as `train_vocabulary` and `character_vocabulary` do.
    """
    if kind == "characters":
        return character_vocabulary(sentences, size)
    return train_vocabulary(sentences, size)


def kept_vocabulary(place: str) -> bytes:
    """Returns the vocabulary of a trial's directory, or of a file of sentencepiece.

    Raises:
      VocabularyError: there is none, or its control tokens have other ids.
    """
    path = Path(place)
    path = path / FILE if path.is_dir() else path
    named = f"data.vocabulary={place}"
    try:
        model = path.read_bytes()
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    except OSError as error:
        raise VocabularyError(
            f"{named}: {path} cannot be read ({error.strerror}); give a trained model's "
            f"directory, a file of sentencepiece, or {' or '.join(OF_THE_TEXT)}"
        ) from None
    except RuntimeError:
        raise VocabularyError(f"{named}: {path} is no model of sentencepiece") from None
    found = (
        processor.pad_id(),
        processor.bos_id(),
        processor.eos_id(),
        processor.unk_id(),
    )
    if found != (PAD, BOS, EOS, UNK):
        raise VocabularyError(
            f"{named}: padding, begin, end and unknown are its ids {found}, which must be "
            f"{(PAD, BOS, EOS, UNK)}; train it with --pad_id={PAD} --bos_id={BOS} "
            f"--eos_id={EOS} --unk_id={UNK}"
        )
    return model


def train_vocabulary(sentences: Iterable[str], size: int) -> bytes:
    """Returns a sentencepiece model of exactly `size` tokens.

    The same sentences give the same bytes.

    Raises:
      VocabularyError: the text has too few distinct tokens for `size`, or `size` is too
        small for its characters.
    """
    if not any(sentences := list(sentences)):
        raise VocabularyError(f"no text to train a vocabulary of {size} tokens on")
    try:
        return _train(sentences, size)
    except RuntimeError as error:
        raise VocabularyError(_complaint(size, str(error))) from None


def character_vocabulary(sentences: Iterable[str], most: int) -> bytes:
    """Returns a sentencepiece model of single characters, the most frequent ones if too many.

    Others are spelled in bytes. It has `most` tokens or fewer; one of them begins each text.

    Raises:
      VocabularyError: there is no text, or no room for any character.
    """
    if not any(sentences := list(sentences)):
        raise VocabularyError("no text to take the characters of")
    smallest = UNK + 1 + BYTES
    if most <= smallest:
        raise VocabularyError(
            f"data.vocabulary_size={most} has no room for characters beside {smallest} control "
            "tokens and single bytes"
        )
    of_characters = dict(
        model_type="char", character_coverage=1.0, user_defined_symbols=[]
    )
    return _train(sentences, most, hard_vocab_limit=False, **of_characters)


def fitting_vocabulary(sentences: Sequence[str], most: int) -> bytes:
    """Returns a sentencepiece model of `most` tokens, or of as many as the text has.

    Raises VocabularyError where the text has more characters.
    """
    try:
        return _train(sentences, most, hard_vocab_limit=False)
    except RuntimeError as error:
        raise VocabularyError(_complaint(most, str(error))) from None


def _train(sentences, size, **options) -> bytes:
    # By default sentencepiece would write two files of its own.
    model = io.BytesIO()
    of_bpe = dict(
        model_type="bpe",
        # Else BPE would learn frequent numbers, such as years, as tokens.
        split_digits=True,
        user_defined_symbols=PAIRS_OF_DIGITS,
        # Rarer characters are spelled in bytes and cost no token.
        character_coverage=0.99999,
    )
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        vocab_size=size,
        pad_id=PAD,
        bos_id=BOS,
        eos_id=EOS,
        unk_id=UNK,
        byte_fallback=True,
        # Sentencepiece's default would change characters and drop spaces.
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        # In bytes. Longer sentences, which no model here could read, are left out.
        max_sentence_length=1 << 20,
        num_threads=1,
        # Its log would stand among our own lines; what goes wrong is raised.
        minloglevel=3,
        **of_bpe | options,
    )
    return model.getvalue()


def symbol_vocabulary(symbols: Sequence[str]) -> bytes:
    """Returns a sentencepiece model in which each of some symbols is one token.

    Symbols stand between white space. Beside them there are the control tokens and NOTHING.
    """
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(symbols),
        model_writer=model,
        model_type="word",
        vocab_size=NOTHING_ID + 1 + len(symbols),
        pad_id=PAD,
        bos_id=BOS,
        eos_id=EOS,
        unk_id=UNK,
        # It has the first free id so, whatever the symbols are; ▁ marks a word's start.
        user_defined_symbols=[BLANK + NOTHING],
        normalization_rule_name="identity",
        minloglevel=3,
    )
    return model.getvalue()


def _complaint(size, error) -> str:
    # Sentencepiece tells the possible sizes in the text of its error alone.
    if largest := re.search(r"set it to a value <= (\d+)", error):
        return (
            f"data.vocabulary_size={size} is more than this text can fill; the largest possible is "
            f"{largest[1]}"
        )
    if smallest := re.search(r"smaller than required_chars\. \d+ vs (\d+)", error):
        return (
            f"data.vocabulary_size={size} is too small for the characters of this text; "
            f"it needs at least {smallest[1]}"
        )
    reason = " ".join(error.split())
    return f"data.vocabulary_size={size} cannot be trained on this text: {reason}"


def digest(model: bytes) -> str:
    """Returns sixteen hexadecimal digits by which a record names a vocabulary."""
    return hashlib.sha256(model).hexdigest()[:16]


class Vocabulary:
    """Turns sentences into ids and back, with the bytes of a sentencepiece model."""

    def __init__(self, model: bytes):
        self.model = model
        self.digest = digest(model)
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.size = self._processor.vocab_size()

    def encode(self, sentences: Iterable[str]) -> list[np.ndarray]:
        """Returns the int32 ids of each sentence, without BOS and EOS."""
        return [
            np.array(ids, np.int32)
            for ids in self._processor.encode(list(sentences), num_threads=1)
        ]

    def flat(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the int32 ids of many sentences, one after the other, and their numbers."""
        rows = []
        if sentences:
            rows = self._processor.encode(sentences, num_threads=machine.cores())
        lengths = np.fromiter(map(len, rows), np.int32, len(rows))
        ids = itertools.chain.from_iterable(rows)
        return np.fromiter(ids, np.int32, int(lengths.sum())), lengths

    def spans(self, sentence: str) -> list[tuple[int, int]]:
        """Returns (first letter, one after the last) of each token of a sentence.

        White space before a word belongs to its token.
        """
        return self._processor.encode(sentence, return_type="offset_mapping")["offsets"]

    def decode(self, ids: Iterable[Sequence[int]]) -> list[str]:
        """Returns the sentence of each row of ids.

        It ends before the row's first EOS, and padding and BOS are left out.
        """
        rows = [_before_eos(row) for row in ids]
        # Of no rows sentencepiece would make one empty sentence.
        return self._processor.decode(rows, num_threads=1) if rows else []

    def decode_parts(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Returns the text of each part of one sentence; together they are the sentence.

        A character whose bytes several parts share is in the one in which it begins.
        """
        ids = self._whole_characters(ids)
        # At a sentence's beginning a blank is no text, but a word's mark.
        blank = self._processor.piece_to_id(BLANK)
        before = [] if blank == UNK else [blank]
        return self.decode([*ids[:1], *([*before, *part] for part in ids[1:])])

    def _whole_characters(self, ids):
        """Returns parts in which no character is parted."""
        parts = []
        # The last part with a token, as a part may be bytes that go on alone.
        last = []
        for part in ids:
            rest = list(part)
            goes_on = list(itertools.takewhile(self._goes_on, rest))
            last += goes_on
            parts.append(rest[len(goes_on) :])
            last = parts[-1] or last
        return parts

    def _goes_on(self, i):
        """Returns whether token i is a byte that goes on a character, as <0x80> to <0xBF>."""
        return self.is_byte(i) and self._processor.id_to_piece(i)[3] in "89AB"

    def is_byte(self, i: int) -> bool:
        """Returns whether token i is one byte of a character that has no token."""
        return self._processor.is_byte(i)

    def spelled(self, ids: Sequence[int]) -> set[str]:
        """Returns the characters among tokens that are spelled in bytes."""
        found = set()
        runs = itertools.groupby(np.asarray(ids).tolist(), self.is_byte)
        for is_byte, run in runs:
            if is_byte:
                found.update(self._processor.decode(list(run)))
        return found

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Returns the token of each id, control tokens included; ▁ marks a word's start."""
        return self._processor.id_to_piece(np.asarray(ids).tolist())


class Labels:
    """Turns labels of a closed set into ids and back, as `Vocabulary` does sentences."""

    def __init__(self, names: Sequence[str]):
        self.names = tuple(names)
        self._ids = {name: i for i, name in enumerate(self.names)}

    def encode(self, labels: Iterable[str]) -> list[np.ndarray]:
        """Returns the one id of each label. Raises KeyError for an unknown one."""
        return [np.array([self._ids[label]], np.int32) for label in labels]

    def flat(self, labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of many labels, and 1 for each."""
        ids = np.fromiter((self._ids[label] for label in labels), np.int32, len(labels))
        return ids, np.ones(len(labels), np.int32)

    def decode(self, ids: Iterable[Sequence[int]]) -> list[str]:
        """Returns the label that each row of ids begins with."""
        return [self.names[row[0]] for row in ids]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Returns the label of each id."""
        return [self.names[i] for i in ids]


def _before_eos(row) -> list[int]:
    # Sentencepiece itself leaves out padding and BOS, but goes on after EOS.
    row = np.asarray(row).tolist()
    return row[: row.index(EOS)] if EOS in row else row
