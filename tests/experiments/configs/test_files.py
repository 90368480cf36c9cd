"""The config of one's own text: which files it finds, and which sizes it chooses."""

import gzip
import itertools

import pytest

from experiments.configs import files
from experiments.data import corpora
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


def test_sizes_grow_with_the_text():
    texts = [files.sizes(n, 90, 40 * n) for n in (60, 3000, 150_000, 5_000_000)]
    for smaller, larger in itertools.pairwise(texts):
        for group, name in (
            ("data", "vocabulary_size"),
            ("data", "heldout"),
            ("training", "steps"),
            ("training", "batch_size"),
        ):
            assert smaller[group][name] <= larger[group][name], name
    assert texts[0]["data"]["vocabulary_size"] == 500
    assert texts[-1]["data"]["vocabulary_size"] == 32_000
    long = files.sizes(3000, 600, 600 * 3000)
    assert long["data"]["max_length"] == long["training"]["sequence_length"] == 208
