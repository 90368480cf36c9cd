"""Reads a corpus as it is trained on: every text on a line of its own, and nothing bad.

The pairs of all readers pass here, so that one place says what a text may hold.
"""

import collections
from collections.abc import Iterator

from experiments.data.corpora import SPLITS, CorpusError, Pairs, Source
from experiments.data.lines import Bad, as_text, fault
from experiments.objectives import NOTHING
from experiments.settings import Data
from experiments.settings.fields import shown

NAMED = 5
"""Bad lines that are named; more are counted."""


class Texts:
    """Gives the texts of a source on one line each, and counts its bad lines.

    A line is bad where a text cannot be read (`lines.fault`), where a word is none of the
    source's symbols, and where answers in places are not as many as words. After all splits
    were read bad lines are an error; with data.bad_lines=skip they are left out.

    Raises:
      CorpusError: `symbols` of the source is no method, or gives no words; or it has
        answers in places and no symbols.
    """

    def __init__(self, source: Source, data: Data):
        self.source = source
        self.symbols = _symbols(source, data.corpus)
        """The words that are one token each; None where a vocabulary is trained."""
        self._targets = data.asked.targets
        self._skips = data.bad_lines == "skip"
        self._numbers = {split: [] for split in SPLITS}
        self._named = {split: [] for split in SPLITS}
        self._known = {NOTHING, *(self.symbols or ())}
        if self._targets == "places" and self.symbols is None:
            raise CorpusError(
                f"data.corpus={data.corpus} has answers in places and no symbols: give it a method "
                "symbols() that returns all words of its texts"
            )

    @property
    def cuts_long_texts(self) -> bool:
        """Whether lines are cut into parts of data.max_length tokens."""
        return getattr(self.source, "cuts_long_texts", False)

    def fingerprint(self) -> str:
        """Returns a text that is equal for equal content that is read alike."""
        return repr((self.source.fingerprint(), self._skips))

    def read(self, split: str) -> Iterator[Pairs]:
        """Yields the good pairs of a split.

        Raises:
          CorpusError: after the last pair, where there are bad lines that are not to be left
            out, or no good ones. It names those of all splits.
        """
        has_good = False
        for pairs in self._good(split):
            has_good = True
            yield pairs
        if self._numbers[split] and not (self._skips and has_good):
            self._stop()

    def place(self, split: str, i: int) -> str:
        """Returns where good pair i of a split stands, once the split was read."""
        for number in self._numbers[split]:
            if number <= i:
                i += 1
        return self.source.place(split, i)

    def counts(self) -> dict[str, int]:
        """Returns what was left out, by name, once all was read."""
        bad = {f"{split}_bad": len(self._numbers[split]) for split in SPLITS}
        counts = getattr(self.source, "counts", dict)()
        return counts | {name: n for name, n in bad.items() if n}

    def warnings(self) -> list[str]:
        """Returns what a user should see before training, once all was read."""
        lines = list(getattr(self.source, "warnings", list)())
        if any(self._numbers.values()):
            lines.append(f"left out by data.bad_lines=skip: {self._described()}")
        return lines

    def links(self) -> list | None:
        """Returns the links of each test pair; None where they are not known."""
        return self.source.links() if hasattr(self.source, "links") else None

    def distances(self) -> list | None:
        """Returns the distances of each test pair's answers; None where not known."""
        return self.source.distances() if hasattr(self.source, "distances") else None

    def _good(self, split):
        """Yields the good pairs of a split, and notes the bad ones."""
        numbers = self._numbers[split] = []
        named = self._named[split] = []
        before = 0
        for pairs in self.source.read(split):
            if len(pairs.source) != len(pairs.target):
                raise CorpusError(
                    f"{self.source.place(split, before)}: a block of {len(pairs.source)} "
                    f"sources and {len(pairs.target)} targets; there must be one for each"
                )
            good = Pairs([], [])
            for i, pair in enumerate(zip(*pairs, strict=True), start=before):
                bad = self._bad(pair)
                if bad is None:
                    good.source.append(as_text(pair[0]))
                    good.target.append(as_text(pair[1]))
                    continue
                numbers.append(i)
                if len(named) < NAMED:
                    place = bad.place or self.source.place(split, i)
                    named.append(f"{place}: {bad.why}")
            before += len(pairs.source)
            if good.source:
                yield good

    def _bad(self, pair) -> Bad | None:
        """Returns what is bad about a pair, None for a good one."""
        for text in pair:
            if why := fault(text):
                return Bad(why, getattr(text, "place", ""))
        return None if self.symbols is None else self._bad_words(pair)

    def _bad_words(self, pair) -> Bad | None:
        words, answers = (text.split() for text in pair)
        if self._targets == "labels":
            answers = []
        for word in (*words, *answers):
            if word not in self._known:
                return Bad(f"{shown(word)} is none of the words of symbols()")
        if self._targets == "places" and len(words) != len(answers):
            return Bad(f"{len(words)} words and {len(answers)} answers")
        return None

    def _stop(self):
        # Of all splits, so that a user has to mend them once.
        for split in SPLITS:
            collections.deque(self._good(split), maxlen=0)
        remedy = (
            ""
            if self._skips
            else ", or give --config.data.bad_lines=skip to leave them out"
        )
        raise CorpusError(f"{self._described()}; mend them{remedy}")

    def _described(self):
        count = sum(map(len, self._numbers.values()))
        named = [line for split in SPLITS for line in self._named[split]][:NAMED]
        more = f"; and {count - len(named)} more" if count > len(named) else ""
        return f"{count:,} bad line{'s' * (count > 1)}: {'; '.join(named)}{more}"


def _symbols(source, corpus) -> tuple[str, ...] | None:
    """Returns the words that a source says to be one token each, None for no such source."""
    method = getattr(source, "symbols", None)
    if method is None:
        return None
    words = method() if callable(method) else method
    if not callable(method) or not isinstance(words, list | tuple):
        raise CorpusError(
            f"data.corpus={corpus}: symbols must be a method that returns a list or tuple of "
            f"the words of its texts, def symbols(self): return [...]; it gives {shown(words)}"
        )
    for word in words:
        # ▁ is sentencepiece's blank.
        if fault(word) or word.split() != [word] or "▁" in word or word == NOTHING:
            raise CorpusError(
                f"data.corpus={corpus}: symbols() has {shown(word)}, which is no word: a text "
                f"without white space and ▁, other than {NOTHING}"
            )
    if len(set(words)) < len(words):
        (word, _), *_ = collections.Counter(words).most_common(1)
        raise CorpusError(
            f"data.corpus={corpus}: symbols() has {word!r} more than once"
        )
    return tuple(words)
