"""The config of one's own text: which files it finds, and which sizes it chooses."""

import gzip
import itertools
import random
import string

import pytest

from experiments.configs import files
from experiments.data import corpora
from experiments.data.corpora import Pairs
from experiments.data.dataset import prepare
from experiments.data.sizes import Measures, _wanted, measure, sizes
from experiments.errors import UserError
from experiments.settings import resolve


def write(folder, **texts):
    """Writes files by name, `_` for the dot, of so many lines."""
    folder.mkdir(exist_ok=True)
    for name, lines in texts.items():
        text = "".join(f"a sentence {i}\tein Satz {i}\n" for i in range(lines))
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def chosen(place):
    data = files.get_config(str(place)).data
    languages = (data.source, data.target)
    return data.corpus, *languages, data.train, data.validation, data.test


def test_a_file_with_columns_is_all_that_is_needed(tmp_path):
    write(tmp_path, mine_tsv=200, other_tsv=300)
    settings = resolve(files.get_config(str(tmp_path / "mine.tsv")))
    source = corpora.open(settings.data)
    counts = {s: sum(len(b.source) for b in source.read(s)) for s in corpora.SPLITS}
    assert counts == dict(train=180, validation=10, test=10)
    with gzip.open(tmp_path / "packed.tsv.gz", "wb") as file:
        file.write((tmp_path / "mine.tsv").read_bytes())
    assert chosen(tmp_path / "packed.tsv.gz")[3:] == ("packed.tsv",) * 3


def test_a_folder_has_what_its_files_are_named(tmp_path):
    folder = write(tmp_path / "a", train_de=40, train_en=40, dev_de=5, dev_en=5)
    assert chosen(folder) == ("files", "en", "de", "train", "dev", "train")
    assert chosen(f"{folder},de,en") == ("files", "de", "en", "train", "dev", "train")
    folder = write(tmp_path / "b", **{"x.fr-de_fr": 40, "x.fr-de_de": 40})
    assert chosen(folder) == ("files", "de", "fr", *["x.fr-de"] * 3)
    folder = write(tmp_path / "c", train_tsv=40, val_tsv=5, test_tsv=5)
    assert chosen(folder)[3:] == ("train.tsv", "val.tsv", "test.tsv")
    folder = write(tmp_path / "d", a_en=40, a_de=40, b_en=40, b_de=40)
    assert chosen(folder / "b")[3:] == ("b", "b", "b")


@pytest.mark.parametrize(
    ("names", "place", "message"),
    [
        (["a_en", "a_de", "b_en", "b_de"], "", "several texts: name one of a, b"),
        (["train_en", "train_de", "train_fr"], "", "endings en, de, fr: name two"),
        (["a_en", "a_de", "a_fr"], "/a", "endings en, de, fr: name two"),
        (["notes_txt"], "", r"no parallel text: .* \(the folder has notes.txt\)"),
        (["a_tsv"], "/b.tsv", r"neither a file, .*\(the folder .* has a.tsv\)"),
    ],
)
def test_what_is_not_clear_is_one_line(tmp_path, names, place, message):
    write(tmp_path, **dict.fromkeys(names, 40))
    with pytest.raises(UserError, match=message):
        files.get_config(f"{tmp_path}{place}")


