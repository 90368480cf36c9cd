"""A corpus made ready for a model: cut into tokens, what cannot be used dropped and counted, and kept on disk.

It is kept by its content, in ~/.cache/attn/corpora (or $XDG_CACHE_HOME/attn/corpora): a second run on the same text
and the same settings finds it there, and one that comes while the first is at work waits for it. Any of it may be
deleted while no run is on.
"""

import contextlib
import hashlib
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencepiece

from experiments.data import corpora, memmap
from experiments.data.batches import Corpus, Encoded, Sentences, between_marks
from experiments.data.corpora import BLOCK, SPLITS, CorpusError, Pairs
from experiments.data.corpora.gold_alignments import Links
from experiments.data.vocabulary import Vocabulary, train_vocabulary
from experiments.settings import Data, Settings
from experiments.system import machine
from experiments.system.files import (
    DamagedError,
    lock,
    read_json,
    write_bytes,
    write_json,
)

FORMAT = 2
"""Of what is kept; to be raised whenever the same text would be kept otherwise."""


SAMPLE = 1_000_000
"""The most pairs that a vocabulary is trained on, drawn evenly from more."""


LONGEST = 2048
"""Tokens of a held-out sentence, end mark included: a model has as many positions as the longest."""


class Heldout(NamedTuple):
    """A validation or test set, as text and as ids; nothing but pairs with an empty side is ever dropped from it."""

    text: Pairs
    ids: Encoded
    links: list[Links] | None = None
    """Which words are translations of each other, where the corpus knows."""


class Prepared(NamedTuple):
    """What a trial needs to know of its corpus. Pickled, it is the name of the directory that holds it."""

    directory: Path
    vocabulary_model: bytes
    corpus_digest: str
    counts: dict[str, int]
    train: Corpus
    validation: Heldout
    test: Heldout

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.vocabulary_model)

    def length(self, settings: Settings) -> int:
        """Positions that a model of this corpus needs: the longest row, held-out sentence or translation."""
        longest = max(
            _longest(side)
            for split in (self.validation, self.test)
            for side in split.ids
        )
        return max(
            settings.training.sequence_length, settings.evaluation.max_length, longest
        )

    def __reduce__(self):
        return load, (self.directory,)


def prepare(data: Data) -> Prepared:
    """The corpus that `data` names, with a vocabulary trained on its training pairs alone.

    Raises CorpusError or VocabularyError, and CorpusError where no training pair is short enough, a held-out sentence
    is longer than LONGEST, or the disk has no room.
    """
    source = corpora.open(data)
    name = hashlib.sha256(
        repr(
            (
                FORMAT,
                data.corpus,
                source.fingerprint(),
                data.vocabulary_size,
                data.max_length,
                sentencepiece.__version__,
            )
        ).encode()
    ).hexdigest()[:24]
    place = machine.cache() / "corpora" / name
    try:
        with lock(_workshop(place), wait=True):
            if not _whole(place):
                _build(source, data, place)
    except OSError as error:
        raise CorpusError(
            f"{place.parent}: tokenised text cannot be kept there ({error.strerror or error}); "
            "make room, or set XDG_CACHE_HOME to a directory that has it"
        ) from None
    return load(place)


def load(directory: Path) -> Prepared:
    """What `prepare` keeps in `directory`."""
    about, model = (
        read_json(directory / "about.json"),
        (directory / "vocabulary.model").read_bytes(),
    )
    vocabulary = Vocabulary(model)

    def heldout(split):
        text, known = (
            Pairs(*about["heldout"][split]),
            about["links"] if split == "test" else None,
        )
        if about["cut"]:
            ids = [
                part
                for line in vocabulary.encode(text.target)
                for part in _parts(line, about["cut"])
            ]
            parts = vocabulary.decode(ids)
            return Heldout(Pairs(parts, parts), Encoded(ids, ids))
        return Heldout(
            text,
            Encoded(*map(vocabulary.encode, text)),
            known
            and [Links(*(tuple(map(tuple, kind)) for kind in pair)) for pair in known],
        )

    return Prepared(
        directory,
        model,
        about["digest"],
        about["counts"],
        memmap.read(directory, vocabulary.size),
        *map(heldout, SPLITS[1:]),
    )


class _Survey(NamedTuple):
    """What one reading of a corpus finds."""

    sample: Pairs
    """Of the training pairs: all, or SAMPLE of them."""
    heldout: dict[str, Pairs]
    counts: dict[str, int]
    digest: str
    """Sixteen hexadecimal digits over all text in its order, whatever its origin."""


def _build(source, data, place):
    building = _workshop(place) / "files"
    shutil.rmtree(building, ignore_errors=True)  # of one that was interrupted
    building.mkdir()
    try:
        _fill(source, data, building)
        shutil.rmtree(place, ignore_errors=True)  # of files that are not whole
        os.replace(building, place)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _fill(source, data, directory):
    """The text is read once, and what is of use of the training pairs laid aside until there is a vocabulary."""
    aside = [directory / f"{side}.text" for side in memmap.SIDES]
    survey = _survey(source, aside)
    model = train_vocabulary(
        [*survey.sample.source, *survey.sample.target], data.vocabulary_size
    )
    vocabulary = Vocabulary(model)
    # A part needs room for its end mark.
    cut = data.max_length - 1 if getattr(source, "cuts_long_texts", False) else 0
    for split in () if cut else survey.heldout:
        _check_lengths(source, split, vocabulary)
    dropped = _encode(aside, data.max_length, cut, vocabulary, directory)
    if dropped == survey.counts["train"]:
        raise CorpusError(
            f"none of the {dropped} training pairs has at most data.max_length={data.max_length} "
            "tokens a side; raise data.max_length"
        )
    for path in aside:
        path.unlink()
    write_bytes(directory / "vocabulary.model", model)
    sizes = {path.name: path.stat().st_size for path in directory.iterdir()}
    counts = {**survey.counts, **source.counts(), "train_too_long": dropped}
    links = source.links() if hasattr(source, "links") else None
    write_json(
        directory / "about.json",
        dict(
            digest=survey.digest,
            counts=counts,
            sizes=sizes,
            heldout=survey.heldout,
            links=links,
            cut=cut,
        ),
    )


