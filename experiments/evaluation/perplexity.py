"""TODO."""

from collections.abc import Callable

import numpy as np

from experiments.data.batches import Encoded, padded
from experiments.evaluation.dispatch import one_ahead


def sentence_losses(
    piece_losses,
    states,
    pairs: Encoded,
    rows: int,
    length: int,
    check: Callable[[], None] = lambda: None,
):
    """(−log p of each target sentence, its end mark included, (L, sentences); how many tokens those are (sentences,)).

    `piece_losses(states, batch)` is a compiled `trial.piece_losses` of L lanes. `check()` is called between batches;
    what it raises ends this.
    """
    nll, tokens = None, np.zeros(len(pairs.target), np.int64)
    for indices, losses, real in one_ahead(
        (
            (indices, piece_losses(states, batch), batch.target_segments > 0)
            for indices, batch in padded(pairs, rows, length)
        ),
        check,
    ):
        rows_of = np.where(real[None], np.asarray(losses, np.float64), 0).sum(-1)
        nll = np.zeros((len(rows_of), len(pairs.target))) if nll is None else nll
        nll[:, indices], tokens[indices] = (
            rows_of[:, : len(indices)],
            real.sum(-1)[: len(indices)],
        )
    return nll, tokens


def perplexity(nll: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """exp of the mean −log p per real target token, end mark included, for each lane: independent of the batching."""
    return np.exp(nll.sum(-1) / tokens.sum())
