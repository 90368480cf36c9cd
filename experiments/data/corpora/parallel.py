"""Parallel text files: line i of `train.en` is translated by line i of `train.de`.

Files are plain or gzipped, UTF-8. Only a newline, with or without a carriage return before
it, ends a line. Characters that Unicode also counts as line breaks (U+2028, U+0085, form
feed) occur within sentences of real corpora, and splitting at them would shift every pair
after.
"""

import contextlib
import gzip
import hashlib
import itertools
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from experiments.data.corpora import BLOCK, SPLITS, CorpusError, Pairs
from experiments.data.corpora.heldout import Parts
from experiments.settings import FilesData

NAMES = (
    "data.train, data.validation and data.test name the files, data.source and "
    "data.target their endings"
)

# Some editors begin UTF-8 files with it; it would be a part of the first word.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Source:
    """Reads `<directory>/<train>.<source>`, `<train>.<target>` and so on, plain or .gz.

    Validation or test with the name of the training files is held out from those, see
    `heldout`.

    Raises:
      CorpusError: a missing or empty file, files of unequal length, invalid UTF-8, a NUL
        character. The message names the file, the line where there is one, and the remedy.
    """

    def __init__(self, data: FilesData):
        directory = Path(data.directory)
        if not directory.is_dir():
            raise CorpusError(
                f"{directory}: no such folder; data.directory must hold the text files"
            )
        self._paths = {}
        names = dict(zip(SPLITS, (data.train, data.validation, data.test), strict=True))
        for split, stem in names.items():
            self._paths[split] = [
                find(directory, f"{stem}.{language}", NAMES)
                for language in (data.source, data.target)
            ]
        self._parts = Parts(self._read, names, data.heldout)

    def fingerprint(self) -> str:
        """Returns a hash of all files, and of how they are divided."""
        paths = itertools.chain.from_iterable(self._paths.values())
        return fingerprint(paths, *self._parts.options)

    def read(self, split: str) -> Iterator[Pairs]:
        """Gives the pairs of a split."""
        return self._parts.read(split)

    def _read(self, split):
        """Gives all pairs of a split's files."""
        paths = self._paths[split]
        totals = [0, 0]
        for sides in itertools.zip_longest(*map(blocks, paths), fillvalue=()):
            for i, side in enumerate(sides):
                totals[i] += len(side)
            # After the shorter file has ended, the rest of the longer is only counted.
            if totals[0] == totals[1]:
                yield Pairs(*sides)
        if totals[0] != totals[1]:
            raise CorpusError(
                f"{paths[0]} has {totals[0]} lines but {paths[1]} has {totals[1]}; "
                "line i of one must translate line i of the other"
            )

    def place(self, split: str, i: int) -> str:
        """Returns the source's file and line of a pair."""
        return f"{self._paths[split][0]}:{self._parts.number(split, i) + 1}"

    def counts(self) -> dict[str, int]:
        """Returns nothing, as every line is read."""
        return {}


def fingerprint(paths: Iterable[Path], *options: str) -> str:
    """Returns a hash of the files' bytes and endings, and of the options."""
    total = hashlib.sha256(repr(options).encode())
    for path in paths:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
        # The same bytes are other text if the name ends in .gz.
        total.update(path.suffix.encode())
    return total.hexdigest()


def find(directory: Path, name: str, remedy: str) -> Path:
    """Returns the file of that name, plain or .gz.

    Raises:
      CorpusError: there is none; it lists the files that are there and ends in `remedy`.
    """
    for path in (directory / name, directory / f"{name}.gz"):
        if path.is_file():
            return path
    names = sorted(path.name for path in directory.iterdir() if path.is_file())
    raise CorpusError(
        f"{directory / name}: no such file, plain or .gz (the folder has "
        f"{', '.join(names) or 'no files'}); {remedy}"
    )


def blocks(path: Path) -> Iterator[list[str]]:
    """Gives the file's lines, BLOCK at a time; the last block holds the rest."""
    before = 0
    with _open(path) as file:
        while lines := list(itertools.islice(file, BLOCK)):
            if not before:
                lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
            yield _decode(path, b"".join(lines), before)
            before += len(lines)
    if not before:
        raise CorpusError(f"{path}: the file is empty; give one sentence a line")


@contextlib.contextmanager
def _open(path):
    try:
        # In bytes: text mode would also end lines at a carriage return by itself.
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorpusError(
            f"{path}: damaged or no gzip file ({error}); compress it again"
        ) from None
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read ({error.strerror})") from None


def _decode(path, data, before) -> list[str]:
    """Returns the lines of `data`, which stand behind `before` others in the file."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        # A block is decoded whole, which is faster, so the line is counted only on an
        # error.
        line = before + data.count(b"\n", 0, error.start) + 1
        raise CorpusError(
            f"{path}:{line}: invalid UTF-8 (byte 0x{data[error.start]:02x}); convert it to "
            "UTF-8"
        ) from None
    if "\0" in text:
        line = before + data.count(b"\n", 0, data.index(0)) + 1
        raise CorpusError(
            f"{path}:{line}: NUL character; is this a text file? Remove it"
        )
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
