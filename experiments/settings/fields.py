"""What a setting may be: a dataclass field with its default, a test, and words for what passes it."""

import dataclasses
import re
import unicodedata


def field(default, allowed, accepts):
    return dataclasses.field(
        default=default, metadata=dict(allowed=allowed, accepts=accepts)
    )


def at_least(low, default, most=2**31 - 1):
    """Counts fit int32, in which a program counts; beyond `most` nothing of use is known."""
    return field(
        default,
        f"at least {low} and at most {most}",
        lambda value: low <= value <= most,
    )


def between(low, high, default):
    return field(
        default, f"at least {low} and below {high}", lambda value: low <= value < high
    )


def rate(default):
    # 1 − 2⁻²⁵ and what is nearer to 1 would be 1 in float32.
    return field(
        default,
        "at least 0 and below 1, in float32 too",
        lambda value: 0 <= value < 1 - 2**-25,
    )


def positive(default):
    return field(
        default,
        "finite and above 0, from 1e-30 to 1e30",
        lambda value: 1e-30 <= value <= 1e30,
    )


def one_of(choices, default):
    return field(
        default, "one of " + ", ".join(choices), lambda value: value in choices
    )


def flag(default):
    return field(default, "True or False", lambda value: True)


def directory(default):
    return field(
        default,
        "a path without control characters, its names of at most 255 bytes",
        lambda value: (
            _plain(value)
            and all(len(name.encode()) <= 255 for name in value.split("/"))
            and len(value.encode()) < 4096
        ),
    )


def name(default):
    return field(
        default,
        "part of a file's name: 1 to 100 characters, no slash, no .. and no control characters",
        lambda value: (
            0 < len(value) <= 100
            and _plain(value)
            and not re.search(r"[/\\]|\.\.", value)
        ),
    )


def _plain(text):
    """No control character, and no lone surrogate, which UTF-8 has not."""
    return not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text)
