"""Parallel files of all kinds of harm: a clear error naming file and line, or counted
drops; never a wrong pair.

What should come of a pair of files is said here a second time, a byte at a time.
"""

import gzip
import random
import re

import pytest

from experiments.data import corpora
from experiments.data.corpora import CorpusError, parallel
from experiments.data.dataset import LONGEST, prepare
from experiments.data.vocabulary import EOS
from experiments.settings import FilesData

CASES = 2000
"""Each has two files that may be harmed."""
TEXTS = ["a dog runs", "Ein Hund läuft.", "日本語の文", "שלום עולם", "مرحبا بالعالم"]
TEXTS += [
    "e\u0301 n\u0303 \u202eabc\u202c",
    "👩‍👩‍👧 🙂",
    "3 km – „weit“",
    "</s> <s> <pad>",
]
TEXTS += ["a\u2028b\x85c\x0bd\x0ce", "tab\there", "\ufeffmark", "=cmd()", "<b>x</b>"]
TEXTS += ["\u200b", "one\rtwo", "ａ ﬁ Å", "x" * 300]
INVALID = (b"\xff", b"\xc3", b"\xe4 ", b"\x80", b"\xed\xa0\x80", b"\xc0\xaf")
WITHIN = {
    "an empty line": lambda rng: b"\n",
    "a blank line": lambda rng: b"\n \t\xe3\x80\x80\r\n",
    "invalid": lambda rng: rng.choice((*INVALID, b"\xf8\x88\x80\x80\x80")),
    "NUL": lambda rng: b"\0",
    "CR alone": lambda rng: b"\r",
    "a long line": lambda rng: b"long " * rng.choice((50, 500)),
}
"""What is put anywhere into a file."""
HARM = {
    "none": lambda data, rng: data,
    "a line less": lambda data, rng: b"".join(data.splitlines(True)[:-1]),
    "a line more": lambda data, rng: data + b"more\n",
    "CRLF": lambda data, rng: data.replace(b"\n", b"\r\n"),
    "BOM": lambda data, rng: b"\xef\xbb\xbf" + data,
    "UTF-16": lambda data, rng: data.decode("utf-8", "replace").encode("utf-16"),
    "no last newline": lambda data, rng: data.removesuffix(b"\n"),
    "cut off": lambda data, rng: data[: rng.randrange(len(data) + 1)],
    "nothing": lambda data, rng: b"",
    "only newlines": lambda data, rng: b"\n" * data.count(b"\n"),
}


def harmed(rng, most=1):
    """Two files' bytes, and what was done to them."""
    count = rng.randrange(1, 12)
    done = []
    files = []
    for _ in range(2):
        data = "".join(rng.choice(TEXTS) + "\n" for _ in range(count)).encode()
        for _ in range(rng.randrange(most + 1)):
            done.append(rng.choice([*HARM, *WITHIN]))
            if done[-1] in HARM:
                data = HARM[done[-1]](data, rng)
            else:
                i = rng.randrange(len(data) + 1)
                data = data[:i] + WITHIN[done[-1]](rng) + data[i:]
        files.append(data)
    return files, done


BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


def on_a_line(text):
    return re.sub(
        f"[{BREAKS}]+", " ", text.removeprefix("\ufeff").strip(BREAKS)
    ).strip()


def fault_of(line):
    if b"\0" in line:
        return "NUL character"
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return f"invalid UTF-8 (byte 0x{line[error.start]:02x})"
    return ""


def expected_outcome(files):
    """("error", words that its message has) or ("pairs", the lines of both sides)."""
    sides = {}
    for language, data in zip(("en", "de"), files, strict=True):
        if not data:
            return "error", f"train.{language}: the file is empty"
        lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        sides[language] = lines[:-1] if lines[-1] == b"" and len(lines) > 1 else lines
    count = len(sides["en"])
    if count != len(sides["de"]):
        return "error", f"train.en has {count} lines"
    for number in range(count):
        for language, lines in sides.items():
            if why := fault_of(lines[number]):
                return "error", f"train.{language}:{number + 1}: {why}"
    texts = [[on_a_line(line.decode()) for line in lines] for lines in sides.values()]
    return "pairs", list(zip(*texts, strict=True))


