"""A corpus on its way to batches: nothing lost in silence, kept on disk by its content,
whole or not at all."""

import concurrent.futures
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from experiments.data import corpora, dataset, memmap
from experiments.data.batches import Corpus, between_marks
from experiments.data.corpora import CorpusError, Pairs
from experiments.data.dataset import prepare
from experiments.data.vocabulary import EOS, Vocabulary, train_vocabulary
from experiments.settings import FilesData
from experiments.system.files import DamagedError

pytestmark = pytest.mark.quick

WORDS = "one two three four five six seven eight nine ten".split()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "attn" / "corpora"


@pytest.fixture
def folder(tmp_path):
    """Pairs that can be told apart by their numbers; some have an empty side, some are long."""
    rng = np.random.default_rng(0)
    for stem, count in (("train", 300), ("val", 7), ("test", 5)):
        for language in ("en", "de"):
            lines = [
                f"{i} {language} " + " ".join(rng.choice(WORDS, rng.integers(1, 9)))
                for i in range(count)
            ]
            if stem == "train":
                lines[3 if language == "en" else 200] = " "
                lines[7] += " seven" * 100
            (tmp_path / f"{stem}.{language}").write_text("\n".join(lines) + "\n")
    return tmp_path


def data(folder, **more):
    return FilesData(
        **(
            dict(
                directory=str(folder),
                vocabulary_size=400,
                max_length=80,
            )
            | more
        )
    )


def sentences(vocabulary, side):
    """What stands between the marks, as text."""
    rows = [
        side.ids[start : start + length + 1].tolist()
        for start, length in zip(side.starts, side.lengths, strict=True)
    ]
    assert {(row[0], row[-1]) for row in rows} == {(1, EOS)}
    return vocabulary.decode(rows)


def test_all_that_can_be_used_is_there_in_order_and_the_rest_is_counted(
    folder, monkeypatch
):
    dataset = prepare(data(folder))
    texts = [
        (folder / f"train.{language}").read_text().splitlines()
        for language in ("en", "de")
    ]
    kept = [
        pair for i, pair in enumerate(zip(*texts, strict=True)) if i not in (3, 7, 200)
    ]
    assert (
        list(
            zip(
                *(sentences(dataset.vocabulary(), side) for side in dataset.train),
                strict=True,
            )
        )
        == kept
    )
    assert dataset.counts == dict(
        train=298,
        train_empty=2,
        validation=7,
        validation_empty=0,
        test=5,
        test_empty=0,
        train_too_long=1,
    )
    assert dataset.sizes() == (
        "pairs: train 298, validation 7, test 5; left out: train empty 2, train too long 1"
    )
    assert (
        dataset.validation.text.source == (folder / "val.en").read_text().splitlines()
    )
    assert (
        dataset.vocabulary().decode(dataset.test.ids.target) == dataset.test.text.target
    )


def test_the_longest_that_may_be(folder):
    lengths = np.maximum(*(side.lengths for side in prepare(data(folder)).train))
    longest = int(lengths.max())
    assert prepare(data(folder, max_length=longest)).counts["train_too_long"] == 1
    shorter = prepare(data(folder, max_length=longest - 1))
    assert shorter.counts["train_too_long"] == 1 + (lengths == longest).sum()
    assert (
        np.maximum(*(side.lengths for side in shorter.train)).tolist()
        == lengths[lengths < longest].tolist()
    )


def test_blocks_make_no_difference(folder, monkeypatch, tmp_path):
    whole = prepare(data(folder))
    monkeypatch.setattr(corpora.parallel, "BLOCK", 11)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    parts = prepare(data(folder))
    assert parts.directory != whole.directory and parts[1:4] == whole[1:4]
    for one, other in zip(whole.train, parts.train, strict=True):
        for field, array in one._asdict().items():
            np.testing.assert_array_equal(array, getattr(other, field))


