"""A corpus as a model needs it: in tokens, without what cannot be used, and kept on disk.

It is kept by its content, in ~/.cache/attn/corpora (or $XDG_CACHE_HOME/attn/corpora): a
second run on the same text and the same settings finds it there, and one that comes while
the first is at work waits for it. Any of it may be deleted while nothing runs. What is no
longer as it was written is made again: checksums show it.
"""

import contextlib
import functools
import hashlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencepiece

from experiments.data import corpora, memmap
from experiments.data.batches import Corpus, Encoded, Sentences, between_marks
from experiments.data.corpora import BLOCK, LONGEST, SPLITS, CorpusError, Pairs
from experiments.data.corpora.gold_alignments import Links
from experiments.data.lines import decode
from experiments.data.vocabulary import (
    OF_THE_TEXT,
    Labels,
    Vocabulary,
    kept_vocabulary,
    made_vocabulary,
    symbol_vocabulary,
)
from experiments.settings import Data, Settings
from experiments.settings.fields import cut as cut_text
from experiments.settings.fields import shown
from experiments.system import machine
from experiments.system.checksums import read_sealed, write_sealed
from experiments.system.files import (
    DamagedError,
    lock,
    remove,
    sha256,
    sync,
    write_bytes,
)

FORMAT = 7
"""Version of the files; it rises whenever the same text would give other files."""

SAMPLE = 1_000_000
"""The most pairs that a vocabulary is trained on; of more, an even sample is drawn."""

OVERLAPS = (("validation", "train"), ("test", "train"), ("test", "validation"))
"""Pairs of sets of which the first should have no pair of the second."""

MOST_LABELS = 10_000
"""The most labels that training may have: sentences as labels are a mistake."""

_REMEDY = "the same command again makes it anew"


class Heldout(NamedTuple):
    """Holds a validation or test set; only pairs with an empty side are dropped from it."""

    text: Pairs
    ids: Encoded
    links: list[Links] | None = None
    """The words of each pair that are translations of each other, where this is known."""
    distances: list[list[int]] | None = None
    """How far back each answer of each pair is decided, where this is known."""


class Dataset(NamedTuple):
    """Holds what a trial needs of its corpus. Pickled, it is the name of its directory."""

    directory: Path
    vocabulary_model: bytes
    corpus_digest: str
    counts: dict[str, int]
    train: Corpus
    validation: Heldout
    test: Heldout
    notes: tuple[str, ...] = ()
    """What the reader of the corpus says of it: bad lines that were left out, for one."""
    labels: tuple[str, ...] = ()
    """The labels that training has, where targets are such."""

    def vocabulary(self) -> Vocabulary:
        """Returns the vocabulary of its ids."""
        return Vocabulary(self.vocabulary_model)

    def target_vocabulary(self) -> Vocabulary | Labels:
        """Returns the vocabulary of its targets."""
        return Labels(self.labels) if self.labels else self.vocabulary()

    def length(self, settings: Settings) -> int:
        """Returns the positions that a model of this corpus needs.

        They are those of the longest row, held-out sentence or translation.
        """
        lengths = [settings.training.sequence_length, settings.evaluation.max_length]
        for split in (self.validation, self.test):
            lengths += [_longest(side) for side in split.ids]
        return max(lengths)

    def sizes(self) -> str:
        """Returns a line: the pairs of each split, and what was left out, where anything was."""
        told = {*SPLITS, *(f"{split}_in_{other}" for split, other in OVERLAPS)}
        sizes = [f"{split} {self.counts[split]:,}" for split in SPLITS]
        left_out = [
            f"{name.replace('_', ' ')} {count:,}"
            for name, count in self.counts.items()
            if count and name not in told
        ]
        line = f"pairs: {', '.join(sizes)}"
        return f"{line}; left out: {', '.join(left_out)}" if left_out else line

    def warnings(self) -> list[str]:
        """Returns the notes, and a line for each held-out set that has pairs of another."""
        lines = [f"warning: {note}" for note in self.notes]
        for split, other in OVERLAPS:
            if count := self.counts.get(f"{split}_in_{other}", 0):
                remedy = f"remove them, or give data.{split} other text"
                # Only generated texts have distances.
                if self.test.distances is not None:
                    remedy = (
                        "texts of few symbols come twice by chance, longer ones do not"
                    )
                lines.append(
                    f"warning: {count:,} of {self.counts[split]:,} {split} pairs are in {other} "
                    f"too, and scores on them say nothing of new text: {remedy}"
                )
        return lines

    def __reduce__(self):
        return load, (self.directory,)


