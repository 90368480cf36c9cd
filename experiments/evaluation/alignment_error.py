"""Computes the alignment error rate: whether attention is on the word that is translated."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from experiments.data.batches import padded
from experiments.data.corpora.gold_alignments import words
from experiments.data.dataset import Heldout
from experiments.data.vocabulary import Vocabulary
from experiments.trial.program import State


def alignment_error(
    weights: Callable,
    state: State,
    vocabulary: Vocabulary,
    test: Heldout,
    batch_size: int,
    length: int,
    check: Callable[[], None] = lambda: None,
) -> float | None:
    """Computes the alignment error rate (0 to 1) of the decoder's attention to the source.

        1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)

    (Och and Ney 2003, section 5), with the sure and possible links S and P of the corpus,
    and A one link for each target word that has any: the source word with the most
    attention of the target word's tokens, in the mean over the heads of the last layer,
    while the decoder reads the references.

    `weights(state, source, target, lengths)` is a compiled
    `attention_maps.attention_weights`. Returns None where the corpus has no links, or the
    model no such attention. `check()` is called between batches.
    """
    if test.links is None:
        return None
    guessed = 0
    hits = 0
    sure = sum(len(links.sure) for links in test.links)
    for indices, batch in padded(test.ids, batch_size, length):
        check()
        lengths = (batch.source_segments > 0).sum(-1)
        kinds = jax.device_get(weights(state, batch.source, batch.target_in, lengths))
        if "cross" not in kinds:
            return None
        # The mean over the heads of the last layer: (rows, queries, keys).
        attention = np.nanmean(np.asarray(kinds["cross"][:, -1], np.float32), axis=1)
        for row, i in enumerate(indices):
            links = test.links[i]
            linked = {target for _, target in links.possible}
            texts = test.text.source[i], test.text.target[i]
            guesses = guess(attention[row], *texts, vocabulary.spans)
            # A word without any link has no right answer.
            guesses = {link for link in guesses if link[1] in linked}
            guessed += len(guesses)
            hits += len(guesses.intersection(links.sure))
            # Sure links are possible too, so one of those counts in both terms.
            hits += len(guesses.intersection(links.possible))
    return 1 - hits / (guessed + sure) if guessed + sure else None


def guess(
    weights: np.ndarray,
    source: str,
    target: str,
    spans: Callable[[str], Sequence[tuple[int, int]]],
) -> set[tuple[int, int]]:
    """Returns (source word, target word) for each target word: where its tokens look most.

    `weights` (m, n) are of the tokens that follow each query and of those of the source;
    what lies beyond the sentences' own tokens, as end marks and padding, is left out.
    """
    source_words = _membership(words(source), spans(source))
    target_words = _membership(words(target), spans(target))
    # Query t reads the token before and predicts token t, so rows are the target's.
    between = weights[: len(target_words), : len(source_words)]
    # Target words × source words.
    attention = target_words.T @ between @ source_words
    has_tokens = target_words.any(0) & (attention.shape[1] > 0)
    return {(int(attention[t].argmax()), int(t)) for t in np.flatnonzero(has_tokens)}


def _membership(words, tokens):
    """Returns (tokens, words): 1 where a token has letters of a word."""
    rows = []
    for begin, end in tokens:
        rows.append([float(first < end and begin < last) for first, last in words])
    return np.array(rows, np.float32).reshape(len(tokens), len(words))
