"""The fifteen tasks of Delétang et al. 2023, "Neural networks and the Chomsky hierarchy".

arXiv 2207.02098, table 1 and appendix A; where paper and code differ, the paper. A function
makes a text of a length: what is read, what is asked, and how many places there are for it.
"""

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

Made = tuple[list[str], list[str], int]
"""What is read, what is asked, and the places for it, which do not tell how much that is."""

END = "<"
"""What follows an answer that is shorter than its places."""
MODULUS = 5
BITS = "01"


def _bits(rng: random.Random, count: int) -> list[str]:
    return rng.choices(BITS, k=count)


# Regular.


def even_pairs(rng: random.Random, length: int) -> Made:
    """Asks whether there are as many 01 as 10: 0 for yes, which is to begin as it ends."""
    bits = _bits(rng, length)
    changes = sum(a != b for a, b in itertools.pairwise(bits))
    return bits, [BITS[changes % 2]], 1


def modular_arithmetic(rng: random.Random, length: int) -> Made:
    """Asks for the value of an expression without brackets, modulo 5; of odd length."""
    count = (length + 1) // 2
    numbers = [rng.randrange(MODULUS) for _ in range(count)]
    operators = rng.choices("+*-", k=count - 1)
    symbols = [str(numbers[0])]
    # The sum of the terms that are done, and the term that is not.
    total, term = 0, numbers[0]
    for operator, number in zip(operators, numbers[1:], strict=True):
        symbols += [operator, str(number)]
        if operator == "*":
            term *= number
        else:
            total += term
            term = number if operator == "+" else -number
    return symbols, [str((total + term) % MODULUS)], 1


def parity_check(rng: random.Random, length: int) -> Made:
    """Asks whether the number of 1 is even: 0 for yes."""
    bits = _bits(rng, length)
    return bits, [BITS[bits.count("1") % 2]], 1


def cycle_navigation(rng: random.Random, length: int) -> Made:
    """Asks for the place on a circle of five after steps to the left, right or none."""
    steps = rng.choices("-.+", k=length)
    return steps, [str((steps.count("+") - steps.count("-")) % MODULUS)], 1


# Context-free, deterministic.


def _expression(rng: random.Random, length: int) -> tuple[list[str], int]:
    """Returns an expression with brackets of + and −, and its value modulo 5."""
    if length < 5:
        number = rng.randrange(MODULUS)
        sign = ["-"] if length % 2 == 0 else []
        symbols = [*sign, str(number)]
        if length > 2:
            symbols = ["(", *symbols, ")"]
        return symbols, (-number if sign else number) % MODULUS
    left = rng.randrange(1, length - 3)
    first, a = _expression(rng, left)
    second, b = _expression(rng, length - left - 3)
    operator = rng.choice("+-")
    value = a + b if operator == "+" else a - b
    return ["(", *first, operator, *second, ")"], value % MODULUS


def modular_arithmetic_brackets(rng: random.Random, length: int) -> Made:
    """Asks for the value of an expression with brackets, modulo 5."""
    symbols, value = _expression(rng, length)
    return symbols, [str(value)], 1


def solve_equation(rng: random.Random, length: int) -> Made:
    """Asks for the number that x stands for in such an expression, given its value."""
    symbols, value = _expression(rng, max(1, length - 2))
    places = [i for i, symbol in enumerate(symbols) if symbol.isdigit()]
    # As in their code: from a random place on, the first that holds a number.
    begin = rng.randrange(len(symbols))
    place = min(places, key=lambda i: (i - begin) % len(symbols))
    solution = symbols[place]
    return (
        [*symbols[:place], "x", *symbols[place + 1 :], "=", str(value)],
        [solution],
        1,
    )


def reverse_string(rng: random.Random, length: int) -> Made:
    """Asks for a string of bits backwards."""
    bits = _bits(rng, length)
    return bits, bits[::-1], length


