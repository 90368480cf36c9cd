"""Says what a line of text is, the same for every reader and for all that is written.

Texts are kept, translated and compared line by line, so that a line break within one would
shift all that follow it. In files only a newline ends a line, with or without a carriage
return before it. A break within a text, all that `str.splitlines` knows, becomes a blank:
U+2028, U+0085 and form feeds occur within sentences of real corpora, and other programs end
a line at them.
"""

import itertools
from collections.abc import Iterable, Iterator

from experiments.errors import UserError
from experiments.settings.fields import shown

BYTE_ORDER_MARK = "\ufeff"
"""Begins files of some editors; it would be a part of the first word."""

_MARK = BYTE_ORDER_MARK.encode()


class Bad(str):
    """Stands for a text that cannot be read: an empty text that knows what is wrong."""

    why: str
    place: str

    def __new__(cls, why: str, place: str = ""):
        """Returns an empty text; `place` says where it stands, "" as its pair does."""
        text = super().__new__(cls)
        text.why = why
        text.place = place
        return text


def as_line(text: str) -> str:
    """Returns a text on one line, without a byte order mark at its beginning.

    Line breaks become a blank, several in a row become one, and none stays at an end.
    """
    parts = text.removeprefix(BYTE_ORDER_MARK).splitlines()
    return " ".join(filter(None, parts))


def as_text(text: str) -> str:
    """Returns a text on one line, without white space around it.

    So are all texts read that are trained on, translated or scored.
    """
    return as_line(text).strip()


def fault(text: object) -> str:
    """Returns what keeps a value from being a text; "" for what is one."""
    if isinstance(text, Bad):
        return text.why
    if not isinstance(text, str):
        return f"no text but {shown(text)}"
    if "\0" in text:
        return "NUL character: is this a text?"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        letter = ord(text[error.start])
        # So `decode` has bytes that are no UTF-8.
        if 0xDC80 <= letter <= 0xDCFF:
            return f"invalid UTF-8 (byte 0x{letter - 0xDC00:02x}): convert it to UTF-8"
        return f"half of a character (U+{letter:04X})"
    return ""


def without_mark(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the lines of a file, the first without a byte order mark."""
    lines = iter(lines)
    for first in itertools.islice(lines, 1):
        yield first.removeprefix(_MARK)
    yield from lines


def decode(lines: Iterable[bytes]) -> list[str]:
    """Returns lines as texts without their ends; `fault` names bytes that are no UTF-8."""
    text = b"".join(lines).decode(errors="surrogateescape")
    # Not splitlines: see above.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def read_lines(file: Iterable[bytes]) -> list[str]:
    """Returns all lines of a file as texts.

    Raises UserError for one that is no text, with its number.
    """
    lines = list(without_mark(file))
    texts = decode(lines) if lines else []
    for number, text in enumerate(texts, start=1):
        if why := fault(text):
            raise UserError(f"line {number} of the input: {why}")
    return texts
