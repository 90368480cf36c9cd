"""What a line is, and that it is the same in every reader and in all that is written."""

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import inference
from experiments.data import corpora
from experiments.data.corpora import Pairs
from experiments.data.dataset import prepare
from experiments.data.lines import Bad, as_line, decode, fault, read_lines
from experiments.errors import UserError
from experiments.evaluation.decode import _hypotheses
from experiments.evaluation.evaluator import _lines
from experiments.settings import (
    CsvData,
    FilesData,
    HuggingFaceData,
    JsonLinesData,
    TextData,
    TfdsData,
    TsvData,
)
from tests.experiments import tiny

pytestmark = pytest.mark.quick

BREAKS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029"]
"""All at which str.splitlines ends a line."""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("within", BREAKS)
def test_a_break_is_a_blank(within):
    assert as_line(f"one{within}two") == "one two"
    assert as_line(f"{within}one{within}{within}two{within}") == "one two"
    assert len(as_line(f"a{within}b").splitlines()) == 1


def test_nothing_else_changes():
    text = " a  b\tc\u00a0d \u200be\ufeff "
    assert as_line(text) == text
    assert as_line("") == as_line("\n") == ""
    assert as_line("\ufeffthe mark at the beginning") == "the mark at the beginning"


def test_only_a_newline_ends_a_line_of_a_file():
    file = io.BytesIO("\ufeffone\r\ntwo\u2028\rthree\n\nfour".encode())
    assert read_lines(file) == ["one", "two\u2028\rthree", "", "four"]
    assert read_lines(io.BytesIO(b"")) == []
    assert read_lines(io.BytesIO(b"\n")) == [""]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("good", ""),
        (decode([b"b\xe4d\n"])[0], "invalid UTF-8 (byte 0xe4)"),
        ("half \ud83d", "half of a character (U+D83D)"),
        ("a\0b", "NUL character"),
        (None, "no text but None"),
        (7, "no text but 7"),
        (Bad("two columns"), "two columns"),
    ],
)
def test_what_is_no_text_is_named(text, why):
    assert fault(text).startswith(why) and bool(fault(text)) == bool(why)


TRAIN = [
    f"{i} {' '.join(['one', 'two', 'three', 'four'][: 1 + i % 4])}" for i in range(60)
]
HELD = ["9 held", "8 held"]
NAMES = dict(train="train", validation="val", test="test")


def texts(within):
    """{split: both sides}, the target in capitals; one break on each side, in two pairs."""
    source = TRAIN[:]
    source[7] = source[7].replace(" ", within)
    target = [line.upper() for line in TRAIN]
    target[20] = target[20].replace(" ", within)
    held = (HELD, [line.upper() for line in HELD])
    return dict(train=(source, target), validation=held, test=held)


def in_files(folder, within):
    folder.mkdir(exist_ok=True)
    for split, sides in texts(within).items():
        for ending, side in zip(("en", "de"), sides, strict=True):
            text = "".join(f"{line}\n" for line in side)
            (folder / f"{NAMES[split]}.{ending}").write_bytes(text.encode())
    return FilesData(directory=str(folder), vocabulary_size=400)


def write_rows(folder, ending, row, within):
    for split, sides in texts(within).items():
        rows = "".join(f"{row(*pair)}\n" for pair in zip(*sides, strict=True))
        (folder / f"{NAMES[split]}.{ending}").write_bytes(rows.encode())


def in_tsv(folder, within):
    write_rows(folder, "tsv", "{}\t{}".format, within)
    return TsvData(directory=str(folder), vocabulary_size=400)


def in_csv(folder, within):
    write_rows(folder, "csv", '"{}","{}"'.format, within)
    return CsvData(directory=str(folder), vocabulary_size=400)


def in_jsonl(folder, within):
    def row(source, target):
        return json.dumps(dict(source=source, target=target))

    write_rows(folder, "jsonl", row, within)
    return JsonLinesData(directory=str(folder), vocabulary_size=400)


def in_a_data_set(folder, within):
    datasets = pytest.importorskip("datasets")
    made = {}
    for split, sides in texts(within).items():
        columns = dict(zip(("en", "de"), sides, strict=True))
        made[split] = datasets.Dataset.from_dict(columns)
    datasets.DatasetDict(made).save_to_disk(str(folder / "set"))
    return HuggingFaceData(dataset=str(folder / "set"), vocabulary_size=400)


def in_tfds(folder, within):
    from experiments.data.corpora import tfds

    def read(split):
        yield Pairs(*texts(within)[split])

    tfds.build(SimpleNamespace(read=read), ("en", "de"), folder, "mine")
    return TfdsData(dataset="mine", directory=str(folder), vocabulary_size=400)


