"""Which words of CLDR's phrases translate each other, and how often attention looks elsewhere."""

import datetime
import functools
import random

import numpy as np
import pytest
from babel import Locale, dates

from experiments.data.batches import Encoded
from experiments.data.corpora import Pairs, cldr
from experiments.data.corpora.gold_alignments import (
    Links,
    Recorder,
    links,
    others,
    words,
)
from experiments.data.dataset import Heldout
from experiments.evaluation.alignment_error import alignment_error, guess
from experiments.settings import resolve
from tests.experiments import tiny

LOCALES = Locale("en"), Locale("de")
OTHERWISE = functools.partial(
    others, days=(cldr.FIRST_DAY, cldr.LAST_DAY), forms=(cldr.DATES, cldr.INTERVALS)
)


def drawn(kind, seed, locales=LOCALES):
    """(texts, links as pairs of words) of one phrase."""
    recorder = Recorder(random.Random(seed))
    say = functools.partial(cldr.say, locales=locales)
    texts = say(kind(recorder))
    gold = links(kind, recorder.asked, OTHERWISE, say)
    split = [[text[slice(*span)] for span in words(text)] for text in texts]
    return (
        texts,
        *({(split[0][s], split[1][t]) for s, t in kind} for kind in gold),
        split,
    )


def test_words():
    text = "€1.2M, Mar 5th – 10°C"
    assert [text[a:b] for a, b in words(text)] == [
        "€",
        "1",
        ".",
        "2",
        "M",
        ",",
        "Mar",
        "5",
        "th",
        "–",
        "10",
        "°",
        "C",
    ]


def test_a_recorder_with_answers_says_them_again():
    for kind in cldr.KINDS:
        recorder = Recorder(random.Random(3))
        texts = cldr.say(kind(recorder), LOCALES)
        assert cldr.say(kind(random.Random(3)), LOCALES) == texts
        assert cldr.say(kind(Recorder(answered=recorder.asked)), LOCALES) == texts
    with pytest.raises(LookupError):
        cldr.date(Recorder(answered=recorder.asked[:0]))
    recorder = Recorder(random.Random(0))
    recorder.choice("ab")
    with pytest.raises(LookupError, match="was not asked before"):
        Recorder(answered=recorder.asked).choice("abc")


def test_the_parts_of_a_date_are_those_that_cldr_names():
    """By CLDR's own patterns for each part alone."""
    seen = 0
    for seed in range(120):
        recorder = Recorder(random.Random(seed))
        cldr.date(recorder)
        day = datetime.date.fromordinal(recorder.asked[0].answer)
        form = recorder.asked[1].answer
        if form != "full" or day.day > 28:
            continue
        _, sure, _, split = drawn(cldr.date, seed)
        expected = {
            tuple(dates.format_date(day, pattern, locale=locale) for locale in LOCALES)
            for pattern in ("EEEE", "MMMM", "d", "y")
        }
        assert expected == sure and all(
            {*side} >= {pair[i] for pair in expected} for i, side in enumerate(split)
        )
        seen += 1
    assert seen > 10


@pytest.mark.parametrize("kind", cldr.KINDS)
def test_what_is_sure_is_possible_and_no_word_is_sure_twice(kind):
    for seed in range(20):
        recorder = Recorder(random.Random(seed))
        say = functools.partial(cldr.say, locales=LOCALES)
        say(kind(recorder))
        gold = links(kind, recorder.asked, OTHERWISE, say)
        assert set(gold.sure) <= set(gold.possible)
        for side in zip(*gold.sure, strict=True):
            assert len(set(side)) == len(side)


def test_phrases_by_hand():
    by_texts = {}
    for kind in cldr.KINDS:
        for seed in range(60):
            texts, sure, possible, _ = drawn(kind, seed)
            by_texts[texts] = sure, possible
    ago = [
        (texts, sure)
        for texts, (sure, _) in by_texts.items()
        if texts[0].endswith("years ago") and "or" not in texts[0]
    ]
    for texts, sure in ago:
        number = texts[0].split()[0]
        assert sure == {(number, number), ("years", "Jahren"), ("ago", "vor")}
    assert ago
    square = [
        both
        for texts, both in by_texts.items()
        if texts[0].endswith(" square meters") and "," not in texts[0]
    ]
    for sure, possible in square:
        assert ("meters", "Quadratmeter") in sure | possible
    money = [
        (texts, both) for texts, both in by_texts.items() if texts[0].startswith("CHF")
    ]
    assert money and all(("CHF", "CHF") in sure for _, (sure, _) in money)


