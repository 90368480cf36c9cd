"""Says which rows of a table are compared with which: the question that is asked of it.

Scores on other text are no evidence for or against a row, so each row is compared with a
base of its own corpus; with `within`, with a base that has the same values of some settings
too. In each such group of rows the base is the one that a question names, else the row that
differs from the table's base in nothing but the settings that go with the group: in a product
of a sweep over data and one over models, the base's model.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.errors import UserError, hint
from experiments.report.rows import Row, base_of, value_text
from experiments.settings.derived import leaders


@dataclasses.dataclass(frozen=True)
class Question:
    """Holds what is asked of a table; by default, what differs from its base."""

    base: str = ""
    """The row that others are compared with: its label or name, or settings that it has, as
    "score=scaled_dot" or "model.d_k=4,model.h=2"; "" for the table's own."""
    within: tuple[str, ...] = ()
    """Settings of which a row and its base have the same values, as "d_k"."""
    pairs: tuple[str, ...] = ()
    """In place of a base: pairs of rows, as "one head:base", or settings, as "score", of which
    all pairs of rows are compared that have the rest in common, or what `within` names."""

    @classmethod
    def of(cls, asked: Mapping[str, Any]) -> "Question":
        """Returns the question of {"base": text, "within": names, "pairs": texts}, or parts.

        Raises UserError for anything else.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        if unknown := asked.keys() - {*known}:
            raise UserError(
                f"a question has no {min(unknown)!r}; it has {', '.join(known)}"
                f"{hint(min(unknown), known)}"
            )
        base = asked.get("base", "")
        lists = {name: asked.get(name, ()) for name in ("within", "pairs")}
        for name, texts in lists.items():
            is_list = isinstance(texts, (list, tuple))
            if not (is_list and all(isinstance(text, str) for text in texts)):
                raise UserError(
                    f"{name} of a question is a list of texts, not {texts!r}"
                )
        if not isinstance(base, str):
            raise UserError(f"base of a question is a text, not {base!r}")
        return cls(base, **{name: tuple(texts) for name, texts in lists.items()})

    def to_json(self) -> dict[str, Any]:
        """Returns what `of` takes, without what is not asked."""
        asked = dict(base=self.base, within=[*self.within], pairs=[*self.pairs])
        return {name: value for name, value in asked.items() if value}

    @property
    def text(self) -> str:
        """What is asked, in a few words."""
        what = f"against {self.base or 'base'}"
        if self.pairs:
            what = f"pairs {', '.join(self.pairs)}"
        return f"{what} within {', '.join(self.within)}" if self.within else what


USUAL = Question()


def fitting(rows: Sequence[Row], question: Question) -> tuple[Question, str]:
    """Returns the question, or what is usual and a sentence where there are no rows for it.

    A sweep may have asked it before it had all of its rows.
    """
    try:
        pairs_of(rows, question)
    except UserError as error:
        return USUAL, (
            f"What the sweep asks ({question.text}) does not fit its rows, which are compared "
            f"with base: {error}."
        )
    return question, ""


class Group(NamedTuple):
    """Holds the places of rows that are compared, among all rows, in their order."""

    rows: tuple[int, ...]
    base: int | None
    """The place of the row that the others are compared with; None where there is none."""

    @property
    def comparisons(self) -> int:
        return 0 if self.base is None else len(self.rows) - 1


def pairs_of(rows: Sequence[Row], question: Question) -> list[tuple[int, int | None]]:
    """Returns (row, base) by their places, each asked-for pair once.

    Without `question.pairs` that is each row with the base of its group, which has itself.

    Raises:
      UserError: as `groups_of`; for pairs also where nothing is a pair.
    """
    if not question.pairs:
        groups = groups_of(rows, question)
        bases = {i: group.base for group in groups for i in group.rows}
        return [(i, bases.get(i)) for i in range(len(rows))]
    if question.base:
        raise UserError(
            f"--base={question.base}: the pairs of --pairs have their own bases: give one of "
            "the two"
        )
    found = {}
    for text in question.pairs:
        # A pair may be asked for twice, the other way around too.
        for pair in _pairs_named(rows, text, question):
            if pair[::-1] not in found:
                found[pair] = None
    return list(found)


def _pairs_named(rows, text, question):
    """Returns the pairs of "A:B", or of a setting."""
    for place in (i for i, letter in enumerate(text) if letter == ":"):
        # Names of classes have colons too.
        sides = [_named_or_none(rows, s) for s in (text[:place], text[place + 1 :])]
        if all(side is not None and len(side) == 1 for side in sides):
            row, base = (side[0] for side in sides)
            if row == base:
                raise UserError(f"--pairs={text}: both are {rows[row].name}")
            return [(row, base)]
    if ":" in text:
        row, _, base = text.partition(":")
        for side in (row, base):
            if len(_named(rows, side, "pairs")) > 1:
                raise UserError(
                    f"--pairs={text}: several rows are {side}; name one of them"
                )
    setting = _setting(rows, text)
    same = [_setting(rows, name) for name in question.within]
    if not same:
        derived = leaders([row.point for row in rows])
        same = [
            key
            for key in dict.fromkeys(key for row in rows for key in row.settings)
            if setting not in (key, derived.get(key))
        ]
    pairs = []
    for i, row in enumerate(rows):
        for base in range(i):
            apart = {k for k in (*same, setting) if _differ(row, rows[base], k)}
            if apart == {setting}:
                pairs.append((i, base))
    if not pairs:
        raise UserError(
            f"--pairs={text}: no two rows differ in it and have the rest in common: name "
            "what they are to have in common, by --within"
        )
    return pairs


def _differ(row, other, key):
    return row.settings.get(key) != other.settings.get(key)


def _named_or_none(rows, text):
    try:
        return _named(rows, text)
    except UserError:
        return None


def groups_of(rows: Sequence[Row], question: Question = USUAL) -> list[Group]:
    """Returns the groups of a table, that of its base first.

    [] for a table without a base, of which nothing is asked. Rows without a finished trial
    have no corpus yet, and stand with the base.

    Raises:
      UserError: for a base or a setting that no row has, and where several rows of a group
        may be its base.
    """
    within = [_setting(rows, name) for name in question.within]
    found = _named(rows, question.base) if question.base else []
    base = found[0] if found else base_of(rows)
    if base is None:
        if within:
            raise UserError(
                "no row of the table is its base: name one, as --base="
                f"{rows[0].label or rows[0].name}"
            )
        return []
    members: dict[tuple, list[int]] = {}
    for i in [base, *range(len(rows))]:
        corpora = rows[i].corpora if rows[i].finished else rows[base].corpora
        values = tuple(rows[i].settings.get(key) for key in within)
        of_group = members.setdefault((corpora, values), [])
        of_group += [] if i in of_group else [i]
    groups = [sorted(group) for group in members.values()]
    partners = _models_like(rows, groups, base)
    return [
        Group(tuple(group), _base_in(group, rows, base, found, partners, question))
        for group in groups
    ]


def _models_like(rows, groups, base):
    """Returns the rows that have the model of the base, apart from what goes with a group."""
    of_group = set()
    for key in {key for row in rows for key in row.point}:
        values = [{rows[i].point.get(key) for i in group} for group in groups]
        if all(len(each) == 1 for each in values):
            of_group.add(key)
    models = [{k: v for k, v in row.point.items() if k not in of_group} for row in rows]
    return [i for i, model in enumerate(models) if model == models[base]]


def _base_in(group, rows, base, found, partners, question):
    """Returns the place of a group's base; None where it has none."""
    named = [i for i in group if i in found]
    if len(named) > 1:
        names = ", ".join(rows[i].name for i in named[:3])
        raise UserError(
            f"--base={question.base}: {len(named)} rows have it that are compared with each "
            f"other ({names}{', …' if len(named) > 3 else ''}): name one of them, or compare "
            f"within what sets them apart: --within={','.join(_apart(rows, named))}"
        )
    if named or len(found) > 1:
        return next(iter(named), None)
    if base in group:
        return base
    return next((i for i in group if i in partners), None)


