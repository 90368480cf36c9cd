"""The door against everything: each setting with values and names that it should not
have, alone and in pairs.

Whatever comes in is accepted and can then be built, or is refused in one line that
names the setting and the value.
"""

import contextlib
import dataclasses
import functools
import math
import random
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from absl import flags
from ml_collections import ConfigDict

from experiments import settings
from experiments.configs import (
    hard,
    language,
    multi30k,
    paper,
    quick,
    table3,
    wmt14_ende,
)
from experiments.settings import (
    Settings,
    SettingsError,
    known_fields,
    override,
    resolve,
)
from experiments.sweep.plan import Trial, check_all, plan_trials
from experiments.sweep.points import SweepError, expand
from experiments.system.machine import Machine
from experiments.trial import cost
from experiments.trial.cost import program_without_corpus
from launch import command

# ml_collections loads config files by it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning"),
]

BASES = {
    "quick": quick.get_config,
    "paper": paper.get_config,
    "multi30k": multi30k.get_config,
    "wmt14": wmt14_ende.get_config,
    "rnn": functools.partial(hard.get_config, "rnn"),
    "text": functools.partial(language.get_config, "text"),
    "tsv": lambda: override(multi30k.get_config(), {"data.corpus": "tsv"}),
    **{
        f"table3:{preset}": functools.partial(table3.get_config, preset)
        for preset in table3.PRESETS
    },
}
HOSTILE = (
    None,
    True,
    False,
    "",
    " ",
    "two",
    "1",
    "a\0b",
    "a\nb",
    "../..",
    "/etc/passwd",
    "..",
    "x/y",
    "x\\y",
    "a" * 300,
    "\ud800",
    "\u202e",
    "<script>",
    "__class__",
    0,
    1,
    -1,
    -2,
    3,
    2**31 - 1,
    2**31,
    10**9,
    10**30,
    10**400,
    10**5000,
    -(10**400),
    0.0,
    -0.0,
    0.5,
    -0.5,
    1.0,
    2.5,
    1e-320,
    1e-300,
    1e308,
    math.nan,
    math.inf,
    -math.inf,
    1 - 2.0**-53,
    1 - 2.0**-24,
    [],
    [1],
    ["en"],
    (),
    (1, 2),
    {},
    {"h": 1},
    {"x": {"y": 1}},
    b"x",
    np.int64(3),
    np.float32(0.1),
    range(3),
    complex(1, 1),
    int,
    np.eye(3),
)
OPTIONS = (
    "rotary(fraction=0.5)",
    "rotary(fraction=0.3)",
    "rotary(base=0)",
    "rotary(base=-1)",
    "t5(buckets=0)",
    "t5(buckets=1)",
    "t5(buckets=8, max_distance=2)",
    "relative(reach=-1)",
    "sinusoidal(layout=halves)",
    "additive(d_a=3, bias=True)",
    "additive(d_a=0)",
    "bilinear(rank=-1)",
    "restricted(radius=0)",
    "convolution(radius=-3)",
    "recurrence(cell=tanh)",
    "recurrence(cell=x)",
    "x(y=1)",
    "rotary(",
    "rotary(base=())",
    "/dev/null:X",
    "nowhere.py:X(y=1)",
    "os:environ",
)
"""Texts of choices with options, good and bad."""

GIBIBYTE = 2**30


class Case(NamedTuple):
    """A base with some of its settings changed: as a point on top of it, or in the
    config itself."""

    base: str
    changes: Mapping[Any, Any]
    inside: bool


def fields() -> Iterator[tuple[str, dataclasses.Field]]:
    """Gives every setting of every kind of model and corpus, by its dotted key."""
    seen = {}
    for key, _, field in known_fields():
        seen.setdefault(key, field)
    yield from seen.items()


def near(field) -> list[Any]:
    """What is just within a setting's range and just out of it: choices, and numbers
    about the range's ends."""
    values = [field.default]
    allowed = field.metadata["allowed"]
    if field.type in (int, float):
        for end in map(field.type, map(float, re.findall(r"\d+(?:e-?\d+)?", allowed))):
            values += [end, end - 1, end + 1, end * 2]
    if allowed.startswith("one of "):
        choices = allowed.removeprefix("one of ").split(", or one from")[0].split(", ")
        values += [*choices, choices[0].upper(), choices[-1][:-1], choices[0] + " "]
    if "choices" in field.metadata:
        values += OPTIONS
    return [*values, True, False] if field.type is bool else values


