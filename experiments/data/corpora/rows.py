"""Reads the rows of a file: tab-separated columns, CSV, or an object of JSON a line.

A row is a list of texts by column, or of JSON a dict by key; one that cannot be read is a
`Bad` text. An empty line is a row of no columns.
"""

import codecs
import collections
import csv
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from experiments.data.corpora import CorpusError
from experiments.data.corpora.parallel import blocks, opened
from experiments.data.lines import Bad, without_mark
from experiments.settings.fields import shown

Row = list[str] | dict[str, object] | Bad

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t"}
"""What ends a column of CSV."""

LONGEST_FIELD = 2**31 - 1
"""Letters of a CSV field; Python's own limit of 131,072 is less than a long line has."""


def tab_separated(path: Path) -> Iterator[Row]:
    """Yields the rows of a file in which each tab ends a column, quotes or not."""
    for line in _lines(path):
        yield line if isinstance(line, Bad) else _without_empty(line.split("\t"))


def comma_separated(path: Path, delimiter: str) -> Iterator[Row]:
    """Yields the rows of a CSV file, whose fields may stand in double quotes.

    `delimiter` is a name in DELIMITERS.

    Where quotes do not match, the line at which the row begins is bad by itself, and reading
    goes on with the next: a quote that is never closed would else take the rest of the file.
    """
    csv.field_size_limit(LONGEST_FIELD)
    _refuse_utf16(path)
    with opened(path) as file:
        # Bytes that are no UTF-8 are named where their column is used.
        lines = (line.decode(errors="surrogateescape") for line in without_mark(file))
        again = collections.deque()
        taken = []
        while True:
            reader = csv.reader(
                _noted(lines, again, taken),
                delimiter=DELIMITERS[delimiter],
                strict=True,
            )
            try:
                for row in reader:
                    taken.clear()
                    yield _without_empty(row)
                return
            except csv.Error as error:
                again.extendleft(reversed(taken[1:]))
                taken.clear()
                yield Bad(f"no row of CSV ({error})")


def _refuse_utf16(path):
    """Raises CorpusError for what spreadsheets write as Unicode, of which no line is a row."""
    with opened(path) as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise CorpusError(
                f"{path} is UTF-16: make it UTF-8, as by iconv -f UTF-16 -t UTF-8"
            )


def json_lines(path: Path) -> Iterator[Row]:
    """Yields the objects of a file that has one of JSON on each line."""
    for line in _lines(path):
        if isinstance(line, Bad):
            yield line
        elif not line.strip():
            yield []
        else:
            yield _object(line)


def _lines(path):
    _refuse_utf16(path)
    return itertools.chain.from_iterable(blocks(path))


def _without_empty(row):
    return [] if row == [""] else row


def _noted(lines, again, taken):
    """Yields the lines of `again`, then of `lines`, and appends each to `taken`."""
    while again or (following := next(lines, None)) is not None:
        taken.append(again.popleft() if again else following)
        yield taken[-1]


def _object(line):
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Bad(f"no JSON ({error})")
    return row if isinstance(row, dict) else Bad(f"no object of JSON but {shown(row)}")
