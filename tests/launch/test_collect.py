"""Parts of a sweep, collected, as a person asks for it."""

import pytest

from launch import command
from tests.experiments import fakes

# How ml_collections loads a config.
pytestmark = pytest.mark.filterwarnings("ignore:.*load_module:DeprecationWarning")

SWEEP = (
    "--config=tests/experiments/tiny_config.py",
    "--sweep=heads,seed",
)


def one_line(said):
    assert said.startswith("error: ") and said.count("\n") == 1
    return said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--part=0/3"], "--part=0/3: parts go from 1/3 to 3/3"),
        (["--part=4/3"], "--part=4/3: parts go from 1/3 to 3/3"),
        (["--part=a/b"], "--part=a/b: write which part of how many"),
        (["--part="], "--part=: write which part of how many"),
        (
            ["--part=1/2", "--seeds=auto", "--budget=9"],
            "--seeds=auto decides by the whole",
        ),
        (
            ["--part=1/2", "--tune=training.learning_rate:1,2"],
            "--tune decides by the whole",
        ),
    ],
)
def test_a_mistaken_part_is_one_line(run, tmp_path, flags, words):
    status, printed, said = run("sweep", *SWEEP, *flags, f"--workdir={tmp_path / 'a'}")
    assert (status, printed) == (2, "")
    assert words in one_line(said)
    assert not (tmp_path / "a").exists()


def test_an_empty_part_says_so_and_ends_well(run, tmp_path):
    status, printed, _ = run(
        "sweep", *SWEEP, "--part=5/5", f"--workdir={tmp_path / 'a'}"
    )
    assert status == 0
    assert printed == "part 5/5 has no trials: the sweep has 4, each in one part\n"
    assert not (tmp_path / "a").exists()


def test_a_dry_run_shows_the_part_alone(run):
    status, printed, _ = run("sweep", *SWEEP, "--part=2/4", "--dry_run")
    assert status == 0
    assert "1 trials in 1 groups" in printed
    assert "h=1 d_k=16 seed=1" in printed and "seed=0" not in printed


@pytest.mark.parametrize(
    ("arguments", "directories"),
    [
        (["a", "b", "--workdir=c"], ["a", "b"]),
        (["--workdir=c", "a", "b"], ["a", "b"]),
        (["--workdir", "c", "a", "--nocheckpoints", "b"], ["a", "b"]),
        (["-workdir", "c"], []),
    ],
)
def test_words_that_are_no_flags_are_directories(arguments, directories):
    words, others = command.split_words(arguments)
    assert words == directories
    assert sorted(words + others) == sorted(arguments)


def test_collect_names_what_it_needs(run, tmp_path):
    status, _, said = run("collect", f"--workdir={tmp_path}")
    assert status == 2 and "name the workdirs to collect" in one_line(said)
    status, _, said = run("collect", "a")
    assert status == 2 and "--workdir=DIR is needed" in one_line(said)
    status, _, said = run(
        "collect", str(tmp_path / "none"), f"--workdir={tmp_path}/all"
    )
    assert status == 2 and "is no directory" in one_line(said)


def test_a_report_of_several_is_printed_and_written_where_asked(run, tmp_path):
    a = fakes.table_3(tmp_path / "a", seeds=2, count=40)
    b = fakes.table_3(tmp_path / "b", seeds=2, count=40)
    both = (f"--workdir={a}", f"--workdir={b},{a}")
    status, printed, _ = run("report", *both)
    assert status == 0
    assert printed.endswith("not written: --out=DIR names a directory for it\n")
    assert not (a / "report.md").exists() and not (b / "report.md").exists()
    status, _, said = run("report", *both, "--figures")
    assert status == 2 and "--out=DIR" in one_line(said)
    assert run("report", *both, f"--out={tmp_path / 'c'}")[0] == 0
    assert run("report", f"--workdir={a}")[0] == 0
    assert (tmp_path / "c/report.md").read_text() == (a / "report.md").read_text()


@pytest.mark.ci
def test_parts_trained_and_collected_are_the_sweep(run, tmp_path):
    """The report of two parts is that of the sweep trained in one place, and a model of
    the collected ones translates; what is missing is trained there."""
    parts = [tmp_path / "1", tmp_path / "2"]
    for i, workdir in enumerate(parts):
        assert run("sweep", *SWEEP, f"--part={i + 1}/2", f"--workdir={workdir}")[0] == 0
    every = f"--workdir={tmp_path / 'all'}"
    assert "2 of the plan are in none" in run("collect", str(parts[0]), every)[1]
    status, printed, _ = run("sweep", *SWEEP, every)
    assert status == 0 and "2 of 4 trials were finished before" in printed
    # The second part's two trials have been trained twice, with equal results.
    assert "0 trials copied, 4 were there" in run("collect", *map(str, parts), every)[1]
    table = run("report", every)[1].partition("\n/")[0]
    several = run("report", *(f"--workdir={workdir}" for workdir in parts))[1]
    assert several.partition("\nnot written")[0] == table
    other = f"--workdir={tmp_path / 'other'}"
    run("collect", *map(str, parts), other)
    trial = next((tmp_path / "other/trials").iterdir())
    from experiments.inference import Translator

    assert len(Translator(trial)(["3 days ago"])) == 1
