"""Tokenised sentences on disk: the arrays that batches are gathered from, mapped into memory rather than read.

Of 40 million pairs they are some gigabytes, of which a run has in memory what it is just looking at.
"""

import contextlib
from pathlib import Path
from typing import Self

import numpy as np

from experiments.data.batches import Corpus, Sentences

SIDES = Corpus._fields


class Writer(contextlib.ExitStack):
    """Writes a corpus of ids below `vocabulary` into `directory`, block after block."""

    def __init__(self, directory: Path, vocabulary: int):
        super().__init__()
        self._directory, self._dtypes = directory, _dtypes(vocabulary)
        self._ends = dict.fromkeys(SIDES, 0)

    def __enter__(self) -> Self:
        self._files = {
            (side, field): self.enter_context(
                (self._directory / f"{side}.{field}").open("wb")
            )
            for side in SIDES
            for field in Sentences._fields
        }
        return self

    def append(self, block: Corpus) -> None:
        for side, sentences in zip(SIDES, block, strict=True):
            moved = sentences._replace(
                starts=sentences.starts.astype(np.int64) + self._ends[side]
            )
            for field, array in moved._asdict().items():
                array.astype(self._dtypes[field]).tofile(self._files[side, field])
            self._ends[side] += len(sentences.ids)


def read(directory: Path, vocabulary: int) -> Corpus:
    """What a `Writer` wrote there."""
    return Corpus(
        *(
            Sentences(
                **{
                    field: np.memmap(directory / f"{side}.{field}", dtype, "r")
                    for field, dtype in _dtypes(vocabulary).items()
                }
            )
            for side in SIDES
        )
    )


def _dtypes(vocabulary):
    return dict(
        ids=np.uint16 if vocabulary <= 1 << 16 else np.int32,
        starts=np.int64,
        lengths=np.int32,
    )
