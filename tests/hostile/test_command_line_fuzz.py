"""What a command is given against everything: flags, config files, presets, sweeps and
points are taken, or refused in one line."""

import random
import sys

import pytest
from absl import flags
from ml_collections import ConfigDict

from experiments.settings import SettingsError, resolve
from experiments.sweep.plan import plan_trials
from experiments.sweep.points import SweepError, expand
from launch import command, config_flag
from tests.hostile.config_cases import base, fields, misspelled


def parsed(arguments, monkeypatch) -> ConfigDict:
    """The config that a command is given, as launch.command parses its flags."""
    values = flags.FlagValues()
    monkeypatch.setattr(flags, "FLAGS", values)
    monkeypatch.setattr(sys, "argv", ["x", *arguments])
    config_flag.define_config(values)
    command._parse(sys.argv)
    return config_flag.experiment(values).config


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
TYPED = [
    "two",
    "",
    "-1",
    "0",
    "1",
    "0.5",
    "1e400",
    "nan",
    "None",
    "[1]",
    "True",
    "../x",
]
TYPED += ["9" * 30, "9" * 5000, "a\nb"]


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


IMPORT = "from ml_collections import ConfigDict\n"
FILES = [
    ("def get_config(:", ":1: SyntaxError"),
    ("\nimport nowhere", ":2: ModuleNotFoundError: No module named 'nowhere'"),
    ("", "it has no function get_config"),
    ("\0", "source code string cannot contain null bytes"),
]
# What get_config() does in its second line.
BODIES = [
    ("return 1 / 0", ":2: ZeroDivisionError: division by zero"),
    ("raise ValueError('a\\nb')", ":2: ValueError: a b"),
    ("open('/nowhere/x')", ":2: FileNotFoundError"),
    ("return 3", "get_config() must return a ConfigDict, not int"),
    ("pass", "get_config() must return a ConfigDict, not NoneType"),
    ("return {'model': {}}", "get_config() must return a ConfigDict, not dict"),
]
FILES += [(f"def get_config():\n    {body}", message) for body, message in BODIES]
CONFIGS = [
    ("{'model': 3}", "model must be a group of settings, not 3"),
    ("{'model': {'hh': 3}}", "model.hh: no such setting; did you mean model.h?"),
]
for values, message in CONFIGS:
    text = f"{IMPORT}def get_config():\n    return ConfigDict({values})"
    FILES.append((text, message))


@pytest.mark.parametrize(("text", "message"), FILES)
def test_a_config_file_that_is_none(text, message, tmp_path, monkeypatch, capsys):
    path = tmp_path / "config.py"
    path.write_text(text + "\n")
    assert message in refusal([f"--config={path}"], monkeypatch, capsys)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("open('/nowhere/x')", ":2: FileNotFoundError"),
        ("return {}['h']", ":2: KeyError: 'h'"),
        ("return 3", "get_config() must return a ConfigDict, not int"),
    ],
)
def test_a_flag_of_a_config_file_that_is_none(
    body, message, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "config.py"
    path.write_text(f"def get_config():\n    {body}\n")
    arguments = [f"--config={path}", "--config.model.h=2"]
    assert message in refusal(arguments, monkeypatch, capsys)


TABLE_3 = "experiments/configs/table3.py"
QUICK = "experiments/configs/quick.py"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (f"{TABLE_3}:smoll", "unknown preset 'smoll'; known: base, small, tiny"),
        (f"{QUICK}:small", "quick.py takes no argument: leave out :small"),
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
            r"ZeroDivisionError: .* \(test_command_line_fuzz.py, line \d+\)",
        ),
        (lambda: [{"model.h": 1}, 3], "sweep 'x' gives no points: TypeError"),
        (lambda: 3, "TypeError"),
        (lambda a, b: [], "TypeError"),
        (lambda: [{"label": 3}], "has the label 3, which is no text"),
        (lambda: ({"seed": i} for i in iter(int, 1)), "x are more than 100,000 points"),
    ],
)
def test_a_sweep_that_gives_no_points(points, message):
    with pytest.raises(SweepError, match=message):
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
    message = "a config must be a ConfigDict of settings, not None"
    with pytest.raises(SettingsError, match=message):
        resolve(None)


def test_no_more_seeds_than_can_be_checked():
    message = "x times --seeds=1000000000 are more than 100,000 points"
    with pytest.raises(SweepError, match=message):
        expand({"x": lambda: [{}]}, ["x"], seeds=10**9)
