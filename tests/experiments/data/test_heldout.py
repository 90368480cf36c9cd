"""Validation and test held out of one text: nothing leaks, and the text alone decides."""

import itertools
import random

import pytest

from experiments.data import corpora
from experiments.data.corpora import SPLITS, CorpusError, Pairs
from experiments.data.corpora.heldout import Parts
from experiments.data.dataset import prepare
from experiments.settings import FilesData, TsvData

pytestmark = pytest.mark.quick

SAME = dict(train="all", validation="all", test="all")


def chained(seed=0):
    """300 pairs, of which many share a side with others."""
    rng = random.Random(seed)
    chosen = [(rng.randrange(200), rng.randrange(200)) for _ in range(300)]
    return [(f"source {i}", f"target {j}") for i, j in chosen]


def parts_of(pairs, names=SAME, size=10, block=64):
    def read(split):
        for start in range(0, len(pairs), block):
            yield Pairs(*map(list, zip(*pairs[start : start + block], strict=True)))

    return Parts(read, names, size)


def texts(parts, split):
    return [pair for block in parts.read(split) for pair in zip(*block, strict=True)]


def test_no_sentence_is_in_two_parts_and_no_pair_is_lost():
    pairs = chained()
    found = {split: texts(parts_of(pairs), split) for split in SPLITS}
    assert [len(found[split]) for split in SPLITS] == [280, 10, 10]
    assert sorted(itertools.chain(*found.values())) == sorted(pairs)
    for a, b in itertools.combinations(SPLITS, 2):
        for side in (0, 1):
            assert not {p[side] for p in found[a]} & {p[side] for p in found[b]}


def test_the_order_of_lines_and_blocks_says_nothing():
    pairs = chained()
    expected = sorted(texts(parts_of(pairs), "test"))
    shuffled = pairs[:]
    random.Random(1).shuffle(shuffled)
    assert sorted(texts(parts_of(shuffled, block=7), "test")) == expected


def test_one_held_out_part_of_two():
    names = SAME | {"validation": "val"}
    parts = parts_of(chained(), names)
    # Validation has its own text, which is the same here.
    assert [len(texts(parts, split)) for split in SPLITS] == [290, 300, 10]
    assert (
        parts.options
        and not parts_of([], dict(zip(SPLITS, "abc", strict=True))).options
    )


def test_empty_sides_connect_nothing_and_are_not_held_out():
    pairs = [("", f"t {i}") for i in range(50)] + [(f"s {i}", "") for i in range(50)]
    pairs += [(f"a {i}", f"b {i}") for i in range(60)]
    parts = parts_of(pairs, size=20)
    for split in ("validation", "test"):
        assert len(texts(parts, split)) == 20
        assert all(a and b for a, b in texts(parts, split))


def test_translations_of_a_sentence_stay_together_though_they_fit_no_number():
    pairs = [(f"source {i}", f"target {i} {j}") for i in range(50) for j in range(3)]
    parts = parts_of(pairs, size=10)
    assert [len(texts(parts, split)) for split in SPLITS] == [132, 9, 9]
    with pytest.raises(
        CorpusError, match=r"only 0 can be held out .*data.heldout=2 are"
    ):
        texts(parts_of(pairs, size=2), "train")


def test_a_page_in_a_line_is_not_held_out():
    """It has more tokens than a model reads, which would be an error."""
    pairs = [(f"source {i}", f"target {i}") for i in range(60)]
    pages = [(f"source {i}", "page " * 1000 + str(i)) for i in range(60, 80)]
    for split in ("validation", "test"):
        held = texts(parts_of([*pairs, *pages], size=15), split)
        assert len(held) == 15 and not set(held) & set(pages)
    # In a text of pages they are what is tested.
    assert len(texts(parts_of(pages, size=5), "test")) == 5


def test_a_text_that_hangs_together_is_refused():
    pairs = [("the same", f"target {i}") for i in range(100)]
    with pytest.raises(CorpusError, match="only 0 can be held out for validation"):
        texts(parts_of(pairs), "train")


@pytest.mark.parametrize("corpus", ["tsv", "files"])
def test_a_place_is_that_in_the_file(corpus, tmp_path):
    pairs = chained()
    (tmp_path / "all.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    for i, ending in enumerate(("en", "de")):
        (tmp_path / f"all.{ending}").write_text("".join(f"{p[i]}\n" for p in pairs))
    name = "all.tsv" if corpus == "tsv" else "all"
    cls = TsvData if corpus == "tsv" else FilesData
    options = dict(train=name, validation=name, test=name, heldout=5)
    source = corpora.open(cls(directory=str(tmp_path), **options))
    for split in SPLITS:
        (block,) = source.read(split)
        line = int(source.place(split, 2).rpartition(":")[2])
        assert pairs[line - 1] == (block.source[2], block.target[2])
    other = corpora.open(cls(directory=str(tmp_path), **options | dict(heldout=6)))
    assert other.fingerprint() != source.fingerprint()


def test_sets_that_overlap_are_named(tmp_path):
    sets = dict(train=range(300), val=range(290, 310), test=range(300, 330))
    for split, numbers in sets.items():
        for ending in ("en", "de"):
            lines = [f"{ending} {chr(97 + i % 26)} number {i}\n" for i in numbers]
            (tmp_path / f"{split}.{ending}").write_text("".join(lines))
    prepared = prepare(FilesData(directory=str(tmp_path), vocabulary_size=400))
    first, second = prepared.warnings()
    assert first.startswith("warning: 10 of 20 validation pairs are in train too")
    assert second.startswith("warning: 10 of 30 test pairs are in validation too")
