"""Settings of tasks: texts of symbols that are generated from a seed, with exact answers.

`experiments.data.corpora.tasks` says what each task is. On the command line all are
`data.NAME`.
"""

import dataclasses
from typing import ClassVar

from experiments.objectives import Answer, Label, Objective, Write
from experiments.settings import fields
from experiments.settings.data import Data
from experiments.settings.fields import require

CONTROL_TOKENS = 5
"""Tokens of the vocabulary beside the symbols: padding, two marks, the unknown, and "_"."""

LONGEST = 2048
"""The most symbols of a text, end mark included, as a model needs as many positions."""


@dataclasses.dataclass(frozen=True)
class TaskData(Data):
    """Holds the settings that every task has."""

    pairs: int = fields.at_least(1, 20_000, 10**7)
    """Texts of training to generate."""
    heldout: int = fields.at_least(1, 500, 10**6)
    """Texts to generate for validation, and as many for the test."""
    length: int = fields.at_least(1, 48, LONGEST)
    """Length of training's and validation's texts in symbols."""
    test_length: int = fields.at_least(0, 0, LONGEST)
    """Length of the test's texts; 0 for that of training."""
    # It is not the trial's seed, so that trials of all seeds have one corpus.
    corpus_seed: int = fields.at_least(0, 0)
    """Seed of the texts."""

    asked: ClassVar[Objective] = Answer()
    sides: ClassVar[tuple[str, ...]] = ("read", "answers")

    @property
    def alphabet(self) -> tuple[str, ...]:
        """The symbols of the task, each of which is one token."""
        raise NotImplementedError

    @property
    def lengths(self) -> dict[str, int]:
        """The length of each split's texts."""
        test = self.test_length or self.length
        return dict(train=self.length, validation=self.length, test=test)

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens."""
        return CONTROL_TOKENS + len(self.alphabet)

    @property
    def max_length(self) -> int:
        """The most tokens of a text of training, end mark included."""
        return self.symbols_of(self.length) + 1

    def symbols_of(self, length: int) -> int:
        """Returns the most symbols that a text of a length has."""
        return length

    def check(self) -> None:
        for name in ("length", "test_length"):
            tokens = self.symbols_of(getattr(self, name)) + 1
            require(
                tokens <= LONGEST,
                f"data.{name}={getattr(self, name)} makes texts of {tokens} tokens, and "
                f"{LONGEST} are the most; lower it",
            )


@dataclasses.dataclass(frozen=True)
class TaskPairsData(TaskData):
    """Holds the settings of tasks that an encoder-decoder can do too."""

    form: str = fields.one_of(("labels", "pairs"), "labels")
    """How answers are given. labels: a language model answers at each position where it is
    asked; pairs: an encoder-decoder reads the whole text, then writes all answers."""

    @property
    def asked(self) -> Objective:
        return Answer() if self.form == "labels" else Write()


@dataclasses.dataclass(frozen=True)
class RecallData(TaskPairsData):
    """Holds the settings of multi-query associative recall."""

    corpus: str = fields.one_of(("recall",), "recall")
    symbols: int = fields.at_least(2, 64, 2**16)
    """Symbols, half keys and half values; an even number."""
    key_values: int = fields.at_least(1, 4, LONGEST // 4)
    """Pairs of key and value in a text, each asked once."""
    power: float = fields.positive(0.01)
    """Exponent a of the distribution of a question's place g, p(g) ∝ g^(a − 1); 1 for
    uniform places."""

    @property
    def alphabet(self) -> tuple[str, ...]:
        return (*self.keys, *self.values)

    @property
    def keys(self) -> tuple[str, ...]:
        """The symbols that are asked for."""
        return numbered("k", self.symbols // 2)

    @property
    def values(self) -> tuple[str, ...]:
        """The symbols that are the answers."""
        return numbered("v", self.symbols // 2)

    @property
    def chance(self) -> float:
        # Among the values of the text, which a model of a few steps finds.
        return 1 / self.key_values

    def check(self) -> None:
        super().check()
        shortest = min(self.lengths.values())
        require(
            self.symbols % 2 == 0,
            f"data.symbols={self.symbols} must be even: half are keys, half are values",
        )
        require(
            self.key_values <= self.symbols // 2,
            f"data.key_values={self.key_values} needs as many keys, and "
            f"data.symbols={self.symbols} has {self.symbols // 2}",
        )
        require(
            4 * self.key_values <= shortest,
            f"data.key_values={self.key_values} takes 4 symbols each, and a text has "
            f"{shortest}: raise data.length and data.test_length",
        )


@dataclasses.dataclass(frozen=True)
class FlipFlopData(TaskData):
    """Holds the settings of the flip-flop language."""

    corpus: str = fields.one_of(("flipflop",), "flipflop")
    ignore: float = fields.at_least(0, 0.8, 0.999)
    """Probability that an instruction is to ignore its bit. Otherwise it is to write or to
    read one, each as often."""
    test_ignore: float = fields.at_least(0, 0.8, 0.999)
    """The same in the test's texts: where it is higher, reads are further from writes."""

    alphabet: ClassVar[tuple[str, ...]] = ("w", "r", "i", "0", "1")
    chance: ClassVar[float] = 1 / 2

    def check(self) -> None:
        super().check()
        for name, length in self.lengths.items():
            require(
                length % 2 == 0 and length >= 4,
                f"{name}: data.length and data.test_length must be even and 4 or more, for "
                f"an instruction and its bit are two symbols, not {length}",
            )


