"""Plain text for language models: a line is a text; plain or gzipped files, UTF-8."""

import functools
from collections.abc import Iterator
from pathlib import Path

from experiments.data.corpora import SPLITS, CorpusError, Pairs
from experiments.data.corpora.parallel import blocks, find, fingerprint
from experiments.settings import TextData

NAMES = "data.train, data.validation and data.test name the files"

# The end is beyond any file, so that lines need not be counted.
ALL_LINES = (0, 2**62)


class Source:
    """Reads `<directory>/<train>`, `<validation>` and `<test>`, each perhaps with .gz.

    Each line stands on both sides of a pair. Where all three are one file, its last lines
    are held out: `data.heldout` for validation and as many for the test.

    Raises:
      CorpusError: a missing or empty file, or too few lines. The message names the file and
        the remedy.
    """

    cuts_long_texts = True

    def __init__(self, data: TextData):
        directory = Path(data.directory)
        if not directory.is_dir():
            raise CorpusError(
                f"{directory}: no such folder; data.directory must hold the text files"
            )
        self._paths = {}
        for split, name in zip(
            SPLITS, (data.train, data.validation, data.test), strict=True
        ):
            self._paths[split] = find(directory, name, NAMES)
        self._heldout = data.heldout if len(set(self._paths.values())) == 1 else 0

    def fingerprint(self) -> str:
        """Returns a hash of all files and of the number of lines held out."""
        return fingerprint(self._paths.values(), self._heldout)

    def read(self, split: str) -> Iterator[Pairs]:
        """Gives the lines of a split as pairs."""
        first, last = self._range(split)
        before = 0
        for lines in blocks(self._paths[split]):
            # A number below 0 would count from the block's end.
            texts = lines[max(0, first - before) : max(0, last - before)]
            before += len(lines)
            if texts:
                yield Pairs(texts, list(texts))

    def place(self, split: str, i: int) -> str:
        """Returns the file and line of a text."""
        return f"{self._paths[split]}:{self._range(split)[0] + i + 1}"

    def _range(self, split):
        """Returns the first line of a split, from 0 on, and the one after its last."""
        if not self._heldout:
            return ALL_LINES
        train = self._line_count - 2 * self._heldout
        if train < 1:
            raise CorpusError(
                f"{self._paths[split]} has {self._line_count} lines, too few to hold out "
                f"data.heldout={self._heldout} for validation and as many for the test; "
                "lower it, or give each a file"
            )
        return {
            "train": (0, train),
            "validation": (train, train + self._heldout),
            "test": (train + self._heldout, self._line_count),
        }[split]

    @functools.cached_property
    def _line_count(self):
        return sum(map(len, blocks(self._paths["train"])))
