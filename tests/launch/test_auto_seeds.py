"""launch.sweep --seeds=auto, as a person types it."""

import json

import pytest

from experiments.report.trial_files import read_results
from experiments.stats.sequential import SEEDS
from tests.calls import call

CONFIG = "--config=tests/experiments/tiny_config.py"


def sweep(*flags):
    return call("sweep", CONFIG, *flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    (
        [
            (
                ["--seeds=auto"],
                "--seeds=auto needs a budget: give --budget=12 for so many",
            ),
            (
                ["--seeds=auto", "--budget=3x"],
                "--budget=3x is no budget: give --budget=12",
            ),
            (
                ["--seeds=auto", "--budget=3"],
                "--budget=3: 2 seeds of each of 2 rows are 4 trials; give 4 or more",
            ),
            (["--seeds=0"], "--seeds=0: give a number from 1 on, or auto"),
            (["--budget=5"], "--budget=5 is for --seeds=auto"),
            (
                ["--seeds=2", "--interest=bleu:1"],
                "--interest=bleu:1 is for --seeds=auto",
            ),
            (["--seeds=auto", "--budget=9", "--config.seed=1"], "leave seed out"),
            (["--seeds=auto", "--budget=9", "--interest=ter:1"], "'ter' is no metric"),
            (
                ["--seeds=auto", "--budget=9", "--pairs=positions", "--workdir=x"],
                "--pairs=positions: --seeds=auto gives seeds to rows that have one base each",
            ),
        ]
    ),
)
def test_a_mistake_is_one_line(flags, message):
    done = sweep("--sweep=positions", *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_a_sweep_without_a_base_is_refused():
    done = sweep("--sweep=d_k", "--seeds=auto", "--budget=9")
    assert done.returncode == 2
    assert "no point is: label one of them base, or have one that" in done.stderr


def test_a_base_that_is_named_need_not_change_nothing(tmp_path):
    """Its row is looked for when the sweep is planned: d_k=3 is the only one here."""
    flags = ("--seeds=auto", "--budget=9", "--base=d_k=4", f"--workdir={tmp_path}")
    done = sweep("--sweep=d_k", *flags)
    assert done.returncode == 2
    assert "--base=d_k=4: no row has it; there are model.d_k: 3" in done.stderr


def test_a_dry_run_says_what_to_expect():
    done = sweep("--sweep=positions", "--seeds=auto", "--budget=11", "--dry_run")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "seeds of all rows" in line]
    # 16 trials are more than the budget.
    assert [line.split()[0] for line in lines] == ["2", "3", "5"]
    sizes = [float(line.split("differences of ")[1].split()[0]) for line in lines]
    assert sizes == sorted(sizes, reverse=True)
    assert "4 trials in" in done.stdout


@pytest.mark.ci
def test_seeds_are_given_until_the_budget_is_spent_and_again_the_same(tmp_path):
    flags = ["--sweep=positions", "--seeds=auto", "--budget=7", f"--workdir={tmp_path}"]
    done = sweep(*flags)
    assert done.returncode == 0, done.stderr
    results = read_results(tmp_path)
    seeds = sorted((trial.label or trial.name, trial.seed) for trial in results.trials)
    assert 4 <= len(seeds) <= 7
    assert results.looks in (1, 2)
    more = SEEDS[results.looks - 1]
    assert max(trial.seed for trial in results.trials) == more - 1
    written = (tmp_path / "report.md").read_text()
    before = json.loads((tmp_path / "sweep.json").read_text())
    again = sweep(*flags)
    assert again.returncode == 0, again.stderr
    count = len(seeds)
    assert f"{count} of {count} trials were finished before" in again.stdout
    assert (tmp_path / "report.md").read_text() == written
    assert json.loads((tmp_path / "sweep.json").read_text()) == before
