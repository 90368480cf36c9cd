"""Configs with settings, values and names that they should not have, alone and in pairs."""

import dataclasses
import functools
import math
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from experiments.configs import (
    hard,
    language,
    multi30k,
    paper,
    quick,
    table3,
    wmt14_ende,
)
from experiments.settings import known_fields, override

BASES = {
    "quick": quick.get_config,
    "paper": paper.get_config,
    "multi30k": multi30k.get_config,
    "wmt14": wmt14_ende.get_config,
    "rnn": functools.partial(hard.get_config, "rnn"),
    "text": functools.partial(language.get_config, "text"),
    "tsv": lambda: override(multi30k.get_config(), {"data.corpus": "tsv"}),
}
for preset in table3.PRESETS:
    BASES[f"table3:{preset}"] = functools.partial(table3.get_config, preset)
TEXTS = [
    "",
    " ",
    "two",
    "1",
    "a\0b",
    "a\nb",
    "../..",
    "/etc/passwd",
    "..",
    "x/y",
    "x\\y",
]
TEXTS += ["a" * 300, "\ud800", "\u202e", "<script>", "__class__", b"x"]
INTEGERS = [0, 1, -1, -2, 3, 2**31 - 1, 2**31, 10**9, 10**30, 10**400, 10**5000]
INTEGERS += [-(10**400), np.int64(3), True, False]
FLOATS = [0.0, -0.0, 0.5, -0.5, 1.0, 2.5, 1e-320, 1e-300, 1e308, math.nan, math.inf]
FLOATS += [-math.inf, 1 - 2.0**-53, 1 - 2.0**-24, np.float32(0.1), complex(1, 1)]
OTHERS = [None, [], [1], ["en"], (), (1, 2), {}, {"h": 1}, {"x": {"y": 1}}, range(3)]
HOSTILE = [*TEXTS, *INTEGERS, *FLOATS, *OTHERS, int, np.eye(3)]
OPTIONS = """
    rotary(fraction=0.5) | rotary(fraction=0.3) | rotary(base=0) | rotary(base=-1) |
    t5(buckets=0) | t5(buckets=1) | t5(buckets=8, max_distance=2) | relative(reach=-1) |
    sinusoidal(layout=halves) | additive(d_a=3, bias=True) | additive(d_a=0) |
    bilinear(rank=-1) | restricted(radius=0) | convolution(radius=-3) |
    recurrence(cell=tanh) | recurrence(cell=x) | gated_linear_attention(decay=x) |
    x(y=1) | rotary( | rotary(base=()) | /dev/null:X | nowhere.py:X(y=1) | os:environ
"""
"""Texts of choices with options, good and bad."""


class Case(NamedTuple):
    """A base with some of its settings changed: as a point on top of it, or in the
    config itself."""

    base: str
    changes: Mapping[Any, Any]
    inside: bool


def fields() -> Iterator[tuple[str, dataclasses.Field]]:
    """Gives every setting of every kind of model and corpus, by its dotted key."""
    seen = {}
    for key, _, field in known_fields():
        # What parts of a model change is no setting by itself.
        if "part" not in field.metadata:
            seen.setdefault(key, field)
    yield from seen.items()


def near(field) -> list[Any]:
    """What is just within a setting's range and just out of it: choices, and numbers
    about the range's ends."""
    values = [field.default]
    allowed = field.metadata["allowed"]
    if field.type in (int, float):
        for end in map(field.type, map(float, re.findall(r"\d+(?:e-?\d+)?", allowed))):
            values += [end, end - 1, end + 1, end * 2]
    if allowed.startswith("one of "):
        choices = allowed.removeprefix("one of ").split(", or one from")[0].split(", ")
        values += [*choices, choices[0].upper(), choices[-1][:-1], choices[0] + " "]
    if "choices" in field.metadata:
        values += [text.strip() for text in OPTIONS.split("|")]
    return [*values, True, False] if field.type is bool else values


def misspelled(key: str, rng: random.Random) -> list[str]:
    """`key` with a letter lost, doubled, changed for another, or swapped with the next."""
    i = rng.randrange(len(key))
    before, letter, after = key[:i], key[i], key[i + 1 :]
    swapped = before + key[i : i + 2][::-1] + key[i + 2 :]
    wrong = [before + x + after for x in ("", 2 * letter, "q")]
    wrong += [swapped, key + ".x", key.upper()]
    return [other for other in wrong if other != key]


GROUPS = ("", "model", "data", "training", "evaluation", "seed.x", 3, None, ("a",))


def cases(count: int, seed: int = 0) -> Iterator[Case]:
    """`count` cases: every setting with every value and every misspelling first, on one
    base after another; then pairs.

    Half of the pairs are of hostile values, the others of such as may be accepted.
    """
    rng = random.Random(seed)
    known = list(fields())
    bases = [name for name in BASES for _ in (0, 1)]
    plain = [(key, value) for key, field in known for value in near(field)]
    single = [(key, value) for key, _ in known for value in HOSTILE] + plain
    for key, field in known:
        single += [(typo, field.default) for typo in misspelled(key, rng)]
    for group in GROUPS:
        single += [(group, value) for value in (3, "x", None, [], {}, {"h": "x"})]
    rng.shuffle(single)
    for i in range(count):
        changes = single[i : i + 1] or rng.sample(plain if i % 4 < 2 else single, 2)
        yield Case(bases[i % len(bases)], dict(changes), i % 2 == 1)


@functools.cache
def base(name: str) -> dict[str, Any]:
    return BASES[name]().to_dict()
