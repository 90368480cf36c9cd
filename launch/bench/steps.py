"""The training step that is timed: a model, a batch, and what every library is told of both.

Nothing here imports a library that is compared, for the sake of their starts.
"""

import dataclasses

import numpy as np

from experiments.batches import Encoded
from experiments.tokens import BOS, EOS
from launch.bench.sizes import Sizes
from launch.bench.timing import Program

BETAS = (0.9, 0.98)
EPSILON = 1e-9
EPS_LS = 0.1
STEPS = 4
"""Taken before the timing; the loss must have fallen then."""


@dataclasses.dataclass(frozen=True)
class Case(Sizes):
    """A model, and a batch of sentence pairs of one length, so that no library works on padding."""

    pairs: int = 64
    pieces: int = 64
    """Of a sentence, one mark included: 4,096 + 4,096 in all."""
    P_drop: float = 0.3
    rate: float = 5e-4
    """Of Adam."""
    name: str = "step"
    only: None = None
    turn: float = 0.05

    def check(self, samples: dict[str, dict[str, np.ndarray]], name: str) -> tuple[float, str]:
        """The loss after `STEPS` on the one batch, which starts near log(vocabulary)."""
        first, last = samples[name]["losses"][[0, -1]]
        start = np.log(self.vocabulary)
        right = abs(first - start) < 0.15 * start and last < first
        return float(last), "" if right else f"the loss goes from {first:.2f} to {last:.2f}"


def sentences(case: Case) -> Encoded:
    """The pairs, as ids without marks; the same in every process."""
    ids = np.random.default_rng(0).integers(4, case.vocabulary, (2, case.pairs, case.pieces - 1), np.int32)
    return Encoded(*map(list, ids))


def padded(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source, decoder input and wanted output, (pairs, pieces) each: what a library gets that packs no rows."""
    source, target = map(np.array, sentences(case))
    begin, end = np.full((2, case.pairs, 1), [[[BOS]], [[EOS]]], np.int32)
    return np.hstack([source, end]), np.hstack([begin, target]), np.hstack([target, end])


def program(step) -> Program:
    """Of `step()`, which makes a step and gives its loss."""
    return Program(step, lambda: {"losses": np.array([step() for _ in range(STEPS)])})