def measures(pairs, vocabulary=800, longest=30, long=20):
    return Measures(pairs, pairs // 20, 40 * pairs, vocabulary, longest, long)


def test_sizes_grow_with_the_text():
    texts = [sizes(measures(n)) for n in (60, 3000, 150_000, 5_000_000)]
    for smaller, larger in itertools.pairwise(texts):
        for group, name in (
            ("data", "heldout"),
            ("training", "steps"),
            ("training", "batch_size"),
        ):
            assert smaller[group][name] <= larger[group][name], name
    assert [_wanted(40 * n) for n in (60, 3000, 10**8)] == [500, 1000, 32_000]
    for longest, long, expected in ((10, 8, 32), (100, 50, 133), (900, 300, 300)):
        chosen = sizes(measures(3000, longest=longest, long=long))
        assert chosen["data"]["max_length"] == expected
        assert chosen["training"]["sequence_length"] == max(64, expected)


def narrow(i):
    return f"the red cat sees {i % 90} blue dogs", f"DIE ROTE KATZE {i % 90} BLAUE {i}"


def chinese(i):
    letters = chr(0x4E00 + i * 7) + chr(0x4E00 + i * 11)
    return f"sentence {i}", f"这是第{i}句话{letters}"


def letters_alone(i):
    return chr(0x4E00 + 3 * i), chr(0x5E00 + 3 * i)


def with_a_page(i):
    if i == 5:
        return "word " * 100_000, " ".join(f"wort{j}" for j in range(50_000))
    return narrow(i)


def pages(i):
    words = [f"word{(i * j) % 71}" for j in range(400)]
    return " ".join(words), " ".join(reversed(words))


@pytest.mark.parametrize(
    ("row", "count"),
    [
        (narrow, 3000),
        (chinese, 400),
        (letters_alone, 100),
        (with_a_page, 400),
        (pages, 60),
        (lambda i: (str(i), str(2 * i)), 60),
    ],
)
def test_the_sizes_chosen_for_a_text_are_ones_that_it_can_have(
    tmp_path, monkeypatch, row, count
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = ["\t".join(row(i)) for i in range(count)]
    (tmp_path / "my.tsv").write_text("".join(f"{row}\n" for row in rows), "utf-8")
    settings = resolve(files.get_config(f"{tmp_path}/my.tsv"))
    prepared = prepare(settings.data)
    kept = prepared.counts["train"] - prepared.counts["train_too_long"]
    assert kept >= 0.7 * count
    assert prepared.vocabulary().size == settings.data.vocabulary_size


def with_rare_words(i):
    rng = random.Random(i)
    word = "".join(rng.choices(string.ascii_lowercase, k=6)) if i % 50 == 0 else "dog"
    return f"{i} {word}{' the red cat sees it' * 10}", f"{i} {word.upper()}"


def test_words_that_may_be_held_out_of_a_large_text_are_not_counted_on(
    tmp_path, monkeypatch
):
    """Which they are would take too long to know."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("experiments.data.sizes.SAMPLES", (100, 1000, 10_000))
    rows = ["\t".join(with_rare_words(i)) for i in range(2000)]
    (tmp_path / "my.tsv").write_text("".join(f"{row}\n" for row in rows), "utf-8")
    data = resolve(files.get_config(f"{tmp_path}/my.tsv")).data
    assert prepare(data).vocabulary().size == data.vocabulary_size < _wanted(200 * 2000)


def test_a_line_of_a_page_makes_a_text_no_larger():
    def measured(row):
        return measure([Pairs(*zip(*map(row, range(400)), strict=True))])

    page, plain = measured(with_a_page), measured(narrow)
    assert page.bytes == pytest.approx(plain.bytes, rel=0.01)
    assert page.longest <= plain.longest + 2 and page.vocabulary <= 500


FORMATS = {
    "my.csv": ('"a, b {i}",c{i}\n', None),
    "my.csv.gz": ("a {i};c{i}\n", "semicolon"),
    "my.jsonl": ('{{"n": {i}, "de": "c{i}", "en": "a {i}"}}\n', None),
    "my.jsonl.gz": ('{{"q": "a {i}", "answer": "c{i}"}}\n', None),
}


@pytest.mark.parametrize("name", FORMATS)
def test_files_of_rows_are_known_by_their_endings(tmp_path, name):
    row, delimiter = FORMATS[name]
    text = "".join(row.format(i=i) for i in range(60)).encode()
    data = gzip.compress(text) if name.endswith(".gz") else text
    (tmp_path / name).write_bytes(data)
    data = resolve(files.get_config(f"{tmp_path}/{name}")).data
    assert getattr(data, "delimiter", "tab") in (delimiter, "comma", "tab")
    (pairs,) = corpora.open(data).read("test")
    for source, target in zip(*pairs, strict=True):
        assert source in (f"a, b {target[1:]}", f"a {target[1:]}")


@pytest.mark.parametrize(
    ("name", "text", "place", "expected"),
    [
        # Two names in the first row are its header.
        ("my.csv", "id,en,zh\n{}", "en,zh", ("en", "zh", "en", "zh", True)),
        ("my.csv", "id,en,zh\n{}", "zh,en", ("zh", "en", "zh", "en", True)),
        # Other words are languages, and numbers columns.
        ("my.tsv", "{}", "en,zh", ("0", "1", "en", "zh", False)),
        ("my.tsv", "{}", "1,0", ("1", "0", "en", "de", False)),
        ("my.jsonl", "{}", "q,a", ("q", "a", "q", "a", False)),
    ],
)
def test_what_follows_the_place_names_columns_or_languages(
    tmp_path, name, text, place, expected
):
    row = {
        "csv": "{i},a {i},b {i}\n",
        "tsv": "a {i}\tb {i}\n",
        "jsonl": '{{"a": "a {i}", "q": "b {i}"}}\n',
    }
    rows = [row[name[3:]].format(i=i) for i in range(60)]
    (tmp_path / name).write_text(text.replace("{}", "".join(rows)))
    data = resolve(files.get_config(f"{tmp_path}/{name},{place}")).data
    columns = (data.source_column, data.target_column)
    assert (*columns, data.source, data.target, data.has_header) == expected


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ('{"a": "x"}\n', "", r"my.jsonl.gz: its first object has 1 texts \(a\): name"),
        ('{"a": "x", "b": "", "c": ""}\n', "", "3 texts .*my.jsonl.gz,en,de"),
        ('{"a": "x", "b": "y"}\n', ",a,d", "no a and d; it has a, b"),
        ('{"a": "", "b": ""}\n', "", "no pair of the text has text on both sides"),
    ],
)
def test_json_that_is_not_clear_is_named_with_its_file(tmp_path, text, place, message):
    with gzip.open(tmp_path / "my.jsonl.gz", "wb") as file:
        file.write(text.encode())
    with pytest.raises(UserError, match=message):
        files.get_config(f"{tmp_path}/my.jsonl.gz{place}")


def test_bad_lines_do_not_keep_sizes_from_being_chosen(tmp_path):
    """So that data.bad_lines=skip can be said after the place."""
    rows = [f"a sentence {i}\tein Satz {i}\n".encode() for i in range(200)]
    rows[3:5] = [b"one column\n", b"\xff\tb\n"]
    (tmp_path / "my.tsv").write_bytes(b"".join(rows))
    config = files.get_config(f"{tmp_path}/my.tsv")
    source = corpora.open(resolve(config, {"data.bad_lines": "skip"}).data)
    assert sum(len(pairs.source) for pairs in source.read("train")) == 180
    with pytest.raises(UserError, match="2 bad lines"):
        list(corpora.open(resolve(config).data).read("train"))