def prepare(
    data: Data,
    say: Callable[[str], None] | None = None,
) -> Dataset:
    """Returns the corpus of `data`, with a vocabulary made of its training pairs alone.

    All files that are kept of it are compared with their checksums, which takes less than
    the hash of its text does. `say`, or stderr, gets a line where one is damaged,
    and they are made again.

    Raises:
      CorpusError: the corpus cannot be read, no training pair is short enough, a held-out
        sentence is longer than LONGEST, or the disk has no room.
      VocabularyError: the text does not support the size of the vocabulary, or
        data.vocabulary names none.
    """
    say = say or functools.partial(print, file=sys.stderr, flush=True)
    source = corpora.open(data)
    # The name of the corpus is in it because two readers may read the same bytes in two
    # ways; that of a custom corpus has the hash of its source.
    key = (
        FORMAT,
        data.corpus,
        source.fingerprint(),
        data.vocabulary_size,
        data.max_length,
        # Another version may make other tokens of the same text.
        sentencepiece.__version__,
        *(["labels"] if data.asked.targets == "labels" else []),
        *_of_vocabulary(data),
    )
    name = hashlib.sha256(repr(key).encode()).hexdigest()[:24]
    directory = machine.cache() / "corpora" / name
    try:
        with lock(_workshop(directory), wait=True):
            if os.path.lexists(directory) and (damage := _damage(directory)):
                say(
                    f"{directory} is damaged ({damage}): it is made again from its text"
                )
                remove(directory)
            if not directory.exists():
                _build(source, data, directory)
    except OSError as error:
        raise CorpusError(
            f"{directory.parent}: tokenised text cannot be kept there "
            f"({error.strerror or error}); make room, or set XDG_CACHE_HOME to a directory "
            "that has it"
        ) from None
    return load(directory)


def _of_vocabulary(data) -> list[str]:
    """Returns what sets the vocabulary of `data` apart from the one that is trained."""
    kind = data.vocabulary
    if kind == OF_THE_TEXT[0]:
        return []
    return [kind if kind in OF_THE_TEXT else Vocabulary(kept_vocabulary(kind)).digest]


def load(directory: Path) -> Dataset:
    """Returns what `prepare` keeps in `directory`.

    Raises DamagedError where the text or the vocabulary in it is not what was written.
    """
    about = _read_about(directory)
    model = _read_model(directory, about)
    vocabulary = Vocabulary(model)
    labels = tuple(about.get("labels", ()))
    sides = (vocabulary, Labels(labels) if labels else vocabulary)
    return Dataset(
        directory,
        model,
        about["digest"],
        about["counts"],
        memmap.read(directory, vocabulary.size),
        _load_heldout(about, "validation", sides),
        _load_heldout(about, "test", sides),
        tuple(about["notes"]),
        labels,
    )


def _load_heldout(about, split, sides):
    # Held-out text is kept as text, because translations are compared with it.
    text = Pairs(*about["heldout"][split])
    if about["cut"]:
        ids = []
        # The text too is in parts, so that ids and text have the same sentences.
        texts = []
        for line in sides[1].encode(text.target):
            parts = _parts(line, about["cut"])
            ids += parts
            texts += sides[1].decode_parts(parts)
        return Heldout(Pairs(texts, texts), Encoded(ids, ids))
    pairs = zip(sides, text, strict=True)
    ids = Encoded(*[vocabulary.encode(side) for vocabulary, side in pairs])
    if split != "test":
        return Heldout(text, ids)
    links = about["links"] and list(map(_links_of, about["links"]))
    return Heldout(text, ids, links, about["distances"])


