"""Tokenised sentences on disk: arrays that are mapped into memory rather than read.

Those of 40 million pairs take some gigabytes, of which a run has in memory only what it
uses at the time.
"""

import contextlib
from pathlib import Path
from typing import Self

import numpy as np

from experiments.data.batches import Corpus, Sentences

SIDES = Corpus._fields


# An ExitStack closes all files, however the block ends.
class Writer(contextlib.ExitStack):
    """Writes a corpus of ids below `vocabulary` into `directory`, block after block."""

    def __init__(self, directory: Path, vocabulary: int):
        super().__init__()
        self._directory = directory
        self._dtypes = _dtypes(vocabulary)
        self._ends = dict.fromkeys(SIDES, 0)
        self._files = {}

    def __enter__(self) -> Self:
        for side in SIDES:
            for field in Sentences._fields:
                path = self._directory / f"{side}.{field}"
                self._files[side, field] = self.enter_context(path.open("wb"))
        return self

    def append(self, block: Corpus) -> None:
        """Writes the next sentences."""
        for side, sentences in zip(SIDES, block, strict=True):
            # Starts count from the beginning of the file, beyond int32 for a large
            # corpus.
            starts = sentences.starts.astype(np.int64) + self._ends[side]
            moved = sentences._replace(starts=starts)
            for field, array in moved._asdict().items():
                array.astype(self._dtypes[field]).tofile(self._files[side, field])
            self._ends[side] += len(sentences.ids)


def read(directory: Path, vocabulary: int) -> Corpus:
    """Returns the corpus that a `Writer` wrote."""
    sides = []
    for side in SIDES:
        arrays = {
            field: np.memmap(directory / f"{side}.{field}", dtype, "r")
            for field, dtype in _dtypes(vocabulary).items()
        }
        sides.append(Sentences(**arrays))
    return Corpus(*sides)


def _dtypes(vocabulary):
    # The paper's vocabularies fit 16 bits, in half of the space.
    ids = np.uint16 if vocabulary <= 1 << 16 else np.int32
    return dict(ids=ids, starts=np.int64, lengths=np.int32)
