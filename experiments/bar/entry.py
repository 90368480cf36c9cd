"""What an entry changes, and the points of its sweep, at base's number of parameters."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attn import config as models
from experiments.bar import rules
from experiments.errors import hint
from experiments.settings import Settings, SettingsError, resolve, user_code
from experiments.settings.choices import MIXERS, TEXT, choices_of
from experiments.trial.cost import assumed_parameters

OPTIONS = {
    field.name: field
    for field in dataclasses.fields(models.Block)
    if field.name == "mixing" or field.name in models.Attention.__dataclass_fields__
}
del OPTIONS["d_model"]
"""What an entry may change: the options of attention, and what mixes positions."""

KINDS = {name: found for name, x in OPTIONS.items() if (found := choices_of(x))}
"""Those of them that a class of one's own may be given for."""

OF_RATE = ", "
"""What stands between task and rate in the label of a trial."""

Changes = Mapping[str, Any]
"""{option: value}, of OPTIONS, as settings write them."""


def read_changes(texts: Iterable[str]) -> dict[str, Any]:
    """Returns the changes that texts name: "my.py:Mine", "score=my.py:Mine(k=2)", "h_kv=1".

    Choices are written in full, with the hash of a file's source.

    Raises:
      SettingsError: no change of attention, or one that cannot be loaded.
    """
    changes = {}
    for text in texts:
        match = re.fullmatch(r"(?:model\.)?([A-Za-z_][\w.]*)=(.*)", text, re.DOTALL)
        option, value = match.groups() if match else (_option_of(text), text)
        if option not in OPTIONS:
            raise SettingsError(
                f"{text}: {option} is nothing that an entry may change{hint(option, OPTIONS)} "
                f"(it may: {', '.join(OPTIONS)})"
            )
        if option in changes:
            raise SettingsError(f"{text}: {option} is given twice; give it once")
        choices = KINDS.get(option)
        changes[option] = (
            choices.parse(value, option).text if choices else _plain(option, value)
        )
    return changes


def _option_of(text):
    """Returns the option that a class of one's own is a value of."""
    match = TEXT.fullmatch(text)
    if not match or not match["place"]:
        raise SettingsError(
            f"{text}: give a class of your own, as my.py:Mine, or an option with its value, "
            "as normaliser=sparsemax"
        )
    loaded = user_code.load(match["place"], match["name"])
    for option, choices in KINDS.items():
        if choices.accepts(loaded.cls):
            return option
    raise SettingsError(
        f"{text}: {match['name']} is none of {', '.join(KINDS)}; CONTRIBUTING.md has "
        "examples"
    )


def _plain(option, text):
    """Returns the value of an option that is no choice: a number, a truth value or a word."""
    kind = OPTIONS[option].type
    if kind is bool:
        return {"True": True, "False": False}.get(text, text)
    try:
        return kind(text)
    except ValueError:
        raise SettingsError(f"{option}={text}: give a number") from None


def points(
    size: str, changes: Changes, seeds: Sequence[int], tasks: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Returns the points of an entry's sweep: each task at each rate with each seed.

    `tasks` names some; all without. Of the feed-forward networks d_ff is such that there
    are as many parameters as base has.

    Raises:
      SettingsError: the entry cannot have them, or does not fit into the model.
    """
    config = rules.get_config(size)
    found = []
    for task in rules.tasks_of(size):
        if tasks and task.name not in tasks:
            continue
        point = task.point()
        label = point.pop("label")
        own = _equal(config, point, settings_of(config, point, changes))
        for seed, rate in itertools.product(seeds, rules.RATES):
            run = {"training.learning_rate": rate, "seed": seed}
            found.append(own | run | {"label": f"{label}{OF_RATE}{rate}"})
    return found


def settings_of(config, point: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """Returns the point with an entry's changes of its model.

    What mixes positions does so in the decoder, and in an encoder too if it can. Where
    nothing attends, and nothing else is asked for, there are no positions.
    """
    changes = dict(changes)
    mixing = changes.pop("mixing", None)
    base = resolve(config.to_dict(), point).model
    own = {f"model.{name}": value for name, value in changes.items()}
    if mixing is not None:
        mixer = MIXERS.value(mixing, "mixing")
        attends = mixer.attends
        own["model.decoder_mixing"] = mixing
        if "encoder" in base.parts:
            if _looks_ahead(mixer, base):
                own["model.encoder_mixing"] = mixing
            else:
                attends = True
        if not attends:
            own.setdefault("model.positions", "none")
    return {**point, **own}


def _looks_ahead(mixer, base):
    try:
        mixer.check_direction(base.stack("encoder")[0], False)
    except ValueError:
        return False
    return True


def _equal(config, base: Mapping[str, Any], point: Mapping[str, Any]):
    """Returns `point` with the d_ff that gives it the parameters of `base`."""

    def count(d_ff):
        return _count(config, {**point, "model.d_ff": d_ff})

    aim = _count(config, base)
    now = _count(config, point)
    if now == aim:
        return dict(point)
    d_ff = config.model.d_ff
    # Parameters are linear in d_ff.
    of_unit = (count(2 * d_ff) - now) / d_ff
    chosen = max(1, d_ff + round((aim - now) / of_unit))
    if abs(found := count(chosen) / aim - 1) > rules.TOLERANCE:
        raise SettingsError(
            f"the entry has {now:,} parameters, base {aim:,}: with d_ff={chosen} it is still "
            f"{100 * found:+.1f} %, and {100 * rules.TOLERANCE:.0f} % are allowed; make it "
            "smaller"
        )
    return {**point, "model.d_ff": chosen}


def _count(config, point):
    """Counts parameters, by shape. Raises SettingsError for what cannot be built."""
    try:
        return assumed_parameters(_resolved(config, point))
    except SettingsError:
        raise
    # What a class of one's own raises; JAX's messages have many lines.
    except Exception as error:
        (line, *_) = str(error).splitlines() or [""]
        raise SettingsError(
            f"the entry cannot be built: {type(error).__name__}: {line}; python -m "
            "launch.check says more"
        ) from error


def _resolved(config, point) -> Settings:
    return resolve(config.to_dict(), point)


def parameters(size: str, changes: Changes) -> dict[str, dict[str, int]]:
    """Returns {task: {"parameters", "of base", "d_ff"}} of an entry, by shape alone."""
    config = rules.get_config(size)
    counts = {}
    for task in rules.tasks_of(size):
        (first, *_) = points(size, changes, [0], [task.name])
        base = {k: x for k, x in task.point().items() if k != "label"}
        own = {k: x for k, x in first.items() if k != "label"}
        counts[task.name] = {
            "parameters": _count(config, own),
            "of base": _count(config, base),
            "d_ff": _resolved(config, own).model.d_ff,
        }
    return counts
