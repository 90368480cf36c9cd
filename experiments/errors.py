"""What a user can mend: errors whose message, on one line, is all that a command says of them."""


class UserError(ValueError):
    """Bad input, or a machine that has too little: the message names the value and the remedy."""


def one_line(text) -> str:
    """`text` on one line, without characters a terminal would obey."""
    return " ".join(
        "".join(c if c.isprintable() else " " for c in str(text or "")).split()
    )


class WorkdirError(UserError):
    """A directory that holds something else; the message says what, and the remedy."""


class CheckpointError(UserError):
    """Checkpoints that cannot be read, written or fitted; the message names them and the remedy."""


class OutOfMemoryError(UserError):
    """A program needs more memory than there is; the message says how much that may be, and what would fit."""
