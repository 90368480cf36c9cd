"""The embedded corpus: pairs of phrases that CLDR (through babel) says in two languages.

Dates, intervals, relative times, durations, quantities, amounts of money, numbers and lists
of names, alone and composed. Babel writes both sides, so each pair is a correct
translation, and scoring by exact match is fair. The order of words carries the meaning of
most of them, and has to change in many:

    Tuesday, March 5, 2024, 3:05 PM   Dienstag, 5. März 2024, 15:05
    3 days ago or in 2 weeks          vor 3 Tagen oder in 2 Wochen
    France, Japan, and Germany        Frankreich, Japan und Deutschland
    €1.2M                             1,2 Mio. €

A *phrase* is a meaning: a function from a locale to text. A *kind* draws phrases from a
random generator, and a pair is one phrase said in two locales. Years, amounts and names
come from moderate ranges, so that a small model meets every part of a test phrase in
training, but never the phrase itself.
"""

import datetime
import functools
import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import babel
from babel import Locale, UnknownLocaleError, dates, lists, numbers, units

from experiments.data.corpora import CorpusError, Pairs
from experiments.data.corpora.gold_alignments import Links, Recorder, links, others
from experiments.data.corpora.joined_pairs import join, join_links
from experiments.settings import CldrData

Phrase = Callable[[Locale], str]

Kind = Callable[[random.Random], Phrase]

COUNTRIES = (
    "AR", "AT", "AU", "BE", "BR", "CA", "CH", "CL", "CN", "DE", "DK", "EG", "ES", "FI",
    "FR", "GB", "GR", "IE", "IN", "IT", "JP", "KE", "MX", "NL", "NO", "PL", "PT", "SE",
    "TR", "US",
)  # fmt: skip

LANGUAGES = (
    "ar", "cs", "da", "de", "el", "en", "es", "fi", "fr", "hi", "it", "ja", "ko", "nl",
    "pl", "pt", "ru", "sv", "tr", "zh",
)  # fmt: skip

CURRENCIES = ("EUR", "USD", "GBP", "CHF", "JPY")

UNITS = (
    "length-kilometer", "length-meter", "length-centimeter", "length-millimeter",
    "length-mile", "length-foot", "mass-kilogram", "mass-gram", "mass-tonne",
    "volume-liter", "volume-milliliter", "volume-cubic-meter", "area-square-meter",
    "area-square-kilometer", "area-hectare", "temperature-celsius",
    "energy-kilowatt-hour", "power-kilowatt", "power-watt", "electric-volt",
    "digital-megabyte", "digital-gigabyte", "duration-second", "duration-minute",
    "duration-hour", "duration-day", "duration-week", "duration-month", "duration-year",
)  # fmt: skip

RATES = (
    ("length-kilometer", "duration-hour"), ("length-mile", "duration-hour"),
    ("length-meter", "duration-second"), ("volume-liter", "duration-minute"),
    ("volume-liter", "duration-hour"), ("digital-megabyte", "duration-second"),
    ("mass-kilogram", "volume-cubic-meter"), ("mass-gram", "volume-liter"),
    ("mass-kilogram", "area-hectare"), ("power-watt", "area-square-meter"),
    ("energy-kilowatt-hour", "duration-year"), ("mass-tonne", "duration-day"),
)  # fmt: skip

CLOCK = ("duration-day", "duration-hour", "duration-minute", "duration-second")

SECONDS = {
    "year": 365 * 86400, "month": 30 * 86400, "week": 7 * 86400, "day": 86400,
    "hour": 3600, "minute": 60, "second": 1,
}  # fmt: skip

DATES = ("full", "long", "medium", "short")
INTERVALS = ("yMMMd", "MMMd", "yMMMEd")

# A century, so that the two-digit years of short dates are unambiguous.
FIRST_DAY = datetime.date(1950, 1, 1).toordinal()
LAST_DAY = datetime.date(2049, 12, 31).toordinal()

PATIENCE = 200
"""A kind that repeats itself this often in a row has nothing new to say."""


