"""Batches of one static shape: sentences packed into rows, a seeded order, and a state of two numbers.

A row holds several pairs one after the other. Attention must stay within a pair, so each position carries the number
of its pair within the row (its segment; 0 is padding), and positions count from 0 in each sentence:

    source            the  cat  </s> a    dog  </s> <pad>
    source_positions  0    1    2    0    1    2    0
    source_segments   1    1    1    2    2    2    0
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from experiments.tokens import BOS, EOS, PAD

WINDOW = 24
"""Rows kept open while packing; more fill better and plan slower."""


class Encoded(NamedTuple):
    """Pairs of sentences as int32 ids, without BOS and EOS."""

    source: list[np.ndarray]
    target: list[np.ndarray]


class Sentences(NamedTuple):
    """Sentences in one flat array, each between BOS and EOS; sentence i's BOS is at `starts[i]`."""

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    """Of each sentence with the one mark that a row holds."""


class Corpus(NamedTuple):
    """Pairs of sentences as the arrays that batches are gathered from, on the host or on a device."""

    source: Sentences
    target: Sentences


class Batch(NamedTuple):
    """int32 arrays, all (rows, row_pieces). The decoder reads `target_in` and is to give `target_out`."""

    source: np.ndarray
    source_positions: np.ndarray
    source_segments: np.ndarray
    target_in: np.ndarray
    target_out: np.ndarray
    target_positions: np.ndarray
    target_segments: np.ndarray


class Plan(NamedTuple):
    """Where each pair goes, in order of rows: pair `pair[i]` is the `segment[i]`-th, from 1 on, of row `row[i]`."""

    pair: np.ndarray
    row: np.ndarray
    segment: np.ndarray


def drop_long(pairs: Encoded, max_pieces: int) -> tuple[Encoded, int]:
    """The pairs whose sides have at most `max_pieces` pieces, end mark included, and how many were dropped."""
    kept = [i for i, (s, t) in enumerate(zip(*pairs, strict=True)) if max(len(s), len(t)) < max_pieces]
    return Encoded([pairs.source[i] for i in kept], [pairs.target[i] for i in kept]), len(pairs.source) - len(kept)


def corpus(pairs: Encoded) -> Corpus:
    return Corpus(*map(_flat, pairs))


