"""Where sentence pairs come from: CLDR (the embedded default), parallel text files, TensorFlow Datasets, text alone."""

import importlib
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from experiments import settings
from experiments.errors import UserError


class CorpusError(UserError):
    """A corpus that cannot be had; one line that names the file or value and the remedy."""


class Pairs(NamedTuple):
    """Sentence i of `source` is translated by sentence i of `target`."""

    source: list[str]
    target: list[str]


SPLITS = ("train", "validation", "test")


BLOCK = 8192
"""About how many pairs are read at a time, so that a corpus need not fit into memory."""


class Source(Protocol):
    """A corpus that is about to be read. What can be known to be wrong without reading it is told when it is opened."""

    def fingerprint(self) -> str:
        """Equal for equal content and known without looking at the text, so that it is read once only."""

    def read(self, split: str) -> Iterator[Pairs]:
        """All pairs of one of SPLITS in their order, some thousands at a time. Raises CorpusError on the way."""

    def place(self, split: str, i: int) -> str:
        """Where pair i of a split stands, for messages: "val.en:7"."""

    def counts(self) -> dict[str, int]:
        """What the source left out, once all was read."""


def open(data: settings.Data) -> Source:
    """The corpus that `data.corpus` names. Raises CorpusError where it cannot be had."""
    # Imported here because the sources import this module's types, and only one of them is needed.
    module = {"cldr": "cldr", "files": "parallel", "tfds": "tfds", "text": "text"}[
        data.corpus
    ]
    return importlib.import_module(f"experiments.data.corpora.{module}").Source(data)
