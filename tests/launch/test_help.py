"""Help: each command says what it needs, and every setting has words."""

import subprocess
import sys
from pathlib import Path

import pytest

import launch.__main__
from experiments.settings import describe
from experiments.settings.resolve import known_fields
from launch import config_flag, settings

ROOT = Path(__file__).parents[2]
NEEDED = {
    "train": ["--config:", "--workdir:"],
    "sweep": ["--config:"],
    "report": ["--workdir:"],
    "translate": ["--workdir:"],
    "sample": ["--workdir:"],
    "data": ["--config:"],
    "settings": [],
}


@pytest.mark.parametrize("name", NEEDED)
def test_help_says_what_is_required(run, name):
    status, printed, said = run(name, "--help")
    assert (status, said) == (0, "")
    assert f"python -m launch.{name}" in printed
    _, _, needed = printed.partition("Required:\n")
    needed = [line.split()[0] for line in needed.partition("\n\n")[0].splitlines()]
    assert [flag for flag in needed if flag.endswith(":")] == NEEDED[name]
    lists_settings = "any setting; python -m launch.settings" in printed
    assert lists_settings == ("--config:" in NEEDED[name])


def test_help_has_the_flags_that_commands_share(run):
    assert "--interest" in run("report", "--help")[1]
    assert "--outside" in run("translate", "--help")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--config=FILE and --workdir=DIR are needed"),
        (["--config=quick"], "--workdir=DIR is needed"),
        (["--config=quick:tiny", "--workdir=x"], "takes no argument: leave out :tiny"),
        (["--config=quick", "--model.h=2"], "write --config.model.h=2"),
        (
            ["--config=quick", "--workdir=x", "--config.model.h=two"],
            "--config.model.h=two must be a whole number",
        ),
        (["--config=quick", "--workdir=gs://b/x"], "must be on a file system"),
    ],
)
def test_what_is_wrong_is_said_for_people(run, arguments, message):
    status, printed, said = run("train", *arguments)
    assert (status, printed) == (2, "")
    assert message in said and "int()" not in said and said.count("\n") == 1


def test_the_projects_configs_are_found_from_anywhere(tmp_path, monkeypatch):
    packaged = str(ROOT / "experiments" / "configs" / "quick.py")
    monkeypatch.chdir(tmp_path)
    for text in ("quick", "quick.py", "experiments/configs/quick.py"):
        assert config_flag.find_config(f"{text}:x") == f"{packaged}:x"
    assert config_flag.find_config("nowhere") == "nowhere"
    (tmp_path / "quick.py").touch()
    assert config_flag.find_config("quick.py") == "quick.py"


def test_no_setting_is_without_words():
    described = describe.settings()
    assert {setting.key for setting in described} == {
        key for key, _, _ in known_fields()
    }
    for setting in described:
        assert len(setting.words.split()) > 2, setting
        assert setting.allowed and setting.default, setting
    assert all(option.words.endswith(".") for option in describe.options())


def test_the_page_of_settings_is_the_newest():
    page = ROOT / "experiments" / "settings" / "README.md"
    assert page.read_text() == settings.page()


def test_settings_are_chosen_by_name(run):
    status, printed, _ = run("settings", "d_k", "seed")
    heads = [line for line in printed.splitlines() if line.startswith("--")]
    assert status == 0 and [head.partition("=")[0] for head in heads] == [
        "--config.model.d_k",
        "--config.data.corpus_seed",
        "--config.seed",
    ]
    assert run("settings", "nowhere")[0] == 2


def test_launch_lists_the_commands():
    call = [sys.executable, "-m", "launch"]
    done = subprocess.run(call, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    folder = ROOT / "launch"
    files = [path.stem for path in folder.glob("*.py") if "def cli" in path.read_text()]
    assert sorted([*files, "bench"]) == sorted(launch.__main__.COMMANDS)
    assert all(f"launch.{name} " in done.stdout for name in launch.__main__.COMMANDS)
