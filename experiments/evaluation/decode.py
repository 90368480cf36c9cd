"""Translates by beam search.

B sentences of a batch, N source tokens, T target tokens.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from attn import beam_search
from experiments.data.batches import Encoded, padded
from experiments.data.lines import as_line
from experiments.data.vocabulary import BOS, EOS, Vocabulary
from experiments.evaluation.pipelining import one_ahead
from experiments.settings import Evaluation, Settings
from experiments.trial.program import Program, State, build_model


class Search(NamedTuple):
    """Holds the options of beam search."""

    beam: int
    alpha: float
    """The exponent of the length penalty."""
    max_length: int
    """The most tokens of a translation."""
    max_extra: int
    """The most tokens that it has more than its source."""
    n_best: int = 1


def search_of(settings: Evaluation) -> Search:
    """Returns the search that the settings name."""
    return Search(
        beam=settings.beam,
        alpha=settings.alpha,
        max_length=settings.max_length,
        max_extra=settings.max_extra,
    )


def search_text(settings: Settings, beam: int, count: int, whole: int) -> str:
    """Returns how texts were made: "greedy on the first 200 of 500 sentences"."""
    some = f"the first {count} of {whole}" if count < whole else str(whole)
    way = ""
    if settings.objective.searches:
        way = "greedy " if beam == 1 else f"beam {beam} "
    return f"{way}on {some} sentences"


class Hypothesis(NamedTuple):
    """Holds a translation, on one line, and its log-probability over its length penalty."""

    score: float
    text: str


def translate(
    search: Callable,
    states,
    vocabulary: Vocabulary,
    sources: Sequence[np.ndarray],
    batch_size: int,
    length: int,
    lanes: tuple[int, ...] = (0,),
    check: Callable[[], None] = lambda: None,
) -> list[list[list[Hypothesis]]]:
    """Translates sources (ids without marks) with the model of each of `lanes`.

    Returns for each lane and each source the best hypotheses, the best first; of an empty
    source an empty text. `search(states, source, lengths)` is a compiled `search_batch` of
    a population; a batch has `batch_size` sentences of `length` tokens. `check()` is called
    between batches; what it raises ends this.
    """
    translations = []
    for _ in lanes:
        translations.append([[Hypothesis(0.0, "")] for _ in sources])
    # An empty source has nothing to translate, so it is not searched.
    places = [i for i, source in enumerate(sources) if len(source)]
    if not places:
        return translations
    # Batches are of pairs; a search makes its targets itself.
    targets = [np.zeros(0, np.int32)] * len(places)
    pairs = Encoded([sources[i] for i in places], targets)
    # A generator, so that `one_ahead` decides when each batch is dispatched.
    dispatched = (
        (indices, search(states, batch.source, (batch.source_segments > 0).sum(-1)))
        for indices, batch in padded(pairs, batch_size, length)
    )
    for indices, (tokens, scores) in one_ahead(dispatched, check):
        tokens = np.asarray(tokens)
        scores = np.asarray(scores)
        for of_lane, lane in zip(translations, lanes, strict=True):
            # The last batch may have empty rows at its end.
            for row, i in enumerate(indices):
                of_lane[places[i]] = _hypotheses(
                    vocabulary, tokens[lane, row], scores[lane, row]
                )
    return translations


def _hypotheses(vocabulary, tokens, scores):
    """Reads the hypotheses (n_best, T) of one sentence."""
    # A sentence of few tokens may have fewer translations than were asked for.
    exists = scores > -np.inf
    texts = vocabulary.decode(tokens[exists])
    hypotheses = [
        # A model may spell a line break, or another, in bytes.
        Hypothesis(float(score), as_line(text))
        for score, text in zip(scores[exists], texts, strict=True)
    ]
    # A model whose weights are not finite has none.
    return hypotheses or [Hypothesis(-math.inf, "")]


def search_batch(
    program: Program,
    search: Search,
    prefix: tuple[int, ...],
    state: State,
    source,
    lengths,
):
    """Searches translations of sources (B, N) that begin with the tokens `prefix`.

    Returns tokens (B, n_best, T) and scores (B, n_best).
    """
    count = len(source)
    beginning = jnp.asarray(prefix, jnp.int32)[None]
    beginnings = jnp.broadcast_to(beginning, (count, len(prefix)))
    result = beam_search(
        build_model(program),
        state.variables,
        source,
        lengths,
        beam=search.beam,
        max_length=search.max_length,
        bos=BOS,
        eos=EOS,
        alpha=search.alpha,
        # Lengths have the end mark, as the translation's own limit has.
        limits=lengths + search.max_extra,
        n_best=search.n_best,
        prefix=(beginnings, jnp.full(count, len(prefix))) if prefix else None,
        updates=state.step,
    )
    return result.tokens, result.scores