def _workshop(place):
    return place.parent / "building" / place.name


def _whole(place):
    try:
        about = read_json(place / "about.json")
    except DamagedError:
        return False
    return about is not None and all(
        (place / name).is_file() and (place / name).stat().st_size == size
        for name, size in about["sizes"].items()
    )


def _survey(source, aside):
    """Writes the training pairs to the two files `aside`, a sentence a line."""
    counts, sample, heldout, digest = {}, Pairs([], []), {}, hashlib.sha256()
    rng = np.random.default_rng(0)
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(path.open("wb")) for path in aside]
        for split in SPLITS:
            counts[split] = counts[f"{split}_empty"] = 0
            hashers, kept = (hashlib.sha256(), hashlib.sha256()), Pairs([], [])
            for pairs, empty in _filled(source, split):
                texts = [
                    "".join(line + "\n" for line in side).encode() for side in pairs
                ]
                for hasher, text in zip(hashers, texts, strict=True):
                    hasher.update(text)
                if split == "train":
                    _draw(sample, pairs, counts[split], rng)
                    for file, text in zip(files, texts, strict=True):
                        file.write(text)
                else:
                    kept.source.extend(pairs.source)
                    kept.target.extend(pairs.target)
                counts[split] += len(pairs.source)
                counts[f"{split}_empty"] += empty
            if not counts[split]:
                raise CorpusError(
                    f"{source.place(split, 0)}: every pair from here on has an empty side; give text"
                )
            heldout |= {} if split == "train" else {split: kept}
            for hasher in hashers:
                digest.update(hasher.digest())
    return _Survey(sample, heldout, counts, digest.hexdigest()[:16])


def _filled(source, split) -> Iterator[tuple[Pairs, int]]:
    """Pairs with text on both sides, and how many had none."""
    for pairs in source.read(split):
        kept = [(s, t) for s, t in zip(*pairs, strict=True) if s.strip() and t.strip()]
        yield (
            Pairs(*map(list, zip(*kept, strict=True))) if kept else Pairs([], []),
            len(pairs.source) - len(kept),
        )


def _draw(sample, pairs, seen, rng):
    """Adds `pairs`, before which `seen` others came, to a sample in which all are equally likely (Vitter 1985, R)."""
    room = max(0, SAMPLE - len(sample.source))
    for side, new in zip(sample, pairs, strict=True):
        side.extend(new[:room])
    numbers = np.arange(seen, seen + len(pairs.source))[room:]
    places = rng.integers(0, numbers + 1)
    for i in np.flatnonzero(places < SAMPLE).tolist():
        for side, new in zip(sample, pairs, strict=True):
            side[places[i]] = new[room + i]


def _encode(aside, max_length, cut, vocabulary, directory) -> int:
    """Writes the pairs of the two files that are short enough; returns how many are not. With `cut` all are: texts, the
    same on both sides, in parts of so many tokens."""
    dropped = 0
    with memmap.Writer(directory, vocabulary.size) as writer:
        for pairs in zip(*map(_lines, aside), strict=True):
            flat = [vocabulary.flat(side) for side in pairs]
            block = Corpus(
                *(
                    between_marks(ids, _cut(lengths, cut) if cut else lengths)
                    for ids, lengths in flat
                )
            )
            short = np.maximum(*(side.lengths for side in block)) <= max_length
            dropped += int((~short).sum())
            writer.append(
                block
                if short.all()
                else Corpus(*(_only(side, short) for side in block))
            )
    return dropped


def _cut(lengths, most):
    """Those of the parts of sentences, none longer than `most`."""
    counts = -(-lengths // most)
    parts = np.full(int(counts.sum()), most, lengths.dtype)
    parts[np.cumsum(counts) - 1] = lengths - most * (counts - 1)
    return parts


def _parts(ids, most):
    return [ids[start : start + most] for start in range(0, len(ids), most)]


def _lines(path):
    with path.open("rb") as file:
        while lines := list(itertools.islice(file, BLOCK)):
            yield b"".join(lines).decode().removesuffix("\n").split("\n")


def _only(sentences, chosen) -> Sentences:
    """Those sentences alone, with nothing between them."""
    lengths = sentences.lengths[chosen]
    ids = sentences.ids[np.repeat(chosen, sentences.lengths + 1)]
    return Sentences(ids, np.cumsum(lengths + 1) - (lengths + 1), lengths)


def _check_lengths(source, split, vocabulary):
    before = 0
    for pairs in source.read(split):
        lengths = np.maximum(*(vocabulary.flat(side)[1] + 1 for side in pairs))
        if lengths.max() > LONGEST:
            i = int(lengths.argmax())
            raise CorpusError(
                f"{source.place(split, before + i)}: a held-out sentence of {lengths[i]} tokens, and "
                f"{LONGEST} are the most; remove the pair, or split it"
            )
        before += len(lengths)


def _longest(side) -> int:
    return max(len(sentence) + 1 for sentence in side)
