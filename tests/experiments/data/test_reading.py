"""Bad lines: all are counted at the end of reading, or left out with their pair; and words
of a corpus that are one token each."""

import random
from types import SimpleNamespace

import pytest

from experiments.data import corpora
from experiments.data.corpora import SPLITS, CorpusError, Pairs
from experiments.data.corpora.reading import Texts
from experiments.data.dataset import prepare
from experiments.data.vocabulary import NOTHING, VocabularyError
from experiments.objectives import Answer, Translate
from experiments.settings import FilesData, TextData, TsvData
from tests.experiments import tiny

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def files(folder, bad=(), **more):
    """Parallel files of 300 numbered pairs; `bad` are (split, language, line, bytes)."""
    for stem, count in (("train", 300), ("val", 9), ("test", 9)):
        for language in ("en", "de"):
            lines = [f"{language} {stem} sentence {i}".encode() for i in range(count)]
            for name, of, line, text in bad:
                if (name, of) == (stem, language):
                    lines[line - 1] = text
            (folder / f"{stem}.{language}").write_bytes(b"\n".join(lines) + b"\n")
    return FilesData(directory=str(folder), vocabulary_size=400, **more)


BAD = [
    ("train", "en", 3, b"\xff"),
    ("train", "de", 200, b"a\0b"),
    ("val", "de", 2, b"\xe4"),
    ("test", "en", 9, b"\xe4"),
    *(("train", "en", line, b"\xff") for line in range(250, 260)),
]


def test_bad_lines_are_named_once_all_was_read(tmp_path):
    with pytest.raises(CorpusError) as error:
        prepare(files(tmp_path, BAD))
    message = str(error.value)
    assert message.startswith(f"14 bad lines: {tmp_path}/train.en:3: invalid UTF-8")
    assert "train.de:200: NUL character" in message
    assert "train.en:252: " in message and "train.en:253: " not in message
    assert "; and 9 more; mend them, or give --config.data.bad_lines=skip" in message
    assert "\n" not in message


def test_bad_lines_of_other_splits_are_named_too(tmp_path):
    with pytest.raises(CorpusError, match=r"^2 bad lines: .*train.en:3: .*test.en:9: "):
        prepare(files(tmp_path, [BAD[0], BAD[3]]))
    with pytest.raises(CorpusError, match=r"^1 bad line: .*val.de:2: "):
        prepare(files(tmp_path, [BAD[2]]))


def test_skipped_lines_take_their_pair_and_no_other(tmp_path):
    prepared = prepare(files(tmp_path, BAD, bad_lines="skip"))
    (line,) = prepared.warnings()
    assert line.startswith("warning: left out by data.bad_lines=skip: 14 bad lines: ")
    counts = dict(train=288, train_bad=12, validation=8, validation_bad=1)
    counts |= dict(test=8, test_bad=1, train_empty=0)
    assert {name: prepared.counts[name] for name in counts} == counts
    for source, target in zip(*prepared.validation.text, strict=True):
        assert source.split()[1:] == target.split()[1:]
    # Kept with it, for whoever finds it in the cache.
    assert prepare(files(tmp_path, BAD, bad_lines="skip")).warnings() == [line]


def test_what_was_skipped_is_not_taken_for_text_without_bad_lines(tmp_path):
    skipped = files(tmp_path, BAD, bad_lines="skip")
    prepare(skipped)
    with pytest.raises(CorpusError, match="14 bad lines"):
        prepare(files(tmp_path, BAD))


def test_a_place_counts_the_bad_lines_before_it(tmp_path):
    source = corpora.open(files(tmp_path, BAD, bad_lines="skip"))
    pairs = [
        pair for block in source.read("train") for pair in zip(*block, strict=True)
    ]
    for i in (0, 2, 197, 198, 287):
        line = int(source.place("train", i).rpartition(":")[2])
        assert pairs[i][0] == f"en train sentence {line - 1}"


def test_a_text_of_bad_lines_alone_is_no_text(tmp_path):
    bad = [("val", "en", line, b"\xff") for line in range(1, 10)]
    with pytest.raises(CorpusError, match=r"^9 bad lines: .*; mend them$"):
        prepare(files(tmp_path, bad, bad_lines="skip"))


def test_held_out_pairs_are_good_ones(tmp_path):
    """And as many as are asked for, of one text with bad lines in it."""
    rng = random.Random(0)
    lines = [f"source {i}\ttarget {i}".encode() for i in range(200)]
    for i in rng.sample(range(200), 60):
        lines[i] = rng.choice([b"one column", b"\xff\tb", b"a\tb\tc"])
    (tmp_path / "all.tsv").write_bytes(b"\n".join(lines) + b"\n")
    names = dict.fromkeys(SPLITS, "all.tsv")
    data = TsvData(directory=str(tmp_path), heldout=10, bad_lines="skip", **names)
    source = corpora.open(data)
    count = {split: sum(len(b.source) for b in source.read(split)) for split in SPLITS}
    assert count == dict(train=120, validation=10, test=10)
    assert source.counts() == dict(train_bad=60)


