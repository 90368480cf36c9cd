"""Which words of a pair mean the same, found out by meaning something else.

A phrase is drawn with the answers of a random generator. Answer one of its questions
otherwise, say the phrase again, and the words that change are those that say it, in either
language: for another year only 2024 changes in "Tuesday, March 5, 2024" and in "Dienstag,
5. März 2024". Words of two languages that the same answers change, and no others, are
translations of each other.
"""

import datetime
import difflib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

WORD = re.compile(r"[^\W\d]+|\d+|[^\w\s]")


class Question(NamedTuple):
    """What a generator was asked, as `choice` of what, and its answer."""

    name: str
    arguments: tuple
    answer: Any


class Recorder:
    """Answers as the random generator `rng` would, and keeps the questions in `asked`.

    Without `rng` it answers as it did before, from `answered`; any other question is a
    LookupError.
    """

    def __init__(self, rng=None, answered: Sequence[Question] = ()):
        self._rng = rng
        self._answered = answered
        self.asked = []

    def choice(self, of):
        return self._ask("choice", of)

    def randint(self, low, high):
        return self._ask("randint", low, high)

    def randrange(self, end):
        return self._ask("randrange", end)

    def random(self):
        return self._ask("random")

    def _ask(self, name, *arguments):
        if self._rng is not None:
            question = Question(name, arguments, getattr(self._rng, name)(*arguments))
        # Beyond the last answer this is an IndexError, which is a LookupError too.
        elif (question := self._answered[len(self.asked)])[:2] != (name, arguments):
            raise LookupError(f"{name}{arguments} was not asked before")
        self.asked.append(question)
        return question.answer


class Links(NamedTuple):
    """Pairs (word of the source, word of the target), counted from 0 among `words`.

    Sure are those whose words no other word shares its meaning with; possible are these,
    and all between several words that together say one thing ("square meters" and
    "Quadratmeter"), as Och and Ney (2003, section 5) tell them apart.
    """

    sure: tuple[tuple[int, int], ...]
    possible: tuple[tuple[int, int], ...]


def words(text: str) -> list[tuple[int, int]]:
    """Returns (first letter, one after the last) of each word, number and mark."""
    return [match.span() for match in WORD.finditer(text)]


def links(
    draw: Callable[[Recorder], Any],
    asked: Sequence[Question],
    others: Callable[[Question], Iterable[tuple[str, Any]]],
    say: Callable[[Any], tuple[str, str]],
) -> Links:
    """Links the words of a phrase that `draw` makes of these answers.

    `say` says the phrase in two languages. `others(question)` gives other answers, each
    with the name of what it changes: of several with one name the words that all of them
    change count. Answers that lead to other questions, or to what cannot be said, do not.
    """
    texts = say(draw(Recorder(answered=asked)))
    changed = {}
    for i, question in enumerate(asked):
        for name, other in others(question):
            answers = [*asked[:i], question._replace(answer=other), *asked[i + 1 :]]
            recorder = Recorder(answered=answers)
            try:
                varied = say(draw(recorder))
            # Babel raises any of these where a locale lacks a pattern or a name.
            except (LookupError, ValueError, AttributeError):
                continue
            # Fewer questions are those of another phrase, whose words are not
            # comparable.
            if varied == texts or len(recorder.asked) < len(asked):
                continue
            sides = tuple(map(_changed, texts, varied))
            before = changed.get((i, name), sides)
            changed[i, name] = tuple(a & b for a, b in zip(before, sides, strict=True))
    return _alike(changed)


def _changed(text, other):
    """Returns the words of `text` that are not in `other`, in this order."""
    before = _word_texts(text)
    after = _word_texts(other)
    # By default, difflib ignores frequent words in texts of 200 and more.
    blocks = difflib.SequenceMatcher(
        a=before, b=after, autojunk=False
    ).get_matching_blocks()
    changed = set(range(len(before)))
    for block in blocks:
        changed -= set(range(block.a, block.a + block.size))
    return changed


def _word_texts(text):
    return [text[first:end] for first, end in words(text)]


def _alike(changed):
    """Links the words that the same answers change."""
    of_meaning = {}
    for side in (0, 1):
        for word in set().union(*(sides[side] for sides in changed.values())):
            meaning = frozenset(
                what for what, sides in changed.items() if word in sides[side]
            )
            of_meaning.setdefault(meaning, ([], []))[side].append(word)
    sure = []
    possible = []
    for source, target in of_meaning.values():
        pairs = list(itertools.product(source, target))
        possible += pairs
        sure += pairs if len(pairs) == 1 else []
    return Links(tuple(sorted(sure)), tuple(sorted(possible)))


def others(
    question: Question, days: tuple[int, int], forms: Sequence[Any]
) -> Iterator[tuple[str, Any]]:
    """Gives other answers to a question, each with the name of what it changes.

    There are none to a choice of `forms`. To a question for a number of the range `days`,
    which are ordinals: the same day of the week in the same month; the same in another
    year (28 years on they are the same days of the week); the day after; and other
    months.
    """
    name, arguments, answer = question
    if arguments == days:
        day = datetime.date.fromordinal(answer)
        years = (28, -28, 56, -56)
        yield from (
            ("year", day.replace(year=day.year + more).toordinal())
            for more in years
            # By the month's first day, with room for its last: the day itself may not
            # exist there.
            if days[0]
            <= day.replace(day=1, year=day.year + more).toordinal()
            <= days[1] - 31
        )
        near = {
            more: day + datetime.timedelta(days=more)
            for more in (7, -7, 14, -14, 1, -1)
        }
        yield from (
            ("weekday" if more in (1, -1) else "day", other.toordinal())
            for more, other in near.items()
            if other.month == day.month and days[0] <= other.toordinal() <= days[1]
        )
        yield from (
            ("month", day.replace(month=(day.month + more) % 12 + 1).toordinal())
            for more in (0, 4, 7)
            # Every month has the first 28 days.
            if day.day <= 28
        )
    elif name == "choice" and arguments[0] not in forms:
        of = list(arguments[0])
        yield from (
            ("", of[(of.index(answer) + more) % len(of)])
            for more in range(1, 1 + min(6, len(of) - 1))
        )
    elif name in ("randint", "randrange"):
        low, end = (
            (arguments[0], arguments[1] + 1) if name == "randint" else (0, arguments[0])
        )
        yield from (
            ("", low + (answer - low + more) % (end - low))
            for more in (1, 2, 5, 7, 11)
            if more < end - low
        )
