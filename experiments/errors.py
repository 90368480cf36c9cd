"""Defines the errors that a user can mend: a command prints their message on one line."""


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
