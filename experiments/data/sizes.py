"""Chooses sizes for a text that it can have: vocabulary, lengths, batches and steps.

They are chosen from the first pairs of the training text, so that `configs/files.py` works
for a narrow domain, for a script of many characters, and where a line is a page.
"""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from experiments.data.corpora import LONGEST, SPLITS, Pairs
from experiments.data.corpora.heldout import TRAIN, divide, usual
from experiments.data.lines import as_line, fault
from experiments.data.vocabulary import Vocabulary, fitting_vocabulary
from experiments.errors import UserError
from experiments.settings.corpora import SMALLEST_VOCABULARY

LOOKED_AT = 500_000
"""Pairs, the first ones, from which the sizes are chosen: more would not change them."""

SAMPLES = (5_000, 50_000, LOOKED_AT)
"""Pairs on which a vocabulary is tried: more where the text seems narrow."""


class Measures(NamedTuple):
    """Holds what the sizes of a text follow from."""

    pairs: int
    heldout: int
    """Pairs to hold out for validation, and as many for the test."""
    bytes: int
    """Of the longer side, without sentences that are far longer than most."""
    vocabulary: int
    """Tokens of a vocabulary that the text can have."""
    longest: int
    """The tokens, end mark included, that 99 % of its usual sentences have at most."""
    long: int
    """Those that three in four have at most."""


def measure(blocks: Iterable[Pairs]) -> Measures:
    """Reads a text, or its first LOOKED_AT pairs, and measures it.

    Raises UserError where no pair has text on both sides.
    """
    pairs = _first(blocks)
    if not pairs.source:
        raise UserError("no pair of the text has text on both sides: give some")
    heldout = int(np.clip(len(pairs.source) // 20, 1, 500))
    lengths = [np.array([len(x.encode()) for x in side]) for side in pairs]
    kept = usual(lengths[0]) & usual(lengths[1])
    size = max(int(side[kept].sum()) for side in lengths)
    training = pairs
    # Of a small text what is held out may be all that has a word.
    if len(kept) <= SAMPLES[1]:
        trains = divide(iter([pairs]), SPLITS[1:], heldout) == TRAIN
        training = _where(trains, pairs)
    # By all sentences, as the vocabulary will be, and lengths by the usual ones.
    vocabulary = Vocabulary(_vocabulary(training, _wanted(size)))
    sample = _even(_where(kept, pairs), SAMPLES[0])
    tokens = [vocabulary.flat(side)[1] + 1 for side in sample]
    return Measures(
        len(pairs.source),
        heldout,
        size,
        vocabulary.size,
        max(int(np.quantile(side, 0.99)) for side in tokens),
        max(int(np.quantile(side, 0.75)) for side in tokens),
    )


def sizes(text: Measures) -> dict:
    """Returns settings of data and training for a text, and its tokens a side."""
    tokens = _tokens(text.bytes)
    # On the safe side; longer pairs are dropped and counted. Three in four have to fit, as a
    # text of pages would else have none left.
    room = int(np.clip(1.25 * text.longest + 8, 32, max(256, text.long)))
    max_length = min(room, LONGEST)
    sequence_length = max(64, max_length)
    # Small batches learn most in a second of two cores.
    in_batch = int(np.clip(tokens // 400, 1024, 4096))
    batch_size = max(4, in_batch // sequence_length)
    in_epoch = -(-tokens // (batch_size * sequence_length))
    steps = int(np.clip(12 * in_epoch, 600, 20_000)) // 100 * 100
    every = max(50, steps // 2000 * 100)
    warmup = int(np.clip(steps // 10, 100, 2000))
    return dict(
        tokens=tokens,
        data=dict(
            vocabulary_size=text.vocabulary,
            max_length=max_length,
            heldout=text.heldout,
        ),
        training=dict(
            steps=steps,
            until="flat",
            keep_best=True,
            schedule=f"paper(warmup={warmup})",
            # A factor on the paper's schedule, which then rises to 0.004.
            learning_rate=round(0.004 * (128 * warmup) ** 0.5, 3),
            batch_size=batch_size,
            sequence_length=sequence_length,
            log_every=25,
            evaluate_every=every,
            save_every=every,
        ),
    )


def _tokens(size):
    # A token has about four bytes, with a vocabulary of thousands.
    return max(size // 4, 1)


def _wanted(size):
    """Returns the tokens of a vocabulary that suits a text of so many bytes.

    As in the literature: 800 for 40 kB, 10,000 for 30,000 captions, 32,000 from 300 MB on.
    """
    return int(np.clip(6 * _tokens(size) ** 0.5, 500, 32_000)) // 100 * 100


def _first(blocks) -> Pairs:
    """Returns the first pairs with text on both sides, each text on a line."""
    found = Pairs([], [])
    for pairs in blocks:
        for source, target in zip(*pairs, strict=True):
            if fault(source) or fault(target):
                continue
            source, target = as_line(source).strip(), as_line(target).strip()
            if source and target:
                found.source.append(source)
                found.target.append(target)
        if len(found.source) >= LOOKED_AT:
            break
    return found


def _vocabulary(pairs, wanted) -> bytes:
    """Returns a vocabulary that the text can have, of `wanted` tokens if they may be."""
    letters = set().union(*pairs.source, *pairs.target)
    # All its characters, and some words, or it would be read letter by letter.
    smallest = SMALLEST_VOCABULARY + len(letters)
    wanted = max(wanted, smallest * 6 // 5)
    for count in SAMPLES:
        sample = _even(pairs, count)
        sentences = [*sample.source, *sample.target]
        largest = Vocabulary(fitting_vocabulary(sentences, wanted * 5 // 4)).size
        is_whole = count >= len(pairs.source)
        if largest >= wanted * 5 // 4 or is_whole:
            break
    # Where the text itself is the limit, four fifths of its words: what will be held out of a
    # large one is not known here.
    size = max(smallest, min(wanted, smallest + (largest - smallest) * 4 // 5))
    # Its rarest characters are spelled in bytes, so that the text may have fewer than all.
    return fitting_vocabulary(sentences, min(size, largest) if is_whole else size)


def _where(mask, pairs):
    return Pairs(*(list(itertools.compress(side, mask)) for side in pairs))


def _even(pairs, count):
    step = -(-len(pairs.source) // count)
    return Pairs(*(side[::step] for side in pairs))
