"""Batches of one static shape: sentences packed into rows, a seeded order, and a state of two numbers.

A row holds several pairs one after the other. Attention must stay within a pair, so each position carries the number
of its pair within the row (its segment; 0 is padding), and positions count from 0 in each sentence:

    source            the  cat  </s> a    dog  </s> <pad>
    source_positions  0    1    2    0    1    2    0
    source_segments   1    1    1    2    2    2    0
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from experiments.tokens import BOS, EOS, PAD

WINDOW = 24
"""Rows kept open while packing; more fill better and plan slower."""


class Encoded(NamedTuple):
    """Pairs of sentences as int32 ids, without BOS and EOS."""

    source: list[np.ndarray]
    target: list[np.ndarray]


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
    """Where each pair goes, in order of rows: pair `pair[i]` goes to row `row[i]`, from the two columns on."""

    pair: np.ndarray
    row: np.ndarray
    segment: np.ndarray
    source_column: np.ndarray
    target_column: np.ndarray


def drop_long(pairs: Encoded, max_pieces: int) -> tuple[Encoded, int]:
    """The pairs whose sides have at most `max_pieces` pieces, end mark included, and how many were dropped."""
    kept = [i for i, (s, t) in enumerate(zip(*pairs, strict=True)) if max(len(s), len(t)) < max_pieces]
    return Encoded([pairs.source[i] for i in kept], [pairs.target[i] for i in kept]), len(pairs.source) - len(kept)


class Batches:
    """An endless iterator over training batches.

    Each epoch shuffles all pairs, packs them into rows, and yields the rows in batches; empty rows complete the last
    batch, so that every pair comes exactly once an epoch. A batch is a pure function of (pairs, seed, epoch, batch),
    so those last two numbers are the whole state.

    Attributes:
        epoch: of the next batch.
        batch: the next batch's number within its epoch.
        batches_per_epoch: in the current epoch; packing makes it vary a little.
        real_tokens: share of the current epoch's positions, source and target together, that are no padding.
    """

    def __init__(self, pairs: Encoded, *, rows: int, row_pieces: int, seed: int):
        self._source, self._target = _Sentences(pairs.source), _Sentences(pairs.target)
        self._rows, self._row_pieces, self._seed = rows, row_pieces, seed
        _check(self._source.lengths, self._target.lengths, row_pieces)
        self.set_state({"epoch": 0, "batch": 0})

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self.batch == self.batches_per_epoch:
            self._start(self.epoch + 1)
        bounds = np.searchsorted(self._plan.row, [self.batch * self._rows, (self.batch + 1) * self._rows])
        part = Plan(*(column[slice(*bounds)] for column in self._plan))
        part = part._replace(row=part.row - self.batch * self._rows)
        self.batch += 1
        return _assemble(self._source, self._target, part, self._rows, self._row_pieces)

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
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self._source.lengths))
        self._plan = pack(order, self._source.lengths, self._target.lengths, self._row_pieces)
        self.batches_per_epoch = -(-(int(self._plan.row[-1]) + 1) // self._rows)
        real = int(self._source.lengths.sum() + self._target.lengths.sum())
        self.real_tokens = real / (2 * self.batches_per_epoch * self._rows * self._row_pieces)


def pack(order: np.ndarray, source_lengths: np.ndarray, target_lengths: np.ndarray, row_pieces: int) -> Plan:
    """First fit: each pair, in `order`, goes to the oldest open row with room for both of its sides.

    Where none of the WINDOW open rows has room, the oldest is closed and a new one opened. Rows are numbered in the
    order of their opening.
    """
    rows, source_columns, target_columns = [], [], []
    first, sources, targets = 0, [], []  # number of the oldest open row; room left in each open row
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
        source_columns.append(row_pieces - sources[k])
        target_columns.append(row_pieces - targets[k])
        sources[k] -= source
        targets[k] -= target
    by_row = np.argsort(rows, kind="stable")
    row = np.array(rows)[by_row]
    segment = np.arange(len(row)) - np.searchsorted(row, row) + 1
    return Plan(order[by_row], row, segment, np.array(source_columns)[by_row], np.array(target_columns)[by_row])


def padded(pairs: Encoded, rows: int, length: int) -> Iterator[tuple[np.ndarray, Batch]]:
    """Batches for evaluation: one pair a row, in order of source length, empty rows completing the last.

    Gives (indices, batch): row i of the batch holds pair `indices[i]`; indices, (rows or fewer,), name each pair
    once. Where there is only a source, give empty targets.

    Raises ValueError for a pair that does not fit `length`, end mark included.
    """
    source, target = _Sentences(pairs.source), _Sentences(pairs.target)
    _check(source.lengths, target.lengths, length)
    order = np.argsort(source.lengths, kind="stable")
    for start in range(0, len(order), rows):
        indices = order[start : start + rows]
        zeros = np.zeros_like(indices)
        plan = Plan(indices, np.arange(len(indices)), zeros + 1, zeros, zeros)
        yield indices, _assemble(source, target, plan, rows, length)


class _Sentences:
    """Sentences as one flat array, each between BOS and EOS. `lengths` count the one mark that a row holds."""

    def __init__(self, sentences):
        self.lengths = np.array([len(s) + 1 for s in sentences], np.int64)
        self.starts = np.cumsum(self.lengths + 1) - (self.lengths + 1)
        self.ids = np.empty(int((self.lengths + 1).sum()), np.int32)
        self.ids[self.starts] = BOS
        self.ids[self.starts + self.lengths] = EOS
        inside = np.ones(len(self.ids), bool)
        inside[self.starts] = inside[self.starts + self.lengths] = False
        if len(sentences):
            self.ids[inside] = np.concatenate(sentences)


def _check(source_lengths, target_lengths, row_pieces):
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


def _assemble(source, target, plan, rows, row_pieces) -> Batch:
    shape = rows, row_pieces
    cells, ids, positions, segments = _gather(source, plan.pair, plan.row * row_pieces + plan.source_column, plan)
    inputs = [_scatter(cells, values, shape) for values in (source.ids[ids + 1], positions, segments)]
    cells, ids, positions, segments = _gather(target, plan.pair, plan.row * row_pieces + plan.target_column, plan)
    outputs = [
        _scatter(cells, values, shape) for values in (target.ids[ids], target.ids[ids + 1], positions, segments)
    ]
    return Batch(*inputs, *outputs)


def _gather(sentences, pair, start, plan):
    """For each piece of the planned pairs: its cell in the batch, its index in the flat ids, position, segment."""
    lengths = sentences.lengths[pair]
    ends = np.cumsum(lengths)
    positions = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    spread = lambda values: np.repeat(values, lengths)
    return spread(start) + positions, spread(sentences.starts[pair]) + positions, positions, spread(plan.segment)


def _scatter(cells, values, shape):
    batch = np.full(shape, PAD, np.int32)
    batch.reshape(-1)[cells] = values
    return batch
