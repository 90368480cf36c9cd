"""Defines the errors that a user can mend: a command prints their message on one line."""

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType


class UserError(ValueError):
    """Raised for bad input or too small a machine; names the value and the remedy."""

    status = 2
    """The exit status of a command that ends with it."""


class WorkdirError(UserError):
    """Raised for a directory that holds something else; says what, and the remedy."""


class CheckpointError(UserError):
    """Raised for checkpoints that cannot be read, written or fitted; gives the remedy."""


class OutOfMemoryError(UserError):
    """Raised where a program needs more memory than there is; says what would fit."""


def one_line(text) -> str:
    """Returns `text` on one line, without characters that a terminal would obey."""
    characters = (c if c.isprintable() else " " for c in str(text or ""))
    return " ".join("".join(characters).split())


def few(names: Iterable[object], most: int = 3) -> str:
    """Returns "a, b, c and 4 more", of which `most` are named."""
    names = [str(name) for name in names]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


ALIKE = 0.6
"""How alike a misspelt name is to what it stands for; `difflib`'s own number."""

ALIKE_METHODS = 0.81
"""The same of names of methods: adam8 and adamw, which are two, are less alike."""


def hint(
    name: object,
    known: Iterable[str],
    aliases: Mapping[str, str] = MappingProxyType({}),
    *,
    of_methods: bool = False,
    prefix: str = "",
) -> str:
    """Returns "; did you mean NAME?" for a name that is not known; "" where none is near.

    `aliases` has what other names stand for. A method whose name has another's in it is no
    misspelt one: adamw is not adam.
    """
    if not isinstance(name, str):
        return ""
    # A long name is cut, because the time for matching grows with its square.
    text = name[:100]
    if meant := aliases.get(text.lower().replace("-", "_")):
        return f"; did you mean {prefix}{meant}?"
    if of_methods:
        known = [each for each in known if each not in text and text not in each]
    cutoff = ALIKE_METHODS if of_methods else ALIKE
    near = difflib.get_close_matches(text, known, n=1, cutoff=cutoff)
    return f"; did you mean {prefix}{near[0]}?" if near else ""
