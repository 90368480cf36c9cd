"""Parallel text files: line i of `train.en` is translated by line i of `train.de`.

Files are plain or gzipped, UTF-8; `experiments.data.lines` says what ends a line.
"""

import contextlib
import gzip
import hashlib
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from experiments.data.corpora import BLOCK, SPLITS, CorpusError, Pairs
from experiments.data.corpora.heldout import Parts
from experiments.data.lines import Bad, decode, fault, without_mark
from experiments.settings import FilesData

NAMES = (
    "data.train, data.validation and data.test name the files, data.source and "
    "data.target their endings"
)


class Source:
    """Reads `<directory>/<train>.<source>`, `<train>.<target>` and so on, plain or .gz.

    Validation or test with the name of the training files is held out from those, see
    `heldout`.

    Raises:
      CorpusError: a missing or empty file, or files of unequal length. The message names
        the file and the remedy.
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
        self._parts = Parts(self.undivided, names, data.heldout)

    def fingerprint(self) -> str:
        """Returns a hash of all files, and of how they are divided."""
        paths = itertools.chain.from_iterable(self._paths.values())
        return fingerprint(paths, self._parts.options)

    def read(self, split: str) -> Iterator[Pairs]:
        """Gives the pairs of a split."""
        return self._parts.read(split)

    def undivided(self, split: str) -> Iterator[Pairs]:
        """Gives all pairs of a split's files, those that are held out too."""
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


def fingerprint(paths: Iterable[Path], options: object) -> str:
    """Returns a hash of the files' bytes and endings, and of options that JSON can write."""
    files = []
    for path in paths:
        with path.open("rb") as file:
            # The same bytes are other text if the name ends in .gz.
            files.append((path.suffix, hashlib.file_digest(file, "sha256").hexdigest()))
    # JSON says where each begins and ends, which a row of texts would not.
    return hashlib.sha256(json.dumps([options, files]).encode()).hexdigest()


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
    """Gives the file's lines, BLOCK at a time; the last block holds the rest.

    In place of a line that is no text it gives a `Bad` with the line's place.
    """
    before = 0
    with opened(path) as file:
        lines = without_mark(file)
        while block := list(itertools.islice(lines, BLOCK)):
            yield _texts(path, block, before)
            before += len(block)
    if not before:
        raise CorpusError(f"{path}: the file is empty; give one sentence a line")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Opens a file that may be gzipped. Raises CorpusError where it cannot be read."""
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


def _texts(path, block, before):
    """Returns lines as texts, which stand behind `before` others in the file."""
    texts = decode(block)
    # Of a block as a whole, as few have a fault.
    if not fault("".join(texts)):
        return texts
    for i, text in enumerate(texts):
        if why := fault(text):
            texts[i] = Bad(why, f"{path}:{before + i + 1}")
    return texts
