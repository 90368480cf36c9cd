"""Splits a table's rows by the text that they were trained and scored on.

Scores on other text are no evidence for or against a row, so each row is compared with a base
of its own corpus: the row that differs from the table's base in nothing but what goes with
the corpus. In a product of a sweep over data and one over models, that is the base's model.
"""

from collections.abc import Sequence
from typing import NamedTuple

from experiments.report.statistics import Group


class Stratum(NamedTuple):
    """Holds the places of rows of one corpus among all, in their order."""

    rows: tuple[int, ...]
    base: int | None
    """The place of the row that the others are compared with; None where there is none."""


def corpora_of(group: Group) -> frozenset[str]:
    """Returns the digests of the text of a group's finished trials, one of a usual group."""
    return frozenset(str(trial.record.get("corpus")) for trial in group.finished)


def split_by_corpus(groups: Sequence[Group], base: int) -> list[Stratum]:
    """Returns the rows of each corpus, those of the table's base first.

    Rows without a finished trial have no corpus yet, and stand with the base.
    """
    members: dict[frozenset, list[int]] = {corpora_of(groups[base]): []}
    for i, group in enumerate(groups):
        key = corpora_of(group) if group.finished else corpora_of(groups[base])
        members.setdefault(key, []).append(i)
    of_corpus = _settings_of_the_corpus(groups, list(members.values()))
    strata = []
    for rows in members.values():
        if base in rows:
            strata.append(Stratum(tuple(rows), base))
            continue
        wanted = _without(groups[base], of_corpus)
        partners = [i for i in rows if _without(groups[i], of_corpus) == wanted]
        strata.append(Stratum(tuple(rows), partners[0] if partners else None))
    return strata


def _settings_of_the_corpus(groups, members):
    """Returns the settings that all rows of each corpus share."""
    keys = {key for group in groups for key in group.point}
    return {
        key
        for key in keys
        if all(len({groups[i].point.get(key) for i in rows}) == 1 for rows in members)
    }


def _without(group, keys):
    """Returns what a row changes, but for `keys`."""
    return {key: value for key, value in group.point.items() if key not in keys}
