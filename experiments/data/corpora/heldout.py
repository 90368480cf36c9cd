"""Divides the pairs of one text into training, validation and test.

Two pairs are connected if they share a source or a target sentence, and so are all that are
connected with one of them. Connected pairs stay together, so that no held-out sentence was
seen in training, on either side.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph

from experiments.data.corpora import LONGEST, SPLITS, CorpusError, Pairs
from experiments.data.lines import as_line, fault

TRAIN = SPLITS.index("train")

TIMES_MEDIAN = 8
"""A sentence of more than this many times the bytes of the median one is none of its text's
usual sentences: a page in one line, for one."""


class Parts:
    """Reads splits, some of which may be parts of the training text.

    `read(split)` gives the pairs of a split's own text. A split whose name in `names` is
    that of training has `size` pairs of the training text, or up to half as many where pairs
    that share a sentence leave no better choice; training has the rest.
    """

    def __init__(
        self,
        read: Callable[[str], Iterator[Pairs]],
        names: Mapping[str, str],
        size: int,
    ):
        self._read = read
        self._names = names
        self._size = size
        self.shared = tuple(
            split for split in SPLITS[1:] if names[split] == names["train"]
        )
        """The held-out splits that are parts of the training text."""

    @property
    def options(self) -> tuple[str, ...]:
        """What a corpus's fingerprint has of this; nothing where each split has its text."""
        return (f"heldout {self._size} {self.shared}",) if self.shared else ()

    def read(self, split: str) -> Iterator[Pairs]:
        """Gives the pairs of a split in their order."""
        if not self._is_part(split):
            yield from self._read(split)
            return
        before = 0
        wanted = SPLITS.index(split)
        for pairs in self._read("train"):
            numbers = slice(before, before + len(pairs.source))
            chosen = np.flatnonzero(self._split_of_pairs[numbers] == wanted)
            before = numbers.stop
            if len(chosen):
                yield Pairs(*([side[i] for i in chosen] for side in pairs))

    def number(self, split: str, i: int) -> int:
        """Returns the number of a split's pair i in the text that it stands in."""
        if not self._is_part(split):
            return i
        numbers = np.flatnonzero(self._split_of_pairs == SPLITS.index(split))
        return int(numbers[i])

    def _is_part(self, split):
        return bool(self.shared) and split in ("train", *self.shared)

    @functools.cached_property
    def _split_of_pairs(self):
        split_of_pairs = divide(self._read("train"), self.shared, self._size)
        for split in self.shared:
            found = int((split_of_pairs == SPLITS.index(split)).sum())
            # The last places may be too few for pairs that share a sentence.
            if found < self._size / 2:
                raise CorpusError(
                    f"{self._names['train']}: of {len(split_of_pairs)} pairs only {found} can be "
                    f"held out for {split}, as half stay for training and pairs that share a "
                    f"sentence stay together, and data.heldout={self._size} are wanted; lower "
                    "it, or give validation and test texts of their own"
                )
        return split_of_pairs


def divide(text: Iterator[Pairs], heldout: tuple[str, ...], size: int) -> np.ndarray:
    """Returns for each pair the number of its split in SPLITS (int8).

    Each of `heldout` has `size` pairs where there are enough that are not connected with
    most of the text. The choice depends on the text alone: the same sentences give the same
    split. At least half of the pairs are left to training.
    """
    hashes, lengths = _columns(text)
    count = len(hashes[0])
    component = _components(*hashes)
    # A component's place in the queue is the smallest hash of its source sentences: it
    # depends neither on the order of lines nor on chance.
    place = np.full(component.max(initial=-1) + 1, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(place, component, hashes[0])
    sizes = np.bincount(component)
    split_of_component = np.full(len(sizes), TRAIN, np.int8)
    # Pairs with an empty side are dropped later, and would be no test.
    held = (hashes[0] != 0) & (hashes[1] != 0) & usual(lengths[0]) & usual(lengths[1])
    usable = np.ones(len(sizes), bool)
    usable[component[~held]] = False
    room = {split: min(size, count // (2 * len(heldout))) for split in heldout}
    for i in np.argsort(place, kind="stable"):
        if not any(room.values()):
            break
        for split in heldout:
            if usable[i] and sizes[i] <= room[split]:
                split_of_component[i] = SPLITS.index(split)
                room[split] -= sizes[i]
                break
    return split_of_component[component]


def usual(lengths: np.ndarray) -> np.ndarray:
    """Returns which of a text's sentences, by their bytes, are not far longer than most.

    Those of so few bytes that a model can read them, whatever its vocabulary, always are.
    """
    # A token has a byte at least; the beginning and the end take one more each.
    most = max(LONGEST - 2, TIMES_MEDIAN * np.median(lengths)) if len(lengths) else 0
    return lengths <= most


def _columns(text):
    """Returns the hashes and the lengths in bytes of both sides."""
    hashes = ([], [])
    lengths = ([], [])
    for pairs in text:
        for i, side in enumerate(pairs):
            lines = ["" if fault(sentence) else as_line(sentence) for sentence in side]
            encoded = [line.strip().encode() for line in lines]
            hashes[i].append(_hash_all(encoded))
            lengths[i].append(np.fromiter(map(len, encoded), int, len(encoded)))
    return (
        [np.concatenate([np.zeros(0, np.uint64), *side]) for side in hashes],
        [np.concatenate([np.zeros(0, int), *side]) for side in lengths],
    )


def _hash_all(texts):
    """Returns 64 bits of each text in bytes, 0 for an empty one; equal in every process."""
    digests = []
    for text in texts:
        digest = hashlib.blake2b(text, digest_size=8).digest() if text else bytes(8)
        digests.append(digest)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def _components(source, target):
    """Returns the number of each pair's component."""
    _, source_number = np.unique(source, return_inverse=True)
    _, target_number = np.unique(target, return_inverse=True)
    # Empty sentences connect nothing: each is a sentence of its own.
    nodes = [
        _apart(source_number, source == 0),
        _apart(target_number, target == 0),
    ]
    first = int(nodes[0].max(initial=-1)) + 1
    total = first + int(nodes[1].max(initial=-1)) + 1
    edges = (np.ones(len(source), bool), (nodes[0], first + nodes[1]))
    graph = scipy.sparse.coo_matrix(edges, shape=(total, total))
    _, labels = scipy.sparse.csgraph.connected_components(graph, directed=False)
    # Numbered anew, because every component has a source sentence.
    return np.unique(labels[nodes[0]], return_inverse=True)[1]


def _apart(numbers, empty):
    """Returns the numbers, with a new one for each empty sentence."""
    changed = numbers.copy()
    changed[empty] = numbers.max(initial=-1) + 1 + np.arange(int(empty.sum()))
    return changed