def write(folder, files, rng):
    for language, data in zip(("en", "de"), files, strict=True):
        path = folder / f"train.{language}"
        for old in (path, folder / f"train.{language}.gz"):
            old.unlink(missing_ok=True)
        if rng.random() < 0.2:
            (folder / f"train.{language}.gz").write_bytes(gzip.compress(data, 1))
        else:
            path.write_bytes(data)


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for stem in ("val", "test"):
        for language in ("en", "de"):
            (tmp_path / f"{stem}.{language}").write_text("a dog\n")
    return FilesData(directory=str(tmp_path), vocabulary_size=470, max_length=80)


def test_every_file_is_read_right_or_refused_with_its_place(
    tmp_path, data, monkeypatch
):
    rng = random.Random(0)
    outcomes = dict(error=0, pairs=0)
    for case in range(CASES):
        monkeypatch.setattr(parallel, "BLOCK", rng.choice((1, 2, 5, 8192)))
        files, done = harmed(rng, most=2)
        write(tmp_path, files, rng)
        kind, expected = expected_outcome(files)
        try:
            actual = []
            for block in corpora.open(data).read("train"):
                actual += zip(*block, strict=True)
            same = kind == "pairs" and actual == expected
        except CorpusError as error:
            actual = str(error)
            is_named = kind == "error" and expected in actual.replace(".gz", "")
            same = is_named and "\n" not in actual
        assert same, (
            f"case {case}, {done}: {actual!r:.300}, not {kind} {expected!r:.300}"
        )
        outcomes[kind] += 1
    assert min(outcomes.values()) > CASES / 5


def test_what_is_read_becomes_tokens_without_loss(tmp_path, data):
    """Every line is trained on or counted as dropped, and what is trained on reads as
    it was written, on one line."""
    rng = random.Random(1)
    used = 0
    begin = "some words that can be cut into tokens"
    lines = [f"{i} {begin}: {text}\n" for i, text in enumerate(TEXTS * 3)]
    for case in range(60):
        files, done = harmed(rng)
        files = ["".join(lines).encode() + file for file in files]
        write(tmp_path, files, rng)
        kind, what = expected_outcome(files)
        if kind == "error":
            with pytest.raises(CorpusError):
                prepare(data)
            continue
        dataset = prepare(data)
        full = [pair for pair in what if all(side.strip() for side in pair)]
        counts = dataset.counts
        assert counts["train"] == len(full)
        assert counts["train_empty"] == len(what) - len(full)
        vocabulary = dataset.vocabulary()
        ids = zip(*map(vocabulary.encode, zip(*full, strict=True)), strict=True)
        short = []
        for pair, sides in zip(full, ids, strict=True):
            if all(len(side) < 80 for side in sides):
                short.append(pair)
        rows = []
        for side in dataset.train:
            spans = zip(side.starts, side.lengths, strict=True)
            texts = [side.ids[start : start + n + 1].tolist() for start, n in spans]
            rows.append(vocabulary.decode(texts))
        assert list(zip(*rows, strict=True)) == short, f"case {case}, {done}"
        assert counts["train_too_long"] == len(full) - len(short)
        used += 1
    assert used > 20


def test_a_line_of_a_megabyte(tmp_path, data):
    """Dropped and counted in training, refused with its place where nothing may be dropped."""
    lines = [
        f"{i} words that are to be cut into tokens of some kind, quickly"
        for i in range(50)
    ]
    text = "\n".join([*lines, "ab " * 350_000, *lines]) + "\n"
    for language in ("en", "de"):
        (tmp_path / f"train.{language}").write_text(text)
    dataset = prepare(data)
    assert (dataset.counts["train"], dataset.counts["train_too_long"]) == (101, 1)
    assert dataset.train.source.ids[-1] == EOS
    (tmp_path / "val.de").write_text("ab " * 350_000 + "\n")
    message = (
        rf"val\.en:1: a held-out sentence of \d+ tokens, and {LONGEST} are the most"
    )
    with pytest.raises(CorpusError, match=message):
        prepare(data)