def misspelled(key: str, rng: random.Random) -> list[str]:
    """`key` with a letter lost, doubled, changed for another, or swapped with the next."""
    i = rng.randrange(len(key))
    lost, doubled, other = (
        key[:i] + key[i + 1 :],
        key[:i] + key[i] + key[i:],
        key[:i] + "q" + key[i + 1 :],
    )
    return [
        k
        for k in (
            lost,
            doubled,
            other,
            key[:i] + key[i : i + 2][::-1] + key[i + 2 :],
            key + ".x",
            key.upper(),
        )
        if k != key
    ]


def cases(count: int, seed: int = 0) -> Iterator[Case]:
    """`count` cases: every setting with every value and every misspelling first, on one
    base after another; then pairs.

    Half of the pairs are of hostile values, the others of such as may be accepted.
    """
    rng = random.Random(seed)
    known = list(fields())
    bases = [name for name in BASES for _ in (0, 1)]
    plain = [(key, value) for key, field in known for value in near(field)]
    single = [(key, value) for key, _ in known for value in HOSTILE] + plain
    single += [
        (typo, field.default) for key, field in known for typo in misspelled(key, rng)
    ]
    single += [
        (group, value)
        for group in (
            "",
            "model",
            "data",
            "training",
            "evaluation",
            "seed.x",
            3,
            None,
            ("a",),
        )
        for value in (3, "x", None, [], {}, {"h": "x"})
    ]
    rng.shuffle(single)
    for i in range(count):
        changes = (
            [single[i]]
            if i < len(single)
            else rng.sample(plain if i % 4 < 2 else single, 2)
        )
        yield Case(bases[i % len(bases)], dict(changes), i % 2 == 1)


@functools.cache
def base(name: str) -> dict[str, Any]:
    return BASES[name]().to_dict()


def settings_of(case: Case) -> Settings:
    """As a sweep or a config file would ask for them."""
    if not case.inside:
        return resolve(base(case.base), case.changes)
    config = {
        name: dict(own) if isinstance(own, dict) else own
        for name, own in base(case.base).items()
    }
    for key, value in case.changes.items():
        group, _, name = key.partition(".") if isinstance(key, str) else ("", "", key)
        if not isinstance(config.get(group), dict):
            group = ""
            name = key
        (config[group] if group else config)[name] = value
    return resolve(config)


def check_refusal(case: Case, message: str):
    """One line, not long, that names a setting of the case and its value, or the
    contradiction that it makes."""
    assert message.isprintable() and len(message) < 2000, case
    named = [
        key
        for key in case.changes
        if (key if isinstance(key, str) else repr(key)).rpartition(".")[2] in message
    ]
    assert named, (case, message)
    if not re.search(
        r"no such setting|is no setting|does not apply|a group of settings|too long to show",
        message,
    ):
        shown = [
            text
            for key in named
            for value in [case.changes[key]]
            for text in (
                getattr(value, "__name__", repr(value)),
                repr(value),
                str(value),
            )
        ]
        assert any(" ".join(text.split())[:100] in message for text in shown), (
            case,
            message,
        )


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
    # Neither is everything refused nor anything let in.
    assert count / 15 < len(taken) < count / 2
    assert {case.inside for case, _ in taken} == {True, False} and {
        case.base for case, _ in taken
    } == {*BASES}


def largest() -> Settings:
    """Every number of the model, and of a batch, as large as it may be."""
    numbers = {
        key: int(re.search(r"at most (\d+)", field.metadata["allowed"])[1])
        for key, field in fields()
        if key.startswith("model.") and field.type is int
    }
    return resolve(
        base("quick"),
        numbers | {"training.sequence_length": 2**20, "training.batch_size": 2**10},
    )


