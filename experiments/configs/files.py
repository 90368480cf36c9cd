"""A translator of your own text, with sizes chosen from the text itself.

    python -m launch.train --config=experiments/configs/files.py:PLACE --workdir=runs/own
    python -m launch.sweep --config=experiments/configs/files.py:PLACE --sweep=heads --seeds=3 \
      --workdir=runs/own-heads

PLACE is one of

  pairs.tsv        a file of lines source<TAB>target, plain or .gz
  pairs.csv        CSV: commas, semicolons or tabs, with fields that may stand in quotes
  pairs.jsonl      an object of JSON on each line, with two texts
  folder/news      news.en and news.de in `folder`, line i of one translates that of the other
  folder           train.en and train.de in it, or its only pair or file of rows

The folder's val and test (or dev, valid, validation, and test.tsv and so on) are used where
they are there. Otherwise validation and test are held out from the training text, by
sentences: no held-out sentence is in training, on either side.

PLACE,de,en says which is the source. Of a pair of files, and of two keys in JSON, en is it
where nothing is said. Files of rows have no header unless PLACE names two of the columns in
their first row: pairs.csv,en,de; numbers choose columns too, pairs.tsv,1,0; and other words
name the languages of the first two columns: pairs.tsv,en,zh. What an option says
(`python -m launch.settings data`) goes before: --config.data.header=True for a header whose
names are not given, --config.data.bad_lines=skip for a file with lines that cannot be read.

`experiments/data/sizes.py` says how vocabulary, lengths, batch and steps follow from the
text. Each can be set, as --config.data.vocabulary_size=8000. The model, d_model 128 with three
layers, trains on two CPU cores; training ends when validation perplexity has stopped falling,
and the weights of its lowest value are used. With --budget=8h launch.train chooses steps, and
among three sizes of the model, for a time.
"""

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments import settings
from experiments.errors import UserError
from experiments.settings import default_config
from experiments.settings.corpora import is_number

LANGUAGES = re.compile(r"(.*?)(?:,(\w+),(\w+))?")

TABLES = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl"}
"""The corpora of files of rows, by the endings of the files."""

NO_LANGUAGES = ("txt", "md", "json", *(ending[1:] for ending in TABLES))
"""Endings of files that are none of a pair."""

HELDOUT_NAMES = {
    "validation": ("val", "valid", "validation", "dev"),
    "test": ("test",),
}
"""The names by which held-out text is recognised, beside a training text."""


class Text(NamedTuple):
    """Names a text: its corpus, and the settings of that."""

    corpus: str
    settings: dict[str, str]


def get_config(place=None):
    if place is None:
        raise UserError(
            "files.py needs your text: write files.py:pairs.tsv, or files.py:FOLDER with "
            "train.en and train.de in it"
        )
    # PLACE, or PLACE,source,target.
    path, *languages = LANGUAGES.fullmatch(place).groups()
    languages = [language for language in languages if language]
    text = find_text(Path(path).expanduser(), languages)
    # Here, because a config that is only looked at needs no corpus.
    from experiments.data.sizes import measure, sizes

    config = default_config(corpus=text.corpus)
    config.data.update(text.settings)
    chosen = sizes(measure(_training_pairs(text)))
    config.data.update(chosen["data"])
    # Small texts are soon known by heart, against which dropout helps.
    dropout = 0.2 if chosen["tokens"] < 1_000_000 else 0.1
    config.model.update(N=3, d_model=128, d_ff=512, h=4, d_k=32, d_v=32, P_drop=dropout)
    # On 19,000 pairs of Tatoeba perplexity after 400 steps is 10.8 so, and 25.5 with norms after.
    config.model.norm = "pre"
    config.training.update(chosen["training"])
    config.evaluation.update(
        max_length=chosen["data"]["max_length"], sentences=200, beam=4, weights="best"
    )
    return config


def sizes(config):
    """Models among which --budget chooses, smallest first."""
    for N, d_model, h in ((3, 128, 4), (4, 256, 4), (6, 512, 8)):
        d_k = d_model // h
        # The paper's schedule falls with √d_model; a rate that falls with d_model is safer.
        rate = config.training.learning_rate * (config.model.d_model / d_model) ** 0.5
        yield {
            "model.N": N,
            "model.d_model": d_model,
            "model.d_ff": 4 * d_model,
            "model.h": h,
            "model.d_k": d_k,
            "model.d_v": d_k,
            "training.learning_rate": round(rate, 3),
        }


