"""Data sets of TFDS: the mocked wmt14_translate, and real ones that our own builder
writes from parallel files."""

import json
import sys

import pytest
import tensorflow_datasets
from tensorflow_datasets.core.data_sources import base

from experiments.configs import wmt14_ende
from experiments.data import corpora
from experiments.data.corpora import SPLITS, CorpusError, Pairs, tfds
from experiments.data.dataset import prepare
from experiments.settings import FilesData, TfdsData, override, resolve
from experiments.training import loop
from tests.experiments import tiny

pytestmark = pytest.mark.quick

TEXT = {
    "train": Pairs(
        ["a cat", "two dogs\u2028run", "3 km"],
        ["eine Katze", "zwei Hunde", "3 km „weit“"],
    ),
    "val": Pairs(["yes"], ["ja"]),
    "test": Pairs(["no", "no"], ["nein", "nö"]),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of data sets, and the data set "mine" in it."""
    folder = tmp_path_factory.mktemp("text")
    for stem, pairs in TEXT.items():
        for language, side in zip(("en", "de"), pairs, strict=True):
            (folder / f"{stem}.{language}").write_text(
                "".join(line + "\n" for line in side)
            )
    files = corpora.open(FilesData(directory=str(folder)))
    return folder / "sets", tfds.build(files, ("en", "de"), folder / "sets", "mine")


def data(directory, dataset="mine", validation="validation", **more):
    return TfdsData(
        dataset=dataset,
        directory=str(directory),
        validation=validation,
        **more,
    )


def read(source, split):
    return Pairs(*map(list, map(sum, zip(*source.read(split), strict=True), ([], []))))


def test_a_built_data_set_has_every_pair_in_its_place(built):
    source = corpora.open(data(built[0]))
    # A line break within a text is a blank.
    expected = [
        Pairs(*([text.replace("\u2028", " ") for text in side] for side in pairs))
        for pairs in TEXT.values()
    ]
    assert [read(source, split) for split in SPLITS] == expected
    assert "tensorflow" not in sys.modules
    assert (
        json.loads((built[1] / "dataset_info.json").read_text())["fileFormat"]
        == "array_record"
    )


def test_languages_and_splits_can_be_chosen(built):
    source = corpora.open(
        data(built[0], source="de", target="en", train="train[:2]", test="train[2:]")
    )
    assert read(source, "train").source == TEXT["train"].target[:2]
    assert read(source, "test") == Pairs(*(side[2:] for side in TEXT["train"][::-1]))


def test_blocks_make_no_difference(built, monkeypatch):
    monkeypatch.setattr(tfds, "BLOCK", 2)
    blocks = list(corpora.open(data(built[0])).read("train"))
    assert [len(block.source) for block in blocks] == [2, 1]
    assert blocks[1] == Pairs(["3 km"], ["3 km „weit“"])


def test_the_fingerprint_is_of_the_records_and_splits(built):
    prints = {
        corpora.open(data(built[0], **more)).fingerprint()
        for more in (
            {},
            {},
            {"train": "train[:2]"},
            # The other direction is another corpus.
            {"source": "de", "target": "en"},
        )
    }
    assert len(prints) == 3


def test_wmt14_as_tfds_knows_it(monkeypatch):
    """Its records are mocked, the way to them is not."""
    # TFDS's own mock of reading some at a time lacks an argument.
    monkeypatch.setattr(
        base.BaseDataSource,
        "__getitems__",
        lambda self, keys: [self[key] for key in keys],
    )
    with tensorflow_datasets.testing.mock_data(num_examples=5):
        source = corpora.open(
            TfdsData(dataset="wmt14_translate/de-en", validation="validation")
        )
        for split in SPLITS:
            pairs = read(source, split)
            assert len(pairs.source) == 5 and all(
                isinstance(text, str) for side in pairs for text in side
            )


@pytest.mark.ci
def test_the_whole_way_from_cldr_to_a_trial(tmp_path, monkeypatch):
    """Nothing changes on the way through a data set; and the config of WMT 2014, made
    small, trains on it."""
    tiny_data = tiny.resolve().data
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tfds.build(corpora.open(tiny_data), ("en", "de"), tmp_path, "phrases")
    shared = {key: tiny.POINT[key] for key in tiny.POINT if key not in tiny.CLDR}
    config = override(
        wmt14_ende.get_config(),
        shared
        | {
            "data.dataset": "phrases",
            "data.directory": str(tmp_path),
            "training.steps": 4,
            "training.average": 1,
        },
    )
    actual = prepare(resolve(config).data)
    expected = tiny.corpus()
    assert path == tmp_path / "phrases" / "1.0.0"
    assert (actual.corpus_digest, actual.vocabulary_model) == (
        expected.corpus_digest,
        expected.vocabulary_model,
    )
    assert {
        name: count for name, count in expected.counts.items() if name != "ambiguous"
    } == actual.counts
    result = loop.run(resolve(config), actual, tmp_path / "run")
    assert result["status"] == "finished" and 0.5 < result["real_tokens"] < 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "wmt14_translate",
            "wmt14_translate is the name of a data set that TensorFlow Datasets has; "
            "choose another",
        ),
        ("mine", r"mine is there already; choose another name or folder"),
    ],
)
def test_no_data_set_is_written_over_another(built, name, message):
    with pytest.raises(CorpusError, match=message):
        tfds.build(corpora.open(data(built[0])), ("en", "de"), built[0], name)


def test_fewer_records_than_promised_are_an_error(built, monkeypatch):
    """TFDS's parquet reader is known to lose some."""
    source = corpora.open(data(built[0]))
    source.source._splits["train"] = source.source._splits["train"][0], 4
    with pytest.raises(
        CorpusError,
        match=r"mine, train: 3 pairs can be read of the 4 that it is said to have",
    ):
        next(source.read("train"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            dict(dataset="nine"),
            r"data.dataset='nine': no such data set in data.directory=.* or among",
        ),
        (
            dict(dataset="wmt14_translate/de-em"),
            r"data.dataset='wmt14_translate/de-em'",
        ),
        (
            dict(dataset="wmt14_translate/de-en"),
            r"wmt14_translate/de-en is not prepared in .*launch.data download",
        ),
        (
            dict(source="fr"),
            r"data.dataset=mine has no fr \(it has de, en\); set data.source",
        ),
        (
            dict(test="tset"),
            r"data.test=tset: no such split of mine \(it has test, train, validation\)",
        ),
    ],
)
def test_what_is_not_there_is_one_clear_line(built, more, message):
    with pytest.raises(CorpusError, match=message) as error:
        corpora.open(data(built[0], **more))
    assert "\n" not in str(error.value)
