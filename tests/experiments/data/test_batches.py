"""Packing against brute force: every pair once an epoch, whole, alone in its segment;
and a state that restores."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.data import batches, packing
from experiments.data.batches import Batch, Batches, Encoded, padded
from experiments.data.packing import pack
from experiments.data.vocabulary import BOS, EOS, PAD

pytestmark = pytest.mark.quick


def some_pairs(count, longest=11, seed=0):
    """Sentences without two alike, so that each can be told by its ids; some are empty."""
    rng = np.random.default_rng(seed)
    draw = lambda first: [
        np.concatenate([[first + i], rng.integers(4, 50, n)])[:n].astype(np.int32)
        for i, n in enumerate(rng.integers(0, longest, count))
    ]
    return Encoded(draw(1000), draw(5000))


def epoch(stream):
    """The rest of the epoch that `stream` is in."""
    return [next(stream) for _ in range(stream.batches_in_part - stream.batch)]


def unpacked(batch):
    """The pairs of a batch as tuples, found segment by segment; checks marks, positions
    and padding on the way."""
    for row in range(len(batch.source)):
        source_segments, target_segments = (
            batch.source_segments[row],
            batch.target_segments[row],
        )
        assert (
            set(source_segments) - {0}
            == set(target_segments) - {0}
            == set(range(1, source_segments.max() + 1))
        )
        for side in (source_segments, target_segments):
            real = side[side > 0]
            assert (np.diff(real) >= 0).all()
            assert (side[: len(real)] > 0).all()  # padding comes last
        for array in (batch.source, batch.source_positions):
            assert not array[row][source_segments == 0].any()
        for array in (batch.target_in, batch.target_out, batch.target_positions):
            assert not array[row][target_segments == 0].any()
        for segment in range(1, source_segments.max() + 1):
            source = batch.source[row][source_segments == segment].tolist()
            before, after = (
                a[row][target_segments == segment].tolist()
                for a in (batch.target_in, batch.target_out)
            )
            assert source.pop() == after.pop() == EOS
            assert before.pop(0) == BOS
            assert before == after
            assert batch.source_positions[row][
                source_segments == segment
            ].tolist() == list(range(len(source) + 1))
            assert batch.target_positions[row][
                target_segments == segment
            ].tolist() == list(range(len(after) + 1))
            yield tuple(source), tuple(after)


def as_tuples(pairs):
    return sorted(
        (tuple(s.tolist()), tuple(t.tolist())) for s, t in zip(*pairs, strict=True)
    )


def equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("count", "rows", "sequence_length"),
    [(1, 3, 11), (101, 7, 11), (499, 3, 37), (23, 1, 211)],
)
def test_every_pair_comes_exactly_once_an_epoch(count, rows, sequence_length):
    pairs = some_pairs(count)
    stream = Batches(pairs, batch_size=rows, sequence_length=sequence_length, seed=5)
    for _ in range(2):
        whole = epoch(stream)
        assert all(
            array.shape == (rows, sequence_length) and array.dtype == np.int32
            for batch in whole
            for array in batch
        )
        assert sorted(pair for batch in whole for pair in unpacked(batch)) == as_tuples(
            pairs
        )
        next(stream)
        stream.set_state({"epoch": stream.epoch, "part": 0, "batch": 0})


def test_a_batch_by_hand():
    pairs = Encoded([np.array([7, 8], np.int32)], [np.array([9], np.int32)])
    batch = next(Batches(pairs, batch_size=1, sequence_length=4, seed=0))
    assert batch == Batch(*map(as_rows, (
        [7, 8, EOS, PAD], [0, 1, 2, 0], [1, 1, 1, 0],
        [BOS, 9, PAD, PAD], [9, EOS, PAD, PAD], [0, 1, 0, 0], [1, 1, 0, 0],
    )))  # fmt: skip


class as_rows(np.ndarray):
    """An array of one row that equals another array when all elements do."""

    def __new__(cls, row):
        return np.array([row], np.int32).view(cls)

    def __eq__(self, other):
        return np.array_equal(self, other)

    __hash__ = None


def test_epochs_and_seeds_differ_in_order():
    pairs = some_pairs(101)
    stream = Batches(pairs, batch_size=5, sequence_length=31, seed=1)
    first, second = epoch(stream), next(stream)
    assert not equal(first[0], second)
    assert not equal(
        first[0], next(Batches(pairs, batch_size=5, sequence_length=31, seed=2))
    )
    assert equal(
        first[0], next(Batches(pairs, batch_size=5, sequence_length=31, seed=1))
    )


def test_state_of_other_pairs_is_refused():
    stream = Batches(some_pairs(11), batch_size=5, sequence_length=31, seed=1)
    for state in (
        {"batch": 99},
        {"part": 0, "batch": 2},
        {"part": 1, "batch": 0},
        {"part": 0, "batch": -1},
    ):
        with pytest.raises(
            ValueError,
            match=r"batch=.* is not in epoch 2, which has 1 parts, 1 batches in this one",
        ):
            stream.set_state({"epoch": 2, **state})


@pytest.mark.parametrize("by_length", [False, True])
def test_parts_of_an_epoch(monkeypatch, by_length):
    """A corpus of three parts: still every pair once an epoch, and a state that
    restores from every place."""
    monkeypatch.setattr(batches, "PART", 43)
    pairs = some_pairs(101)
    how = dict(batch_size=5, sequence_length=31, seed=1, by_length=by_length)
    stream = Batches(pairs, **how)
    states = []
    seen = []
    parts = []
    while stream.epoch < 2:
        states.append(stream.get_state())
        seen.append(next(stream))
        parts.append((stream.epoch, stream.part))
    assert list(dict.fromkeys(parts)) == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 0),
    ]
    for epoch in (0, 1):
        whole = [
            batch for batch, part in zip(seen, parts, strict=True) if part[0] == epoch
        ]
        assert sorted(pair for batch in whole for pair in unpacked(batch)) == as_tuples(
            pairs
        )
    other = Batches(pairs, **how)
    for i in np.random.default_rng(0).permutation(len(seen)):
        other.set_state(states[i])
        assert all(
            equal(a, b)
            for a, b in zip(seen[i:], itertools.islice(other, 2), strict=False)
        )


def test_batches_by_length():
    """The lengths within a batch are close, and the batches in no order of them."""
    pairs = some_pairs(1009, longest=30)
    how = dict(batch_size=4, sequence_length=64, seed=0)
    lengths = corpus_lengths(pairs)
    stream = Batches(pairs, **how, by_length=True)
    slots = stream.take(stream.batches_in_part)
    ranges = np.array([np.ptp(lengths[own[own >= 0]]) for own in slots])
    mixed = Batches(pairs, **how).take(5)
    assert np.median(ranges) <= 2 < np.ptp(lengths[mixed[0][mixed[0] >= 0]])
    means = [lengths[own[own >= 0]].mean() for own in slots]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.5
    assert stream.real_tokens > 0.6


def corpus_lengths(pairs):
    return np.array([max(len(s), len(t)) + 1 for s, t in zip(*pairs, strict=True)])


def test_an_excerpt_gives_the_same_batches():
    """Of slots for three lanes, of which the third has no steps left, and one has a
    pair that another has too."""
    pairs = some_pairs(101)
    flat = batches.corpus(pairs)
    slots = np.full((3, 4, 5, batches.most_in_a_row(flat, 31)), -1, np.int32)
    for lane in (0, 1):
        slots[lane, :3] = Batches(
            flat, batch_size=5, sequence_length=31, seed=lane
        ).take(3)
    small = flat._replace(
        source=flat.source._replace(ids=flat.source.ids.astype(np.uint16))
    )
    shapes = set()
    for stored, chosen in (
        (flat, slots),
        (small, slots),
        (flat, np.full_like(slots, -1)),
    ):
        needed, renumbered = batches.excerpt(stored, chosen, 31)
        shapes.add(tuple(array.shape for array in jax.tree.leaves(needed)))
        assert {array.dtype for array in jax.tree.leaves(needed)} == {
            np.dtype(np.int32)
        }
        for lane, step in itertools.product(range(3), range(4)):
            assert equal(
                batches.assemble(stored, chosen[lane, step], 31, np),
                batches.assemble(needed, renumbered[lane, step], 31, np),
            )
    assert len(shapes) == 1


@pytest.mark.parametrize(
    ("count", "rows", "sequence_length"), [(1, 3, 11), (101, 7, 11), (203, 3, 37)]
)
def test_a_device_assembles_what_the_host_does(count, rows, sequence_length):
    """Over the end of an epoch, with the slots that one row can have at most all but
    used up by empty sentences."""
    pairs = some_pairs(count, longest=3)
    flat = batches.corpus(pairs)
    stream, other = (
        Batches(flat, batch_size=rows, sequence_length=sequence_length, seed=5)
        for _ in range(2)
    )
    count = stream.batches_in_part + 1
    slots = stream.take(count)
    assert slots.shape == (
        count,
        rows,
        sequence_length if count > 2 else slots.shape[2],
    )
    assert stream.get_state() == {"epoch": 1, "part": 0, "batch": 1}
    made = jax.jit(batches.assemble, static_argnums=2)
    on_device = jax.tree.map(jnp.asarray, flat)
    for own in slots:
        host = next(other)
        device = made(on_device, own, sequence_length)
        assert all(array.dtype == np.int32 for array in device) and equal(host, device)


def test_real_tokens_counts_what_is_no_padding():
    stream = Batches(some_pairs(101), batch_size=5, sequence_length=31, seed=1)
    whole = epoch(stream)
    real = sum(
        np.count_nonzero(a)
        for batch in whole
        for a in (batch.source_segments, batch.target_segments)
    )
    assert stream.real_tokens == real / (len(whole) * 5 * 31 * 2)


def test_packing_leaves_little_padding():
    """Although the two lengths of a pair are independent here; in translations they go together."""
    stream = Batches(
        some_pairs(4001, longest=20), batch_size=16, sequence_length=64, seed=0
    )
    assert stream.real_tokens > 0.92


def test_first_fit_by_hand():
    """Rows of 10: 6 opens row 0; 7 opens row 1; 4 fills row 0; (1, 4) does not fit row
    1's targets, so row 2."""
    source, target = np.array([6, 7, 4, 1, 3]), np.array([6, 7, 4, 4, 3])
    plan = pack(np.arange(5), source, target, 10)
    assert plan.pair.tolist() == [0, 2, 1, 4, 3]
    assert plan.row.tolist() == [0, 0, 1, 1, 2]
    assert plan.segment.tolist() == [1, 2, 1, 2, 1]


