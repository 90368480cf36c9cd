"""Where text comes from: CLDR (the embedded default), parallel text files, tables (TSV, CSV,
JSON lines), TensorFlow Datasets, Hugging Face's datasets, text alone, and custom corpora."""

import importlib
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from experiments.errors import UserError
from experiments.settings import TASKS, Data, OutsideData


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


LONGEST = 2048
"""The most tokens of a held-out sentence, end mark included, as a model needs as many
positions."""


class Source(Protocol):
    """Reads a corpus.

    It is made of the settings of the data. Its constructor raises CorpusError for what can
    be known to be wrong without reading the text. A custom corpus is such a class,
    named by data.corpus=module:Name or file.py:Name; its constructor takes the settings
    of the data, and then its own options by name.

    A source may also have

      cuts_long_texts: a class attribute; True for text without translations, the same on
        both sides, whose lines are cut into parts of data.max_length tokens.
      texts_of(lines, data): a static method that returns the texts which lines of a file are;
        where there is none, each is one.
      objective: a class attribute, what is asked of a model: the name of one of
        `experiments.objectives`, or a custom one's class; "translate" where there is none.
        With "answer" the target has as many words as the source, each the answer that is
        asked after the source's word in its place, or objectives.NOTHING, and it needs
        `symbols`.
      symbols(): a method that returns a list or tuple of all words of its texts, which stand
        between white space. Each is then one token, and no vocabulary is trained.
      distances(): a method that returns for each pair of the test split how far back each
        answer is decided, in the order of the answers.
      links(): a method that returns `gold_alignments.Links` for each pair of the test
        split: the words that are translations of each other.
      counts(): a method that returns how many pairs were left out, by the name of the reason,
        once all was read.
      warnings(): a method that returns lines which a user should see before training.
    """

    def fingerprint(self) -> str:
        """Returns a text that is equal for equal content, other for other content.

        It is known without tokenising the text, which is done once for each fingerprint.
        """

    def read(self, split: str) -> Iterator[Pairs]:
        """Gives all pairs of one of SPLITS in their order, some thousands at a time.

        In place of a text that cannot be read it may give a `lines.Bad`, which is counted.

        Raises:
          CorpusError: text that cannot be read.
        """

    def place(self, split: str, i: int) -> str:
        """Returns where pair i of a split stands, for messages: "val.en:7"."""


MODULES = {
    "files": "parallel",
    **dict.fromkeys(("tsv", "csv", "jsonl"), "tables"),
    **dict.fromkeys(TASKS, "tasks"),
}
"""The modules of this package that read a corpus, where they have another name."""


def open(data: Data):
    """Returns the texts of the corpus that `data.corpus` names, see `reading.Texts`.

    Raises:
      CorpusError: it cannot be read.
    """
    # Imported here because all of them import this module's types, and only one source is
    # needed.
    from experiments.data.corpora.reading import Texts

    return Texts(source_of(data), data)


def source_of(data: Data) -> Source:
    """Returns the reader of a corpus, whose texts are as they stand in it.

    Raises:
      CorpusError: it cannot be read.
    """
    if isinstance(data, OutsideData):
        return data.source_choice.make(data)
    return class_of(data)(data)


def class_of(data: Data) -> type[Source]:
    """Returns the class that reads a corpus."""
    if isinstance(data, OutsideData):
        return data.source_choice.cls
    module = MODULES.get(data.corpus, data.corpus)
    return importlib.import_module(f"experiments.data.corpora.{module}").Source
