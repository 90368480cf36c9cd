"""Files of rows, of which two columns are the pair: one file a split, plain or .gz, UTF-8.

A column of TSV and CSV is chosen by its number, from 0 on, or by its name in the first line,
which is then no pair; that of JSON lines by its key. In TSV, as in `parallel`, a newline alone
ends a line and a tab always ends a column; in CSV both may stand within quotes.
"""

import itertools
import statistics
from collections.abc import Iterator
from pathlib import Path

from experiments.data.corpora import BLOCK, SPLITS, CorpusError, Pairs
from experiments.data.corpora.heldout import Parts
from experiments.data.corpora.parallel import find, fingerprint
from experiments.data.corpora.rows import (
    Row,
    comma_separated,
    json_lines,
    tab_separated,
)
from experiments.data.lines import Bad, as_line
from experiments.settings import TableData
from experiments.settings.corpora import is_number
from experiments.settings.fields import shown

NAMES = "data.train, data.validation and data.test name the files"

HEADERS = (("source", "target"), ("src", "tgt"))
"""Names of columns that are no words of a pair; those of the two languages are others."""


class Source:
    """Reads the files `<directory>/<train>` and so on, perhaps with .gz after the name.

    Validation or test with the name of the training file is held out from that, see
    `heldout`. A row is bad that has another number of columns than most of the first rows,
    or no text for a key.

    Raises:
      CorpusError: a missing or empty file, or a missing column. The message names the file
        and the remedy.
    """

    def __init__(self, data: TableData):
        directory = Path(data.directory)
        if not directory.is_dir():
            raise CorpusError(
                f"{directory}: no such folder; data.directory must hold the files"
            )
        self._data = data
        self._columns = {
            "data.source_column": data.source_column,
            "data.target_column": data.target_column,
        }
        self._paths = {}
        names = dict(zip(SPLITS, (data.train, data.validation, data.test), strict=True))
        for split, name in names.items():
            self._paths[split] = find(directory, name, NAMES)
        self._parts = Parts(self.undivided, names, data.heldout)

    def fingerprint(self) -> str:
        """Returns a hash of all files, how they are read, and how they are divided."""
        options = dict(
            columns=list(self._columns.values()),
            header=self._data.has_header,
            delimiter=self._data.delimiter,
            parts=self._parts.options,
        )
        return fingerprint(self._paths.values(), options)

    def read(self, split: str) -> Iterator[Pairs]:
        """Gives the pairs of a split."""
        return self._parts.read(split)

    def undivided(self, split: str) -> Iterator[Pairs]:
        """Gives all pairs of a split's file, those that are held out too."""
        path = self._paths[split]
        rows = self._rows(path)
        header = next(rows, []) if self._data.has_header else []
        columns = [
            self._column(path, header, *column) for column in self._columns.items()
        ]
        width = 0
        while block := list(itertools.islice(rows, BLOCK)):
            width = width or self._width(path, columns, block)
            pairs = [_pair(row, columns, width) for row in block]
            yield Pairs(*map(list, zip(*pairs, strict=True)))
        if not width:
            raise CorpusError(f"{path}: no rows; give a pair in each")

    def place(self, split: str, i: int) -> str:
        """Returns the file and line of a pair; of CSV, whose rows may be lines, the row."""
        number = self._parts.number(split, i) + 1 + self._data.has_header
        row = ", row " if self._data.corpus == "csv" else ":"
        return f"{self._paths[split]}{row}{number}"

    def warnings(self) -> list[str]:
        """Returns a line where the first row of training looks like a header."""
        if self._data.has_header or self._data.corpus == "jsonl":
            return []
        pairs = next(self.undivided("train"))
        first = tuple(as_line(side[0]).strip().lower() for side in pairs)
        if first not in (*HEADERS, self._data.sides):
            return []
        return [
            f"{self._paths['train']} begins with {', '.join(first)}, which is read as a pair; "
            "data.header=true says that it names the columns"
        ]

    def _rows(self, path) -> Iterator[Row]:
        if self._data.corpus == "csv":
            return comma_separated(path, self._data.delimiter)
        return json_lines(path) if self._data.corpus == "jsonl" else tab_separated(path)

    def _column(self, path, header, setting, column) -> int | str:
        """Returns the key of a column, or its number in rows after `header`."""
        if self._data.corpus == "jsonl":
            return column
        if is_number(column):
            return int(column)
        if column in header:
            return header.index(column)
        raise CorpusError(
            f"{path}:1: no column {column!r} (the first line has "
            f"{', '.join(header)[:200]}); set {setting} to one of them, or to a number from "
            "0 on"
        )

    def _width(self, path, columns, rows) -> int:
        """Returns how many columns most of the first rows have."""
        if self._data.corpus == "jsonl":
            return len(columns)
        last = max(columns)
        counts = [len(row) for row in rows if row]
        width = statistics.mode(counts) if counts else last + 1
        if width > last:
            return width
        setting = list(self._columns)[columns.index(last)]
        raise CorpusError(
            f"{path}: {_counted(width)}, so there is no column {last} counted from 0, which "
            f"{setting} names; separate columns by {self._data.delimiter}s, or change {setting}"
        )


def _pair(row, columns, width):
    """Returns the two texts of a row."""
    if isinstance(row, dict):
        return [_value(row, key) for key in columns]
    if row and len(row) != width:
        row = Bad(f"{_counted(len(row))}, where others have {width}")
    if isinstance(row, Bad):
        return [row, row]
    return [row[number] for number in columns] if row else ["", ""]


def _value(row, key):
    if key not in row:
        return Bad(f"no {key!r} (it has {', '.join(row)[:200]})")
    value = row[key]
    is_text = isinstance(value, str)
    return value if is_text else Bad(f"{key!r} is {shown(value)}, no text")


def _counted(count):
    return f"{count} column{'' if count == 1 else 's'}"