def _links_of(pair):
    """Returns a pair's links; JSON made lists of their tuples."""
    sure, possible = pair
    return Links(tuple(map(tuple, sure)), tuple(map(tuple, possible)))


class _Survey(NamedTuple):
    """Holds what one reading of a corpus gives."""

    sample: Pairs
    """Training pairs: all, or SAMPLE of them."""
    heldout: dict[str, Pairs]
    counts: dict[str, int]
    digest: str
    """Sixteen hexadecimal digits over all text in its order, whatever its origin."""


def _build(source, data, directory):
    """Makes the files aside, and moves them to their place when they are whole."""
    building = _workshop(directory) / "files"
    # A build that was interrupted may have left files.
    remove(building)
    building.mkdir()
    try:
        _fill(source, data, building)
        for path in (*building.iterdir(), building):
            sync(path)
        os.replace(building, directory)
    finally:
        remove(building)


def _fill(source, data, directory):
    """Makes the files.

    The text is read once: training pairs wait in files until there is a vocabulary.
    """
    text_files = [directory / f"{side}.text" for side in memmap.SIDES]
    survey = _survey(source, text_files)
    has_labels = data.asked.targets == "labels"
    labels = _labels(source, text_files[1]) if has_labels else []
    model = _vocabulary_model(source, data, survey.sample)
    vocabulary = Vocabulary(model)
    sides = (vocabulary, Labels(labels) if has_labels else vocabulary)
    # A part needs room for its end mark.
    cut = data.max_length - 1 if source.cuts_long_texts else 0
    if not cut:
        for split in survey.heldout:
            _check_heldout(source, split, sides)
    dropped = _encode(text_files, data.max_length, cut, sides, directory)
    # Here rather than later: packing fails on no pairs without naming the setting.
    if dropped == survey.counts["train"]:
        raise CorpusError(
            f"none of the {dropped} training pairs has at most "
            f"data.max_length={data.max_length} tokens a side; raise data.max_length"
        )
    overlaps = _overlaps(survey.heldout, text_files)
    for path in text_files:
        path.unlink()
    write_bytes(directory / "vocabulary.model", model)
    about = dict(
        digest=survey.digest,
        counts={
            **survey.counts,
            **source.counts(),
            "train_too_long": dropped,
            **overlaps,
        },
        # Of all files but about.json, which is written last and has its own.
        sha256={path.name: sha256(path) for path in sorted(directory.iterdir())},
        heldout=survey.heldout,
        links=_of_each("links", source.links(), survey.heldout["test"]),
        distances=_of_each("distances", source.distances(), survey.heldout["test"]),
        cut=cut,
        notes=source.warnings(),
        labels=labels,
    )
    write_sealed(directory / "about.json", about)


def _vocabulary_model(source, data, sample) -> bytes:
    """Returns the vocabulary of a corpus, made of a sample of its pairs where it is."""
    if source.symbols is not None:
        return symbol_vocabulary(source.symbols)
    if data.vocabulary not in OF_THE_TEXT:
        return kept_vocabulary(data.vocabulary)
    sentences = [*sample.source]
    if data.asked.targets != "labels":
        sentences += sample.target
    return made_vocabulary(data.vocabulary, sentences, data.vocabulary_size)


def _of_each(name, values, test):
    """Returns what is known of each test pair. Raises CorpusError for another number."""
    if values is not None and len(values) != len(test.source):
        raise CorpusError(
            f"{name}() of the corpus gives {len(values)} values for {len(test.source)} test "
            "pairs, those without an empty side; there must be one for each"
        )
    return values


