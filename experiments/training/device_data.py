"""What devices assemble batches from: the whole corpus where it fits, else what the next steps need of it."""

import jax
import numpy as np

from experiments.data.batches import Corpus, excerpt
from experiments.trial.lanes import Lanes

RESIDENT = 2**28
"""Bytes of a corpus that stays on each device."""


class Feed:
    """The corpus for the lanes of a population, whose rows have `sequence_length` tokens."""

    def __init__(self, corpus: Corpus, lanes: Lanes, sequence_length: int):
        self._corpus, self._lanes, self._row_tokens = corpus, lanes, sequence_length
        self._resident = None
        if 4 * sum(array.size for array in jax.tree.leaves(corpus)) <= RESIDENT:
            self._resident = lanes.share(
                jax.tree.map(lambda array: array.astype(np.int32), corpus)
            )

    def __call__(self, slots: np.ndarray):
        """(a corpus on the devices, slots in it) for the slots (L, K, rows, S) of the host's corpus."""
        if self._resident is not None:
            return self._resident, slots
        needed, slots = excerpt(self._corpus, slots, self._row_tokens)
        return self._lanes.share(needed), slots