class Source:
    """Gives the pairs that `generate` makes, one by one or joined."""

    def __init__(self, data: CldrData):
        self._arguments = (
            data.source,
            data.target,
            data.pairs,
            data.heldout,
            data.corpus_seed,
        )
        self._joined = data.concatenate
        for language in self._arguments[:2]:
            _locale(language)

    def fingerprint(self) -> str:
        """Returns a hash of all that decides text and links, CLDR's version among it."""
        # The code stands for its output, so that nothing need be generated for this.
        code = [
            Path(__file__).with_name(f"{name}.py").read_text("utf-8")
            for name in ("cldr", "joined_pairs", "gold_alignments")
        ]
        known = [*self._arguments, self._joined, babel.__version__, *code]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()

    def read(self, split: str) -> Iterator[Pairs]:
        """Gives the pairs of a split, all at once."""
        # Only held-out runs are longer than two, to be beyond the lengths of training.
        yield join(
            getattr(self._generated[0], split),
            min(2, self._joined) if split == "train" else self._joined,
        )

    def place(self, split: str, i: int) -> str:
        """Returns the number of a pair in its split."""
        return f"CLDR, {split}, pair {i}"

    def counts(self) -> dict[str, int]:
        """Returns the number of sources that were dropped as ambiguous."""
        return {"ambiguous": self._generated[0].ambiguous}

    def links(self) -> list[Links]:
        """Returns which words of the test pairs are translations of each other."""
        locales = tuple(map(_locale, self._arguments[:2]))
        otherwise = functools.partial(
            others, days=(FIRST_DAY, LAST_DAY), forms=(DATES, INTERVALS)
        )
        generated, drawn = self._generated
        pair_links = [
            links(kind, asked, otherwise, functools.partial(say, locales=locales))
            for kind, asked in drawn
        ]
        return join_links(pair_links, generated.test, self._joined)

    @functools.cached_property
    def _generated(self):
        return _generate(*self._arguments)


class Generated(NamedTuple):
    """Holds three splits, and how many sources had two translations and were dropped."""

    train: Pairs
    validation: Pairs
    test: Pairs
    ambiguous: int


def generate(
    source: str = "en",
    target: str = "de",
    pairs: int = 40_000,
    heldout: int = 500,
    seed: int = 0,
) -> Generated:
    """Generates `pairs` pairs for training and `heldout` each for validation and test.

    They depend on `seed` alone. Over the three splits together every source is
    distinct, and so is every target.

    Raises:
      CorpusError: a locale that CLDR lacks, or more pairs than its phrases can give.
    """
    return _generate(source, target, pairs, heldout, seed)[0]


def _generate(
    source, target, pairs, heldout, seed
) -> tuple[Generated, list[tuple[Kind, list]]]:
    """Generates the splits, and the kind and the questions of each test phrase."""
    locales = _locale(source), _locale(target)
    rng = random.Random(seed)
    phrases, ambiguous = _distinct(rng, locales, pairs + 2 * heldout)
    # Small kinds are exhausted early, and every split should have its share of each.
    rng.shuffle(phrases)
    test = phrases[:heldout]
    validation = phrases[heldout : 2 * heldout]
    train = phrases[2 * heldout :]
    splits = (
        Pairs(*map(list, list(zip(*split, strict=True))[:2]))
        for split in (train, validation, test)
    )
    return Generated(*splits, ambiguous), [drawn for _, _, drawn in test]


def _locale(identifier: str) -> Locale:
    try:
        # Babel knows pt_BR alone, and pt-BR is as common.
        return Locale.parse(identifier.replace("-", "_"))
    except (UnknownLocaleError, ValueError, TypeError):
        raise CorpusError(
            f"locale {identifier!r} is unknown to CLDR; data.source and data.target take "
            "names such as en, de, pt_BR"
        ) from None


def _distinct(
    rng, locales, wanted
) -> tuple[list[tuple[str, str, tuple[Kind, list]]], int]:
    """Draws `wanted` phrases: (source, target, (kind, questions)).

    Returns them with the number of sources that were dropped as ambiguous.
    """
    pairs = {}
    targets = set()
    ambiguous = set()
    drawn = {}
    kinds = {kind: weight for kind, weight in KINDS.items() if _sayable(kind, locales)}
    repeats = dict.fromkeys(kinds, 0)
    while len(pairs) - len(ambiguous) < wanted:
        if not kinds:
            raise CorpusError(
                f"the phrases of CLDR gave {len(pairs) - len(ambiguous)} distinct pairs "
                f"{locales[0]}->{locales[1]}, "
                f"fewer than the {wanted} asked for; lower data.pairs or data.heldout"
            )
        # Made anew only when a kind is exhausted: a sum over all for each draw is slow.
        names = list(kinds)
        cumulative = list(itertools.accumulate(kinds.values()))
        while len(pairs) - len(ambiguous) < wanted:
            kind = rng.choices(names, cum_weights=cumulative)[0]
            recorder = Recorder(rng)
            source, target = say(kind(recorder), locales)
            if source not in pairs and target not in targets:
                pairs[source] = target
                targets.add(target)
                repeats[kind] = 0
                drawn[source] = kind, recorder.asked
                continue
            # Another meaning has this source: nothing says which one to translate.
            if pairs.get(source, target) != target:
                ambiguous.add(source)
            repeats[kind] += 1
            if repeats[kind] == PATIENCE:
                del kinds[kind]
                break
    return [
        (*pair, drawn[pair[0]]) for pair in pairs.items() if pair[0] not in ambiguous
    ], len(ambiguous)


