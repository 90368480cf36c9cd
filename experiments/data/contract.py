"""Validates a custom corpus: it must meet the contract of `experiments.data.corpora.Source`."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

from attn.contract.common import Row, run
from experiments.data import corpora
from experiments.data.corpora import SPLITS
from experiments.data.corpora.reading import Texts
from experiments.objectives import NOTHING
from experiments.settings import OutsideData

OTHER_PROCESS = """
import sys
from experiments.data import contract
from experiments.settings import OutsideData
print(contract.read(OutsideData(corpus=sys.argv[1])).identity())
"""
"""Reads a corpus anew, and prints what a reading is compared by."""


class Reading(NamedTuple):
    """Holds what one reading of all splits gave."""

    fingerprint: str
    digests: dict[str, str]
    """By split: equal for equal texts in one order."""
    sizes: dict[str, int]
    counts: object

    def identity(self) -> str:
        """Returns a text that equal readings of equal fingerprints share."""
        return json.dumps([self.fingerprint, self.digests])


def check_corpus(corpus: str, *, elsewhere: bool = True) -> list[Row]:
    """Checks that a custom corpus meets the contract.

    All splits are read several times, and `elsewhere` in another process too.

    Args:
      corpus: its name as data.corpus has it, "reversal.py:Reversal(length=7)".

    Returns:
      Rows on its texts, fingerprint, places and counts, and on what else it says of itself.
    """
    data = OutsideData(corpus=corpus)
    try:
        source = corpora.open(data)
    # Of what it says of its symbols.
    except corpora.CorpusError as error:
        return [Row("it can be opened", False, str(error))]
    read_once = []

    def first():
        if not read_once:
            read_once.append(read(data, source))
        return read_once[0]

    checks = {
        "each split has pairs of texts, as many on both sides": lambda: _sizes(first()),
        "the fingerprint is a text": lambda: _fingerprint(source),
        "texts are the same when they are read again": lambda: _same(
            first(), read(data, source)
        ),
        "another instance has the same texts and fingerprint": lambda: _same(
            first(), read(data)
        ),
        "other options with other texts have another fingerprint": lambda: _options(
            data, first()
        ),
        "place names the first and last pair of a split": lambda: _places(
            source, first()
        ),
        "counts are numbers by name": lambda: _counts(first().counts),
    }
    if elsewhere:
        what = "another process has the same texts and fingerprint"
        checks[what] = lambda: _elsewhere(corpus, first())
    if source.distances() is not None:
        checks["distances are of all answers of the test"] = lambda: _distances(source)
    if source.links() is not None:
        checks["links are of all pairs of the test"] = lambda: _links(source, first())
    return list(run(checks))


def read(data: OutsideData, source: Texts | None = None) -> Reading:
    """Reads all splits of a corpus, by a new instance unless one is given.

    Raises CorpusError for bad lines: what is no text, words that are no symbols, labels that
    are not as many as words.
    """
    source = source or corpora.open(data)
    # Asked before anything is read, as a run does.
    fingerprint = source.source.fingerprint()
    digests = {}
    sizes = {}
    for split in SPLITS:
        digest = hashlib.sha256()
        sizes[split] = 0
        for pair in _pairs(source, split):
            digest.update(json.dumps(pair).encode())
            sizes[split] += 1
        digests[split] = digest.hexdigest()
    counts = getattr(source.source, "counts", dict)()
    return Reading(fingerprint, digests, sizes, counts)


def _pairs(source, split) -> Iterator[tuple[str, str]]:
    for pairs in source.read(split):
        yield from zip(*pairs, strict=True)


def _sizes(reading):
    if empty := [split for split in SPLITS if not reading.sizes[split]]:
        raise ValueError(f"no pairs in {', '.join(empty)}")
    return ", ".join(f"{split} {size:,}" for split, size in reading.sizes.items())


def _fingerprint(source):
    fingerprint = source.source.fingerprint()
    if not isinstance(fingerprint, str) or not fingerprint:
        raise TypeError(f"fingerprint() gives {fingerprint!r}, not a text")


def _same(first, second):
    for split in SPLITS:
        if first.digests[split] != second.digests[split]:
            raise ValueError(
                f"the texts of {split} are others: draw with a seed of their own, and in an "
                "order that is fixed, which that of a set is not"
            )
    if first.fingerprint != second.fingerprint:
        raise ValueError(
            f"equal texts have the fingerprints {first.fingerprint!r} and "
            f"{second.fingerprint!r}"
        )


def _options(data, first):
    """Compares with the class without the options that were given."""
    if not data.source_choice.options:
        return "no options are given"
    bare = data.source_choice.text.partition("(")[0]
    try:
        other = read(OutsideData(corpus=bare))
    # An option may be needed, and a corpus of the defaults may not be there.
    except Exception as error:
        return f"not tried: without options {type(error).__name__}: {error}"
    if other.digests != first.digests and other.fingerprint == first.fingerprint:
        raise ValueError(
            f"{bare} without options has other texts and the same fingerprint, "
            f"{first.fingerprint!r}: put the options into it"
        )
    return "against the defaults"


def _elsewhere(corpus, first):
    # Sets of texts have another order there.
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, corpus],
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ValueError(done.stderr.strip().splitlines()[-1])
    fingerprint, digests = json.loads(done.stdout.splitlines()[-1])
    _same(first, first._replace(fingerprint=fingerprint, digests=digests))


def _places(source, reading):
    for split, size in reading.sizes.items():
        for i in {0, max(0, size - 1)}:
            place = source.place(split, i)
            if not isinstance(place, str) or not place or "\n" in place:
                raise ValueError(f"place({split!r}, {i}) gives {place!r}, not a line")


def _counts(counts):
    if not isinstance(counts, dict):
        raise TypeError(f"counts() gives {counts!r}, not a dict")
    for name, count in counts.items():
        if not isinstance(name, str) or type(count) is not int or count < 0:
            raise ValueError(
                f"counts() has {name!r}: {count!r}, not a name and a number"
            )
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _distances(source):
    distances = source.distances()
    pairs = list(_pairs(source, "test"))
    if len(distances) != len(pairs):
        raise ValueError(f"of {len(distances)} pairs, and the test has {len(pairs)}")
    for i, (of_pair, (_, target)) in enumerate(zip(distances, pairs, strict=True)):
        answers = sum(word != NOTHING for word in target.split())
        if len(of_pair) != answers:
            raise ValueError(
                f"{source.place('test', i)}: {len(of_pair)} distances of {answers} answers"
            )


def _links(source, reading):
    count = len(source.links())
    if count != reading.sizes["test"]:
        raise ValueError(f"of {count} pairs, and the test has {reading.sizes['test']}")
