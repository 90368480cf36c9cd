"""Batches of one static shape: sentences packed into rows, a seeded order, and a state of
three numbers.

A row holds several pairs one after the other. Attention must stay within a pair, so each
position carries the number of its pair within the row (its segment; 0 is padding), and
positions count from 0 in each sentence:

    source            the  cat  </s> a    dog  </s> <pad>
    source_positions  0    1    2    0    1    2    0
    source_segments   1    1    1    2    2    2    0

The words of this module: *slots*, an array (rows, pairs of a row) of numbers of pairs, -1
for none, say what a batch holds; `assemble` makes the batch of them.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from experiments.data.packing import pack, pairs_in_a_row
from experiments.data.vocabulary import BOS, EOS, PAD
from experiments.objectives import Objective, Translate

PART = 1 << 17
"""Pairs that are packed at a time, so that the first batch of a large corpus comes soon."""


class Encoded(NamedTuple):
    """Holds pairs of sentences as int32 ids, without BOS and EOS."""

    source: list[np.ndarray]
    target: list[np.ndarray]


class Sentences(NamedTuple):
    """Holds sentences in one flat array, each between BOS and EOS.

    On the host the arrays may be files mapped into memory, of other integer types.
    """

    ids: np.ndarray
    starts: np.ndarray
    """The place of each sentence's BOS in `ids`."""
    lengths: np.ndarray
    """The tokens of each sentence with the one mark that a row holds."""


class Corpus(NamedTuple):
    """Holds pairs of sentences as the arrays from which batches are gathered."""

    source: Sentences
    target: Sentences


class Batch(NamedTuple):
    """Holds int32 arrays (batch_size, sequence_length).

    The decoder reads `target_in` and is to predict `target_out`. Where the target answers in
    the places of the source, a language model reads `source`.
    """

    source: np.ndarray
    source_positions: np.ndarray
    source_segments: np.ndarray
    target_in: np.ndarray
    target_out: np.ndarray
    target_positions: np.ndarray
    target_segments: np.ndarray


def corpus(pairs: Encoded) -> Corpus:
    """Returns the pairs in flat arrays."""
    nothing = np.empty(0, np.int32)
    sides = []
    for side in pairs:
        lengths = np.array([len(ids) for ids in side], np.int32)
        sides.append(between_marks(np.concatenate([nothing, *side]), lengths))
    return Corpus(*sides)


def between_marks(ids: np.ndarray, lengths: np.ndarray) -> Sentences:
    """Returns sentences with BOS and EOS around each.

    They stand one after the other in `ids`, `lengths` ids each, without marks.
    """
    lengths = lengths + np.int32(1)
    starts = np.cumsum(lengths + 1, dtype=np.int32) - (lengths + 1)
    marked = np.empty(len(ids) + 2 * len(lengths), np.int32)
    # With both marks, input and output of the decoder are one array, shifted by one.
    marked[starts] = BOS
    marked[starts + lengths] = EOS
    inside = np.ones(len(marked), bool)
    inside[starts] = False
    inside[starts + lengths] = False
    marked[inside] = ids
    return Sentences(marked, starts, lengths)


def excerpt(
    corpus: Corpus, slots: np.ndarray, sequence_length: int
) -> tuple[Corpus, np.ndarray]:
    """Returns the pairs of slots (L, K, rows, S) alone, and their slots in that excerpt.

    Its int32 arrays are as large as any such slots need, so that their shapes are static.
    """
    pairs = slots[slots >= 0]
    renumbered = np.full_like(slots, -1)
    renumbered[slots >= 0] = np.arange(len(pairs), dtype=np.int32)
    # A row holds sequence_length ids at most, and each sentence one more mark.
    rows = slots.size // slots.shape[-1]
    most_ids = rows * sequence_length + slots.size
    sides = [_select(side, pairs, slots.size, most_ids) for side in corpus]
    return Corpus(*sides), renumbered


