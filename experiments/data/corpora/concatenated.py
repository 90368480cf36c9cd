"""Several pairs in a row as one: sentences longer than any in training, of the same kinds."""

import itertools
from collections.abc import Iterator, Sequence

from experiments.data.corpora import Pairs
from experiments.data.corpora.gold_alignments import Links, words

SEPARATOR = " ; "


def runs(count: int, most: int) -> Iterator[slice]:
    """Of `count` things in their order: one, two, … `most` of them, and again; the last of what is left."""
    start = 0
    for size in itertools.cycle(range(1, most + 1)):
        if start >= count:
            return
        yield slice(start, start + size)
        start += size


def join(pairs: Pairs, most: int) -> Pairs:
    """Runs of up to `most` pairs, SEPARATOR between."""
    return Pairs(
        *(
            [SEPARATOR.join(side[run]) for run in runs(len(side), most)]
            for side in pairs
        )
    )


def join_links(found: Sequence[Links], pairs: Pairs, most: int) -> list[Links]:
    """The links of `join(pairs, most)`, `found` being those of `pairs`."""
    return [
        _moved(found[run], *(side[run] for side in pairs))
        for run in runs(len(found), most)
    ]


def _moved(found, sources, targets):
    """Those of a run: words count from its beginning."""
    sure, possible, before = [], [], (0, 0)
    for own, *texts in zip(found, sources, targets, strict=True):
        for all_links, links in ((sure, own.sure), (possible, own.possible)):
            all_links += [
                (source + before[0], target + before[1]) for source, target in links
            ]
        before = tuple(
            count + len(words(text + SEPARATOR))
            for count, text in zip(before, texts, strict=True)
        )
    return Links(tuple(sure), tuple(possible))
