"""A translator of your own text, with sizes chosen from the text itself.

    python -m launch.train --config=experiments/configs/files.py:PLACE --workdir=runs/own
    python -m launch.sweep --config=experiments/configs/files.py:PLACE --sweep=heads --seeds=3 \
      --workdir=runs/own-heads

PLACE is one of

  pairs.tsv        a file of lines source<TAB>target, plain or .gz
  folder/news      news.en and news.de in `folder`, line i of one translates that of the other
  folder           train.en and train.de in it, or its only pair or .tsv

The folder's val and test (or dev, valid, validation, and test.tsv and so on) are used where
they are there. Otherwise validation and test are held out from the training text, by
sentences: no held-out sentence is in training, on either side. Of two languages en is the
source; PLACE,de,en turns that round, and chooses where there are more than two (in a .tsv
--config.data.source_column=1 --config.data.target_column=0).

`sizes` says how vocabulary, lengths, batch and steps follow from the text. Each can be set,
as --config.data.vocabulary_size=8000. The model, d_model 128 with three layers, trains on two
CPU cores; training ends when validation perplexity has stopped falling, and the weights of
its lowest value are used.
"""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.errors import UserError
from experiments.settings import default_config

LANGUAGES = re.compile(r"(.*?)(?:,(\w+),(\w+))?")

LOOKED_AT = 500_000
"""Pairs, the first ones, from which the sizes are chosen: more would not change them."""

HELDOUT_NAMES = {
    "validation": ("val", "valid", "validation", "dev"),
    "test": ("test",),
}
"""The names by which held-out text is recognised, beside a training text."""


class Text(NamedTuple):
    """Names a text: the settings of its corpus, and the files of its training pairs."""

    corpus: str
    settings: dict[str, str]
    files: list[Path]


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
    config = default_config(corpus=text.corpus)
    config.data.update(text.settings)
    chosen = sizes(*lengths(text.files))
    config.data.update(chosen["data"])
    # Small texts are soon known by heart, against which dropout helps.
    dropout = 0.2 if chosen["tokens"] < 1_000_000 else 0.1
    config.model.update(N=3, d_model=128, d_ff=512, h=4, d_k=32, d_v=32, P_drop=dropout)
    config.training.update(chosen["training"])
    config.evaluation.update(
        max_length=chosen["data"]["max_length"], sentences=200, beam=4, weights="best"
    )
    return config


def sweep_heads(config):
    """h at constant h·d_k."""
    width = config.model.h * config.model.d_k
    for h in (1, 2, 4, 8):
        yield {"model.h": h, "model.d_k": width // h, "model.d_v": width // h}


def sweep_positions():
    for positions in ("sinusoidal", "learned", "rotary", "none"):
        yield {"model.positions": positions}


def sizes(pairs: int, longest: int, size: int) -> dict:
    """Returns settings of data and training for a text, and its tokens a side.

    `pairs` are its pairs, `longest` the bytes that 99 % of sentences have at most, `size`
    the bytes of its longer side.
    """
    # A token has about four bytes, with a vocabulary of thousands.
    tokens = max(size // 4, 1)
    # As in the literature: 800 for 40 kB, 10,000 for 30,000 captions, 32,000 from 300 MB on.
    vocabulary = int(np.clip(6 * tokens**0.5, 500, 32_000)) // 100 * 100
    # Three bytes a token is on the safe side; longer pairs are dropped and counted.
    max_length = int(np.clip(-(-longest // 3) + 8, 32, 256))
    sequence_length = max(64, max_length)
    # Small batches learn most in a second of two cores.
    in_batch = int(np.clip(tokens // 400, 1024, 4096))
    batch_size = max(4, in_batch // sequence_length)
    in_epoch = -(-tokens // (batch_size * sequence_length))
    steps = int(np.clip(12 * in_epoch, 600, 20_000)) // 100 * 100
    every = max(50, steps // 2000 * 100)
    warmup = int(np.clip(steps // 10, 100, 2000))
    return dict(
        tokens=tokens,
        data=dict(
            vocabulary_size=vocabulary,
            max_length=max_length,
            heldout=int(np.clip(pairs // 20, 1, 500)),
        ),
        training=dict(
            steps=steps,
            until="flat",
            keep_best=True,
            warmup=warmup,
            # A factor on the paper's schedule, which then rises to 0.004.
            learning_rate=round(0.004 * (128 * warmup) ** 0.5, 3),
            batch_size=batch_size,
            sequence_length=sequence_length,
            log_every=25,
            evaluate_every=every,
            save_every=every,
        ),
    )


def lengths(files: list[Path]) -> tuple[int, int, int]:
    """Returns the pairs, the bytes of nearly all sentences, and those of the longer side.

    Of a text with more than LOOKED_AT pairs they are those of the first.
    """
    # Here, because a config that is only looked at needs no corpus.
    from experiments.data.corpora.parallel import blocks

    sides = []
    for path in files:
        lines = itertools.chain.from_iterable(blocks(path))
        rows = [line.split("\t") for line in itertools.islice(lines, LOOKED_AT)]
        for column in range(2 if len(files) == 1 else 1):
            cells = [row[column] for row in rows if len(row) > column]
            sides.append(np.array([len(cell.encode()) for cell in cells] or [0]))
    longest = max(int(np.quantile(side, 0.99)) for side in sides)
    return len(sides[0]), longest, max(int(side.sum()) for side in sides)


def find_text(place: Path, languages: Sequence[str] = ()) -> Text:
    """Returns the text at a place, in these languages or the only two that are there.

    Raises UserError where it is not clear what is meant.
    """
    if place.is_file():
        # A folder's other files belong to other texts.
        return _table(place.parent, _without_gz(place.name), {})
    if place.is_dir():
        names = _names(place)
        stems = _stems(names, languages)
        if "train" in stems:
            return _pair(place, "train", stems)
        tables = [name for name in names if name.endswith(".tsv")]
        if "train.tsv" in tables:
            return _table(place, "train.tsv", tables)
        if len(stems) + len(tables) == 1:
            return _pair(place, *stems, stems) if stems else _table(place, *tables, {})
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
    files = [_path(folder, f"{stem}.{ending}") for ending in (source, target)]
    return Text("files", settings, files)


def _table(folder, name, tables):
    """Returns the text of a file with columns, with held-out ones among `tables`."""
    settings = dict(directory=str(folder), train=name)
    for split, names in HELDOUT_NAMES.items():
        found = [f"{other}.tsv" for other in names if f"{other}.tsv" in tables]
        settings[split] = found[0] if found else name
    return Text("tsv", settings, [_path(folder, name)])


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
        if stem and ending not in ("tsv", "txt", "md"):
            endings.setdefault(stem, []).append(ending)
    english_first = lambda ending: (ending != "en", ending)
    return {stem: sorted(all_, key=english_first) for stem, all_ in endings.items()}


def _unclear(folder, names, texts):
    if not texts:
        return (
            f"{folder}: no parallel text: a .tsv, or two files such as train.en and train.de, "
            f"is needed (the folder has {', '.join(names[:12]) or 'no files'})"
        )
    return f"{folder} has several texts: name one of {', '.join(texts[:12])} as {folder / texts[0]}"


def _without_gz(name):
    return name.removesuffix(".gz")


def _path(folder, name):
    plain = folder / name
    return plain if plain.is_file() else folder / f"{name}.gz"
