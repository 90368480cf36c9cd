"""A corpus described: every number known by hand."""

import dataclasses
import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rich.console

from experiments.data import corpora, summary
from experiments.data.corpora import Pairs
from experiments.data.dataset import prepare
from experiments.settings import resolve

pytestmark = pytest.mark.quick


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    train = [(f"{i} cats walk around", f"{i} Katzen laufen umher") for i in range(60)]
    train += [
        train[0],
        (train[1][0], "eine andere Übersetzung"),
        ("", "nichts"),
        ("a " * 300, "lang"),
    ]
    validation = [
        train[5],
        ("7 cats walk around", "anders"),
        ("neu", "new"),
        ("日", "本"),
        ("neu", "new"),
    ]
    for stem, pairs in (
        ("train", train),
        ("val", validation),
        ("test", [("so", "so")]),
    ):
        for language, side in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (tmp_path / f"{stem}.{language}").write_text(
                "".join(line + "\n" for line in side)
            )
    return resolve(
        {},
        {
            "data.corpus": "files",
            "data.directory": str(tmp_path),
            "data.vocabulary_size": 400,
            "training.batch_size": 2,
        },
    )


def test_every_number(settings):
    prepared = prepare(settings.data)
    summaries = summary.describe(corpora.open(settings.data), prepared)
    train, validation, test = (summaries[split] for split in corpora.SPLITS)
    assert (train.pairs, train.empty, train.too_long, train.repeated) == (64, 1, 1, 1)
    assert (train.seen, train.sources_seen) == (0, 0)
    assert (
        validation.pairs,
        validation.repeated,
        validation.seen,
        validation.sources_seen,
    ) == (5, 1, 1, 2)
    assert (test.pairs, test.seen, test.sources_seen) == (1, 0, 0)
    lengths = sorted(len(ids) + 1 for ids in prepared.validation.ids.source)
    assert validation.lengths[0] == (lengths[2], lengths[4], lengths[4], lengths[4])
    # "日" is three bytes beside the mark of a word's begin; nothing else of this text has bytes.
    tokens = sum(map(len, prepared.validation.ids.source))
    assert validation.bytes[0] == pytest.approx(3 / tokens) and train.bytes == (0, 0)
    assert train.examples == [
        (f"{i} cats walk around", f"{i} Katzen laufen umher") for i in range(3)
    ]
    assert test.examples == [("so", "so")]
    assert 0.3 < summary.packing(prepared, settings) < 1


def test_it_is_shown(settings):
    summaries = summary.describe(corpora.open(settings.data), prepare(settings.data))
    screen = io.StringIO()
    console = rich.console.Console(file=screen, width=140)
    console.print(summary.table(summaries, ("en", "de")), summary.examples(summaries))
    shown = screen.getvalue()
    assert (
        "1 (20.0%)" in shown
        and "2 (40.0%)" in shown
        and "en: tokens that are bytes" in shown
    )
    assert "validation: 7 cats walk around → anders" in shown


def test_bad_lines_are_shown_beside_the_pairs(settings):
    path = Path(settings.data.directory) / "train.en"
    path.write_bytes(path.read_bytes().replace(b"7 cats", b"7 c\xe4ts"))
    data = dataclasses.replace(settings.data, bad_lines="skip")
    train = summary.describe(corpora.open(data), prepare(data))["train"]
    # Lines 7, 17, 27 and so on.
    assert (train.pairs, train.bad) == (58, 6)


def test_marks_are_no_tokens_and_a_quantile_is_a_length_that_occurs():
    single = np.arange(12) == 9
    assert summary._share(np.array([1, 9, 2, 1, 5, 7, 8, 2]), single, 12) == 0.25
    assert summary._quantiles(np.array([3, 1, 2, 10])) == (2, 10, 10, 10)


def test_examples_are_the_first_of_all_blocks():
    blocks = [Pairs(["a", "b"], ["A", "B"]), Pairs(["c", "d"], ["C", "D"])]
    examples = []
    list(summary._hashed(SimpleNamespace(read=lambda split: blocks), "test", examples))
    assert examples == [("a", "A"), ("b", "B"), ("c", "C")]
