"""Groups trials into the rows of a table: trials that differ in their seed alone."""

import collections
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.errors import few, one_line
from experiments.evaluation.metric_file import ENDED
from experiments.report.published import TABLE_3, Published
from experiments.report.trial_files import (
    Results,
    TrialResult,
    flatten_settings,
    look_up_setting,
)
from experiments.settings.derived import leaders, without_derived
from experiments.stats.differences import Difference, Verdict
from experiments.stats.summary import Summary, summarise
from experiments.system import code


@dataclasses.dataclass(frozen=True)
class Row:
    """Holds the trials at one point of a sweep, and how they compare with the base's."""

    point: Mapping[str, Any]
    """What the row changes, as flat {dotted key: value}, without the seed."""
    trials: tuple[TrialResult, ...]
    """Whatever their seed and status."""
    label: str = ""
    """The sweep's name for the row; empty where it gave none."""
    name: str = ""
    """What tables and figures call the row: its label, else what it changes."""
    base: int | None = None
    """The place of the row that it is compared with, its own for a base; None for none."""
    differences: Mapping[str, Difference] = dataclasses.field(default_factory=dict)
    """By the keys of metrics; a base has none."""
    verdicts: Mapping[str, Verdict] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """{dotted key: value} of all settings that vary in the table, the base's values too."""
    parts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """{heading: text}: what each sweep of a product says of the row; {} of old workdirs."""
    times_as_variable: float | None = None
    """How many times as much as the others it varies over seeds, where it is odd."""
    against: str = ""
    """The name of its base, where not all rows are compared with the same."""

    @property
    def title(self) -> str:
        """Its name, and that of its base where not all rows are compared with the same."""
        return f"{self.name} against {self.against}" if self.against else self.name

    @property
    def finished(self) -> tuple[TrialResult, ...]:
        return tuple(trial for trial in self.trials if trial.status == "finished")

    @property
    def corpora(self) -> frozenset[str]:
        """The digests of the text of its finished trials: one, of a usual row."""
        return frozenset(str(trial.record.get("corpus")) for trial in self.finished)

    @property
    def published(self) -> Published | None:
        """The paper's numbers for the row of this label."""
        return TABLE_3.get(self.label)

    def summary(self, key: str) -> Summary | None:
        """Summarises the number `key` of the finished trials' results; None without any."""
        values = [trial.result.get(key) for trial in self.finished]
        # A metric may be newer than the run, or not apply to its corpus.
        values = [value for value in values if value is not None]
        return summarise(values) if values else None


def rows_of(
    results: Results,
    trials: Iterable[TrialResult] | None = None,
    point: Callable[[TrialResult], Mapping[str, Any]] | None = None,
) -> list[Row]:
    """Groups trials, all of `results` by default, with equal `point(trial)` but for the seed.

    `point` is by default what a trial changes of the base. Rows are in the order in which
    each point first appears.
    """
    points: dict[frozenset, Mapping[str, Any]] = {}
    members: dict[frozenset, list[TrialResult]] = {}
    for trial in results.trials if trials is None else trials:
        changes = (point or results.changes)(trial)
        changes = {key: value for key, value in changes.items() if key != "seed"}
        # A set, because the order in which a sweep names its settings does not matter.
        key = frozenset(changes.items())
        points.setdefault(key, changes)
        members.setdefault(key, []).append(trial)
    # A short name must not be that of a setting which does not vary, either.
    names = short_names(varied(results), flatten_settings(base_settings(results)))
    unchanged = "base" if results.base else report_title(results)
    derived = leaders([*points.values()])
    values = {v for point in points.values() for v in map(str, point.values())}
    # Two files may each have a class of this name.
    is_plain = len(set(map(value_text, values))) == len(values)
    text_of = value_text if is_plain else one_line
    rows = []
    for key, group in members.items():
        label = next((trial.label for trial in group if trial.label), "")
        shown = without_derived(points[key], derived)
        changes = [f"{names[k]}={text_of(v)}" for k, v in shown.items()]
        name = label or ", ".join(changes) or unchanged
        parts = next((trial.parts for trial in group if trial.parts), {})
        parts = {heading: text_of(text) for heading, text in parts.items()}
        rows.append(Row(points[key], tuple(group), label, name, parts=parts))
    keys = list(dict.fromkeys(key for row in rows for key in row.point))
    return [
        dataclasses.replace(row, settings=settings_of(results, row, keys))
        for row in rows
    ]