def test_a_closed_row_is_never_filled(monkeypatch):
    monkeypatch.setattr(packing, "WINDOW", 2)
    lengths = np.array(
        [8, 9, 7, 2]
    )  # the third closes row 0, which had room for the fourth
    plan = pack(np.arange(4), lengths, lengths, 10)
    assert dict(zip(plan.pair.tolist(), plan.row.tolist(), strict=True)) == {
        0: 0,
        1: 1,
        2: 2,
        3: 2,
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda p: Batches(p, batch_size=2, sequence_length=4, seed=0),
        lambda p: next(padded(p, 2, 4)),
    ],
)
def test_a_pair_longer_than_a_row_is_refused(make):
    pairs = Encoded([np.arange(3), np.arange(2)], [np.arange(3), np.arange(4)])
    with pytest.raises(
        ValueError,
        match=r"pair 1 has 3 source and 5 target tokens, end mark included.*sequence_length=4",
    ):
        make(pairs)


def test_unequal_sides_and_no_pairs_are_refused():
    with pytest.raises(ValueError, match="1 sources but 0 targets"):
        Batches(Encoded([np.arange(3)], []), batch_size=1, sequence_length=9, seed=0)
    with pytest.raises(ValueError, match="no pairs"):
        Batches(Encoded([], []), batch_size=1, sequence_length=9, seed=0)


def test_padded_has_one_pair_a_row_and_its_index():
    pairs = some_pairs(29)
    indices, parts = zip(*padded(pairs, batch_size=8, length=13), strict=True)
    assert sorted(np.concatenate(indices)) == list(range(29))
    assert all(array.shape == (8, 13) for batch in parts for array in batch)
    lengths = [np.count_nonzero(s) for batch in parts for s in batch.source_segments]
    assert lengths[:29] == sorted(lengths[:29])
    assert lengths[29:] == [0] * 3
    for index, batch in zip(indices, parts, strict=True):
        actual = list(unpacked(batch))
        assert actual == [
            (tuple(pairs.source[i].tolist()), tuple(pairs.target[i].tolist()))
            for i in index
        ]


def test_padded_takes_sources_alone():
    sources = some_pairs(3).source
    [(indices, batch)] = padded(
        Encoded(sources, [np.empty(0, np.int32)] * 3), batch_size=3, length=11
    )
    assert batch.target_in[:, 0].tolist() == [BOS] * 3
    assert (
        batch.source[indices.tolist().index(1)][: len(sources[1])].tolist()
        == sources[1].tolist()
    )
