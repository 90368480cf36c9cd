"""Describes a corpus: how many pairs, how long, how often the same, and how many of the
held-out ones training has too."""

from typing import NamedTuple

import numpy as np
import rich.text

from experiments.data import corpora
from experiments.data.batches import Batches
from experiments.data.corpora import SPLITS
from experiments.data.dataset import Dataset
from experiments.settings import Settings

QUANTILES = (0.5, 0.9, 0.99, 1.0)

SHOWN = 3


class Split(NamedTuple):
    """Holds counts of a split's pairs.

    Lengths are of the pairs that are used, with the end mark.
    """

    pairs: int
    bad: int
    """Lines that data.bad_lines=skip left out; they are none of the pairs."""
    empty: int
    too_long: int
    repeated: int
    """Pairs that occurred before, within the split."""
    seen: int
    """Pairs that training has too."""
    sources_seen: int
    """Pairs whose source training has too, whatever its translation."""
    lengths: tuple[tuple[int, ...], ...]
    """For source and target: the lengths in tokens that the QUANTILES of sentences have at most.
    Of labels there are none, here and in the next."""
    bytes: tuple[float, ...]
    """Share of tokens that are single bytes, because the vocabulary has no token for their
    characters."""
    examples: list[tuple[str, str]]
    commonest: str = ""
    """The label that comes most often, with its share: what a guess would reach."""


def describe(source: corpora.Source, prepared: Dataset) -> dict[str, Split]:
    """Reads the text once more and describes each split.

    Until the end it keeps two numbers of 64 bits for each pair.
    """
    # Hashes instead of texts, because a large corpus does not fit into memory.
    pairs = {}
    sources = {}
    splits = {}
    examples = {}
    for split in SPLITS:
        blocks = list(_hashed(source, split, examples.setdefault(split, [])))
        pairs[split], sources[split] = (
            np.concatenate(side) for side in zip(*blocks, strict=True)
        )
    vocabulary = prepared.vocabulary()
    counts = prepared.counts
    single = np.array([vocabulary.is_byte(i) for i in range(vocabulary.size)])
    for split in SPLITS:
        seen = split != "train"
        sides = _sides(prepared, split)
        splits[split] = Split(
            len(pairs[split]),
            counts.get(f"{split}_bad", 0),
            counts[f"{split}_empty"],
            counts.get(f"{split}_too_long", 0),
            len(pairs[split]) - len(np.unique(pairs[split])),
            int(np.isin(pairs[split], pairs["train"]).sum()) if seen else 0,
            int(np.isin(sources[split], sources["train"]).sum()) if seen else 0,
            tuple(_quantiles(lengths) for _, lengths in sides),
            tuple(_share(ids, single, vocabulary.size) for ids, _ in sides),
            examples[split],
            _commonest(prepared, split) if prepared.labels else "",
        )
    return splits


def packing(prepared: Dataset, settings: Settings) -> float:
    """Computes the share of positions that are no padding, in batches as `settings` asks.

    It is that of the first part of the pairs.
    """
    t = settings.training
    return Batches(
        prepared.train,
        batch_size=t.batch_size,
        sequence_length=t.sequence_length,
        seed=settings.seed,
        by_length=t.bucket_by_length,
        labels=bool(prepared.labels),
    ).real_tokens


def table(splits: dict[str, Split], languages: tuple[str, str]) -> rich.table.Table:
    """Returns the numbers of the splits, a column for each split."""
    drawn = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    drawn.add_column("")
    for split in splits:
        drawn.add_column(split, justify="right", no_wrap=True)
    rows = {
        "pairs": lambda s: f"{s.pairs:,}",
        "bad lines, left out": lambda s: f"{s.bad:,}",
        "an empty side, dropped": lambda s: f"{s.empty:,}",
        "too long, dropped": lambda s: f"{s.too_long:,}",
        "repeated within": lambda s: _of(s.repeated, s.pairs),
        "also in train": lambda s: _of(s.seen, s.pairs),
        "source also in train": lambda s: _of(s.sources_seen, s.pairs),
    }
    sides = len(next(iter(splits.values())).lengths)
    for i, language in enumerate(languages[:sides]):
        # i=i, because a lambda looks a loop's variable up only when it is called.
        rows[f"{language}: tokens, 50, 90, 99, 100 %"] = lambda s, i=i: ", ".join(
            map(str, s.lengths[i])
        )
        rows[f"{language}: tokens that are bytes"] = lambda s, i=i: f"{s.bytes[i]:.2%}"
    if any(s.commonest for s in splits.values()):
        rows["most frequent label"] = lambda s: s.commonest
    for name, text in rows.items():
        drawn.add_row(name, *(text(split) for split in splits.values()))
    return drawn


def examples(splits: dict[str, Split]) -> rich.text.Text:
    """Returns some pairs of each split, as they stand."""
    text = rich.text.Text()
    for name, split in splits.items():
        for source, target in split.examples:
            text.append(f"{name}: {source} → {target}\n")
    return text


def _hashed(source, split, examples):
    for pairs in source.read(split):
        both = list(zip(*pairs, strict=True))
        examples += both[: SHOWN - len(examples)]
        # Python's hash is salted for each process, and all are compared within one.
        yield tuple(
            np.fromiter(map(hash, texts), np.int64, len(both))
            for texts in (both, pairs.source)
        )


def _sides(prepared, split):
    """Returns (ids, lengths) of source and target, those that have tokens."""
    count = 1 if prepared.labels else 2
    if split == "train":
        return [(side.ids, side.lengths) for side in prepared.train[:count]]
    sides = []
    for side in getattr(prepared, split).ids[:count]:
        # With the end mark.
        lengths = np.array([len(ids) + 1 for ids in side])
        sides.append((np.concatenate(side), lengths))
    return sides


def _commonest(prepared, split):
    """Returns the most frequent label of a split and its share: "yes, 51.2%"."""
    if split == "train":
        target = prepared.train.target
        # A label follows the mark that begins its target.
        ids = np.asarray(target.ids[target.starts + 1])
    else:
        ids = np.concatenate(getattr(prepared, split).ids.target)
    counts = np.bincount(ids)
    return f"{prepared.labels[counts.argmax()]}, {counts.max() / len(ids):.1%}"


def _quantiles(lengths):
    # This method gives lengths that occur; the default would give means of two.
    return tuple(int(x) for x in np.quantile(lengths, QUANTILES, method="inverted_cdf"))


def _share(ids, single, size):
    # In parts, because bincount makes eight bytes of each id.
    counts = sum(
        np.bincount(ids[first : first + (1 << 24)], minlength=size)
        for first in range(0, len(ids), 1 << 24)
    )
    counts[:4] = 0  # the marks
    return float(counts[single].sum() / counts.sum())


def _of(count, total):
    return f"{count:,} ({count / total:.1%})" if count else "0"
