"""Plain text for language models: a line is a text; plain or gzipped files, UTF-8. Each line stands on both sides."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from experiments.data.corpora import SPLITS, CorpusError, Pairs
from experiments.data.corpora.parallel import blocks, find
from experiments.settings import Data


class Source:
    """The files `<directory>/<train>`, `<validation>` and `<test>`, each perhaps with .gz after its name.

    Where all three are one file, its last lines are held out: `data.heldout` for validation and as many for the test.

    Raises CorpusError for a missing or empty file, too few lines, invalid UTF-8, a NUL character. The message names the
    file, the line where there is one, and what to do.
    """

    def __init__(self, data: Data):
        directory = Path(data.directory)
        if not directory.is_dir():
            raise CorpusError(
                f"{directory}: no such folder; data.directory must hold the text files"
            )
        names = data.train, data.validation, data.test
        self._paths = {
            split: find(
                directory,
                name,
                "data.train, data.validation and data.test name the files",
            )
            for split, name in zip(SPLITS, names, strict=True)
        }
        self._heldout = data.heldout if len(set(self._paths.values())) == 1 else 0

    def fingerprint(self) -> str:
        found = hashlib.sha256(repr(self._heldout).encode())
        for path in self._paths.values():
            with path.open("rb") as file:
                found.update(
                    hashlib.file_digest(file, "sha256").digest() + path.suffix.encode()
                )
        return found.hexdigest()

    def read(self, split: str) -> Iterator[Pairs]:
        first, last = self._range(split)
        before = 0
        for lines in blocks(self._paths[split]):
            own = lines[max(0, first - before) : max(0, last - before)]
            before += len(lines)
            if own:
                yield Pairs(own, list(own))

    def place(self, split: str, i: int) -> str:
        return f"{self._paths[split]}:{self._range(split)[0] + i + 1}"

    def counts(self) -> dict[str, int]:
        return {}

    def _range(self, split):
        """The first line of a split, and the one after its last."""
        if not self._heldout:
            return 0, 2**62
        path = self._paths[split]
        if not hasattr(self, "_lines"):
            self._lines = sum(map(len, blocks(path)))
        train = self._lines - 2 * self._heldout
        if train < 1:
            raise CorpusError(
                f"{path} has {self._lines} lines, too few to hold out data.heldout={self._heldout} for "
                "validation and as many for the test; lower it, or give each a file"
            )
        return {
            "train": (0, train),
            "validation": (train, train + self._heldout),
            "test": (train + self._heldout, self._lines),
        }[split]