class Batches:
    """Iterates over training batches without end.

    Each epoch shuffles all pairs, takes PART of them at a time to pack into rows, and
    yields these in batches; empty rows complete a part's last batch, so that every pair
    comes exactly once an epoch. With `by_length` the pairs of a part are put into batches
    by their lengths, and the batches are shuffled: section 5.1 of Vaswani et al. (2017).

    A batch is a pure function of (pairs, seed, epoch, part, batch), so those last three
    numbers are the whole state. `take` gives batches by the numbers of their pairs alone,
    for a device that has the corpus to `assemble`; `next` gives them assembled.

    Attributes:
      epoch, part: those of the next batch.
      batch: the next batch's number within its part.
      batches_in_part: the number of batches in the current part; packing varies it a
        little.
      real_tokens: the share of the current part's positions, source and target together,
        that are no padding; where targets are `labels`, of the source's alone.
    """

    def __init__(
        self,
        pairs: Encoded | Corpus,
        *,
        batch_size: int,
        sequence_length: int,
        seed: int,
        by_length: bool = False,
        labels: bool = False,
    ):
        self._corpus = pairs if isinstance(pairs, Corpus) else corpus(pairs)
        self._batch_size = batch_size
        self._sequence_length = sequence_length
        self._seed = seed
        self._by_length = by_length
        self._sides = 1 if labels else 2
        _check(self._corpus, sequence_length)
        self._row_pairs = most_in_a_row(self._corpus, sequence_length)
        self._parts = -(-len(self._corpus.source.lengths) // PART)
        # No epoch yet, so that `_start` shuffles for the first.
        self.epoch = None
        self._start(0, 0)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return assemble(self._corpus, self.take(1)[0], self._sequence_length, np)

    def take(self, count: int) -> np.ndarray:
        """Returns the slots of the next batches, int32 (count, rows, pairs of a row)."""
        slots = np.empty((count, self._batch_size, self._row_pairs), np.int32)
        for i in range(count):
            # Not after the last batch but before the next, so that a saved state may be
            # at a part's end.
            if self.batch == self.batches_in_part:
                part = self.epoch * self._parts + self.part + 1
                self._start(*divmod(part, self._parts))
            slots[i] = self._slots[self.batch]
            self.batch += 1
        return slots

    def get_state(self) -> dict[str, int]:
        """Returns the place of the next batch."""
        return {"epoch": self.epoch, "part": self.part, "batch": self.batch}

    def set_state(self, state: dict[str, int]) -> None:
        """Makes the next batch the one that followed when `get_state` gave `state`.

        Raises:
          ValueError: a state of other pairs or another shape of batch.
        """
        # Older states have no part.
        part = state.get("part", 0)
        batch = state["batch"]
        # The number of batches in a part is known only after it was packed.
        if 0 <= part < self._parts:
            self._start(state["epoch"], part)
        if not 0 <= part < self._parts or not 0 <= batch <= self.batches_in_part:
            raise ValueError(
                f"batch={batch} of part {part} is not in epoch {state['epoch']}, which has "
                f"{self._parts} parts, {self.batches_in_part} batches in this one: the "
                "state is of other pairs or another batch shape"
            )
        self.batch = batch

    def _start(self, epoch, part):
        """Goes to the first batch of a part."""
        if epoch != self.epoch:
            self._order = np.arange(len(self._corpus.source.lengths), dtype=np.int32)
            # Seeded by the epoch, so that none before it need be drawn again.
            np.random.default_rng((self._seed, epoch)).shuffle(self._order)
        self.epoch = epoch
        self.part = part
        self.batch = 0
        pairs = self._order[part * PART : (part + 1) * PART]
        lengths = [side.lengths[pairs] for side in self._corpus]
        self._slots = self._slots_of(pairs, lengths)
        self.batches_in_part = len(self._slots)
        real = int(sum(side.sum() for side in lengths[: self._sides]))
        positions = self._sides * self._slots[..., 0].size * self._sequence_length
        self.real_tokens = real / positions

    def _slots_of(self, pairs, lengths):
        """Returns the slots (batches, rows, pairs of a row) of a part's pairs."""
        order = np.arange(len(pairs))
        if self._by_length:
            # By the longer side, because both sides must fit into the row.
            order = np.argsort(np.maximum(*lengths), kind="stable")
        plan = pack(order, *lengths, self._sequence_length)
        # The plan is in order of rows, so its last row is the highest.
        batches = -(-(int(plan.row[-1]) + 1) // self._batch_size)
        slots = np.full((batches, self._batch_size, self._row_pairs), -1, np.int32)
        batch, row = np.divmod(plan.row, self._batch_size)
        slots[batch, row, plan.segment - 1] = pairs[plan.pair]
        # The pairs were shuffled before they were packed; only sorted ones need it
        # after.
        if not self._by_length:
            return slots
        seed = (self._seed, self.epoch, self.part)
        return np.random.default_rng(seed).permutation(slots)


def most_in_a_row(corpus: Corpus, sequence_length: int) -> int:
    """Returns the most pairs that a row has room for, whichever they are."""
    lengths = [side.lengths for side in corpus]
    return pairs_in_a_row(*lengths, sequence_length)


def padded(
    pairs: Encoded, batch_size: int, length: int, objective: Objective = Translate()
) -> Iterator[tuple[np.ndarray, Batch]]:
    """Gives batches for evaluation: one pair a row, in order of source length.

    Empty rows complete the last batch. Yields (indices, batch): row i of the batch holds
    pair `indices[i]`; indices, (batch_size or fewer,), name each pair once. Where there is
    only a source, give empty targets.

    Raises:
      ValueError: a pair that does not fit `length`, end mark included.
    """
    flat = corpus(pairs)
    _check(flat, length)
    # Stable, so that the batches are the same everywhere.
    order = np.argsort(flat.source.lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        # Full size for the last batch too, because another shape would compile anew.
        slots = np.full((batch_size, 1), -1, np.int32)
        slots[: len(indices), 0] = indices
        yield indices, objective.batch(assemble(flat, slots, length, np), pairs=1)


def assemble(corpus: Corpus, slots, sequence_length: int, xp=jnp) -> Batch:
    """Returns the batch whose row r holds the pairs `slots[r]`, one after the other.

    `xp` is numpy, or jax.numpy to do it on a device.
    """
    source, source_positions, source_segments = _places(
        corpus.source, slots, sequence_length, xp
    )
    target, target_positions, target_segments = _places(
        corpus.target, slots, sequence_length, xp
    )
    return Batch(
        # A sentence's BOS stands before it; the encoder does not read it.
        _ids(corpus.source, source + 1, source_segments, xp),
        source_positions,
        source_segments,
        _ids(corpus.target, target, target_segments, xp),
        _ids(corpus.target, target + 1, target_segments, xp),
        target_positions,
        target_segments,
    )


def _places(sentences, slots, sequence_length, xp):
    """Returns three arrays (rows, sequence_length).

    They are the place in the flat ids of the token before each position's, the position,
    and the segment.
    """
    exists = slots >= 0
    # -1 reads some sentence, whose length is then set to 0: no shape depends on data.
    lengths = xp.where(exists, sentences.lengths[slots], 0)
    ends = xp.cumsum(lengths, axis=1, dtype=np.int32)
    # Comparing each column with all ends finds its pair without a loop, also on a
    # device.
    column = xp.arange(sequence_length, dtype=np.int32)
    passed = (column[None, :, None] >= ends[:, None]).sum(-1, dtype=np.int32)
    real = column[None] < ends[:, -1:]
    slot = xp.where(real, passed, 0)
    before = xp.take_along_axis(ends - lengths, slot, axis=1)
    positions = xp.where(real, column[None] - before, 0)
    starts = xp.where(exists, sentences.starts[slots], 0)
    first = xp.take_along_axis(starts, slot, axis=1)
    return first + positions, positions, xp.where(real, passed + 1, 0)


def _ids(sentences, places, segments, xp):
    real = segments > 0
    # Padding reads place 0, which exists, and is replaced after.
    ids = sentences.ids[xp.where(real, places, 0)]
    return xp.where(real, ids, PAD).astype(np.int32)


def _select(sentences, numbers, most, most_ids) -> Sentences:
    """Returns the sentences `numbers`, with room for `most` of them and `most_ids` ids."""
    lengths = sentences.lengths[numbers]
    ends = np.cumsum(lengths + 1)
    starts = ends - (lengths + 1)
    count = ends[-1] if len(ends) else 0
    # One gather for all sentences, because a Python loop over them would be slow.
    moved = np.repeat(sentences.starts[numbers] - starts, lengths + 1)
    ids = sentences.ids[moved + np.arange(count)]
    return Sentences(
        _padded_to(ids, most_ids), _padded_to(starts, most), _padded_to(lengths, most)
    )


def _padded_to(array, size):
    return np.pad(array.astype(np.int32), (0, size - len(array)))


def _check(corpus, sequence_length):
    sources = corpus.source.lengths
    targets = corpus.target.lengths
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} sources but {len(targets)} targets")
    if not len(sources):
        raise ValueError("no pairs to make batches of")
    if max(sources.max(), targets.max()) > sequence_length:
        i = int(np.maximum(sources, targets).argmax())
        raise ValueError(
            f"pair {i} has {sources[i]} source and {targets[i]} target tokens, end mark "
            f"included, and a row holds sequence_length={sequence_length}; drop long pairs "
            "first, or make rows longer"
        )
