"""Fields of settings: a default, a test that a value must pass, and words for it."""

import re
import unicodedata

from attn.config import at_least, field, flag, one_of
from experiments.errors import UserError, hint
from experiments.settings import aliases

__all__ = ["at_least", "field", "flag", "one_of"]


def between(low, high, default):
    """Returns a field for a number from `low` to below `high`."""
    return field(
        default, f"at least {low} and below {high}", lambda value: low <= value < high
    )


def rate(default):
    """Returns a field for a rate in [0, 1).

    1 − 2⁻²⁵, and whatever is nearer to 1, would be 1 in float32.
    """
    return field(
        default,
        "at least 0 and below 1, in float32 too",
        lambda value: 0 <= value < 1 - 2**-25,
    )


def positive(default):
    """Returns a field for a number that float32 holds and that is above 0."""
    return field(
        default,
        "finite and above 0, from 1e-30 to 1e30",
        lambda value: 1e-30 <= value <= 1e30,
    )


def hint_of(value, choices) -> str:
    """Returns "; did you mean NAME?" for a value that is one of `choices` elsewhere."""
    known = {
        alias: meant
        for alias, meant in aliases.VALUES.items()
        if meant.partition(" ")[0] in choices
    }
    return hint(value, choices, known, of_methods=True)


def directory(default):
    """Returns a field for a path that a file system can hold; "" is none."""
    return field(
        default,
        "a path without control characters, its names of at most 255 bytes",
        _is_path,
    )


def path(default):
    """Returns a field for a path that a file system can hold, or a word in its place."""
    return field(
        default,
        "a path without control characters, its names of 1 to 255 bytes",
        lambda value: bool(value) and _is_path(value),
    )


def name(default):
    """Returns a field for a part of a file's name, which leads into no other folder."""
    return field(
        default,
        "part of a file's name: 1 to 100 characters, no slash, no .. and no control "
        "characters",
        _is_name,
    )


def matching(default, allowed, pattern):
    """Returns a field for a text that the whole of a regular expression matches."""
    return field(default, allowed, lambda value: bool(re.fullmatch(pattern, value)))


def column(default):
    """Returns a field for a column of a table, by its number from 0 on or by its name."""
    return field(
        default,
        "a column's number from 0 on, or its name: 1 to 100 characters, no control "
        "characters",
        lambda value: 0 < len(value) <= 100 and _is_plain(value),
    )


def _is_path(value):
    # A lone surrogate cannot be encoded, so it is looked for first.
    if not _is_plain(value) or len(value.encode()) >= 4096:
        return False
    # Linux allows names of 255 bytes, in paths of 4096 with the byte that ends them.
    return all(len(part.encode()) <= 255 for part in value.split("/"))


def _is_name(value):
    within = not re.search(r"[/\\]|\.\.", value)
    return 0 < len(value) <= 100 and _is_plain(value) and within


def _is_plain(text):
    """Returns whether a text has no control character and no lone surrogate.

    UTF-8 has no lone surrogates, so a file's name cannot hold one.
    """
    return not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text)


class SettingsError(UserError):
    """Raised for an invalid setting.

    The message names the setting, its value and what is known.
    """


def require(condition: bool, message: str) -> None:
    """Raises SettingsError with `message` unless `condition` holds."""
    if not condition:
        raise SettingsError(message)


def shown(value) -> str:
    """Returns `value` for a message, whatever it is: on one line and not long."""
    try:
        return cut(repr(value))
    except ValueError:  # an int of thousands of digits
        return f"a {type(value).__name__} too long to show"


def cut(text: str, most: int = 200) -> str:
    """Returns `text` on one line of at most `most` letters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}…"