def sweep_heads(config):
    """h at constant h·d_k."""
    width = config.model.h * config.model.d_k
    for h in (1, 2, 4, 8):
        yield {"model.h": h, "model.d_k": width // h, "model.d_v": width // h}


def sweep_positions():
    for positions in ("sinusoidal", "learned", "rotary", "none"):
        yield {"model.positions": positions}


def find_text(place: Path, languages: Sequence[str] = ()) -> Text:
    """Returns the text at a place, in these languages or the only two that are there.

    Raises UserError where it is not clear what is meant.
    """
    if place.is_file():
        # A folder's other files belong to other texts.
        return _table(place.parent, _without_gz(place.name), {}, languages)
    if place.is_dir():
        names = _names(place)
        stems = _stems(names, languages)
        if "train" in stems:
            return _pair(place, "train", stems)
        tables = [name for name in names if Path(name).suffix in TABLES]
        for name in (f"train{ending}" for ending in TABLES):
            if name in tables:
                return _table(place, name, tables, languages)
        if len(stems) + len(tables) == 1:
            if stems:
                return _pair(place, *stems, stems)
            return _table(place, *tables, {}, languages)
        if "train" in (endings := _endings(names)):
            listed = ", ".join(endings["train"])
            raise UserError(
                f"{place} has train with the endings {listed}: name two of them, as "
                f"{place},en,de"
            )
        raise UserError(_unclear(place, names, [*stems, *tables]))
    names = _names(place.parent) if place.parent.is_dir() else []
    stems = _stems(names, languages)
    if place.name in stems:
        return _pair(place.parent, place.name, {place.name: stems[place.name]})
    if endings := _endings(names).get(place.name):
        raise UserError(
            f"{place} has the endings {', '.join(endings)}: name two of them, as {place},en,de"
        )
    raise UserError(
        f"{place}: neither a file, nor a folder, nor the beginning of two files' names "
        f"(the folder {place.parent} has {', '.join(names[:12]) or 'no files'})"
    )


def _pair(folder, stem, stems):
    """Returns the text of two files, with held-out ones among `stems`."""
    source, target = stems[stem]
    settings = dict(directory=str(folder), source=source, target=target, train=stem)
    for split, names in HELDOUT_NAMES.items():
        found = [name for name in names if name in stems]
        settings[split] = found[0] if found else stem
    return Text("files", settings)


def _table(folder, name, tables, languages):
    """Returns the text of a file of rows, with held-out ones among `tables`."""
    ending = Path(name).suffix
    corpus = TABLES.get(ending, "tsv")
    settings = dict(directory=str(folder), train=name)
    for split, names in HELDOUT_NAMES.items():
        found = [f"{other}{ending}" for other in names if f"{other}{ending}" in tables]
        settings[split] = found[0] if found else name
    settings |= _columns(_path(folder, name), corpus, languages)
    return Text(corpus, settings)


def _columns(path, corpus, languages):
    """Returns the settings that choose a file's columns; `languages` are names or numbers."""
    from experiments.data.corpora import rows

    settings = {}
    read = rows.json_lines if corpus == "jsonl" else rows.tab_separated
    if corpus == "csv":
        settings["delimiter"] = _delimiter(path)
        read = functools.partial(rows.comma_separated, **settings)
    # The first that can be read.
    row = next(filter(None, read(path)), [])
    if corpus == "jsonl":
        languages = languages or _keys(path, row)
    if not languages:
        return settings
    source, target = languages
    chosen = dict(source_column=source, target_column=target)
    named = dict(source=source, target=target)
    if all(map(is_number, languages)) and corpus != "jsonl":
        return settings | chosen
    if {source, target} <= set(row):
        return settings | chosen | named
    if corpus == "jsonl":
        raise UserError(
            f"{path}: its first object has no {source} and {target}; it has "
            f"{', '.join(row)[:200]}"
        )
    return settings | named


def _delimiter(path):
    """Returns what divides the first row of a CSV file into most columns."""
    from experiments.data.corpora.rows import DELIMITERS, comma_separated

    def count(delimiter):
        return len(next(comma_separated(path, delimiter), []))

    return max(DELIMITERS, key=count)


def _keys(path, row):
    """Returns the keys of the two texts in a row of JSON, English first."""
    keys = [key for key, value in dict(row).items() if isinstance(value, str)]
    if len(keys) != 2:
        raise UserError(
            f"{path}: its first object has {len(keys)} texts ({', '.join(keys)[:200]}): name "
            f"the keys of two, as {path},en,de"
        )
    return sorted(keys, key=lambda key: key != "en")


def _training_pairs(text):
    from experiments.data import corpora

    source = corpora.source_of(settings.CORPORA[text.corpus](**text.settings))
    return source.undivided("train")


def _names(folder):
    """Returns the names of a folder's files, without .gz."""
    names = {_without_gz(path.name) for path in folder.iterdir() if path.is_file()}
    return sorted(name for name in names if not name.startswith("."))


def _stems(names, languages):
    """Returns {name: (source, target)} of the pairs of files, such as train.en, train.de."""
    endings = _endings(names)
    if languages:
        chosen = tuple(languages)
        return {stem: chosen for stem, all_ in endings.items() if {*chosen} <= {*all_}}
    return {stem: tuple(both) for stem, both in endings.items() if len(both) == 2}


def _endings(names):
    """Returns {name: its endings}, English first, otherwise by the alphabet."""
    endings = {}
    for name in names:
        stem, _, ending = name.rpartition(".")
        if stem and ending not in NO_LANGUAGES:
            endings.setdefault(stem, []).append(ending)
    english_first = lambda ending: (ending != "en", ending)
    return {stem: sorted(all_, key=english_first) for stem, all_ in endings.items()}


def _unclear(folder, names, texts):
    if not texts:
        return (
            f"{folder}: no parallel text: a .tsv, .csv or .jsonl, or two files such as train.en "
            f"and train.de, is needed (the folder has {', '.join(names[:12]) or 'no files'})"
        )
    return f"{folder} has several texts: name one of {', '.join(texts[:12])} as {folder / texts[0]}"


def _without_gz(name):
    return name.removesuffix(".gz")


def _path(folder, name):
    plain = folder / name
    return plain if plain.is_file() else folder / f"{name}.gz"
