"""The tasks of the Chomsky hierarchy: each text is solved again by other means."""

import itertools
import math
import random
import re

import pytest

from experiments.data import corpora
from experiments.data.corpora.chomsky import MAKERS
from experiments.objectives import NOTHING
from experiments.settings.tasks import HIERARCHY, ChomskyData

pytestmark = pytest.mark.quick


def number(digits):
    return int("".join(digits)[::-1], 2)


def value(text):
    """By Python, of an expression that may have an unknown in it."""
    return eval(text) % 5


def sum_and_sign(text):
    return re.fullmatch(r"([01]+)([+*])([01]+)", text)


def solved(text):
    (known,) = [x for x in range(5) if value(equation(text, x)) == int(text[-1])]
    return str(known)


def equation(text, x):
    return text[: text.index("=")].replace("x", str(x))


def stacked(symbols):
    stack = []
    for symbol in symbols:
        pushed = [] if symbol == "pop" else [symbol.removeprefix("push")]
        stack = [*stack, *pushed] if pushed else stack[:-1]
    return [*reversed(stack), "<"]


def calculated(symbols, operation):
    first, _, second = sum_and_sign("".join(symbols)).groups()
    result = operation(number(first), number(second))
    digits = []
    while result:
        result, digit = divmod(result, 2)
        digits.append(str(digit))
    return [*digits, "<"]


def missing(symbols):
    kept = [symbol for symbol in symbols if symbol != "."]
    half = len(kept) // 2
    return [
        a if b == "?" else b
        for a, b in zip(kept[:half], kept[half:], strict=True)
        if "?" in (a, b)
    ]


def root(symbols):
    n = int("".join(symbols), 2)
    whole = int(math.sqrt(n))
    while whole * whole > n:
        whole -= 1
    while (whole + 1) ** 2 <= n:
        whole += 1
    return list(format(whole, f"0{-(-len(symbols) // 2)}b"))


# Each takes what was read and returns what is asked, by the rules of the paper's appendix.
ORACLES = {
    "even_pairs": lambda s: [str(int(s[0] != s[-1]))],
    "modular_arithmetic": lambda s: [str(value("".join(s)))],
    "parity_check": lambda s: [str(sum(map(int, s)) % 2)],
    "cycle_navigation": lambda s: [
        str(sum({"+": 1, "-": -1, ".": 0}[x] for x in s) % 5)
    ],
    "modular_arithmetic_brackets": lambda s: [str(value("".join(s)))],
    "solve_equation": lambda s: [solved("".join(s))],
    "reverse_string": lambda s: [*reversed(s)],
    "stack_manipulation": stacked,
    "binary_addition": lambda s: calculated(s, lambda a, b: a + b),
    "binary_multiplication": lambda s: calculated(s, lambda a, b: a * b),
    "compute_sqrt": root,
    "duplicate_string": lambda s: [*s, *s],
    "missing_duplicate_string": missing,
    "odds_first": lambda s: [
        x for start in (0, 1) for x in itertools.islice(s, start, None, 2)
    ],
    "bucket_sort": lambda s: sorted(s, key=int),
}
LENGTHS_OF_ITS_OWN = {
    # Only odd ones.
    "modular_arithmetic": lambda length: length - (length % 2 == 0),
    # At least two digits and a sign, or a number, "=" and its value.
    "binary_addition": lambda length: max(3, length),
    "binary_multiplication": lambda length: max(3, length),
    "solve_equation": lambda length: max(3, length),
    "missing_duplicate_string": lambda length: max(2, length),
}


def test_settings_name_all_tasks():
    assert [*MAKERS] == [*HIERARCHY] and set(MAKERS) == set(ORACLES)
    assert len(MAKERS) == 15


@pytest.mark.parametrize("task", MAKERS)
def test_an_oracle_solves_texts_of_every_length(task):
    rng = random.Random(task)
    for length in [*range(1, 25), 60]:
        for _ in range(8):
            symbols, asked, places = MAKERS[task](rng, length)
            assert asked == ORACLES[task](symbols), symbols
            own = LENGTHS_OF_ITS_OWN.get(task, lambda length: length)
            assert len(symbols) == own(length) and len(asked) <= places
            assert {*symbols, *asked} <= set(HIERARCHY[task])


@pytest.mark.parametrize(
    ("task", "symbols", "asked"),
    [
        # Those of their docstrings.
        ("even_pairs", "001110", "0"),
        ("even_pairs", "0101001", "1"),
        ("modular_arithmetic", "1+2*3", "2"),
        ("modular_arithmetic", "1-1-1", "4"),
        ("modular_arithmetic", "0*1+4*3-2", "0"),
        ("parity_check", "1010100", "1"),
        ("cycle_navigation", "+-.--", "3"),
        ("cycle_navigation", "+++-", "2"),
        ("binary_addition", "001+01101", "01011<"),
        ("binary_addition", "1001+000001", "100101<"),
        ("binary_multiplication", "001*01101", "0001101<"),
        ("binary_multiplication", "1001*000001", "000001001<"),
        ("compute_sqrt", "100101", "110"),
        ("compute_sqrt", "111", "10"),
        ("missing_duplicate_string", "01100?10", "1"),
        ("missing_duplicate_string", "101?1?", None),
        ("odds_first", "00110101", "01000111"),
        ("odds_first", "110", "101"),
        ("bucket_sort", "10204112", "00111224"),
    ],
)
def test_published_examples(task, symbols, asked):
    """The oracle solves them as published: their 101 as the root of 37 is a slip, it is 110."""
    if asked is not None:
        assert ORACLES[task](list(symbols)) == list(asked)


def test_published_stacks():
    stack = [*"0110", "push1", "pop", "pop"]
    assert stacked(stack) == [*"110", "<"]
    assert stacked([*"110", "pop", "pop", "pop"]) == ["<"]


@pytest.mark.parametrize("task", MAKERS)
def test_texts_of_a_longer_test_are_longer_than_all_of_training(task):
    data = ChomskyData(task=task, length=6, test_length=14, pairs=60, heldout=40)
    lengths = {}
    for split in corpora.SPLITS:
        lengths[split] = set()
        for block in corpora.open(data).read(split):
            for text, labels in zip(*block, strict=True):
                symbols, labels = text.split(), labels.split()
                read = labels.index(next(x for x in labels if x != NOTHING))
                assert symbols[read:] == [">"] * (len(symbols) - read)
                assert [x for x in labels if x != NOTHING] == ORACLES[task](
                    symbols[:read]
                )
                assert len(symbols) <= data.symbols_of(data.lengths[split])
                lengths[split].add(read)
    assert max(lengths["train"]) <= 6 < min(lengths["test"]) + 1
    assert max(lengths["test"]) in (13, 14)


@pytest.mark.parametrize("task", MAKERS)
def test_chance_is_that_of_its_answers(task):
    """A guess of the most frequent answer is not much better."""
    rng = random.Random(1)
    answers = [x for _ in range(400) for x in MAKERS[task](rng, 12)[1]]
    most = max(answers.count(x) for x in set(answers)) / len(answers)
    chance = ChomskyData(task=task).chance
    assert chance - 0.05 < most < chance + 0.25
