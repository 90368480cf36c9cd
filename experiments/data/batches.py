"""Batches of one static shape: sentences packed into rows, a seeded order, and a state of three numbers.

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

from experiments.data.vocabulary import BOS, EOS, PAD

PART = 1 << 17
"""Pairs that are packed at a time, so that the first batch of a corpus of any size need not be waited for."""


WINDOW = 24
"""Rows kept open while packing; more fill better and plan slower."""


class Encoded(NamedTuple):
    """Pairs of sentences as int32 ids, without BOS and EOS."""

    source: list[np.ndarray]
    target: list[np.ndarray]


class Sentences(NamedTuple):
    """Sentences in one flat array, each between BOS and EOS; sentence i's BOS is at `starts[i]`. On the host the arrays
    may be files mapped into memory, of other types of integers."""

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    """Of each sentence with the one mark that a row holds."""


class Corpus(NamedTuple):
    """Pairs of sentences as the arrays that batches are gathered from, on the host or on a device."""

    source: Sentences
    target: Sentences


class Batch(NamedTuple):
    """int32 arrays, all (rows, sequence_length). The decoder reads `target_in` and is to give `target_out`."""

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


def corpus(pairs: Encoded) -> Corpus:
    nothing = np.empty(0, np.int32)
    return Corpus(
        *(
            between_marks(
                np.concatenate([nothing, *side]),
                np.array([len(s) for s in side], np.int32),
            )
            for side in pairs
        )
    )


def between_marks(ids: np.ndarray, lengths: np.ndarray) -> Sentences:
    """Sentences of `lengths` ids, which stand one after the other in `ids` without marks."""
    lengths = lengths + np.int32(1)
    starts = np.cumsum(lengths + 1, dtype=np.int32) - (lengths + 1)
    whole = np.empty(len(ids) + 2 * len(lengths), np.int32)
    whole[starts] = BOS
    whole[starts + lengths] = EOS
    inside = np.ones(len(whole), bool)
    inside[starts] = inside[starts + lengths] = False
    whole[inside] = ids
    return Sentences(whole, starts, lengths)


def excerpt(
    corpus: Corpus, slots: np.ndarray, sequence_length: int
) -> tuple[Corpus, np.ndarray]:
    """The pairs of slots (L, K, rows, S) alone, in int32 arrays as large as any such slots need, and their slots."""
    pairs = slots[slots >= 0]
    renumbered = np.full_like(slots, -1)
    renumbered[slots >= 0] = np.arange(len(pairs), dtype=np.int32)
    rows = slots.size // slots.shape[-1]
    return Corpus(
        *(
            _chosen(side, pairs, slots.size, rows * sequence_length + slots.size)
            for side in corpus
        )
    ), renumbered


class Batches:
    """An endless iterator over training batches.

    Each epoch shuffles all pairs, and takes PART of them at a time to pack into rows and yield in batches; empty rows
    complete a part's last batch, so that every pair comes exactly once an epoch. With `by_length` the pairs of a part
    are put into batches by their lengths, and the batches are shuffled: section 5.1 of Vaswani et al. (2017).

    A batch is a pure function of (pairs, seed, epoch, part, batch), so those last three numbers are the whole state.
    `take` gives batches by the numbers of their pairs alone, for a device that has the corpus to `assemble`; `next`
    gives them assembled.

    Attributes:
        epoch, part: of the next batch.
        batch: the next batch's number within its part.
        batches_in_part: of the current one; packing makes it vary a little.
        real_tokens: share of the current part's positions, source and target together, that are no padding.
    """

    def __init__(
        self,
        pairs: Encoded | Corpus,
        *,
        batch_size: int,
        sequence_length: int,
        seed: int,
        by_length: bool = False,
    ):
        self._corpus = pairs if isinstance(pairs, Corpus) else corpus(pairs)
        self._batch_size = batch_size
        self._sequence_length = sequence_length
        self._seed = seed
        self._by_length = by_length
        _check(self._corpus, sequence_length)
        self._most = most_in_a_row(self._corpus, sequence_length)
        self._parts = -(-len(self._corpus.source.lengths) // PART)
        self.epoch = None
        self._start(0, 0)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return assemble(self._corpus, self.take(1)[0], self._sequence_length, np)

    def take(self, count: int) -> np.ndarray:
        """The next `count` batches, int32 (count, rows, pairs of a row at most): numbers of pairs, −1 for none."""
        found = np.empty((count, self._batch_size, self._most), np.int32)
        for i in range(count):
            if self.batch == self.batches_in_part:
                self._start(
                    *divmod(self.epoch * self._parts + self.part + 1, self._parts)
                )
            found[i] = self._slots[self.batch]
            self.batch += 1
        return found

    def get_state(self) -> dict[str, int]:
        return {"epoch": self.epoch, "part": self.part, "batch": self.batch}

    def set_state(self, state: dict[str, int]) -> None:
        """Makes the next batch the one that followed when `get_state` gave `state`."""
        part, batch = state.get("part", 0), state["batch"]
        if 0 <= part < self._parts:
            self._start(state["epoch"], part)
        if not 0 <= part < self._parts or not 0 <= batch <= self.batches_in_part:
            raise ValueError(
                f"batch={batch} of part {part} is not in epoch {state['epoch']}, which has {self._parts} parts, "
                f"{self.batches_in_part} batches in this one: the state is of other pairs or another batch shape"
            )
        self.batch = batch

    def _start(self, epoch, part):
        if epoch != self.epoch:
            self._order = np.arange(len(self._corpus.source.lengths), dtype=np.int32)
            np.random.default_rng((self._seed, epoch)).shuffle(self._order)
        self.epoch, self.part, self.batch = epoch, part, 0
        pairs = self._order[part * PART : (part + 1) * PART]
        lengths = [side.lengths[pairs] for side in self._corpus]
        order = (
            np.argsort(np.maximum(*lengths), kind="stable")
            if self._by_length
            else np.arange(len(pairs))
        )
        plan = pack(order, *lengths, self._sequence_length)
        self.batches_in_part = -(-(int(plan.row[-1]) + 1) // self._batch_size)
        slots = np.full(
            (self.batches_in_part, self._batch_size, self._most), -1, np.int32
        )
        slots[
            plan.row // self._batch_size, plan.row % self._batch_size, plan.segment - 1
        ] = pairs[plan.pair]
        self._slots = (
            np.random.default_rng((self._seed, epoch, part)).permutation(slots)
            if self._by_length
            else slots
        )
        self.real_tokens = int(sum(side.sum() for side in lengths)) / (
            2 * slots[..., 0].size * self._sequence_length
        )


def most_in_a_row(corpus: Corpus, sequence_length: int) -> int:
    """No row has room for more pairs, whichever they are."""
    shortest = [int(side.lengths.min()) for side in corpus]
    both = int((corpus.source.lengths + corpus.target.lengths).min())
    return min(
        *(sequence_length // length for length in shortest), 2 * sequence_length // both
    )


def pack(
    order: np.ndarray,
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    sequence_length: int,
) -> Plan:
    """First fit: each pair, in `order`, goes to the oldest open row with room for both of its sides.

    Where none of the WINDOW open rows has room, the oldest is closed and a new one opened. Rows are numbered in the
    order of their opening.
    """
    rows, first, sources, targets = (
        [],
        0,
        [],
        [],
    )  # number of the oldest open row; room left in each open row
    room = range(0)
    for source, target in zip(
        source_lengths[order].tolist(), target_lengths[order].tolist(), strict=True
    ):
        for k in room:
            if source <= sources[k] and target <= targets[k]:
                break
        else:
            if len(sources) == WINDOW:
                del sources[0], targets[0]
                first += 1
            k = len(sources)
            sources.append(sequence_length)
            targets.append(sequence_length)
            room = range(len(sources))
        rows.append(first + k)
        sources[k] -= source
        targets[k] -= target
    by_row = np.argsort(rows, kind="stable")
    row = np.array(rows)[by_row]
    return Plan(order[by_row], row, np.arange(len(row)) - np.searchsorted(row, row) + 1)


def padded(
    pairs: Encoded, rows: int, length: int
) -> Iterator[tuple[np.ndarray, Batch]]:
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


def assemble(corpus: Corpus, slots, sequence_length: int, xp=jnp) -> Batch:
    """The batch whose row r holds the pairs `slots[r]`, one after the other, −1 being none; `xp`: numpy or its like."""
    source, positions, segments = _placed(corpus.source, slots, sequence_length, xp)
    target, target_positions, target_segments = _placed(
        corpus.target, slots, sequence_length, xp
    )
    return Batch(
        _ids(corpus.source, source + 1, segments, xp),
        positions,
        segments,
        _ids(corpus.target, target, target_segments, xp),
        _ids(corpus.target, target + 1, target_segments, xp),
        target_positions,
        target_segments,
    )


def _placed(sentences, slots, sequence_length, xp):
    """For each position of rows: where its token's forerunner is in the flat ids, its position, its segment."""
    there = slots >= 0
    lengths = xp.where(there, sentences.lengths[slots], 0)
    ends = xp.cumsum(lengths, axis=1, dtype=np.int32)
    column = xp.arange(sequence_length, dtype=np.int32)
    passed = (column[None, :, None] >= ends[:, None]).sum(-1, dtype=np.int32)
    real = column[None] < ends[:, -1:]
    slot = xp.where(real, passed, 0)
    positions = xp.where(
        real, column[None] - xp.take_along_axis(ends - lengths, slot, axis=1), 0
    )
    first = xp.take_along_axis(
        xp.where(there, sentences.starts[slots], 0), slot, axis=1
    )
    return first + positions, positions, xp.where(real, passed + 1, 0)


