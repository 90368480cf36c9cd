"""Parallel text files: line i of `train.en` is translated by line i of `train.de`; plain or gzipped, UTF-8.

Only a newline, with or without a carriage return before it, ends a line. Characters that Unicode also counts as line
breaks (U+2028, U+0085, form feed) occur within sentences of real corpora, and splitting at them would shift every
pair after.
"""

import contextlib
import gzip
import hashlib
import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path

from experiments.data.corpora import BLOCK, SPLITS, CorpusError, Pairs
from experiments.settings import Data

NAMES = "data.train, data.validation and data.test name the files, data.source and data.target their endings"


_BOM = b"\xef\xbb\xbf"


class Source:
    """The files `<directory>/<train>.<source>` or `<train>.<source>.gz`, `<train>.<target>`, and so on.

    Raises CorpusError for a missing or empty file, files of unequal length, invalid UTF-8, a NUL character. The message
    names the file, the line where there is one, and what to do.
    """

    def __init__(self, data: Data):
        directory = Path(data.directory)
        if not directory.is_dir():
            raise CorpusError(
                f"{directory}: no such folder; data.directory must hold the text files"
            )
        self._paths = {
            split: [
                find(directory, f"{stem}.{language}", NAMES)
                for language in (data.source, data.target)
            ]
            for split, stem in zip(
                SPLITS, (data.train, data.validation, data.test), strict=True
            )
        }

    def fingerprint(self) -> str:
        found = hashlib.sha256()
        for path in itertools.chain.from_iterable(self._paths.values()):
            with path.open("rb") as file:
                found.update(
                    hashlib.file_digest(file, "sha256").digest() + path.suffix.encode()
                )
        return found.hexdigest()

    def read(self, split: str) -> Iterator[Pairs]:
        paths, totals = self._paths[split], [0, 0]
        for sides in itertools.zip_longest(*map(blocks, paths), fillvalue=()):
            totals = [
                total + len(side) for total, side in zip(totals, sides, strict=True)
            ]
            if totals[0] == totals[1]:
                yield Pairs(*sides)
        if totals[0] != totals[1]:
            raise CorpusError(
                f"{paths[0]} has {totals[0]} lines but {paths[1]} has {totals[1]}; "
                "line i of one must translate line i of the other"
            )

    def place(self, split: str, i: int) -> str:
        return f"{self._paths[split][0]}:{i + 1}"

    def counts(self) -> dict[str, int]:
        return {}


def find(directory: Path, name: str, remedy: str) -> Path:
    """The file of that name, plain or .gz. Raises CorpusError, which says what there is and ends in `remedy`."""
    for path in (directory / name, directory / f"{name}.gz"):
        if path.is_file():
            return path
    there = (
        ", ".join(sorted(path.name for path in directory.iterdir() if path.is_file()))
        or "no files"
    )
    raise CorpusError(
        f"{directory / name}: no such file, plain or .gz (the folder has {there}); {remedy}"
    )


def blocks(path) -> Iterator[list[str]]:
    """The file's lines, BLOCK at a time, the last block of what is left."""
    before = 0
    with _opened(path) as file:
        while lines := list(itertools.islice(file, BLOCK)):
            if not before:
                lines[0] = lines[0].removeprefix(_BOM)
            yield _text(path, b"".join(lines), before)
            before += len(lines)
    if not before:
        raise CorpusError(f"{path}: the file is empty; give one sentence a line")


@contextlib.contextmanager
def _opened(path):
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorpusError(
            f"{path}: damaged or no gzip file ({error}); compress it again"
        ) from None
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read ({error.strerror})") from None


def _text(path, data, before) -> list[str]:
    """The lines of `data`, which `before` others come before."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = before + data.count(b"\n", 0, error.start) + 1
        raise CorpusError(
            f"{path}:{line}: invalid UTF-8 (byte 0x{data[error.start]:02x}); convert it to UTF-8"
        ) from None
    if "\0" in text:
        line = before + data.count(b"\n", 0, data.index(0)) + 1
        raise CorpusError(
            f"{path}:{line}: NUL character; is this a text file? Remove it"
        )
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