def test_lines_of_a_language_model_are_skipped_too(tmp_path):
    for name in ("train", "val", "test"):
        (tmp_path / name).write_bytes(b"one\n\xff\ntwo\n")
    data = TextData(directory=str(tmp_path), bad_lines="skip")
    assert list(corpora.open(data).read("test")) == [
        Pairs(["one", "two"], ["one", "two"])
    ]


class Mine:
    """A corpus from outside; tests say what else it has."""

    pairs = Pairs(["a b", "b"], ["b _", "a"])

    def fingerprint(self):
        return "mine"

    def read(self, split):
        yield self.pairs

    def place(self, split, i):
        return f"{split} {i}"

    def counts(self):
        return {}


def texts(asked=Translate(), **attributes):
    data = SimpleNamespace(corpus="my.py:Mine", asked=asked, bad_lines="stop")
    return Texts(type("Mine", (Mine,), attributes)(), data)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (Pairs(["a", 7], ["b", "c"]), "3 bad lines: train 1: no text but 7"),
        (Pairs(["a", "b"], ["c", None]), "train 1: no text but None"),
        (Pairs(["a", "b"], ["c"]), "train 0: a block of 2 sources and 1 targets"),
    ],
)
def test_what_a_corpus_from_outside_gives_is_looked_at(pairs, message):
    with pytest.raises(CorpusError, match=message):
        list(texts(pairs=pairs).read("train"))


@pytest.mark.parametrize("words", [["a", "b"], ("a", "b")])
def test_symbols_are_a_method(words):
    assert texts(symbols=lambda self: words).symbols == ("a", "b")
    assert texts().symbols is None


@pytest.mark.parametrize(
    "symbols",
    [
        ["a", "b"],
        ("a", "b"),
        "a b",
        property(lambda self: ["a", "b"]),
        lambda self: "ab",
        lambda self: {"a", "b"},
        lambda self: (word for word in "ab"),
    ],
)
def test_symbols_that_are_no_method_are_named_with_the_remedy(symbols):
    with pytest.raises(
        CorpusError, match=r"my\.py:Mine: symbols must be a method that"
    ):
        texts(symbols=symbols)


@pytest.mark.parametrize("word", ["a b", "", " ", "a\n", "▁a", NOTHING, 7, "\ud83d"])
def test_a_symbol_is_a_word(word):
    with pytest.raises(CorpusError, match=r"symbols\(\) has .*, which is no word"):
        texts(symbols=lambda self: ["a", word])


def test_a_symbol_stands_once():
    with pytest.raises(CorpusError, match=r"symbols\(\) has 'b' more than once"):
        texts(symbols=lambda self: ["a", "b", "b"])


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (
            Pairs(["a b", "a c"], ["b _", "_ _"]),
            r"train 1: 'c' is none of the words of",
        ),
        (Pairs(["a b"], ["b _ a"]), "train 0: 2 words and 3 answers"),
    ],
)
def test_texts_of_other_words_are_bad(pairs, message):
    source = texts(Answer(), symbols=lambda self: ["a", "b"], pairs=pairs)
    with pytest.raises(CorpusError, match=message):
        list(source.read("train"))


def test_answers_in_places_need_symbols():
    with pytest.raises(
        CorpusError, match=r"my\.py:Mine has answers in places and no symbols"
    ):
        texts(Answer())


@pytest.mark.parametrize("known", ["links", "distances"])
def test_what_is_known_of_test_pairs_is_of_each(tmp_path, known):
    (tmp_path / "few.py").write_text(FEW.replace("KNOWN", known))
    data = tiny.resolve(data__corpus=f"{tmp_path}/few.py:Few").data
    with pytest.raises(
        CorpusError, match=rf"{known}\(\) .* 1 values for 20 test pairs"
    ):
        prepare(data)


FEW = """
from experiments.data.corpora import Pairs
class Few:
    def __init__(self, data): pass
    def fingerprint(self): return "few"
    def read(self, split): yield Pairs(["a b a"] * 20, ["b b a"] * 20)
    def place(self, split, i): return f"{split} {i}"
    def counts(self): return {}
    def symbols(self): return ["a", "b"]
    def KNOWN(self): return [[]]
"""
"""A corpus of few symbols."""


def test_a_corpus_of_few_symbols_has_a_vocabulary(tmp_path):
    """By the words that it names; and without, at the size that the message says."""
    (tmp_path / "few.py").write_text(FEW)
    corpus = f"{tmp_path}/few.py:Few"
    assert prepare(tiny.resolve(data__corpus=corpus).data).vocabulary().size == 7
    (tmp_path / "few.py").write_text(FEW.replace("symbols", "others"))
    with pytest.raises(VocabularyError, match=r"largest possible is \d+$") as error:
        prepare(tiny.resolve(data__corpus=corpus).data)
    largest = int(str(error.value).split()[-1])
    data = tiny.resolve(data__corpus=corpus, data__vocabulary_size=largest).data
    assert prepare(data).vocabulary().size == largest