def test_a_second_time_nothing_is_read(folder, monkeypatch):
    first = prepare(data(folder))
    monkeypatch.delattr(corpora.parallel.Source, "read")
    again = prepare(data(folder))
    assert again[:4] == first[:4] and again.validation.text == first.validation.text
    copy = pickle.loads(pickle.dumps(first))
    assert len(pickle.dumps(first)) < 500 and copy[:4] == first[:4]
    assert isinstance(copy.train.source.ids, np.memmap)
    assert copy.train.source.ids.dtype == np.uint16


@pytest.mark.parametrize(
    "change",
    [
        dict(max_length=79),
        dict(vocabulary_size=401),
        dict(vocabulary="characters"),
        dict(test="val"),
        "text",
    ],
)
def test_what_would_be_kept_otherwise_is_made_anew(folder, change):
    first = prepare(data(folder))
    if change == "text":
        (folder / "test.de").write_text(
            (folder / "test.de").read_text().replace("0 de", "0 DE")
        )
        other = prepare(data(folder))
        assert other.corpus_digest != first.corpus_digest
    else:
        other = prepare(data(folder, **change))
    assert other.directory != first.directory and first.directory.exists()


def test_two_at_once_build_it_once(folder, cache, monkeypatch):
    built = []
    survey = dataset._survey
    monkeypatch.setattr(
        dataset, "_survey", lambda *arguments: built.append(1) or survey(*arguments)
    )
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        datasets = list(pool.map(prepare, [data(folder)] * 4))
    assert len(built) == 1 and len({one.directory for one in datasets}) == 1
    assert {path.name for path in cache.iterdir()} == {
        "building",
        datasets[0].directory.name,
    }


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def replace_by_a_directory(path):
    path.unlink()
    path.mkdir()
    (path / "file").write_text("")


HARMS = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-2]),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "flipped": flip,
    "missing": Path.unlink,
    "directory": replace_by_a_directory,
}
KEPT = (
    "about.json",
    "source.ids",
    "source.lengths",
    "source.starts",
    "target.ids",
    "vocabulary.model",
)


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("harm", HARMS)
def test_what_is_not_as_it_was_written_is_named_and_made_again(folder, name, harm):
    first = prepare(data(folder))
    expected = {path.name: path.read_bytes() for path in first.directory.iterdir()}
    HARMS[harm](first.directory / name)
    said = []
    again = prepare(data(folder), said.append)
    actual = {path.name: path.read_bytes() for path in again.directory.iterdir()}
    assert actual == expected
    (line,) = said
    assert f"{first.directory} is damaged ({name}" in line and "\n" not in line
    assert prepare(data(folder), said.append) and len(said) == 1


def test_a_worker_does_not_load_text_that_was_changed(folder):
    first = prepare(data(folder))
    for name in ("about.json", "vocabulary.model"):
        path = first.directory / name
        before = path.read_bytes()
        flip(path)
        with pytest.raises(DamagedError, match=name):
            dataset.load(first.directory)
        path.write_bytes(before)


def test_a_file_in_the_place_of_the_directory_is_replaced(folder):
    directory = prepare(data(folder)).directory
    HARMS["directory"](directory / "about.json")
    dataset.remove(directory)
    directory.write_text("")
    said = []
    assert prepare(data(folder), said.append).counts["train"] == 298
    assert "it is no directory" in said[0]


def test_an_interrupted_one_leaves_nothing_that_counts(folder, cache, monkeypatch):
    append = memmap.Writer.append
    calls = []

    def killed(writer, block):
        append(writer, block)
        calls.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(memmap.Writer, "append", killed)
    with pytest.raises(KeyboardInterrupt):
        prepare(data(folder))
    assert calls and [path.name for path in cache.iterdir()] == ["building"]
    monkeypatch.setattr(memmap.Writer, "append", append)
    assert prepare(data(folder)).counts["train"] == 298