def _sayable(kind, locales) -> bool:
    """Returns whether CLDR has the patterns of `kind` in both locales.

    Some locales lack, for example, long compact numbers.
    """
    rng = random.Random(0)
    try:
        return all(all(say(kind(rng), locales)) for _ in range(50))
    except (LookupError, ValueError, AttributeError):
        return False


def say(phrase: Phrase, locales: tuple[Locale, ...]) -> tuple[str, ...]:
    """Returns the phrase in each locale; CLDR's no-break and thin spaces become plain."""
    return tuple(" ".join(phrase(locale).split()) for locale in locales)


def _day(rng) -> datetime.date:
    return datetime.date.fromordinal(rng.randint(FIRST_DAY, LAST_DAY))


def _time(rng) -> datetime.time:
    return datetime.time(rng.randrange(24), 5 * rng.randrange(12))


def _say_day(day, form, locale) -> str:
    if form == "medium":
        # CLDR's own medium date would be ambiguous where a month is as short as its
        # abbreviation: May 5, 2024.
        return dates.format_skeleton("yMMMEd", day, locale=locale)
    return dates.format_date(day, form, locale)


def date(rng) -> Phrase:
    """Draws a date: "Tuesday, March 5, 2024", "Tue, Mar 5, 2024", "3/5/24"."""
    day = _day(rng)
    form = rng.choice(DATES)
    return lambda locale: _say_day(day, form, locale)


def day_of_year(rng) -> Phrase:
    """Draws a day of any year: "March 5"."""
    day = _day(rng)
    return lambda locale: dates.format_skeleton("MMMMd", day, locale=locale)


def month(rng) -> Phrase:
    """Draws a month: "March 2024"."""
    day = _day(rng)
    return lambda locale: dates.format_skeleton("yMMMM", day, locale=locale)


def clock_time(rng) -> Phrase:
    """Draws a time: "3:05 PM"."""
    time = _time(rng)
    return lambda locale: dates.format_time(time, "short", locale=locale)


def moment(rng) -> Phrase:
    """Draws a date with a time: "Tuesday, March 5, 2024, 3:05 PM"."""
    day = _day(rng)
    time = clock_time(rng)
    form = rng.choice(DATES)

    def phrase(locale):
        # Not format_datetime, whose medium date is the ambiguous one.
        pattern = dates.get_datetime_format(form, locale=locale)
        return pattern.replace("{0}", time(locale)).replace(
            "{1}", _say_day(day, form, locale)
        )

    return phrase


def days(rng) -> Phrase:
    """Draws days within a year: "Mar 5 – 17, 2024", "Tue, Mar 5 – Sun, Apr 14, 2024"."""
    first, last = sorted((_day(rng), _day(rng)))
    # A day up to 28 exists in every year; February 29 does not.
    last = last.replace(year=first.year, day=min(last.day, 28))
    first, last = sorted(
        (first, last if last != first else first + datetime.timedelta(days=1))
    )
    skeleton = rng.choice(INTERVALS)
    return lambda locale: dates.format_interval(first, last, skeleton, locale=locale)


def hours(rng) -> Phrase:
    """Draws times of a day: "3:05 – 5:20 PM"."""
    first, last = sorted(_time(rng) for _ in range(2))

    def phrase(locale):
        # A skeleton names the clock, h of 12 hours or H of 24: the locale's is needed.
        clock = "hm" if "h" in dates.get_time_format("short", locale).pattern else "Hm"
        return dates.format_interval(first, last, clock, locale=locale)

    return phrase


def relative(rng) -> Phrase:
    """Draws a distance in time: "3 days ago", "in 2 weeks"."""
    unit = rng.choice(list(SECONDS))
    sign = rng.choice((-1, 1))
    delta = datetime.timedelta(seconds=sign * rng.randint(1, 99) * SECONDS[unit])
    # The threshold, out of reach, keeps 45 days from being said as 2 months.
    return lambda locale: dates.format_timedelta(
        delta, unit, threshold=1e9, add_direction=True, locale=locale
    )


def _amount(rng) -> int | Decimal:
    return (
        rng.randint(1, 199)
        if rng.random() < 0.7
        else Decimal(rng.randint(11, 999)) / 10
    )


# Kept, because babel takes tens of microseconds, and the same ones come often.
@functools.lru_cache(maxsize=100_000)
def _unit(value, unit, locale) -> str:
    return units.format_unit(value, unit, "long", locale=locale)