class Batches:
    """An endless iterator over training batches.

    Each epoch shuffles all pairs, packs them into rows, and yields the rows in batches; empty rows complete the last
    batch, so that every pair comes exactly once an epoch. A batch is a pure function of (pairs, seed, epoch, batch),
    so those last two numbers are the whole state. `take` gives batches by the numbers of their pairs alone, for a
    device that has the corpus to `assemble`; `next` gives them assembled.

    Attributes:
        epoch: of the next batch.
        batch: the next batch's number within its epoch.
        batches_per_epoch: in the current epoch; packing makes it vary a little.
        real_tokens: share of the current epoch's positions, source and target together, that are no padding.
    """

    def __init__(self, pairs: Encoded | Corpus, *, rows: int, row_pieces: int, seed: int):
        self._corpus = pairs if isinstance(pairs, Corpus) else corpus(pairs)
        self._rows, self._row_pieces, self._seed = rows, row_pieces, seed
        _check(self._corpus, row_pieces)
        self._most = most_in_a_row(self._corpus, row_pieces)
        self.set_state({"epoch": 0, "batch": 0})

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return assemble(self._corpus, self.take(1)[0], self._row_pieces, np)

    def take(self, count: int) -> np.ndarray:
        """The next `count` batches, int32 (count, rows, pairs of a row at most): numbers of pairs, −1 for none."""
        found = np.empty((count, self._rows, self._most), np.int32)
        for i in range(count):
            if self.batch == self.batches_per_epoch:
                self._start(self.epoch + 1)
            found[i] = self._slots[self.batch * self._rows : (self.batch + 1) * self._rows]
            self.batch += 1
        return found

    def get_state(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batch": self.batch}

    def set_state(self, state: dict[str, int]) -> None:
        """Makes the next batch the one that followed when `get_state` gave `state`."""
        self._start(state["epoch"])
        if not 0 <= state["batch"] <= self.batches_per_epoch:
            raise ValueError(
                f"batch={state['batch']} is not in epoch {state['epoch']}, which has {self.batches_per_epoch} batches: "
                "the state is of other pairs or another batch shape"
            )
        self.batch = state["batch"]

    def _start(self, epoch):
        self.epoch, self.batch = epoch, 0
        lengths = [side.lengths for side in self._corpus]
        order = np.random.default_rng((self._seed, epoch)).permutation(len(lengths[0]))
        plan = pack(order, *lengths, self._row_pieces)
        self.batches_per_epoch = -(-(int(plan.row[-1]) + 1) // self._rows)
        rows = self.batches_per_epoch * self._rows
        self._slots = np.full((rows, self._most), -1, np.int32)
        self._slots[plan.row, plan.segment - 1] = plan.pair
        self.real_tokens = int(sum(side.sum() for side in lengths)) / (2 * rows * self._row_pieces)


def most_in_a_row(corpus: Corpus, row_pieces: int) -> int:
    """No row has room for more pairs, whichever they are."""
    shortest = [int(side.lengths.min()) for side in corpus]
    both = int((corpus.source.lengths + corpus.target.lengths).min())
    return min(*(row_pieces // length for length in shortest), 2 * row_pieces // both)


def pack(order: np.ndarray, source_lengths: np.ndarray, target_lengths: np.ndarray, row_pieces: int) -> Plan:
    """First fit: each pair, in `order`, goes to the oldest open row with room for both of its sides.

    Where none of the WINDOW open rows has room, the oldest is closed and a new one opened. Rows are numbered in the
    order of their opening.
    """
    rows, first, sources, targets = [], 0, [], []  # number of the oldest open row; room left in each open row
    room = range(0)
    for source, target in zip(source_lengths[order].tolist(), target_lengths[order].tolist(), strict=True):
        for k in room:
            if source <= sources[k] and target <= targets[k]:
                break
        else:
            if len(sources) == WINDOW:
                del sources[0], targets[0]
                first += 1
            k = len(sources)
            sources.append(row_pieces)
            targets.append(row_pieces)
            room = range(len(sources))
        rows.append(first + k)
        sources[k] -= source
        targets[k] -= target
    by_row = np.argsort(rows, kind="stable")
    row = np.array(rows)[by_row]
    return Plan(order[by_row], row, np.arange(len(row)) - np.searchsorted(row, row) + 1)


def padded(pairs: Encoded, rows: int, length: int) -> Iterator[tuple[np.ndarray, Batch]]:
    """Batches for evaluation: one pair a row, in order of source length, empty rows completing the last.

    Gives (indices, batch): row i of the batch holds pair `indices[i]`; indices, (rows or fewer,), name each pair
    once. Where there is only a source, give empty targets.

    Raises ValueError for a pair that does not fit `length`, end mark included.
    """
    flat = corpus(pairs)
    _check(flat, length)
    order = np.argsort(flat.source.lengths, kind="stable")
    for start in range(0, len(order), rows):
        indices = order[start : start + rows]
        slots = np.full((rows, 1), -1, np.int32)
        slots[: len(indices), 0] = indices
        yield indices, assemble(flat, slots, length, np)


def assemble(corpus: Corpus, slots, row_pieces: int, xp=jnp) -> Batch:
    """The batch whose row r holds the pairs `slots[r]`, one after the other, −1 being none; `xp`: numpy or its like."""
    source, positions, segments = _placed(corpus.source, slots, row_pieces, xp)
    target, target_positions, target_segments = _placed(corpus.target, slots, row_pieces, xp)
    return Batch(_ids(corpus.source, source + 1, segments, xp), positions, segments,
                 _ids(corpus.target, target, target_segments, xp), _ids(corpus.target, target + 1, target_segments, xp),
                 target_positions, target_segments)


def _placed(sentences, slots, row_pieces, xp):
    """For each position of rows: where its piece's forerunner is in the flat ids, its position, its segment."""
    there = slots >= 0
    lengths = xp.where(there, sentences.lengths[slots], 0)
    ends = xp.cumsum(lengths, axis=1, dtype=np.int32)
    column = xp.arange(row_pieces, dtype=np.int32)
    passed = (column[None, :, None] >= ends[:, None]).sum(-1, dtype=np.int32)
    real = column[None] < ends[:, -1:]
    slot = xp.where(real, passed, 0)
    positions = xp.where(real, column[None] - xp.take_along_axis(ends - lengths, slot, axis=1), 0)
    first = xp.take_along_axis(xp.where(there, sentences.starts[slots], 0), slot, axis=1)
    return first + positions, positions, xp.where(real, passed + 1, 0)


def _ids(sentences, places, segments, xp):
    return xp.where(segments > 0, sentences.ids[xp.where(segments > 0, places, 0)], PAD)


def _flat(sentences) -> Sentences:
    lengths = np.array([len(s) + 1 for s in sentences], np.int32)
    starts = np.cumsum(lengths + 1, dtype=np.int32) - (lengths + 1)
    ids = np.empty(int((lengths + 1).sum()), np.int32)
    ids[starts] = BOS
    ids[starts + lengths] = EOS
    inside = np.ones(len(ids), bool)
    inside[starts] = inside[starts + lengths] = False
    if len(sentences):
        ids[inside] = np.concatenate(sentences)
    return Sentences(ids, starts, lengths)


def _check(corpus, row_pieces):
    source_lengths, target_lengths = (side.lengths for side in corpus)
    if len(source_lengths) != len(target_lengths):
        raise ValueError(f"{len(source_lengths)} sources but {len(target_lengths)} targets")
    if not len(source_lengths):
        raise ValueError("no pairs to make batches of")
    longest = np.maximum(source_lengths, target_lengths)
    if longest.max() > row_pieces:
        i = int(longest.argmax())
        raise ValueError(
            f"pair {i} has {source_lengths[i]} source and {target_lengths[i]} target pieces, end mark included, and a "
            f"row holds row_pieces={row_pieces}; drop long pairs first, or make rows longer"
        )
