"""Files with tab-separated columns: one file a split, plain or gzipped, UTF-8.

A line is a row; two of its columns are the pair. A column is chosen by its number, from 0
on, or by its name in the first line, which is then no pair. As in `parallel` only a newline
ends a line; there are no quotes, so that a tab always ends a column.
"""

from collections.abc import Iterator
from pathlib import Path

from experiments.data.corpora import SPLITS, CorpusError, Pairs
from experiments.data.corpora.heldout import Parts
from experiments.data.corpora.parallel import blocks, find, fingerprint
from experiments.settings import TsvData

NAMES = "data.train, data.validation and data.test name the files"


class Source:
    """Reads the files `<directory>/<train>` and so on, perhaps with .gz after the name.

    Validation or test with the name of the training file is held out from that, see
    `heldout`.

    Raises:
      CorpusError: a missing or empty file, a missing column, invalid UTF-8, a NUL
        character. The message names the file, the line and the remedy.
    """

    def __init__(self, data: TsvData):
        directory = Path(data.directory)
        if not directory.is_dir():
            raise CorpusError(
                f"{directory}: no such folder; data.directory must hold the files"
            )
        self._columns = {
            "data.source_column": data.source_column,
            "data.target_column": data.target_column,
        }
        # A name can only be looked up in a first line that has the names.
        self._has_header = not all(map(_is_number, self._columns.values()))
        self._paths = {}
        names = dict(zip(SPLITS, (data.train, data.validation, data.test), strict=True))
        for split, name in names.items():
            self._paths[split] = find(directory, name, NAMES)
        self._parts = Parts(self._read, names, data.heldout)

    def fingerprint(self) -> str:
        """Returns a hash of all files, the columns, and how the files are divided."""
        options = (*self._columns.values(), *self._parts.options)
        return fingerprint(self._paths.values(), *options)

    def read(self, split: str) -> Iterator[Pairs]:
        """Gives the pairs of a split."""
        return self._parts.read(split)

    def _read(self, split):
        """Gives all pairs of a split's file."""
        path = self._paths[split]
        numbers = None
        before = 0
        for lines in blocks(path):
            rows = [line.split("\t") for line in lines]
            if numbers is None:
                numbers = self._numbers(path, rows[0])
                first = int(self._has_header)
            else:
                first = 0
            for i, row in enumerate(rows):
                # Here and not at the columns' use, to name the line.
                if len(row) <= max(numbers):
                    raise CorpusError(self._short(path, before + i + 1, row, numbers))
            before += len(rows)
            sides = []
            for number in numbers:
                sides.append([row[number] for row in rows[first:]])
            if sides[0]:
                yield Pairs(*sides)

    def place(self, split: str, i: int) -> str:
        """Returns the file and line of a pair."""
        line = self._parts.number(split, i) + 1 + self._has_header
        return f"{self._paths[split]}:{line}"

    def counts(self) -> dict[str, int]:
        """Returns nothing, as every row is read."""
        return {}

    def _numbers(self, path, header):
        """Returns the numbers of the two columns in a file that begins with `header`."""
        numbers = []
        for setting, column in self._columns.items():
            if _is_number(column):
                numbers.append(int(column))
            elif column in header:
                numbers.append(header.index(column))
            else:
                raise CorpusError(
                    f"{path}:1: no column {column!r} (the first line has "
                    f"{', '.join(header)[:200]}); set {setting} to one of them, or to a "
                    "number from 0 on"
                )
        return numbers

    def _short(self, path, line, row, numbers):
        """Returns the message for a row that lacks a column."""
        setting, number = max(
            zip(self._columns, numbers, strict=True), key=lambda pair: pair[1]
        )
        return (
            f"{path}:{line}: {len(row)} columns, so there is no column {number} counted "
            f"from 0, which {setting} names; separate columns by tabs, or change {setting}"
        )


def _is_number(column):
    # isdigit alone also takes characters that int refuses, such as ².
    return column.isascii() and column.isdigit()