def test_the_largest_of_all_builds_by_shape_and_does_not_fit():
    one = Trial("largest", "", {}, largest())
    check_all([one])
    with pytest.raises(
        SettingsError,
        match=r"training needs about .* GiB .* and this machine has 16.0 GiB; a smaller",
    ):
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
        for case, resolved in run(6000)
    }
    for case, resolved in programs.values():
        check_all([Trial(str(case), "", {}, resolved)])
        with refused_if_at_all("of memory (or more )?and this machine has 16.0 GiB; "):
            cost.check_memory(resolved, Machine("cpu", 1, 2, 16 * GIBIBYTE))


def parsed(arguments, monkeypatch) -> ConfigDict:
    """The config that a command is given, as launch.command parses its flags."""
    values = flags.FlagValues()
    monkeypatch.setattr(flags, "FLAGS", values)
    monkeypatch.setattr(sys, "argv", ["x", *arguments])
    sys.modules.pop("config_config", None)  # the config file before
    command.define_config(values)
    command._parse(sys.argv)
    return values.config


def refusal(arguments, monkeypatch, capsys) -> str:
    """What is said of a mistake; "" for none."""
    try:
        resolve(parsed(arguments, monkeypatch))
        return ""
    except SettingsError as error:
        return str(error)
    except SystemExit as end:
        code = end.code
        said = capsys.readouterr().err
    assert (code, said[:7], said.count("\n")) == (2, "error: ", 1)
    return said


CONFIG = "--config=experiments/configs/quick.py"
TYPED = (
    "two",
    "",
    "-1",
    "0",
    "1",
    "1e400",
    "nan",
    "None",
    "[1]",
    "9" * 30,
    "9" * 5000,
    "a\nb",
    "True",
    "../x",
    "0.5",
)


def test_flags_are_taken_or_refused_in_a_line(monkeypatch, capsys):
    rng = random.Random(0)
    known = list(fields())
    refused = 0
    for i, (key, _) in enumerate(known * 2):
        name = rng.choice(misspelled(key, rng)) if i % 5 == 0 else key
        value = rng.choice(TYPED)
        said = refusal([CONFIG, f"--config.{name}={value}"], monkeypatch, capsys)
        assert not said or name.rpartition(".")[2] in said, (name, value, said)
        refused += bool(said)
    assert len(known) < refused < 2 * len(known)


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("def get_config(:\n", [], "line 1: SyntaxError"),
        (
            "\nimport nowhere\n",
            [],
            "line 2: ModuleNotFoundError: No module named 'nowhere'",
        ),
        (
            "def get_config():\n    return 1 / 0\n",
            [],
            "line 2: ZeroDivisionError: division by zero",
        ),
        (
            "def get_config():\n    raise ValueError('a\\nb')\n",
            [],
            "line 2: ValueError: a b",
        ),
        (
            "def get_config():\n    open('/nowhere/x')\n",
            [],
            "line 2: FileNotFoundError",
        ),
        (
            "def get_config():\n    open('/nowhere/x')\n",
            ["--config.model.h=2"],
            "line 2: FileNotFoundError",
        ),
        (
            "def get_config():\n    return {}['h']\n",
            ["--config.model.h=2"],
            "line 2: KeyError: 'h'",
        ),
        (
            "def get_config():\n    return 3\n",
            [],
            "get_config() must return a ConfigDict, not int",
        ),
        (
            "def get_config():\n    return 3\n",
            ["--config.model.h=2"],
            "Attribute <class 'int'>.model",
        ),
        (
            "def get_config():\n    pass\n",
            [],
            "get_config() must return a ConfigDict, not NoneType",
        ),
        (
            "def get_config():\n    return {'model': {'h': 2}}\n",
            [],
            "get_config() must return a ConfigDict, not dict",
        ),
        ("", [], "has no attribute 'get_config'"),
        ("\0", [], "source code string cannot contain null bytes"),
        (
            "from ml_collections import ConfigDict\n"
            "def get_config():\n    return ConfigDict({'model': 3})\n",
            [],
            "model must be a group of settings, not 3",
        ),
        (
            "from ml_collections import ConfigDict\n"
            "def get_config():\n    return ConfigDict({'model': {'hh': 3}})\n",
            [],
            "model.hh: no such setting; did you mean model.h?",
        ),
    ],
)
def test_a_config_file_that_is_none(
    text, arguments, message, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "config.py"
    path.write_text(text)
    assert message in refusal([f"--config={path}", *arguments], monkeypatch, capsys)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "experiments/configs/table3.py:smoll",
            "unknown preset 'smoll'; known: base, small, tiny",
        ),
        (
            "experiments/configs/quick.py:small",
            "small: get_config() takes 0 positional arguments but 1 was given",
        ),
        ("experiments/configs", "experiments/configs: no such file"),
        ("nowhere.py:x", "nowhere.py:x: no such file"),
    ],
)
def test_a_preset_that_is_none(given, message, monkeypatch, capsys):
    for arguments in ([f"--config={given}"], ["--config", given], [f"-config={given}"]):
        assert message in refusal(arguments, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (
            lambda: 1 / 0,
            r"sweep 'x' gives no points: ZeroDivisionError: division by zero "
            r"\(test_config_fuzz.py, line \d+\)",
        ),
        (lambda: [{"model.h": 1}, 3], "sweep 'x' gives no points: TypeError"),
        (lambda: 3, "TypeError"),
        (lambda a, b: [], "TypeError"),
        (lambda: [{"label": 3}], "has the label 3, which is no text"),
        (
            lambda: ({"seed": i} for i in iter(int, 1)),
            "'x' are more than 100,000 points",
        ),
    ],
)
def test_a_sweep_that_gives_no_points(points, message):
    with pytest.raises(SweepError, match=message.replace("'x' are", "x are")):
        expand({"x": points}, ["x"])