def test_a_corpus_knows_the_links_of_its_test_set():
    settings = resolve({"data": dict(pairs=300, heldout=20)})
    source = cldr.Source(settings.data)
    (pairs,), gold = source.read("test"), source.links()
    assert len(gold) == 20
    linked = 0
    for texts, one in zip(zip(*pairs, strict=True), gold, strict=True):
        n, m = (len(words(text)) for text in texts)
        assert all(0 <= s < n and 0 <= t < m for s, t in one.possible) and set(
            one.sure
        ) <= set(one.possible)
        linked += len({t for _, t in one.possible}) / m
    assert linked / 20 > 0.4
    for target in ("fr", "ja", "ar"):
        assert (
            len(
                cldr.Source(
                    resolve({"data": dict(pairs=200, heldout=5, target=target)}).data
                ).links()
            )
            == 5
        )


def test_links_are_kept_with_the_corpus():
    test = tiny.corpus().test
    again = cldr.Source(tiny.resolve().data).links()
    assert test.links == again and tiny.corpus().validation.links is None


def spans(text):
    """Tokens of two letters."""
    return [(i, min(i + 2, len(text))) for i in range(0, len(text), 2)]


def test_what_a_target_word_looks_at_most():
    # "abcd ef" has tokens ab|cd| e|f, of the words 0, 0, 1, 1; "gh i" has gh| i.
    weights = np.array(
        [[0.3, 0.3, 0.4, 0.0], [0.1, 0.0, 0.5, 0.4], [0.0, 0.0, 0.0, 1.0]]
    )
    assert guess(weights, "abcd ef", "gh i", spans) == {(0, 0), (1, 1)}
    # A token that has letters of two words speaks for both; a word of two tokens for
    # the mean of them.
    assert guess(np.array([[0.6, 0.4]]), "ab c", "a.", spans) == {(0, 0), (0, 1)}
    assert guess(np.array([[0.6, 0.4], [0.1, 0.9]]), "ab c", "abcd", spans) == {(1, 0)}
    assert guess(np.ones((1, 1)), "", "a", spans) == set()


class Alphabet:
    """A vocabulary of tokens of one letter."""

    @staticmethod
    def spans(text):
        return [(i, i + 1) for i in range(len(text))]


def heldout(known):
    text = Pairs(["a b c", "d e"], ["x y z", "v w"])
    return Heldout(
        text,
        Encoded(*([np.arange(3, 3 + len(one)) for one in side] for side in text)),
        known,
    )


def looking(at):
    """Weights whose last layer, in the mean over its heads, looks most at the given
    source letter for each target letter: one head does, the others less surely at the
    first or the last."""

    def weights(state, source, target, lengths):
        kept = np.zeros(
            (len(source), 2, 3, target.shape[1], source.shape[1]), np.float16
        )
        for row, length in enumerate(lengths):
            where = at["abc" if length == 6 else "de"]
            for query, letter in enumerate(where):
                kept[row, 1, 1, query, letter] = 1
                kept[row, 1, 0, query, 0] = kept[row, 1, 2, query, length - 2] = 0.9
        return dict(cross=kept)

    return weights


LINKS = [
    Links(((0, 2), (2, 0)), ((0, 2), (1, 1), (2, 0), (2, 1))),
    Links(((0, 1),), ((0, 1),)),
]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([4, 4, 2, 2, 0], [0, 0, 0], 0.0),  # all right, the second by a possible link
        ([0, 0, 0, 0, 2], [2, 2, 2], 1.0),  # all wrong
        ([4, 4, 0, 0, 0], [0, 0, 2], 1 - (2 + 2) / (4 + 3)),
    ],
)
def test_the_rate_by_hand(first, second, expected):
    rate = alignment_error(
        looking(dict(abc=first, de=second)), None, Alphabet, heldout(LINKS), 2, 12
    )
    assert rate == pytest.approx(expected)


def test_what_has_no_alignments_has_no_rate():
    assert alignment_error(None, None, Alphabet, heldout(None), 2, 12) is None
    assert (
        alignment_error(lambda *of: {}, None, Alphabet, heldout(LINKS), 2, 12) is None
    )
    assert (
        alignment_error(
            looking(dict(abc=[0] * 5, de=[0] * 3)),
            None,
            Alphabet,
            heldout([Links((), ())] * 2),
            2,
            12,
        )
        is None
    )