def stack_manipulation(rng: random.Random, length: int) -> Made:
    """Asks for a stack from its top, after pushes of 0 and 1 and pops of what is there."""
    size = rng.randrange(1, length) if length > 1 else 1
    stack = _bits(rng, size)
    actions = rng.choices(("pop", "push0", "push1"), k=length - size)
    symbols = [*stack, *actions]
    for action in actions:
        if action == "pop":
            del stack[-1:]
        else:
            stack.append(action[-1])
    return symbols, [*stack[::-1], END], length + 1


# Context-sensitive.


def _two_numbers(rng: random.Random, length: int) -> tuple[list[list[str]], list[int]]:
    """Returns the digits of two numbers, the lowest first, of length − 1 in all, and both."""
    first = rng.randrange(1, length - 1)
    sizes = first, length - 1 - first
    numbers = [rng.randint(1, 2**size - 1) for size in sizes]
    digits = [
        list(f"{number:b}".zfill(size)[::-1])
        for number, size in zip(numbers, sizes, strict=True)
    ]
    return digits, numbers


def binary_addition(rng: random.Random, length: int) -> Made:
    """Asks for the sum of two numbers in binary, lowest digits first."""
    (a, b), numbers = _two_numbers(rng, max(3, length))
    symbols = [*a, "+", *b]
    return symbols, [*f"{sum(numbers):b}"[::-1], END], len(symbols) + 1


def binary_multiplication(rng: random.Random, length: int) -> Made:
    """Asks for the product of two numbers in binary, lowest digits first."""
    (a, b), numbers = _two_numbers(rng, max(3, length))
    symbols = [*a, "*", *b]
    return symbols, [*f"{math.prod(numbers):b}"[::-1], END], len(symbols)


def compute_sqrt(rng: random.Random, length: int) -> Made:
    """Asks for the whole part of the root of a number in binary, highest digits first."""
    number = rng.randint(1, 2**length - 1)
    places = -(-length // 2)
    root = f"{math.isqrt(number):b}".zfill(places)
    return list(f"{number:b}".zfill(length)), list(root), places


def duplicate_string(rng: random.Random, length: int) -> Made:
    """Asks for a string of bits twice."""
    bits = _bits(rng, length)
    return bits, bits * 2, 2 * length


def missing_duplicate_string(rng: random.Random, length: int) -> Made:
    """Asks for the bit at ? in a string that is there twice; "." fills an odd length."""
    half = _bits(rng, max(1, length // 2))
    symbols = half * 2
    place = rng.randrange(len(symbols))
    answer, symbols[place] = symbols[place], "?"
    return symbols + ["."] * max(0, length - len(symbols)), [answer], 1


def odds_first(rng: random.Random, length: int) -> Made:
    """Asks for the bits at odd places, the first among them, then for the others."""
    bits = _bits(rng, length)
    return bits, bits[::2] + bits[1::2], length


def bucket_sort(rng: random.Random, length: int) -> Made:
    """Asks for a string of five symbols in order."""
    symbols = rng.choices("01234", k=length)
    return symbols, sorted(symbols), length


MAKERS: dict[str, Callable[[random.Random, int], Made]] = {
    "even_pairs": even_pairs,
    "modular_arithmetic": modular_arithmetic,
    "parity_check": parity_check,
    "cycle_navigation": cycle_navigation,
    "modular_arithmetic_brackets": modular_arithmetic_brackets,
    "reverse_string": reverse_string,
    "solve_equation": solve_equation,
    "stack_manipulation": stack_manipulation,
    "binary_addition": binary_addition,
    "binary_multiplication": binary_multiplication,
    "compute_sqrt": compute_sqrt,
    "duplicate_string": duplicate_string,
    "missing_duplicate_string": missing_duplicate_string,
    "odds_first": odds_first,
    "bucket_sort": bucket_sort,
}
"""The tasks by name, as data.task has them."""


def make(rng: random.Random, data: Any, split: str) -> tuple[list[str], list[str], int]:
    """Makes a text of a random length: 1 to data.length; of a longer test, beyond that."""
    longest = data.lengths[split]
    shortest = data.length + 1 if longest > data.length else 1
    return MAKERS[data.task](rng, rng.randint(shortest, longest))