@dataclasses.dataclass(frozen=True)
class BackcopyData(TaskData):
    """Holds the settings of bigram-backcopy."""

    corpus: str = fields.one_of(("backcopy",), "backcopy")
    symbols: int = fields.at_least(2, 64, 2**12)
    """Symbols beside the one that begins a text."""
    triggers: int = fields.at_least(1, 3, 2**12)
    """Symbols after which the symbol before them comes again; fewer than data.symbols."""

    # A model of all next symbols is what the paper trains.
    @property
    def alphabet(self) -> tuple[str, ...]:
        return ("^", *numbered("t", self.triggers), *self.others)

    @property
    def others(self) -> tuple[str, ...]:
        """The symbols that are no triggers."""
        return numbered("s", self.symbols - self.triggers)

    def check(self) -> None:
        super().check()
        require(
            self.triggers < self.symbols,
            f"data.triggers={self.triggers} must be fewer than data.symbols={self.symbols}",
        )


@dataclasses.dataclass(frozen=True)
class SelectiveCopyData(TaskPairsData):
    """Holds the settings of selective copy."""

    corpus: str = fields.one_of(("selective_copy",), "selective_copy")
    symbols: int = fields.at_least(1, 16, 2**16)
    """Symbols that may be copied."""
    items: int = fields.at_least(1, 8, LONGEST)
    """Symbols to copy, which stand among data.length places."""

    @property
    def alphabet(self) -> tuple[str, ...]:
        return (".", ">", *numbered("s", self.symbols))

    @property
    def chance(self) -> float:
        return 1 / self.symbols

    def symbols_of(self, length: int) -> int:
        # The mark, and all items but the last, which nothing follows.
        return length + self.items

    def check(self) -> None:
        super().check()
        require(
            self.items <= min(self.lengths.values()),
            f"data.items={self.items} must find room in data.length={self.length} and "
            f"data.test_length={self.test_length}",
        )


@dataclasses.dataclass(frozen=True)
class CountingData(TaskPairsData):
    """Holds the settings of counting."""

    corpus: str = fields.one_of(("counting",), "counting")
    symbols: int = fields.at_least(1, 4, 2**16)
    """Symbols whose occurrences are counted."""

    @property
    def alphabet(self) -> tuple[str, ...]:
        largest = max(self.lengths.values())
        return (*numbered("s", self.symbols), *numbered("n", largest + 1)[1:])