def base_of(rows: Sequence[Row]) -> int | None:
    """Returns the place of the row that the others are compared with, None without one.

    That is the row with the label "base", else the one that changes nothing; of rows that
    are compared with others, the first of those.
    """
    bases = {row.base for row in rows} - {None}
    # By label first, because a sweep may name another row its base.
    for is_base in (lambda row: row.label == "base", lambda row: not row.point):
        for i, row in enumerate(rows):
            if is_base(row) and (i in bases or not bases):
                return i
    return min(bases, default=None)


def name_of_base(rows: Sequence[Row]) -> str:
    """Returns the name of the row that all are compared with; "base" where it is not one."""
    compared = {row.base for row in rows if row.differences}
    return rows[compared.pop()].name if len(compared) == 1 else "base"


def of_one_code(results: Results, mixed_code: bool = False) -> tuple[Results, str]:
    """Returns the results of one code alone, and a sentence on the trials of other code.

    A sweep may go on after its code has changed; a difference between trials of two codes
    is no evidence for either. The code is that of most trials of the base, then of most
    trials. With `mixed_code` all trials stay. Trials that have not ended stay; the sentence
    is "" where one code made all.
    """
    ended = [trial for trial in results.trials if trial.status in ENDED]
    counts = collections.Counter(code.of(trial.record) for trial in ended)
    if len(counts) < 2:
        return results, ""
    if mixed_code:
        return results, (
            f"The trials were made by {len(counts)} codes, and are compared as if by one "
            "(--mixed_code)."
        )
    of_base = collections.Counter(
        code.of(trial.record)
        for trial in ended
        if trial.label == "base" or not results.changes(trial)
    )
    chosen = max(counts, key=lambda name: (of_base[name], counts[name], str(name)))
    apart = [trial for trial in ended if code.of(trial.record) != chosen]
    kept = tuple(trial for trial in results.trials if trial not in apart)
    names = few(trial.name for trial in apart)
    return dataclasses.replace(results, trials=kept), (
        f"{len(apart)} of {len(ended)} trials were made by other code than the rest and are "
        f"left out ({names}); --mixed_code takes them together."
    )


def varied(results: Results) -> list[str]:
    """Returns the dotted keys that the sweep changes, apart from the seed."""
    keys = {}
    for trial in results.trials:
        keys |= dict.fromkeys(results.changes(trial))
    return list(keys)


def short_names(keys: Iterable[str], known: Iterable[str] = ()) -> dict[str, str]:
    """Returns {dotted key: its last component}.

    The whole key is kept where another of `keys` or `known` ends the same.
    """
    keys = list(keys)
    # A set, because a key of both would count as its own double.
    last = {key: key.rpartition(".")[2] for key in {*keys, *known}}
    endings = collections.Counter(last.values())
    return {key: key if endings[last[key]] > 1 else last[key] for key in keys}


def value_text(value: Any) -> str:
    """Returns a setting's value as a row's name has it: of code in a file, what it is called."""
    if isinstance(value, float):
        return f"{value:g}"
    return re.sub(r"[^\s(,=]*\.py:", "", one_line(str(value)))


def settings_of(results: Results, row: Row, keys: Iterable[str]) -> dict[str, Any]:
    """Returns {key: value} of a row: what it changes, else what the base has."""
    base = {key: look_up_setting(results.base, key) for key in keys}
    return {key: row.point.get(key, value) for key, value in base.items()}


def base_settings(results: Results) -> Mapping[str, Any]:
    """Returns the settings that rows are compared with; those of a single run itself."""
    configs = (trial.config for trial in results.trials if trial.config)
    # A single run has no sweep, and so no base but itself.
    return results.base or next(configs, {})


def report_title(results: Results) -> str:
    if not results.config:
        return one_line(results.trials[0].name)
    name = Path(results.config).stem
    return f"{name}: {' × '.join(results.sweeps)}" if results.sweeps else name