@pytest.mark.parametrize(
    "point",
    [{3: 1}, {None: 1}, {"model.h": {}}, {"model": 3}, {"model.h.x": 1}, {"": 1}],
)
def test_a_point_that_is_none(point):
    with pytest.raises(SettingsError, match=r"setting|must be int"):
        plan_trials(base("quick"), [point])


def test_a_point_on_a_config_that_has_no_such_group():
    with pytest.raises(SettingsError, match="model must be a group of settings, not 3"):
        resolve({"model": 3}, {"model.h": 2})
    with pytest.raises(
        SettingsError, match="a config must be a ConfigDict of settings, not None"
    ):
        resolve(None)


def test_no_more_seeds_than_can_be_checked():
    with pytest.raises(
        SweepError, match="x times --seeds=1000000000 are more than 100,000 points"
    ):
        expand({"x": lambda: [{}]}, ["x"], seeds=10**9)


@pytest.mark.parametrize(
    "name", ["data.source", "data.target", "data.train", "data.validation", "data.test"]
)
@pytest.mark.parametrize(
    "value",
    [
        "",
        "..",
        "../x",
        "x/y",
        "/etc/passwd",
        "x\\y",
        "a\nb",
        "a\0b",
        "x" * 101,
        "\ud800",
    ],
)
def test_what_becomes_a_files_name_leads_nowhere(name, value):
    with pytest.raises(
        SettingsError, match=f"^{name}=.* must be part of a file's name"
    ):
        resolve(base("multi30k"), {name: value})


def test_the_numbers_of_a_batch_fit_int32():
    with pytest.raises(
        SettingsError,
        match=r"training.batch_size=65536 times training.sequence_length=32768 must be below 2\^31",
    ):
        resolve(
            base("quick"),
            {"training.batch_size": 2**16, "training.sequence_length": 2**15},
        )
    assert resolve(
        base("quick"), {"training.batch_size": 2**15, "training.sequence_length": 2**15}
    )


def test_a_rate_is_below_1_in_float32_too():
    rates = [
        key for key, field in fields() if "in float32" in field.metadata["allowed"]
    ]
    assert {"model.P_drop", "training.beta_2", "training.ema"} <= {*rates}
    for key in rates:
        assert (
            np.float32(
                settings.resolve(base("quick"), {key: 1 - 2.0**-24}).to_dict()[
                    key.split(".")[0]
                ][key.split(".")[1]]
            )
            < 1
        )
        with pytest.raises(SettingsError, match="below 1, in float32 too"):
            resolve(base("quick"), {key: 1 - 2.0**-25})