@dataclasses.dataclass(frozen=True)
class CopyData(TaskPairsData):
    """Holds the settings of copying."""

    corpus: str = fields.one_of(("copy",), "copy")
    length: int = fields.at_least(1, 16, LONGEST)
    """The most symbols to copy, reverse or sort in training and validation, where all lengths
    from 1 on are as likely; at most 1023."""
    symbols: int = fields.at_least(1, 16, 2**16)
    """Symbols that may be copied."""

    @property
    def alphabet(self) -> tuple[str, ...]:
        return (">", "<", *numbered("s", self.symbols))

    def symbols_of(self, length: int) -> int:
        return 2 * length + 1


@dataclasses.dataclass(frozen=True)
class ReverseData(CopyData):
    """Holds the settings of reversing."""

    corpus: str = fields.one_of(("reverse",), "reverse")


@dataclasses.dataclass(frozen=True)
class SortData(CopyData):
    """Holds the settings of sorting."""

    corpus: str = fields.one_of(("sort",), "sort")


@dataclasses.dataclass(frozen=True)
class WordsData(TaskPairsData):
    """Holds the settings of words of a group."""

    corpus: str = fields.one_of(("words",), "words")
    group: str = fields.one_of(("a5", "z60"), "a5")
    """The group of 60 elements. a5: the even permutations of five things, which is not
    solvable; z60: numbers under addition modulo 60."""
    letters: str = fields.one_of(("all", "generators"), "all")
    """The elements that words are made of. all: all 60; generators: two that generate the
    group, and their inverses, so that a model has 240 products to learn, not 3600."""

    chance: ClassVar[float] = 1 / 60

    @property
    def alphabet(self) -> tuple[str, ...]:
        return numbered("g", 60)


@dataclasses.dataclass(frozen=True)
class InductionData(TaskPairsData):
    """Holds the settings of induction."""

    corpus: str = fields.one_of(("induction",), "induction")
    symbols: int = fields.at_least(1, 16, 2**16)
    """Symbols beside the one that is asked for."""

    @property
    def alphabet(self) -> tuple[str, ...]:
        return ("!", *numbered("s", self.symbols))

    @property
    def chance(self) -> float:
        return 1 / self.symbols

    def check(self) -> None:
        super().check()
        require(
            min(self.lengths.values()) >= 3,
            f"data.length={self.length} and data.test_length={self.test_length} must be 3 "
            "or more: a mark, what follows it, and the mark again",
        )


@dataclasses.dataclass(frozen=True)
class FirstData(TaskData):
    """Holds the settings of labels by the marker that comes first."""

    corpus: str = fields.one_of(("first",), "first")
    length: int = fields.at_least(1, 16, LONGEST)
    """Length of training's and validation's texts in symbols; 1 to 2048."""
    markers: int = fields.at_least(2, 4, 2**12)
    """Markers, which are the labels too, each once in a text; 2 to 4096."""
    symbols: int = fields.at_least(1, 16, 2**16)
    """Symbols beside the markers; 1 to 65,536."""

    asked: ClassVar[Objective] = Label()
    sides: ClassVar[tuple[str, ...]] = ("read", "label")
    has_set_vocabulary: ClassVar[bool] = True

    @property
    def alphabet(self) -> tuple[str, ...]:
        return (*numbered("m", self.markers), *numbered("s", self.symbols))

    @property
    def labels(self) -> int:
        return self.markers

    @property
    def chance(self) -> float:
        return 1 / self.markers

    def check(self) -> None:
        super().check()
        require(
            self.markers <= min(self.lengths.values()),
            f"data.markers={self.markers} must find room in data.length={self.length} and "
            f"data.test_length={self.test_length}",
        )


TASKS = {
    "recall": RecallData,
    "flipflop": FlipFlopData,
    "backcopy": BackcopyData,
    "selective_copy": SelectiveCopyData,
    "counting": CountingData,
    "copy": CopyData,
    "reverse": ReverseData,
    "sort": SortData,
    "words": WordsData,
    "induction": InductionData,
    "first": FirstData,
}
"""The tasks by name."""


def numbered(letter: str, count: int) -> tuple[str, ...]:
    """Returns the symbols letter0, letter1, and so on."""
    return tuple(f"{letter}{i}" for i in range(count))
