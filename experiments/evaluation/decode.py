"""What a trained model is worth: perplexity, translations, their scores, and where its attention looks."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from attn import beam_search
from experiments.data.batches import Encoded, padded
from experiments.data.vocabulary import BOS, EOS, Vocabulary
from experiments.evaluation.dispatch import one_ahead
from experiments.trial.program import Program, State, build_model


class Search(NamedTuple):
    """How translations are searched for; at most `most` tokens, and at most `extra` more than the source has."""

    beam: int
    alpha: float
    most: int
    extra: int
    n_best: int = 1


class Hypothesis(NamedTuple):
    """A translation with its log-probability over its length penalty, by which the best is chosen."""

    score: float
    text: str


def translate(
    search,
    states,
    vocabulary: Vocabulary,
    sources: list[np.ndarray],
    rows: int,
    length: int,
    lanes: tuple[int, ...] = (0,),
    check: Callable[[], None] = lambda: None,
) -> list[list[list[Hypothesis]]]:
    """For each of `lanes` the best hypotheses of each source (ids without marks), the best first.

    An empty source has an empty one. `search(states, source, lengths)` is a compiled `search` of a population; batches
    are `rows` sentences of `length` tokens. `check()` is called between batches; what it raises ends this.
    """
    worth = [i for i, source in enumerate(sources) if len(source)]
    nothing = [np.zeros(0, np.int32)] * len(worth)
    batches = (
        padded(Encoded([sources[i] for i in worth], nothing), rows, length)
        if worth
        else ()
    )
    found = (
        (indices, search(states, batch.source, (batch.source_segments > 0).sum(-1)))
        for indices, batch in batches
    )
    hypotheses = [[[Hypothesis(0.0, "")] for _ in sources] for _ in lanes]
    for indices, results in one_ahead(found, check):
        tokens, scores = map(np.asarray, results)
        for of_lane, lane in zip(hypotheses, lanes, strict=True):
            for i, ids, own in zip(indices, tokens[lane], scores[lane], strict=False):
                there = (
                    own > -np.inf
                )  # a sentence of few tokens may have fewer translations than were asked for
                texts = vocabulary.decode(ids[there])
                # Of a model without numbers there is none.
                of_lane[worth[i]] = [
                    Hypothesis(float(s), t)
                    for s, t in zip(own[there], texts, strict=True)
                ] or [Hypothesis(-math.inf, "")]
    return hypotheses


def search_batch(
    program: Program,
    how: Search,
    prefix: tuple[int, ...],
    state: State,
    source,
    lengths,
):
    """Tokens (B, n_best, T) and scores (B, n_best) of translations that begin with `prefix`, for sources (B, N)."""
    variables = dict(params=state.params, positions=state.positions)
    begun = jnp.broadcast_to(
        jnp.asarray(prefix, jnp.int32)[None], (len(source), len(prefix))
    )
    found = beam_search(
        build_model(program),
        variables,
        source,
        lengths,
        beam=how.beam,
        max_length=how.most,
        bos=BOS,
        eos=EOS,
        alpha=how.alpha,
        limits=lengths + how.extra,
        n_best=how.n_best,
        prefix=(begun, jnp.full(len(source), len(prefix))) if prefix else None,
    )
    return found.tokens, found.scores
