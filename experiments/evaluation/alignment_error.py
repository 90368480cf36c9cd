"""Whether attention looks at the word that a target word translates: the alignment error rate."""

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
    rows: int,
    length: int,
    check: Callable[[], None] = lambda: None,
) -> float | None:
    """The rate (0 to 1) at which the decoder's attention to the source, while it reads the references, misses.

        1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)

    (Och and Ney 2003, section 5), with the sure and possible links S and P of the corpus, and A one link for each
    target word that has any: the source word with the most attention of the target word's tokens, in the mean over the
    heads of the last layer. `weights(state, source, target, lengths)` is a compiled `evaluation.attention_weights`.
    None where the corpus knows no links, or the model has no such attention. `check()` is called between batches.
    """
    if test.links is None:
        return None
    found, sure, hit = 0, sum(len(links.sure) for links in test.links), 0
    for indices, batch in padded(test.ids, rows, length):
        check()
        lengths = (batch.source_segments > 0).sum(-1)
        kept = jax.device_get(weights(state, batch.source, batch.target_in, lengths))
        if "cross" not in kept:
            return None
        of_heads = np.asarray(kept["cross"][:, -1], np.float32).mean(1)
        for row, i in enumerate(indices):
            links, known = (
                test.links[i],
                {target for _, target in test.links[i].possible},
            )
            guessed = {
                link
                for link in guess(
                    of_heads[row],
                    test.text.source[i],
                    test.text.target[i],
                    vocabulary.spans,
                )
                if link[1] in known
            }
            found += len(guessed)
            hit += len(guessed.intersection(links.sure)) + len(
                guessed.intersection(links.possible)
            )
    return 1 - hit / (found + sure) if found + sure else None


def guess(
    weights: np.ndarray,
    source: str,
    target: str,
    spans: Callable[[str], Sequence[tuple[int, int]]],
) -> set[tuple[int, int]]:
    """For each target word the source word (source, target) that its tokens look at most.

    `weights` (m, n) are of the tokens that follow each query and of those of the source; what is beyond the sentences'
    own, as end marks and padding, is not looked at.
    """
    inside = [_membership(words(text), spans(text)) for text in (source, target)]
    looks = (
        inside[1].T @ weights[: len(inside[1]), : len(inside[0])] @ inside[0]
    )  # target words × source words
    known = inside[1].any(0) & (looks.shape[1] > 0)
    return {(int(looks[t].argmax()), int(t)) for t in np.flatnonzero(known)}


def _membership(words, tokens):
    """(tokens, words): 1 where a token has letters of a word."""
    return np.array(
        [
            [float(first < end and begin < last) for first, last in words]
            for begin, end in tokens
        ],
        np.float32,
    ).reshape(len(tokens), len(words))