def test_no_room_is_one_clear_line(folder, monkeypatch):
    """The cache's place is taken by a file."""
    place = Path(folder / "taken")
    place.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    with pytest.raises(
        CorpusError,
        match=r"taken/attn/corpora: tokenised text cannot be kept there .* XDG_CACHE_HOME",
    ):
        prepare(data(folder))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "train.en",
            "\n" * 300,
            r"train\.en:1: every pair from here on has an empty side",
        ),
        ("val.en", " \n" * 7, r"val\.en:1: every pair from here on has an empty side"),
        (
            "train.en",
            "seven " * 100 + "\n" + ("eight " * 100 + "\n") * 299,
            r"none of the 299 training pairs has at most data.max_length=80 tokens a side",
        ),
        (
            "test.en",
            "a\n\n" + "seven " * 3000 + "\nb\nc\n",
            r"test\.en:3: a held-out sentence of \d+ tokens, and 2048 are",
        ),
    ],
)
def test_what_cannot_be_used_is_told_at_its_place(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(CorpusError, match=message) as error:
        prepare(data(folder))
    assert "\n" not in str(error.value)


def test_a_large_corpus_is_sampled_evenly(monkeypatch):
    """Each of 40 pairs is in a sample of 8 as often as any other, and the same ones every time."""
    monkeypatch.setattr(dataset, "SAMPLE", 8)
    drawn = np.zeros(40)
    for seed in range(1500):
        sample = Pairs([], [])
        rng = np.random.default_rng(seed)
        for first in range(0, 40, 5):
            block = [str(i) for i in range(first, first + 5)]
            dataset._add_to_sample(
                sample, Pairs(block, [f"to {i}" for i in block]), first, rng
            )
        assert len(sample.source) == 8 and sample.target == [
            f"to {i}" for i in sample.source
        ]
        drawn[[int(i) for i in sample.source]] += 1
    assert abs(drawn / 1500 - 0.2).max() < 0.045  # more than four standard deviations


def test_a_small_corpus_is_its_own_sample():
    sample = Pairs([], [])
    rng = np.random.default_rng(0)
    for block in (["a", "b"], ["c"]):
        dataset._add_to_sample(sample, Pairs(block, block), len(sample.source), rng)
    assert sample.source == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("vocabulary", "dtype"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.int32)]
)
def test_ids_take_as_little_room_as_they_can(tmp_path, vocabulary, dtype):
    ids = np.array([vocabulary - 1, 4, 5], np.int32)
    lengths = np.array([1, 0, 2], np.int32)
    block = Corpus(between_marks(ids, lengths), between_marks(ids[:2], lengths[:1] * 2))
    with memmap.Writer(tmp_path, vocabulary) as writer:
        writer.append(block)
        writer.append(block)
    actual = memmap.read(tmp_path, vocabulary)
    assert actual.source.ids.dtype == dtype
    assert actual.source.lengths.tolist() == [2, 1, 3] * 2
    assert actual.source.starts.tolist() == [0, 3, 5, 9, 12, 14]
    assert actual.source.ids[9:12].tolist() == [1, vocabulary - 1, 2]
    assert actual.target.starts.tolist() == [0, 4]


def test_many_sentences_at_once_are_encoded_as_one_by_one():
    vocabulary = Vocabulary(train_vocabulary(WORDS * 50, 400))
    texts = ["one two", "", "ten 1999", "日本"]
    ids, lengths = vocabulary.flat(texts)
    expected = vocabulary.encode(texts)
    assert ids.dtype == lengths.dtype == np.int32 and lengths.tolist() == list(
        map(len, expected)
    )
    assert ids.tolist() == np.concatenate(expected).tolist()
    assert [array.tolist() for array in vocabulary.flat([])] == [[], []]


def test_about_names_its_files(folder):
    directory = prepare(data(folder)).directory
    named = json.loads((directory / "about.json").read_text())["sha256"]
    assert {path.name for path in directory.iterdir()} == {*named, "about.json"}
