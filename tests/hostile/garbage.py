"""Files as a stranger may have made them, for the tests of what reads files."""

from pathlib import Path

import numpy as np
import pytest

from launch import command

EVIL = (
    "--></style></script></title><script>alert(1)</script><img src=x onerror=alert(2)> "
    "\"' onload='alert(3)' "
    "[a](javascript:alert(4)) <javascript:alert(5)> &lt; &#60;svg/onload=alert(6)> {{ 7*7 }} "
    "\\input{/etc/passwd} "
    "$x$ % # _ ^^5c ~ | ` ]]> <!-- \u202e \x1b[31m"
)
FORMULA = '=HYPERLINK("http://x")'
GARBAGE = (
    b"",
    b"\0" * 100,
    b"\x80\x04\x95garbage.",
    b"{",
    b"[1, 2]",
    b"3",
    b"null",
    b'"text"',
    b"\xff\xfe{}",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"1" * 5000,
    b"PK\x03\x04" + b"\0" * 200,
    b'{"a":' * 700 + b"1" + b"}" * 700,
    b'{"status": "finished", "perplexity": 1' + b"0" * 400 + b"}",
)


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def pickled(path, bomb) -> bytes:
    """An .npz with every array that a trial or a model has, each one of pickled objects."""
    names = (
        "0/encoder",
        "positions",
        "validation_nll",
        "test_bleu",
        "encoder.layers.0.linear1.weight",
        "embedding",
    )
    np.savez(path, **{name: np.array([[Bomb(bomb)]], object) for name in names})
    return path.read_bytes()


def one_line(call, capsys) -> str:
    """What a command says whose work is `call()`, which is to end as a mistake."""
    with pytest.raises(SystemExit) as end:
        command.without_traceback(call)
    said = capsys.readouterr()
    assert (end.value.code, said.out, said.err[:7], said.err.count("\n")) == (
        2,
        "",
        "error: ",
        1,
    )
    assert len(said.err) < 1000
    return said.err
