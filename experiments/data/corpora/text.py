"""Plain text for language models: lines, or all of them as one; plain or gzipped files, UTF-8."""

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

from experiments.data.corpora import BLOCK, SPLITS, CorpusError, Pairs
from experiments.data.corpora.parallel import blocks, find, fingerprint
from experiments.data.lines import Bad
from experiments.settings import TextData

NAMES = "data.train, data.validation and data.test name the files"

# The end is beyond any file, so that lines need not be counted.
ALL_LINES = (0, 2**62)

LINE_END = "↵"
"""Stands for the end of a line where data.lines=stream, as a text has no line breaks."""


class Source:
    """Reads `<directory>/<train>`, `<validation>` and `<test>`, each perhaps with .gz.

    Each text stands on both sides of a pair: a line, or with data.lines=stream some thousands
    of them. Where all three are one file, its last lines are held out: `data.heldout` for
    validation and as many for the test.

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
        self._is_stream = data.lines == "stream"
        self._heldout = data.heldout if len(set(self._paths.values())) == 1 else 0

    @staticmethod
    def texts_of(lines: list[str], data: TextData) -> list[str]:
        """Returns the texts that a file's lines are: each, or with data.lines=stream all in one.

        Raises:
          CorpusError: a line has LINE_END in it, where lines are one text.
        """
        if data.lines != "stream":
            return lines
        texts = []
        for first in range(0, len(lines), BLOCK):
            texts += _joined(lines[first : first + BLOCK], ("line", first))
        for text in texts:
            if isinstance(text, Bad):
                raise CorpusError(f"{text.place}: {text.why}")
        return texts

    def fingerprint(self) -> str:
        """Returns a hash of all files and of how they are read."""
        how = [self._heldout, "stream"] if self._is_stream else self._heldout
        return fingerprint(self._paths.values(), how)

    def read(self, split: str) -> Iterator[Pairs]:
        """Gives the lines of a split as pairs."""
        first, last = self._range(split)
        before = 0
        for lines in blocks(self._paths[split]):
            # A number below 0 would count from the block's end.
            texts = lines[max(0, first - before) : max(0, last - before)]
            if self._is_stream:
                texts = _joined(texts, (self._paths[split], max(first, before)))
            if texts:
                yield Pairs(texts, list(texts))
            before += len(lines)

    def place(self, split: str, i: int) -> str:
        """Returns the file and line of a text, or where lines are one text the file."""
        if self._is_stream:
            return str(self._paths[split])
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


def _joined(lines, place):
    """Returns lines as one text, or several where bad ones part them; `place` is their first's."""
    path, first = place
    for i, line in enumerate(lines):
        if LINE_END in line:
            why = f"{LINE_END} is in it, which ends lines where data.lines=stream"
            lines[i] = Bad(why, f"{path}:{first + i + 1}")
    texts = []
    for is_bad, group in itertools.groupby(lines, lambda line: isinstance(line, Bad)):
        if is_bad:
            texts += group
        else:
            texts.append("".join(line + LINE_END for line in group))
    return texts