@functools.lru_cache(maxsize=100_000)
def _rate(value, unit, per, locale) -> str:
    return units.format_compound_unit(
        value, unit, denominator_unit=per, length="long", locale=locale
    )


def quantity(rng) -> Phrase:
    """Draws a quantity: "12 kilometers", "2.5 degrees Celsius"."""
    value = _amount(rng)
    unit = rng.choice(UNITS)
    return lambda locale: _unit(value, unit, locale)


def rate(rng) -> Phrase:
    """Draws a rate: "120 kilometers per hour"."""
    value = rng.randint(1, 199)
    unit, per = rng.choice(RATES)
    return lambda locale: _rate(value, unit, per, locale)


def duration(rng) -> Phrase:
    """Draws a duration: "2 hours and 15 minutes"."""
    first, last = rng.choice(((0, 2), (1, 3), (2, 4), (0, 3), (1, 4)))
    parts = [
        (rng.randint(1, 23 if unit == "duration-hour" else 59), unit)
        for unit in CLOCK[first:last]
    ]
    return lambda locale: lists.format_list(
        [_unit(*part, locale) for part in parts], "standard", locale
    )


def money(rng) -> Phrase:
    """Draws an amount of money: "€12.50", "12 euros", "€1.2M"."""
    currency = rng.choice(CURRENCIES)
    form = rng.randrange(4)
    if form == 0:
        value = rng.randint(1, 1999)
        # With the currency's own digits it would be "12.00 euros".
        return lambda locale: numbers.format_currency(
            value, currency, "#,##0", locale, currency_digits=False, format_type="name"
        )
    if form == 1:
        millions = rng.randint(11, 999) * rng.choice((10**5, 10**8))
        return lambda locale: numbers.format_compact_currency(
            millions, currency, locale=locale, fraction_digits=1
        )
    # The yen has no cents.
    cents = (
        100 * rng.randint(1, 4999) if currency == "JPY" else 5 * rng.randint(1, 9999)
    )
    value = Decimal(cents) / 100
    return lambda locale: numbers.format_currency(value, currency, locale=locale)


def number(rng) -> Phrase:
    """Draws a number: "1,234.5", "34.5%", "1.2 million"."""
    form = rng.randrange(3)
    tenths = Decimal(rng.randint(1, 99999)) / 10
    if form == 0:
        return lambda locale: numbers.format_decimal(tenths, locale=locale)
    if form == 1:
        # Quantized to the locale's pattern, 34.5% would be 34%.
        share = Decimal(rng.randint(1, 1999)) / 1000
        return lambda locale: numbers.format_percent(
            share, locale=locale, decimal_quantization=False
        )
    value = rng.randint(11, 999) * rng.choice((10**5, 10**8, 10**11))
    return lambda locale: numbers.format_compact_decimal(
        value, format_type="long", locale=locale, fraction_digits=1
    )


def country(rng) -> Phrase:
    """Draws a country: "France"."""
    code = rng.choice(COUNTRIES)
    return lambda locale: locale.territories[code]


def language(rng) -> Phrase:
    """Draws a language: "French"."""
    code = rng.choice(LANGUAGES)
    return lambda locale: locale.languages[code]


def weekday(rng) -> Phrase:
    """Draws a day of the week: "Tuesday"."""
    day = rng.randrange(7)
    return lambda locale: locale.days["stand-alone"]["wide"][day]


def measure(rng) -> Phrase:
    """Draws what can be counted or paid, for lists of mixed kinds."""
    return rng.choice((quantity, rate, money))(rng)


def _list(
    item: Kind, *lengths: int, styles: tuple[str, ...] = ("standard", "or")
) -> Kind:
    """Returns the kind of lists of `item`, each once: "a, b, and c", "a, b, or c"."""

    def draw(rng):
        items = [item(rng) for _ in range(rng.choice(lengths))]
        style = rng.choice(styles)
        return lambda locale: lists.format_list(
            list(dict.fromkeys(say(locale) for say in items)), style, locale
        )

    return draw


KINDS: dict[Kind, float] = {
    date: 10, day_of_year: 1, month: 2, clock_time: 0.5, moment: 12, days: 12, hours: 6,
    relative: 5,
    quantity: 8, rate: 5, duration: 5, money: 10, number: 8, country: 0.5,
    language: 0.5, weekday: 0.5,
    _list(country, 2, 3): 6, _list(language, 2, 3): 4, _list(weekday, 2, 3): 1,
    _list(day_of_year, 2): 3,
    _list(clock_time, 2, 3): 3, _list(relative, 2, styles=("or",)): 5,
    _list(measure, 2): 8, _list(quantity, 3): 3,
    _list(date, 2): 6,
}  # fmt: skip
"""The kinds, and how often each is drawn until it is exhausted."""