def _overlaps(heldout, text_files) -> dict[str, int]:
    """Counts the pairs of each held-out set that another set has, without those of none."""
    pairs = {split: list(zip(*text, strict=True)) for split, text in heldout.items()}
    wanted = {*pairs["validation"], *pairs["test"]}
    # Block by block, because the training text need not fit into memory.
    trained = set()
    for block in zip(*map(_lines, text_files), strict=True):
        trained |= wanted.intersection(zip(*block, strict=True))
    others = dict(train=trained, validation=set(pairs["validation"]))
    counts = {}
    for split, other in OVERLAPS:
        count = sum(pair in others[other] for pair in pairs[split])
        if count:
            counts[f"{split}_in_{other}"] = count
    return counts


def _workshop(directory):
    # Beside the corpora, because the lock must outlast the directory, which is
    # replaced.
    return directory.parent / "building" / directory.name


def _damage(directory) -> str:
    """Says which file is not what was written there; "" where all are."""
    if not directory.is_dir():
        return "it is no directory"
    try:
        about = _read_about(directory)
    except DamagedError as error:
        return f"about.json: {error.why}"
    for name, checksum in about["sha256"].items():
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        if sha256(path) != checksum:
            return f"{name} is not what was written"
    return ""


def _read_about(directory):
    path = directory / "about.json"
    about = read_sealed(path)
    if about is None:
        raise DamagedError(path, "it is missing", _REMEDY)
    return about


def _read_model(directory, about):
    path = directory / "vocabulary.model"
    model = path.read_bytes()
    if hashlib.sha256(model).hexdigest() != about["sha256"][path.name]:
        raise DamagedError(path, "it is not what was written", _REMEDY)
    return model


def _survey(source, text_files):
    """Reads all splits; writes the training pairs to two files, a sentence a line."""
    counts = {}
    sample = Pairs([], [])
    heldout = {}
    digest = hashlib.sha256()
    # A fixed seed: the same text must give the same vocabulary.
    rng = np.random.default_rng(0)
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(path.open("wb")) for path in text_files]
        for split in SPLITS:
            counts[split] = 0
            counts[f"{split}_empty"] = 0
            # A hash for each side, so that the digest does not depend on where blocks
            # end.
            hashers = [hashlib.sha256() for _ in memmap.SIDES]
            kept = Pairs([], [])
            for pairs, empty in _without_empty(source, split):
                texts = list(map(_as_lines, pairs))
                for hasher, text in zip(hashers, texts, strict=True):
                    hasher.update(text)
                if split == "train":
                    _add_to_sample(sample, pairs, counts[split], rng)
                    for file, text in zip(files, texts, strict=True):
                        file.write(text)
                else:
                    kept.source.extend(pairs.source)
                    kept.target.extend(pairs.target)
                counts[split] += len(pairs.source)
                counts[f"{split}_empty"] += empty
            if not counts[split]:
                raise CorpusError(
                    f"{source.place(split, 0)}: every pair from here on has an empty side; "
                    "give text"
                )
            if split != "train":
                heldout[split] = kept
            for hasher in hashers:
                digest.update(hasher.digest())
    return _Survey(sample, heldout, counts, digest.hexdigest()[:16])


def _as_lines(sentences) -> bytes:
    # No sentence holds a line break (`lines.as_line`), so other sentences give other bytes.
    return "".join(sentence + "\n" for sentence in sentences).encode()


def _without_empty(source, split) -> Iterator[tuple[Pairs, int]]:
    """Gives pairs with text on both sides, and the number of those without."""
    for pairs in source.read(split):
        kept = Pairs([], [])
        for sentence, translation in zip(*pairs, strict=True):
            if sentence.strip() and translation.strip():
                kept.source.append(sentence)
                kept.target.append(translation)
        yield kept, len(pairs.source) - len(kept.source)


