"""What devices assemble batches from: the whole corpus where it fits, else an excerpt."""

import jax
import numpy as np

from experiments.data.batches import Corpus, excerpt
from experiments.trial.lanes import Lanes

RESIDENT = 2**28
"""Bytes of a corpus that stays on each device."""


class DeviceData:
    """Brings a corpus to the devices of a population, whose rows have `sequence_length` tokens."""

    def __init__(self, corpus: Corpus, lanes: Lanes, sequence_length: int):
        self._corpus = corpus
        self._lanes = lanes
        self._sequence_length = sequence_length
        self._resident = None
        # As int32, whatever the files of the host hold.
        if 4 * sum(array.size for array in jax.tree.leaves(corpus)) <= RESIDENT:
            integers = jax.tree.map(lambda array: array.astype(np.int32), corpus)
            self._resident = lanes.share(integers)

    def __call__(self, slots: np.ndarray):
        """Returns (a corpus on the devices, slots in it) for slots (L, K, rows, S).

        Slots are numbers of pairs in the corpus on the host, -1 for none. A corpus that is
        too large is cut down to the pairs of these steps.
        """
        if self._resident is not None:
            return self._resident, slots
        needed, slots = excerpt(self._corpus, slots, self._sequence_length)
        return self._lanes.share(needed), slots
