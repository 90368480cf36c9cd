"""The door against everything: each setting with values and names that it should not
have, alone and in pairs.

Whatever comes in is accepted and can then be built, or is refused in one line that
names the setting and the value.
"""

import contextlib
import copy
import re

import numpy as np
import pytest

from experiments.settings import Settings, SettingsError, resolve
from experiments.sweep.plan import Trial, check_all
from experiments.system.machine import Machine
from experiments.trial import cost
from experiments.trial.cost import program_without_corpus
from tests.hostile.config_cases import BASES, Case, base, cases, fields

GIBIBYTE = 2**30


def settings_of(case: Case) -> Settings:
    """As a sweep or a config file would ask for them."""
    if not case.inside:
        return resolve(base(case.base), case.changes)
    config = copy.deepcopy(base(case.base))
    for key, value in case.changes.items():
        group, _, name = key.partition(".") if isinstance(key, str) else ("", "", key)
        if isinstance(config.get(group), dict):
            config[group][name] = value
        else:
            config[key] = value
    return resolve(config)


WITHOUT_ITS_VALUE = (
    r"no such setting|is no setting|does not apply|a group of settings|too long to show"
)


def check_refusal(case: Case, message: str):
    """One line, not long, that names a setting of the case and its value, or the
    contradiction that it makes."""
    assert message.isprintable() and len(message) < 2000, case
    named = []
    for key, value in case.changes.items():
        text = key if isinstance(key, str) else repr(key)
        if text.rpartition(".")[2] in message:
            named.append(value)
    assert named, (case, message)
    if re.search(WITHOUT_ITS_VALUE, message):
        return
    shown = []
    for value in named:
        shown += [getattr(value, "__name__", repr(value)), repr(value), str(value)]
    texts = [" ".join(text.split())[:100] for text in shown]
    assert any(text in message for text in texts), (case, message)


def run(count: int, seed: int = 0) -> list[tuple[Case, Settings]]:
    """Those of `count` cases that the door lets in; all others are refused as they should."""
    taken = []
    for case in cases(count, seed):
        try:
            resolved = settings_of(case)
        except SettingsError as error:
            check_refusal(case, str(error))
            continue
        assert resolve(resolved.to_dict()) == resolved and len(resolved.digest()) == 8
        assert 0 < cost.activation_memory(resolved) < 2**90
        taken.append((case, resolved))
    return taken


@pytest.mark.parametrize("count", [1000, pytest.param(6000, marks=pytest.mark.ci)])
def test_configs_are_taken_or_refused_in_a_line(count):
    taken = run(count)
    # Neither is everything refused nor anything let in: 7 in 100 are taken, ± 0.8 of 1000.
    assert count / 20 < len(taken) < count / 2
    assert {case.inside for case, _ in taken} == {True, False}
    assert {case.base for case, _ in taken} == {*BASES}


def largest() -> Settings:
    """Every number of the model, and of a batch, as large as it may be."""
    numbers = {
        key: int(re.search(r"at most (\d+)", field.metadata["allowed"])[1])
        for key, field in fields()
        if key.startswith("model.") and field.type is int
    }
    # Rotary positions turn the keys of d_r features.
    others = {"model.positions": "rotary", "training.sequence_length": 2**20}
    return resolve(base("quick"), numbers | others | {"training.batch_size": 2**10})


@pytest.mark.ci
def test_the_largest_of_all_builds_by_shape_and_does_not_fit():
    one = Trial("largest", "", {}, largest())
    check_all([one])
    message = r"training needs about .* GiB .* and this machine has 16.0 GiB; a smaller"
    with pytest.raises(SettingsError, match=message):
        cost.check_memory(one.settings, Machine("cpu", 1, 2, 16 * GIBIBYTE))


@contextlib.contextmanager
def refused_if_at_all(message: str):
    said = None
    try:
        yield
    except SettingsError as error:
        said = str(error)
    assert said is None or re.search(message, said), said


@pytest.mark.ci
def test_what_is_taken_builds_or_is_too_large():
    programs = {
        program_without_corpus(resolved): (case, resolved)
        for case, resolved in run(3000)
    }
    for case, resolved in programs.values():
        check_all([Trial(str(case), "", {}, resolved)])
        with refused_if_at_all("of memory (or more )?and this machine has 16.0 GiB; "):
            cost.check_memory(resolved, Machine("cpu", 1, 2, 16 * GIBIBYTE))


NO_NAMES = ["", "..", "../x", "x/y", "/etc/passwd", "x\\y", "a\nb", "a\0b", "x" * 101]


@pytest.mark.parametrize("name", ["source", "target", "train", "validation", "test"])
@pytest.mark.parametrize("value", [*NO_NAMES, "\ud800"])
def test_what_becomes_a_files_name_leads_nowhere(name, value):
    message = f"^data.{name}=.* must be part of a file's name"
    with pytest.raises(SettingsError, match=message):
        resolve(base("multi30k"), {f"data.{name}": value})


def test_the_numbers_of_a_batch_fit_int32():
    def of_size(rows):
        numbers = {"training.batch_size": rows, "training.sequence_length": 2**15}
        return resolve(base("quick"), numbers)

    message = "batch_size=65536 times training.sequence_length=32768 must be below"
    with pytest.raises(SettingsError, match=message):
        of_size(2**16)
    assert of_size(2**15)


def test_a_rate_is_below_1_in_float32_too():
    rates = [
        key for key, field in fields() if "in float32" in field.metadata["allowed"]
    ]
    assert {"model.P_drop", "training.ema"} <= {*rates}
    for key in rates:
        group, _, name = key.partition(".")
        resolved = resolve(base("quick"), {key: 1 - 2.0**-24}).to_dict()
        assert np.float32(resolved[group][name]) < 1
        with pytest.raises(SettingsError, match="below 1, in float32 too"):
            resolve(base("quick"), {key: 1 - 2.0**-25})