def _apart(rows, places):
    """Returns the settings in which these rows differ."""
    keys = {key for i in places for key in rows[i].settings}
    return sorted(k for k in keys if len({rows[i].settings.get(k) for i in places}) > 1)


def _named(rows: Sequence[Row], text: str, flag: str = "base") -> list[int]:
    """Returns the rows of a label or a name, else those that have the settings."""
    for called in (lambda row: row.label, lambda row: row.name):
        if found := [i for i, row in enumerate(rows) if called(row) == text]:
            return found
    if "=" not in text:
        names = [row.label or row.name for row in rows]
        raise UserError(
            f"--{flag}={text}: no row is called so; there are {', '.join(names[:8])}"
            f"{', …' if len(names) > 8 else ''}{hint(text, names)}"
        )
    wanted = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        wanted[_setting(rows, name.strip())] = value.strip()
    found = [i for i, row in enumerate(rows) if _has(row.settings, wanted)]
    if not found:
        values = {
            key: sorted({value_text(row.settings.get(key)) for row in rows})
            for key in wanted
        }
        known = "; ".join(f"{key}: {', '.join(v[:8])}" for key, v in values.items())
        raise UserError(f"--{flag}={text}: no row has it; there are {known}")
    return found


def _has(settings: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    """Tells whether settings have the values, as they stand in a config or in names."""
    return all(
        value in (str(settings.get(key)), value_text(settings.get(key)))
        for key, value in wanted.items()
    )


def _setting(rows: Sequence[Row], name: str) -> str:
    """Returns the dotted key of a setting that varies, which may be its end."""
    known = list(dict.fromkeys(key for row in rows for key in row.settings))
    found = [key for key in known if key == name or key.endswith(f".{name}")]
    if name in found:
        return name
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"{name} may be any of {', '.join(found)}: name one")
    ends = [key.rpartition(".")[2] for key in known]
    raise UserError(
        f"{name or 'a setting without a name'} does not vary in this table; what varies: "
        f"{', '.join(known) or 'nothing'}{hint(name, [*known, *ends])}"
    )