def _ids(sentences, places, segments, xp):
    return xp.where(
        segments > 0, sentences.ids[xp.where(segments > 0, places, 0)], PAD
    ).astype(np.int32)


def _chosen(sentences, numbers, most, most_ids) -> Sentences:
    """The sentences `numbers`, followed by room for `most` in all, and `most_ids` ids."""
    lengths = sentences.lengths[numbers]
    ends = np.cumsum(lengths + 1)
    starts = ends - (lengths + 1)
    there = np.repeat(sentences.starts[numbers] - starts, lengths + 1) + np.arange(
        ends[-1] if len(ends) else 0
    )
    return Sentences(
        *(
            np.pad(x.astype(np.int32), (0, size - len(x)))
            for x, size in (
                (sentences.ids[there], most_ids),
                (starts, most),
                (lengths, most),
            )
        )
    )


def _check(corpus, sequence_length):
    source_lengths, target_lengths = (side.lengths for side in corpus)
    if len(source_lengths) != len(target_lengths):
        raise ValueError(
            f"{len(source_lengths)} sources but {len(target_lengths)} targets"
        )
    if not len(source_lengths):
        raise ValueError("no pairs to make batches of")
    if max(source_lengths.max(), target_lengths.max()) > sequence_length:
        i = int(np.maximum(source_lengths, target_lengths).argmax())
        raise ValueError(
            f"pair {i} has {source_lengths[i]} source and {target_lengths[i]} target tokens, end mark included, and a "
            f"row holds sequence_length={sequence_length}; drop long pairs first, or make rows longer"
        )
