"""A corpus made ready for a model: split, cut into word pieces, too-long training pairs dropped and counted."""

from typing import NamedTuple

from experiments import corpora
from experiments.batches import Encoded, drop_long
from experiments.corpora import Pairs
from experiments.settings import Data, Settings
from experiments.tokens import Vocabulary, train_vocabulary


class Heldout(NamedTuple):
    """A validation or test set, as text and as ids; nothing is ever dropped from it."""

    text: Pairs
    ids: Encoded


class Prepared(NamedTuple):
    """What a trial needs to know of its corpus."""

    vocabulary_model: bytes
    corpus_digest: str
    counts: dict[str, int]
    train: Encoded
    validation: Heldout
    test: Heldout

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.vocabulary_model)

    def length(self, settings: Settings) -> int:
        """Positions that a model of this corpus needs: the longest row, held-out sentence or translation."""
        heldout = (self.validation.ids, self.test.ids)
        longest = max(len(s) + 1 for split in heldout for side in split for s in side)
        return max(settings.training.row_pieces, settings.evaluation.max_pieces, longest)


def prepare(data: Data) -> Prepared:
    """Loads the corpus and trains its vocabulary, on the training pairs alone.

    Raises CorpusError or VocabularyError, and CorpusError where no training pair is short enough.
    """
    corpus = corpora.load(data)
    vocabulary = Vocabulary(train_vocabulary(corpus.train.source + corpus.train.target, data.vocabulary))

    def encoded(pairs):
        return Encoded(vocabulary.encode(pairs.source), vocabulary.encode(pairs.target))

    train, dropped = drop_long(encoded(corpus.train), data.max_pieces)
    if not train.source:
        raise corpora.CorpusError(f"none of the {len(corpus.train.source)} training pairs has at most "
                                  f"data.max_pieces={data.max_pieces} pieces a side; raise data.max_pieces")
    counts = {**corpus.counts, "train_too_long": dropped}
    validation, test = (Heldout(pairs, encoded(pairs)) for pairs in (corpus.validation, corpus.test))
    return Prepared(vocabulary.model, corpora.digest(corpus), counts, train, validation, test)