OUTSIDE = """
from experiments.data.corpora import Pairs
TEXTS = {texts!r}
class Mine:
    def __init__(self, data): pass
    def fingerprint(self): return "mine"
    def read(self, split): yield Pairs(*map(list, TEXTS[split]))
    def place(self, split, i): return f"{{split}} {{i}}"
    def counts(self): return {{}}
"""


def outside(folder, within):
    (folder / "mine.py").write_text(OUTSIDE.format(texts=texts(within)))
    corpus = f"{folder}/mine.py:Mine"
    return tiny.resolve(data__corpus=corpus, data__vocabulary_size=400).data


READERS = [in_files, in_tsv, in_csv, in_jsonl, in_a_data_set, in_tfds, outside]
HOLD_NEWLINES = READERS[2:]
"""Those whose texts may hold the newline that ends a line of other files."""


def trained(prepared, side):
    """The training sentences of a side as they are kept, in tokens."""
    rows = [
        side.ids[start : start + length + 1]
        for start, length in zip(side.starts, side.lengths, strict=True)
    ]
    return prepared.vocabulary().decode(rows)


@pytest.mark.parametrize(
    ("reader", "within"),
    [
        *((reader, "\u2028") for reader in READERS),
        *((reader, "\n") for reader in HOLD_NEWLINES),
    ],
    ids=lambda value: value.__name__ if callable(value) else f"U+{ord(value):04X}",
)
def test_no_pair_is_shifted_whoever_reads(tmp_path, reader, within):
    """A break on each side makes as many lines as none, and would shift all pairs between."""
    prepared = prepare(reader(tmp_path, within))
    assert trained(prepared, prepared.train.source) == TRAIN
    assert trained(prepared, prepared.train.target) == [x.upper() for x in TRAIN]
    plain = prepare(in_files(tmp_path / "plain", " "))
    assert prepared.corpus_digest == plain.corpus_digest


def test_text_for_language_models_too(tmp_path):
    for name in ("train", "val", "test"):
        (tmp_path / name).write_bytes("\ufeffone\u2028two\r\nthree\n".encode())
    data = TextData(directory=str(tmp_path))
    (pairs,) = corpora.open(data).read("train")
    assert pairs == Pairs(["one two", "three"], ["one two", "three"])


def test_a_mark_is_dropped_wherever_text_begins(tmp_path):
    """Also of files that were written one after the other."""
    for split in ("train", "val", "test"):
        (tmp_path / f"{split}.en").write_bytes("\ufeffone\n\ufefftwo\n".encode())
        (tmp_path / f"{split}.de").write_bytes(b"eins\nzwei\n")
        (tmp_path / f"{split}.csv").write_bytes(
            '\ufeff"en","de"\n"1,1","eins"\n'.encode()
        )
        (tmp_path / f"{split}.jsonl").write_bytes(
            '\ufeff{"source": "a", "target": "b"}'.encode()
        )
    folder = str(tmp_path)
    (pairs,) = corpora.open(FilesData(directory=folder)).read("train")
    assert pairs.source == ["one", "two"]
    data = CsvData(directory=folder, source_column="en", target_column="de")
    assert list(corpora.open(data).read("train")) == [Pairs(["1,1"], ["eins"])]
    data = JsonLinesData(directory=folder)
    assert list(corpora.open(data).read("train")) == [Pairs(["a"], ["b"])]


def test_what_a_model_translates_is_read_as_what_it_was_trained_on(monkeypatch):
    read = []

    def encode(texts):
        read.extend(texts)
        return [np.zeros(1, np.int32)] * len(read)

    translator = object.__new__(inference.Translator)
    translator._model = inference.TrainedModel(
        settings=tiny.resolve(),
        vocabulary=SimpleNamespace(encode=encode),
        program=SimpleNamespace(length=9),
        state=None,
    )
    translator._search = translator._states = None
    monkeypatch.setattr(inference, "translate", lambda *arguments: [[]])
    translator.n_best(["\ufeff3 days ago", "a\u2028b\rc ", "\n"])
    assert read == ["3 days ago", "a b c", ""]


def test_input_that_is_no_text_is_named_with_its_line():
    with pytest.raises(
        UserError, match=r"line 2 of the input: invalid UTF-8 \(byte 0xe4"
    ):
        read_lines(io.BytesIO(b"good\nb\xe4d\n"))


def test_a_translation_is_a_line_though_its_model_spells_a_break():
    vocabulary = SimpleNamespace(decode=lambda rows: ["one\n\u2028two\n"] * len(rows))
    (hypothesis,) = _hypotheses(vocabulary, np.zeros((1, 3)), np.zeros(1))
    assert hypothesis.text == "one two"


def test_files_of_translations_have_a_line_for_each():
    written = _lines(["one\u2028two", "three\r", ""])
    assert written.splitlines() == ["one two", "three", ""]
