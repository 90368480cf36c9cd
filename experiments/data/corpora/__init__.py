"""Where text comes from: CLDR (the embedded default), parallel text files, files with
columns, TensorFlow Datasets, Hugging Face's datasets, text alone, and corpora from outside."""

import importlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from experiments.errors import UserError
from experiments.settings import TASKS, Data, OutsideData
from experiments.settings.fields import cut


class CorpusError(UserError):
    """Raised for a corpus that cannot be read.

    The message, on one line, names the file or value and the remedy.
    """


class Pairs(NamedTuple):
    """Holds sentences: number i of `source` is translated by number i of `target`."""

    source: list[str]
    target: list[str]


SPLITS = ("train", "validation", "test")

BLOCK = 8192
"""About how many pairs are read at a time, so that a corpus need not fit into memory."""


class Source(Protocol):
    """Reads a corpus.

    It is made of the settings of the data. Its constructor raises CorpusError for what can
    be known to be wrong without reading the text. A corpus from outside is such a class,
    named by data.corpus=module:Name or file.py:Name; its constructor takes the settings
    of the data, and then its own options by name.

    A source may also have

      cuts_long_texts: a class attribute; True for text without translations, the same on
        both sides, whose lines are cut into parts of data.max_length tokens.
      labelled: True where the target has as many words as the source, each the answer that
        is asked after the source's word in its place, or vocabulary.NOTHING. A language model then
        reads the source, and is trained and scored on the answers alone. From outside it is
        a class attribute.
      answers: a class attribute; True where targets are answers, such as labels, and no
        translations, as the setting data.answers says of other corpora.
      symbols(): a method that returns all words of its texts, white space between them. Each
        is then one token, and no vocabulary is trained.
      distances(): a method that returns for each pair of the test split how far back each
        answer is decided, in the order of the answers.
      links(): a method that returns `gold_alignments.Links` for each pair of the test
        split: the words that are translations of each other.
    """

    def fingerprint(self) -> str:
        """Returns a text that is equal for equal content, other for other content.

        It is known without tokenising the text, which is done once for each fingerprint.
        """

    def read(self, split: str) -> Iterator[Pairs]:
        """Gives all pairs of one of SPLITS in their order, some thousands at a time.

        Raises:
          CorpusError: text that cannot be read.
        """

    def place(self, split: str, i: int) -> str:
        """Returns where pair i of a split stands, for messages: "val.en:7"."""

    def counts(self) -> dict[str, int]:
        """Returns what the source left out, by name, once all was read."""


def read_texts(source: Source, split: str) -> Iterator[Pairs]:
    """Gives what `source.read` does.

    Raises CorpusError for a text that is none, such as a number, and for sides that differ
    in length.
    """
    before = 0
    for pairs in source.read(split):
        check_texts(pairs, lambda i, first=before: source.place(split, first + i))
        before += len(pairs.source)
        yield pairs


def check_texts(pairs: Pairs, place: Callable[[int], str]) -> None:
    """Raises CorpusError for what is no text, or has no pair; `place(i)` says where pair i is."""
    lengths = [len(side) for side in pairs]
    if lengths[0] != lengths[1]:
        raise CorpusError(
            f"{place(min(lengths))}: a block has {lengths[0]} sources and {lengths[1]} "
            "targets; give as many of both"
        )
    for side in pairs:
        for i, text in enumerate(side):
            if not isinstance(text, str):
                kind = type(text).__name__
                shown = cut(repr(text), 40)
                raise CorpusError(
                    f"{place(i)}: {shown} is no text but of type {kind}; name a column of "
                    "texts, or make texts of it"
                )


MODULES = {"files": "parallel", **dict.fromkeys(TASKS, "tasks")}
"""The modules of this package that read a corpus, where they have another name."""


def open(data: Data) -> Source:
    """Returns the source that `data.corpus` names.

    Raises:
      CorpusError: it cannot be read.
    """
    if isinstance(data, OutsideData):
        return data.source_choice.make(data)
    # Imported here because the sources import this module's types, and only one is needed.
    module = MODULES.get(data.corpus, data.corpus)
    return importlib.import_module(f"experiments.data.corpora.{module}").Source(data)
