"""What a user can mend: errors whose message, on one line, is all that a command says of them."""


class Mistake(ValueError):
    """Bad input, or a machine that has too little: the message names the value and the remedy."""


def one_line(text) -> str:
    """`text` on one line, without characters a terminal would obey."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text or "")).split())
