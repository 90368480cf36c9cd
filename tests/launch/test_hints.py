"""What commands say to what is misspelt, forgotten, or named as elsewhere."""

import subprocess
import sys

import pytest

from experiments.errors import few

CONFIG = "--config=tests/experiments/tiny_config.py"


def refused(run, *arguments):
    status, printed, said = run(*arguments)
    assert (status, printed) == (2, "")
    assert said.startswith("error: ") and said.count("\n") == 1
    return said


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--lr=0.1", "--config.training.learning_rate=0.1"),
        ("--learning_rate=0.1", "--config.training.learning_rate=0.1"),
        ("--steps=5", "--config.training.steps=5"),
        ("--warmup=5", "'--config.training.schedule=paper(warmup=5)'"),
        ("--weight_decay=0.1", "'--config.training.optimizer=adamw(weight_decay=0.1)'"),
        ("--n_layers", "--config.model.N=VALUE"),
        ("--h=2", "--config.model.h=2"),
        ("--heldout=9", "--config.data.heldout=9"),
        ("--model.h=2", "--config.model.h=2"),
        ("--seed=2", "--config.seed=2"),
    ],
)
@pytest.mark.parametrize("name", ["train", "sweep"])
def test_a_flag_that_is_a_setting_is_said_to_be(run, name, flag, meant):
    said = refused(run, name, CONFIG, "--workdir=x", flag)
    assert f"is a setting; write {meant}\n" in said


def test_a_command_without_settings_names_none(run):
    assert "Unknown command line flag 'lr'" in refused(run, "report", "--lr=1")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("train", "quick"), "'quick' is no flag; write --config=quick"),
        (("train", "paper:big"), "write --config=paper:big"),
        (("train", "nowhere"), "'nowhere' is no flag; flags look like --name=value"),
        (("train", "--config=quik"), "no such file; did you mean quick?"),
        (("train", "--config=experiments/configs/quik.py"), "did you mean quick?"),
        (("sweep", CONFIG, "--sweep=hedas"), "nothing); did you mean heads?"),
        (
            ("report", "--workdir=x", "--interest=blue:1"),
            "are; did you mean bleu?",
        ),
    ],
)
def test_what_is_misspelt_gets_a_hint(run, arguments, meant):
    assert meant in refused(run, *arguments)


def test_a_sweep_that_names_no_sweep_is_refused(run, tmp_path):
    workdir = tmp_path / "sweep"
    for more in ((f"--workdir={workdir}",), ("--dry_run",), ("--dry_run", "--seeds=2")):
        said = refused(run, "sweep", CONFIG, *more)
        assert "has the sweeps heads, d_k, positions, scores, seed" in said
        assert "--sweep=heads, or none with --sweep= to run the config alone" in said
    assert not workdir.exists()


def test_the_config_alone_is_run_where_that_is_asked(run, tmp_path):
    for flag in ("--sweep=", "--sweep"):
        words = (flag, "") if flag == "--sweep" else (flag,)
        status, printed, _ = run("sweep", CONFIG, *words, "--seeds=2", "--dry_run")
        assert status == 0 and "2 trials in 1 groups" in printed
    bare = tmp_path / "bare.py"
    bare.write_text("from tests.experiments.tiny_config import get_config\n")
    status, printed, _ = run("sweep", f"--config={bare}", "--dry_run")
    assert status == 0 and "1 trials in 1 groups" in printed


@pytest.mark.parametrize(
    ("module", "status", "said"),
    [
        ("launch.trian", 2, "no such command; did you mean train?"),
        ("launch.nothing_like", 2, "no such command (there are train, sweep"),
        ("launch.bench.harnes", 1, "No module named launch.bench.harnes"),
        ("launch", 0, ""),
    ],
)
def test_a_command_of_another_name(module, status, said):
    call = [sys.executable, "-m", module]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == status and said in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_are_found_by_their_names_elsewhere(run):
    status, printed, _ = run("settings", "lr")
    assert status == 0 and printed.startswith("--config.training.learning_rate=")


def test_a_long_list_is_cut_and_what_is_left_counted():
    assert few(["a"]) == "a"
    assert few("abc") == "a, b, c"
    assert few(range(7)) == "0, 1, 2 and 4 more"
    assert few("ab", 1) == "a and 1 more"
