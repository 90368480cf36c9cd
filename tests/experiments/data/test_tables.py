"""Files of rows: which columns, quotes and headers, and one clear error for each fault."""

import gzip

import pytest

from experiments.data import corpora, dataset
from experiments.data.corpora import CorpusError, Pairs, parallel
from experiments.settings import CsvData, JsonLinesData, TsvData

pytestmark = pytest.mark.quick


@pytest.fixture
def folder(tmp_path):
    """Two pairs in each split, in columns 1 and 0; tests overwrite what they are about."""
    for split in ("train", "val", "test"):
        text = f"ein {split}\ta {split}\tx\nein Hund\ta dog\ty\n"
        (tmp_path / f"{split}.tsv").write_text(text)
    return tmp_path


def opened(folder, **more):
    columns = {"source_column": "1", "target_column": "0"}
    return corpora.open(TsvData(directory=str(folder), **(columns | more)))


def read(folder, split="train", **more):
    (pairs,) = opened(folder, **more).read(split)
    return pairs


def test_columns_by_number(folder):
    assert read(folder) == Pairs(["a train", "a dog"], ["ein train", "ein Hund"])
    assert read(folder, "test", source_column="2").source == ["x", "y"]


def test_columns_by_name(folder):
    for split in ("train", "val", "test"):
        path = folder / f"{split}.tsv"
        path.write_text("german\tenglish\n" + path.read_text())
    names = {"source_column": "english", "target_column": "german"}
    assert read(folder, **names) == read(folder, source_column="english")
    assert read(folder, **names).source == ["a train", "a dog"]
    assert opened(folder, **names).place("train", 0).endswith("train.tsv:2")


