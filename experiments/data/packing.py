"""Packing: which pairs of sentences stand in which row of a batch.

A row holds several pairs one after the other, as many as fit.
"""

from typing import NamedTuple

import numpy as np

WINDOW = 24
"""Rows that are open while packing; more fill better and plan slower."""


class Plan(NamedTuple):
    """Holds where each pair goes, in order of rows.

    Pair `pair[i]` is the `segment[i]`-th, from 1 on, of row `row[i]`.
    """

    pair: np.ndarray
    row: np.ndarray
    segment: np.ndarray


def pairs_in_a_row(
    source_lengths: np.ndarray, target_lengths: np.ndarray, sequence_length: int
) -> int:
    """Returns the most pairs that a row has room for, whichever they are."""
    # A bound for any rows, so that the shape of a batch is the same in all epochs.
    shortest_pair = int((source_lengths + target_lengths).min())
    return min(
        sequence_length // int(source_lengths.min()),
        sequence_length // int(target_lengths.min()),
        2 * sequence_length // shortest_pair,
    )


def pack(
    order: np.ndarray,
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    sequence_length: int,
) -> Plan:
    """Plans rows by first fit.

    Each pair, in `order`, goes to the oldest open row with room for both of its sides.
    Where none of the WINDOW open rows has room, the oldest is closed and a new one opened.
    Rows are numbered in the order of their opening.
    """
    rows = []
    oldest = 0
    # The room that is left in each open row.
    source_room = []
    target_room = []
    open_rows = range(0)
    # Lists, because a loop over numpy's numbers is slower.
    for source, target in zip(
        source_lengths[order].tolist(), target_lengths[order].tolist(), strict=True
    ):
        for k in open_rows:
            if source <= source_room[k] and target <= target_room[k]:
                break
        else:
            if len(source_room) == WINDOW:
                del source_room[0]
                del target_room[0]
                oldest += 1
            k = len(source_room)
            source_room.append(sequence_length)
            target_room.append(sequence_length)
            open_rows = range(len(source_room))
        rows.append(oldest + k)
        source_room[k] -= source
        target_room[k] -= target
    # Stable, so that pairs of a row keep the order in which they were packed.
    by_row = np.argsort(rows, kind="stable")
    row = np.array(rows)[by_row]
    segment = np.arange(len(row)) - np.searchsorted(row, row) + 1
    return Plan(order[by_row], row, segment)
