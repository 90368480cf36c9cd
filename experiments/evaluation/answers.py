"""Chooses answers, or labels, of texts, and scores answers by their place.

B texts of a batch, M places of a target, L lanes.
"""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from attn.nn.layers import output_matrix
from attn.platforms import logits_at_once
from experiments.data.batches import Batch, Encoded, padded
from experiments.data.vocabulary import Vocabulary
from experiments.evaluation.metrics import right_answers
from experiments.evaluation.pipelining import one_ahead
from experiments.objectives import Answer, Objective
from experiments.trial.program import Program, State
from experiments.trial.step import hidden_states


def choose_batch(program: Program, state: State, batch: Batch):
    """Returns the likeliest output at each place of targets (B, M), int32."""
    with jax.default_matmul_precision("float32"):
        hidden, _ = hidden_states(program, state.variables, batch, step=state.step)
        matrix = output_matrix(state.params)
        # Some texts at a time, as the logits of all may be many.
        logits_of_one = hidden.shape[1] * len(matrix)
        at_once = max(1, logits_at_once() // logits_of_one)
        return jax.lax.map(
            lambda row: (row @ matrix.T).argmax(-1), hidden, batch_size=at_once
        )


def choose(
    outputs: Callable,
    states,
    vocabulary: Vocabulary,
    pairs: Encoded,
    batch_size: int,
    length: int,
    lanes: tuple[int, ...] = (0,),
    check: Callable[[], None] = lambda: None,
    objective: Objective = Answer(),
) -> list[list[str]]:
    """Chooses what the targets of `pairs` ask, with the model of each of `lanes`.

    Returns for each lane and text the target of the model's own: of answers one where one is
    asked, else NOTHING. The text so far has the right answers wherever it has any, so all
    are right just if the model would write them all by itself. `outputs(states, batch)` is a
    compiled `choose_batch` of L lanes; `vocabulary` is the target's; `check()` is called
    between batches.
    """
    texts = [[""] * len(pairs.source) for _ in lanes]
    dispatched = (
        (indices, outputs(states, batch), objective.scored(batch))
        for indices, batch in padded(pairs, batch_size, length, objective)
    )
    for indices, chosen, asked in one_ahead(dispatched, check):
        shown = objective.shown(np.asarray(chosen), asked)
        for of_lane, lane in zip(texts, lanes, strict=True):
            # The last batch may have empty rows at its end.
            rows = [
                row[: len(pairs.target[i])]
                for i, row in zip(indices, shown[lane], strict=False)
            ]
            for i, text in zip(indices, vocabulary.decode(rows), strict=True):
                of_lane[i] = text
    return texts


def accuracy_by(
    given: Sequence[str],
    references: Sequence[str],
    distances: Sequence[Sequence[int]] | None,
) -> dict[str, dict[str, dict[str, float]]]:
    """Computes the accuracy of answers by their position, and by distance where it is known.

    The position of an answer is its number in its text, from 1; `distances` has that of
    each answer, how far back the text decides it. Returns {"position": {bucket: {"accuracy":
    the share that is right, "answers": their number}}, "distance": likewise}, in buckets 0,
    1, 2-3, 4-7 and so on.
    """
    texts = [list(right_answers(*pair)) for pair in zip(given, references, strict=True)]
    right = np.array([each for text in texts for each in text], bool)
    numbers = np.array([i + 1 for text in texts for i in range(len(text))], int)
    by = dict(position=_in_buckets(numbers, right))
    if distances is not None:
        flat = np.array([each for text in distances for each in text], int)
        by["distance"] = _in_buckets(flat, right)
    return by


def _in_buckets(numbers, right):
    # The bits of a number: 1 for 1, 2 for 2 and 3, 3 for 4 to 7.
    bucket_of = np.array([int(number).bit_length() for number in numbers], int)
    buckets = {}
    for bits in np.unique(bucket_of):
        chosen = right[bucket_of == bits]
        buckets[_bucket(int(bits))] = dict(
            accuracy=float(chosen.mean()), answers=len(chosen)
        )
    return buckets


def _bucket(bits):
    if bits < 2:
        return str(bits)
    return f"{2 ** (bits - 1)}-{2**bits - 1}"
