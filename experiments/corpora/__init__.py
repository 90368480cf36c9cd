"""Where sentence pairs come from: CLDR (the embedded default) or parallel text files."""

import hashlib
from typing import NamedTuple

from experiments import settings


class CorpusError(ValueError):
    """A corpus that cannot be had; one line that names the file or value and the remedy."""


class Pairs(NamedTuple):
    """Sentence i of `source` is translated by sentence i of `target`."""

    source: list[str]
    target: list[str]


class Corpus(NamedTuple):
    """The three splits, and `counts`: pairs in each, and what was dropped on the way."""

    train: Pairs
    validation: Pairs
    test: Pairs
    counts: dict[str, int]


SPLITS = ("train", "validation", "test")


def load(data: settings.Data) -> Corpus:
    """The corpus that `data.corpus` names. Raises CorpusError where it cannot be had."""
    # Imported here because both sources import this module's types, and only one of them is needed.
    if data.corpus == "cldr":
        from experiments.corpora import cldr

        return cldr.generate(data.source, data.target, data.pairs, data.heldout, data.corpus_seed)
    if data.corpus == "files":
        from experiments.corpora import parallel

        return parallel.read(data.directory, data.source, data.target, data.train, data.validation, data.test)
    raise CorpusError(f"data.corpus={data.corpus!r} is unknown (known: {', '.join(settings.CORPORA)})")


def digest(corpus: Corpus) -> str:
    """Sixteen hexadecimal digits over all text, in its order: equal for equal corpora, whatever their origin."""
    hasher = hashlib.sha256()
    for split in SPLITS:
        for sentences in getattr(corpus, split):
            # No sentence holds a newline, so the joined text has one reading; the NUL ends a list.
            hasher.update("\n".join(sentences).encode() + b"\0")
    return hasher.hexdigest()[:16]