def _add_to_sample(sample, pairs, seen, rng):
    """Adds `pairs`, which follow `seen` others, so that all are equally likely in it.

    This is algorithm R of Vitter (1985).
    """
    room = max(0, SAMPLE - len(sample.source))
    for side, new in zip(sample, pairs, strict=True):
        side.extend(new[:room])
    # Number i stays if its random place in 0 to i is within the sample.
    numbers = np.arange(seen, seen + len(pairs.source))[room:]
    places = rng.integers(0, numbers + 1)
    for i in np.flatnonzero(places < SAMPLE).tolist():
        for side, new in zip(sample, pairs, strict=True):
            side[places[i]] = new[room + i]


def _labels(source, path) -> list[str]:
    """Returns the labels of training, in their order. Raises CorpusError for too few, or many."""
    labels = sorted(set(itertools.chain.from_iterable(_lines(path))))
    if not 2 <= len(labels) <= MOST_LABELS:
        raise CorpusError(
            f"{source.place('train', 0)}: training has {len(labels):,} labels, of which there "
            f"must be 2 to {MOST_LABELS:,}: is the target a label?"
        )
    return labels


def _encode(text_files, max_length, cut, vocabularies, directory) -> int:
    """Writes the pairs of two files that are short enough; returns how many are not.

    With `cut` all are: texts, the same on both sides, in parts of so many tokens.
    """
    dropped = 0
    # Block by block, because the tokens of a large corpus need not fit into memory.
    with memmap.Writer(directory, vocabularies[0].size) as writer:
        for pairs in zip(*map(_lines, text_files), strict=True):
            sides = []
            for vocabulary, texts in zip(vocabularies, pairs, strict=True):
                ids, lengths = vocabulary.flat(texts)
                sides.append(between_marks(ids, _cut(lengths, cut) if cut else lengths))
            short = np.maximum(*(side.lengths for side in sides)) <= max_length
            dropped += int((~short).sum())
            if not short.all():
                sides = [_select(side, short) for side in sides]
            writer.append(Corpus(*sides))
    return dropped


def _cut(lengths, most):
    """Returns the lengths of the parts of sentences, none longer than `most`."""
    counts = -(-lengths // most)
    parts = np.full(int(counts.sum()), most, lengths.dtype)
    parts[np.cumsum(counts) - 1] = lengths - most * (counts - 1)
    return parts


def _parts(ids, most):
    return [ids[start : start + most] for start in range(0, len(ids), most)]


def _lines(path):
    with path.open("rb") as file:
        while lines := list(itertools.islice(file, BLOCK)):
            yield decode(lines)


def _select(sentences, mask) -> Sentences:
    """Returns the sentences where `mask` is True, with nothing between them."""
    lengths = sentences.lengths[mask]
    ids = sentences.ids[np.repeat(mask, sentences.lengths + 1)]
    return Sentences(ids, np.cumsum(lengths + 1) - (lengths + 1), lengths)


def _check_heldout(source, split, vocabularies):
    """Raises CorpusError for a sentence that is too long, and a label that training has not."""
    before = 0
    for pairs in source.read(split):
        try:
            sides = [
                vocabulary.flat(side)
                for vocabulary, side in zip(vocabularies, pairs, strict=True)
            ]
        except KeyError as error:
            (label,) = error.args
            known = vocabularies[1].names
            i = before + pairs.target.index(label)
            raise CorpusError(
                f"{source.place(split, i)}: label {shown(label)} is none of the {len(known)} "
                f"of training: {cut_text(', '.join(known))}; mend it, or give training a text of it"
            ) from None
        lengths = np.maximum(*(lengths + 1 for _, lengths in sides))
        if lengths.max() > LONGEST:
            i = int(lengths.argmax())
            raise CorpusError(
                f"{source.place(split, before + i)}: a held-out sentence of {lengths[i]} "
                f"tokens, and {LONGEST} are the most; remove the pair, or split it"
            )
        before += len(lengths)


def _longest(side) -> int:
    return max(len(sentence) + 1 for sentence in side)
