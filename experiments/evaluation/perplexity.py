"""Computes perplexity from the losses of held-out sentences.

L lanes, S sentences, T tokens of a row.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from experiments.data.batches import Encoded, padded
from experiments.evaluation.pipelining import one_ahead
from experiments.objectives import Objective, Translate


def sentence_losses(
    token_losses: Callable,
    states,
    pairs: Encoded,
    batch_size: int,
    length: int,
    check: Callable[[], None] = lambda: None,
    objective: Objective = Translate(),
) -> tuple[np.ndarray, np.ndarray]:
    """Computes −log p of what is scored of each target, and counts its tokens.

    Of sentences these are all, the end mark included; of answers and labels they alone.

    Returns ((L, S), (S,)). `token_losses(states, batch)` is a compiled `step.token_losses`
    of L lanes, which returns (L, rows, T). `check()` is called between batches; what it
    raises ends this.
    """
    count = len(pairs.target)
    nll = None
    tokens = np.zeros(count, np.int64)
    dispatched = (
        (indices, token_losses(states, batch), objective.scored(batch))
        for indices, batch in padded(pairs, batch_size, length, objective)
    )
    for indices, losses, is_token in one_ahead(dispatched, check):
        # In float64, because a sum over many tokens loses digits in float32.
        of_tokens = np.where(is_token[None], np.asarray(losses, np.float64), 0)
        of_rows = of_tokens.sum(-1)
        if nll is None:
            nll = np.zeros((len(of_rows), count))
        # The last batch may have empty rows at its end.
        nll[:, indices] = of_rows[:, : len(indices)]
        tokens[indices] = is_token.sum(-1)[: len(indices)]
    return nll, tokens


def perplexity(nll: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Computes exp(Σ nll / Σ tokens) of each lane (L,), from (L, S) and (S,).

    Tokens are the target's, end marks included: how sentences are batched does not matter.
    """
    return np.exp(cross_entropy(nll, tokens))


def cross_entropy(nll: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Computes Σ nll / Σ tokens of each lane (L,), in nats, from (L, S) and (S,)."""
    return nll.sum(-1) / tokens.sum()


def of_scores(scores: Mapping[str, float]) -> float:
    """Returns the perplexity of a validation's scores, however its loss is shown; inf for none."""
    if "cross_entropy" in scores:
        return float(np.exp(scores["cross_entropy"]))
    return scores.get("perplexity", math.inf)


LOSSES = {"perplexity": perplexity, "cross_entropy": cross_entropy}
"""How a loss is shown, by the metric's key."""
