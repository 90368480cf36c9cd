"""Settings of tasks: texts of symbols that are generated from a seed, with exact answers.

`experiments.data.corpora.tasks` says what each task is. On the command line all are
`data.NAME`.
"""

import dataclasses
import functools
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

    @property
    def longest(self) -> int:
        return self.symbols_of(max(self.lengths.values())) + 1

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
class FuzzyData(TaskData):
    """Holds the settings of recall whose keys and values are of several symbols."""

    corpus: str = fields.one_of(("fuzzy",), "fuzzy")
    symbols: int = fields.at_least(2, 16, 2**16)
    """Symbols, half of keys and half of values; an even number."""
    key_values: int = fields.at_least(1, 4, LONGEST // 4)
    """Pairs of key and value in a text."""
    most_symbols: int = fields.at_least(1, 3, LONGEST // 4)
    """The most symbols of a key, and of a value."""

    @property
    def alphabet(self) -> tuple[str, ...]:
        half = self.symbols // 2
        return (".", "=", *numbered("k", half), *numbered("v", half))

    @property
    def chance(self) -> float:
        return 2 / self.symbols

    def check(self) -> None:
        super().check()
        require(
            self.symbols % 2 == 0,
            f"data.symbols={self.symbols} must be even: half are of keys, half of values",
        )
        keys = sum((self.symbols // 2) ** n for n in range(1, self.most_symbols + 1))
        require(
            self.key_values <= keys,
            f"data.key_values={self.key_values} needs as many keys, of which data.symbols="
            f"{self.symbols} and data.most_symbols={self.most_symbols} make {keys}",
        )
        room = (self.key_values + 1) * (2 * self.most_symbols + 1)
        shortest = min(self.lengths.values())
        require(
            room <= shortest,
            f"data.key_values={self.key_values} and one that is asked take up to {room} "
            f"symbols, and a text has {shortest}: raise data.length and data.test_length",
        )


@dataclasses.dataclass(frozen=True)
class NeedleData(TaskPairsData):
    """Holds the settings of needles in noise."""

    corpus: str = fields.one_of(("needle",), "needle")
    symbols: int = fields.at_least(1, 16, 2**16)
    """Symbols of noise, of keys, and of values: so many of each."""
    needles: int = fields.at_least(1, 1, LONGEST // 4)
    """Pairs of key and value that are hidden in the noise, each asked at the end."""

    @property
    def alphabet(self) -> tuple[str, ...]:
        of_noise = numbered("n", self.symbols)
        return (*of_noise, *numbered("k", self.symbols), *numbered("v", self.symbols))

    @property
    def chance(self) -> float:
        # No other values are in a text.
        return 1 / self.needles

    def check(self) -> None:
        super().check()
        require(
            self.needles <= self.symbols,
            f"data.needles={self.needles} needs as many keys: data.symbols={self.symbols} "
            "must be as large",
        )
        shortest = min(self.lengths.values())
        require(
            4 * self.needles <= shortest,
            f"data.needles={self.needles} takes 4 symbols each, and a text has {shortest}: "
            "raise data.length and data.test_length",
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
    test_length: int = fields.at_least(0, 0, LONGEST)
    """The same in the test; 0 for that of training."""
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


GROUPS = {"a5": 60, "s5": 120, "s4": 24, "s3": 6, "z60": 60, "z2": 2}
"""The groups of words, with the number of their elements."""


@dataclasses.dataclass(frozen=True)
class WordsData(TaskPairsData):
    """Holds the settings of words of a group."""

    corpus: str = fields.one_of(("words",), "words")
    group: str = fields.one_of(tuple(GROUPS), "a5")
    """The group. a5: the even permutations of five things, which is not solvable; s5: all of
    them; s4 and s3, those of four and three, which are; z60: numbers under addition modulo 60;
    z2: modulo 2, whose words ask the parity."""
    letters: str = fields.one_of(("all", "generators"), "all")
    """The elements that words are made of. all: all; generators: two that generate the group,
    and their inverses, so that of A5 a model has 240 products to learn, not 3600."""

    @property
    def chance(self) -> float:
        # These generators lead from one half of the group to the other with each letter.
        halves = self.letters == "generators" and self.group in ("s4", "z60")
        return (2 if halves else 1) / GROUPS[self.group]

    @property
    def alphabet(self) -> tuple[str, ...]:
        return numbered("g", GROUPS[self.group])


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


_DIGITS = tuple("01234")
_BITS = tuple("01")
# What each reads and is asked, beside ">".
HIERARCHY = {
    "even_pairs": _BITS,
    "modular_arithmetic": (*_DIGITS, *"+*-"),
    "parity_check": _BITS,
    "cycle_navigation": (*_DIGITS, *"-.+"),
    "modular_arithmetic_brackets": (*_DIGITS, *"+-()"),
    "reverse_string": _BITS,
    "solve_equation": (*_DIGITS, *"+-()x="),
    "stack_manipulation": (*_BITS, "<", "pop", "push0", "push1"),
    "binary_addition": (*_BITS, "<", "+"),
    "binary_multiplication": (*_BITS, "<", "*"),
    "compute_sqrt": _BITS,
    "duplicate_string": _BITS,
    "missing_duplicate_string": (*_BITS, "?", "."),
    "odds_first": _BITS,
    "bucket_sort": _DIGITS,
}
"""The symbols of the tasks of the Chomsky hierarchy."""
ONE_ANSWER = (
    "even_pairs",
    "modular_arithmetic",
    "parity_check",
    "cycle_navigation",
    "modular_arithmetic_brackets",
    "solve_equation",
    "missing_duplicate_string",
)
"""Those of them that ask for one symbol."""


@dataclasses.dataclass(frozen=True)
class ChomskyData(TaskPairsData):
    """Holds the settings of the tasks of the Chomsky hierarchy."""

    corpus: str = fields.one_of(("chomsky",), "chomsky")
    task: str = fields.one_of(tuple(HIERARCHY), "parity_check")
    """The task. The first four are regular, the next four context-free, the others
    context-sensitive."""
    length: int = fields.at_least(1, 40, LONGEST)
    """The most symbols to read in training and validation, where all lengths from 1 on are as
    likely."""
    test_length: int = fields.at_least(0, 0, LONGEST)
    """The most symbols to read in the test; 0 for as in training. Above data.length, all texts
    of the test are longer than those of training."""

    @property
    def alphabet(self) -> tuple[str, ...]:
        return (">", *HIERARCHY[self.task])

    @property
    def chance(self) -> float:
        # Of five digits, of two bits and the end, or of two bits.
        if _DIGITS[-1] in self.alphabet:
            return 1 / 5
        return 1 / 3 if "<" in self.alphabet else 1 / 2

    def symbols_of(self, length: int) -> int:
        # Two numbers and a sign are three symbols, however short a text is to be.
        length = max(3, length)
        if self.task in ONE_ANSWER:
            return length + 1
        return 3 * length if self.task == "duplicate_string" else 2 * length + 1


SCAN_CUTOFFS = {
    22: 29, 24: 32, 25: 34, 26: 35, 27: 37, 28: 39, 30: 41, 32: 43, 33: 46, 36: 50, 40: 58
}  # fmt: skip
"""Numbers of actions, and the words of the shortest command of SCAN with more actions."""
SCAN_LONGEST = 58
"""The most words of a command of SCAN and its actions, with a mark between."""
SCAN_WORDS = (
    *"after and around jump left look opposite right run thrice turn twice walk".split(),
    *(f"I_{x}" for x in ("JUMP", "LOOK", "RUN", "TURN_LEFT", "TURN_RIGHT", "WALK")),
)


@dataclasses.dataclass(frozen=True)
class ScanData(TaskPairsData):
    """Holds the settings of SCAN."""

    corpus: str = fields.one_of(("scan",), "scan")
    split: str = fields.one_of(("random", "length", "jump", "turn_left"), "random")
    """What is kept for the test. random: a fifth of all commands; length: those of more than
    `cutoff` actions; jump, turn_left: those with that command in them, trained on alone."""
    cutoff: int = fields.field(
        22, f"one of {', '.join(map(str, SCAN_CUTOFFS))}", SCAN_CUTOFFS.__contains__
    )
    """The most actions of a command that is trained on, with split=length."""
    length: int = fields.at_least(9, SCAN_LONGEST, SCAN_LONGEST)
    """The most words of a command and its actions, with a mark between; 58 for all."""
    test_length: int = fields.at_least(0, 0, SCAN_LONGEST)
    """The same in the test; 0 for that of training."""

    @property
    def alphabet(self) -> tuple[str, ...]:
        return (">", "<", *SCAN_WORDS)

    def check(self) -> None:
        super().check()
        needed = SCAN_CUTOFFS[self.cutoff]
        longest = self.lengths["test"]
        require(
            self.split != "length" or longest >= needed,
            f"data.split=length keeps what has more than {self.cutoff} actions for the test, "
            f"and of at most {longest} words there is none: raise data.length or "
            f"data.test_length to {needed}",
        )


@dataclasses.dataclass(frozen=True)
class HopsData(TaskPairsData):
    """Holds the settings of steps along a ring."""

    corpus: str = fields.one_of(("hops",), "hops")
    symbols: int = fields.at_least(2, 32, 2**16)
    """Symbols that may be nodes."""
    nodes: int = fields.at_least(2, 8, LONGEST // 4)
    """Nodes of a ring, each of which takes two symbols."""
    hops: int = fields.at_least(1, 4, 2**12)
    """The most steps of a question."""

    @property
    def alphabet(self) -> tuple[str, ...]:
        return (*numbered("h", self.hops + 1)[1:], *numbered("s", self.symbols))

    @property
    def chance(self) -> float:
        # Among the nodes of the text, as of recall.
        return 1 / self.nodes

    def check(self) -> None:
        super().check()
        require(
            self.nodes <= self.symbols,
            f"data.nodes={self.nodes} must be at most data.symbols={self.symbols}",
        )
        shortest = min(self.lengths.values())
        require(
            2 * self.nodes + 2 <= shortest,
            f"data.nodes={self.nodes} take two symbols each, a question two more, and a text "
            f"has {shortest}: raise data.length and data.test_length",
        )


@dataclasses.dataclass(frozen=True)
class LettersData(TaskPairsData):
    """Holds the settings of letters in blocks."""

    corpus: str = fields.one_of(("letters",), "letters")
    symbols: int = fields.at_least(3, 26, 2**16)
    """Letters that blocks are made of."""
    block: int = fields.at_least(2, 5, LONGEST // 4)
    """Letters of a block."""

    @property
    def alphabet(self) -> tuple[str, ...]:
        return (".", "#", ">", *numbered("s", self.symbols))

    @property
    def chance(self) -> float:
        # One of the two letters that are named, which the block has, and more by chance.
        return (1 + (self.block - 2) / self.symbols) / self.block

    def symbols_of(self, length: int) -> int:
        return length // (self.block + 1) * (self.block + 1) + 3 + self.block

    def check(self) -> None:
        super().check()
        require(
            self.block < min(self.lengths.values()),
            f"data.block={self.block} must find room in data.length={self.length} and "
            f"data.test_length={self.test_length}",
        )


@dataclasses.dataclass(frozen=True)
class StacksData(TaskData):
    """Holds the settings of several stacks."""

    corpus: str = fields.one_of(("stacks",), "stacks")
    symbols: int = fields.at_least(1, 16, 2**16)
    """Items that stacks hold."""
    stacks: int = fields.at_least(1, 2, 2**8)
    """Stacks that are pushed to and popped from."""

    @property
    def alphabet(self) -> tuple[str, ...]:
        signs = (*numbered("(", self.stacks), *numbered(")", self.stacks))
        return (*signs, *numbered("s", self.symbols))

    @property
    def chance(self) -> float:
        return 1 / self.symbols

    def check(self) -> None:
        super().check()
        require(
            min(self.lengths.values()) >= 4,
            f"data.length={self.length} and data.test_length={self.test_length} must be 4 or "
            "more, for a push and a pop",
        )


@dataclasses.dataclass(frozen=True)
class ListOpsData(TaskData):
    """Holds the settings of ListOps."""

    corpus: str = fields.one_of(("listops",), "listops")
    length: int = fields.at_least(4, 48, LONGEST)
    """The most symbols of a text; 2000 in the Long Range Arena."""
    test_length: int = fields.at_least(0, 0, LONGEST)
    """The same in the test; 0 for that of training."""
    shortest: int = fields.at_least(4, 8, LONGEST)
    """The fewest symbols of a text; 500 in the Long Range Arena."""
    depth: int = fields.at_least(1, 10, 100)
    """How deep lists may be in lists."""
    arguments: int = fields.at_least(2, 10, 100)
    """The most parts of a list."""

    asked: ClassVar[Objective] = Label()
    sides: ClassVar[tuple[str, ...]] = ("read", "label")
    has_set_vocabulary: ClassVar[bool] = True
    labels: ClassVar[int] = 10
    chance: ClassVar[float] = 1 / 10

    alphabet: ClassVar[tuple[str, ...]] = (
        *"0123456789]",
        "[MIN",
        "[MAX",
        "[MED",
        "[SM",
    )

    def check(self) -> None:
        super().check()
        shortest = min(self.lengths.values())
        require(
            self.shortest <= shortest,
            f"data.shortest={self.shortest} must be at most data.length={self.length} and "
            f"data.test_length={self.test_length}",
        )
        longest = 1
        for _ in range(self.depth):
            # A name and its bracket, and parts that are lists themselves but at the bottom.
            longest = min(2 + self.arguments * longest, LONGEST)
        require(
            self.shortest <= longest,
            f"data.shortest={self.shortest} must be at most {longest}, the symbols of the "
            f"longest list of data.depth={self.depth} and data.arguments={self.arguments}",
        )


TASKS = {
    "recall": RecallData,
    "fuzzy": FuzzyData,
    "needle": NeedleData,
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
    "chomsky": ChomskyData,
    "scan": ScanData,
    "hops": HopsData,
    "letters": LettersData,
    "stacks": StacksData,
    "listops": ListOpsData,
}
"""The tasks by name."""


@functools.cache
def numbered(letter: str, count: int) -> tuple[str, ...]:
    """Returns the symbols letter0, letter1, and so on."""
    return tuple(f"{letter}{i}" for i in range(count))
