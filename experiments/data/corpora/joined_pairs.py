"""Several pairs in a row as one: sentences longer than any in training, of the same kinds."""

import itertools
from collections.abc import Iterator, Sequence

from experiments.data.corpora import Pairs
from experiments.data.corpora.gold_alignments import Links, words

SEPARATOR = " ; "


def runs(count: int, most: int) -> Iterator[slice]:
    """Gives runs of one, two, … `most` of `count` things in their order, and again.

    The last run holds what is left.
    """
    start = 0
    for size in itertools.cycle(range(1, most + 1)):
        if start >= count:
            return
        yield slice(start, start + size)
        start += size


def join(pairs: Pairs, most: int) -> Pairs:
    """Returns runs of up to `most` pairs, each joined by SEPARATOR."""
    sides = []
    for side in pairs:
        sides.append([SEPARATOR.join(side[run]) for run in runs(len(side), most)])
    return Pairs(*sides)


def join_links(links: Sequence[Links], pairs: Pairs, most: int) -> list[Links]:
    """Returns the links of `join(pairs, most)`, where `links` are those of `pairs`."""
    return [
        _joined(links[run], pairs.source[run], pairs.target[run])
        for run in runs(len(links), most)
    ]


def _joined(links, sources, targets):
    """Returns the links of a run, in which words count from its beginning."""
    sure = []
    possible = []
    before = (0, 0)
    for pair_links, source, target in zip(links, sources, targets, strict=True):
        sure += _moved(pair_links.sure, before)
        possible += _moved(pair_links.possible, before)
        before = (
            # The separator's semicolon counts as a word.
            before[0] + len(words(source + SEPARATOR)),
            before[1] + len(words(target + SEPARATOR)),
        )
    return Links(tuple(sure), tuple(possible))


def _moved(links, before):
    return [(source + before[0], target + before[1]) for source, target in links]