def test_a_header_is_skipped_in_the_first_block_alone(folder, monkeypatch):
    monkeypatch.setattr(parallel, "BLOCK", 2)
    lines = ["de\ten", *(f"{i}\tline {i}" for i in range(5))]
    (folder / "train.tsv").write_text("\n".join(lines) + "\n")
    source = opened(folder, source_column="en", target_column="de")
    texts = []
    for pairs in source.read("train"):
        texts += pairs.source
    assert texts == [f"line {i}" for i in range(5)]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("a\tb\nonly one\n", {}, r"train.tsv:2: 1 column, where others have 2; mend"),
        ("a\tb\n1\t2\t3\n", {}, r"train.tsv:2: 3 columns, where others have 2; mend"),
        ("one\ntwo\n", {}, r"train.tsv: 1 column, so .* no column 1 .*source_column"),
        ("a\tb\n", {"target_column": "7"}, r"no column 7 .*data.target_column names"),
        ("a\tb\n", {"header": True}, "train.tsv: no rows; give a pair in each"),
        (
            "a\tb\n",
            {"source_column": "en"},
            r"train.tsv:1: no column 'en' .* has a, b\)",
        ),
        ("", {}, "train.tsv: the file is empty"),
        ("a\tb\0\n", {}, "train.tsv:1: NUL character"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(folder, text, columns, message):
    (folder / "train.tsv").write_text(text)
    with pytest.raises(CorpusError, match=message):
        list(opened(folder, **columns).read("train"))


def test_other_columns_are_another_corpus(folder):
    prints = {opened(folder, source_column=str(i)).fingerprint() for i in (1, 2)}
    assert len(prints) == 2


def test_empty_sides_are_dropped_and_counted(folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    lines = [f"das ist Satz {i}\tthis is sentence {i}" for i in range(300)]
    (folder / "train.tsv").write_text("\n".join(["\tno German", *lines]) + "\n")
    data = opened_data(folder)
    counts = dataset.prepare(data).counts
    assert (counts["train"], counts["train_empty"]) == (300, 1)


def rows(folder, text, cls=CsvData, ending="csv", **more):
    """The pairs of a training text, and the source that read it."""
    (folder / f"train.{ending}").write_bytes(text.encode())
    for split in ("val", "test"):
        # A row that goes with any columns.
        path = folder / f"{split}.{ending}"
        path.write_bytes(text.split("\n")[0].encode() + b"\n" + text.encode())
    source = corpora.open(cls(directory=str(folder), **more))
    pairs = [
        pair for block in source.read("train") for pair in zip(*block, strict=True)
    ]
    return pairs, source


@pytest.mark.parametrize(("cls", "ending"), [(CsvData, "csv"), (TsvData, "tsv")])
def test_what_spreadsheets_call_unicode_is_named(folder, cls, ending):
    for split in ("train", "val", "test"):
        (folder / f"{split}.{ending}").write_bytes("ein\ta\n".encode("utf-16"))
    source = corpora.open(cls(directory=str(folder), bad_lines="skip"))
    with pytest.raises(CorpusError, match=r"train\.\w+ is UTF-16: make it UTF-8"):
        list(source.read("train"))


def test_a_header_is_no_pair_where_it_is_said(folder):
    text = "german\tenglish\nein\ta\nzwei\tb\n"
    by_number, _ = rows(folder, text, TsvData, "tsv", header=True)
    assert by_number == [("ein", "a"), ("zwei", "b")]
    by_name = dict(source_column="english", target_column="german")
    assert rows(folder, text, TsvData, "tsv", **by_name)[0] == [
        ("a", "ein"),
        ("b", "zwei"),
    ]
    pairs, source = rows(folder, text, TsvData, "tsv")
    assert pairs[0] == ("german", "english") and source.warnings() == []


@pytest.mark.parametrize("names", ["en\tde", "source\tTarget", "\ufeffEN\tDE"])
def test_a_row_that_looks_like_a_header_is_named(folder, names):
    _, source = rows(folder, f"{names}\na\tein\n", TsvData, "tsv")
    (line,) = source.warnings()
    assert "train.tsv begins with" in line and "data.header=true" in line


def test_quotes_of_csv_are_no_part_of_the_text(folder):
    text = 'en,de\r\n"one, two","er sagt ""ja"""\r\n"three\nlines",drei\r\n\r\nfour,vier\r\n'
    pairs, source = rows(folder, text, source_column="en", target_column="de")
    assert pairs == [
        ("one, two", 'er sagt "ja"'),
        ("three lines", "drei"),
        ("", ""),
        ("four", "vier"),
    ]
    # Rows and not lines, of which the second has two.
    assert source.place("train", 3).endswith("train.csv, row 5")


@pytest.mark.parametrize(("delimiter", "mark"), [("semicolon", ";"), ("tab", "\t")])
def test_what_ends_a_column_can_be_said(folder, delimiter, mark):
    text = f'"a{mark} b"{mark}"c, d"\n'
    assert rows(folder, text, delimiter=delimiter)[0] == [(f"a{mark} b", "c, d")]
    (folder / "train.tsv").write_text('"a"\t"b"\n')
    (pairs,) = opened(folder).read("train")
    # Of TSV quotes are text.
    assert pairs == Pairs(['"b"'], ['"a"'])


@pytest.mark.parametrize(
    ("text", "kept", "bad"),
    [
        # A quote that is never closed takes its own line alone.
        ('a,b\n"c,d\ne,f\ng,h\n', ["a", "e", "g"], ["row 2: no row of CSV"]),
        ('a,b\n"c,d\n"e","f"\n', ["a", "e"], ["row 2: no row of CSV"]),
        ('a,b\n"c"x,d\ne,f\n', ["a", "e"], ["row 2: no row of CSV"]),
        ('"c,d\n"e,f\n"g,h\n"i","j"\n', ["i"], ["row 1: ", "row 2: ", "row 3: "]),
        ("a,b\nc\nd,e,f\ng,h\n", ["a", "g"], ["row 2: 1 column, ", "row 3: 3 columns"]),
        ("a,b\rc,d\ne,f\n", ["e"], ["row 1: no row of CSV"]),
    ],
)
def test_bad_rows_of_csv_take_no_others_with_them(folder, text, kept, bad):
    pairs, source = rows(folder, text, bad_lines="skip")
    assert [source for source, _ in pairs] == kept
    (line,) = source.warnings()
    assert all(each in line for each in bad)


def test_a_field_may_be_longer_than_pythons_limit(folder):
    long = ("long " * 40_000).strip()
    assert rows(folder, f'"{long}",b\n')[0] == [(long, "b")]


def test_objects_of_json(folder):
    text = '{"id": 1, "q": "a\\u00e4\\n", "answer": "b"}\n\n{"answer": "d", "q": "c"}\n'
    columns = dict(source_column="q", target_column="answer")
    pairs, _ = rows(folder, text, JsonLinesData, "jsonl", **columns)
    assert pairs == [("aä", "b"), ("", ""), ("c", "d")]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"source": "a"}', r"no 'target' \(it has source\)"),
        ('{"source": "a", "target": null}', r"'target' is None, no text"),
        ('{"source": 7, "target": "b"}', r"'source' is 7, no text"),
        ('["a", "b"]', r"no object of JSON but \['a', 'b'\]"),
        ('{"source": "a", "target": "b"', r"no JSON \("),
        ('{"source": "a", "target": "\\ud83d"}', r"half of a character \(U\+D83D\)"),
        ("[" * 100_000, r"no JSON \("),
    ],
)
def test_lines_without_two_texts_in_json_are_bad(folder, line, why):
    text = f'{{"source": "a", "target": "b"}}\n{line}\n'
    with pytest.raises(CorpusError, match=rf"train\.jsonl:2: {why}"):
        rows(folder, text, JsonLinesData, "jsonl")


def test_gzipped_rows_are_named_as_they_are(folder):
    for name in ("train", "val", "test"):
        with gzip.open(folder / f"{name}.jsonl.gz", "wb") as file:
            file.write(b'{"source": "a", "target": "b"}\n{}\n')
    with pytest.raises(CorpusError, match=r"/train\.jsonl\.gz:2: no 'source'"):
        list(corpora.open(JsonLinesData(directory=str(folder))).read("train"))


def opened_data(folder):
    return TsvData(
        directory=str(folder),
        source_column="1",
        target_column="0",
        vocabulary_size=400,
        max_length=40,
    )
