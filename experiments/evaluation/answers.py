"""Answers the questions in the texts of a task, and scores the answers by their place.

B texts of a batch, N tokens, L lanes.
"""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from attn import Context, Mask
from attn.nn.layers import output_matrix
from experiments.data.batches import Encoded, padded, scored
from experiments.data.vocabulary import NOTHING_ID, Vocabulary
from experiments.evaluation.metrics import right_answers
from experiments.evaluation.pipelining import one_ahead
from experiments.trial.program import Program, State, build_model, call_model


def answer_batch(program: Program, state: State, source):
    """Returns the likeliest answer after each token of texts (B, N), int32 (B, N)."""
    variables = dict(params=state.params, positions=state.positions)
    ctx = Context(Mask.causal(), step=state.step)
    with jax.default_matmul_precision("float32"):
        hidden = call_model(
            build_model(program).apply,
            program,
            variables,
            source,
            source,
            (ctx, ctx),
        )
        matrix = output_matrix(state.params)
        # One text at a time, as the logits of all would be many.
        return jax.lax.map(lambda row: (row @ matrix.T).argmax(-1), hidden)


def answer(
    answers: Callable,
    states,
    vocabulary: Vocabulary,
    pairs: Encoded,
    batch_size: int,
    length: int,
    lanes: tuple[int, ...] = (0,),
    check: Callable[[], None] = lambda: None,
) -> list[list[str]]:
    """Answers what is asked in texts, with the model of each of `lanes`.

    Returns for each lane and text a label for each token: the answer where the target of
    `pairs` asks one, else NOTHING. The text so far has the right answers wherever it has
    any, so all are right just if the model would write them all by itself.
    `answers(states, source)` is a compiled `answer_batch` of L lanes; `check()` is called
    between batches.
    """
    texts = [[""] * len(pairs.source) for _ in lanes]
    dispatched = (
        (indices, answers(states, batch.source), scored(batch, labelled=True))
        for indices, batch in padded(pairs, batch_size, length)
    )
    for indices, given, asked in one_ahead(dispatched, check):
        given = np.asarray(given)
        # A mark for an answer would end the text; it is wrong in any case.
        shown = np.where(asked & (given > NOTHING_ID), given, NOTHING_ID)
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
