"""The commands that look at corpora and make data sets of them."""

import re

import pytest

from tests.calls import call
from tests.end_to_end.test_commands import CONFIG


@pytest.mark.ci
def test_a_corpus_is_described_and_made_a_data_set(tmp_path):
    described = call("data", "describe", f"--config={CONFIG}")
    assert (described.returncode, described.stderr) == (0, "")
    assert (
        re.search(r"pairs +300 +12 +12", described.stdout)
        and "train: " in described.stdout
    )
    built = call(
        "data",
        "build",
        f"--config={CONFIG}",
        "--name=phrases",
        f"--directory={tmp_path}",
    )
    assert (built.returncode, built.stderr) == (0, "")
    flags = re.search(r"(--config\.data\S+ ?)+", built.stdout)[0].split()
    again = call("data", "describe", f"--config={CONFIG}", *flags)
    assert (
        again.stderr == ""
        and again.stdout.split("kept in")[0] == described.stdout.split("kept in")[0]
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    (
        [
            (
                [],
                "python -m launch.data COMMAND, where COMMAND is describe or build or download",
            ),
            (["describe"], "--config=FILE is needed"),
            (
                ["build", f"--config={CONFIG}", "--directory=x"],
                "--name=NAME is needed",
            ),
            (
                ["build", f"--config={CONFIG}", "--name=News", "--directory=x"],
                "--name=News: a data set's name",
            ),
            (
                ["build", f"--config={CONFIG}", "--name=news"],
                "--directory=DIR is needed",
            ),
            (
                ["describe", f"--config={CONFIG}", "--name=news"],
                "Unknown command line flag 'name'",
            ),
        ]
    ),
)
def test_a_mistake_is_one_line(flags, message):
    done = call("data", *flags)
    assert done.returncode == 2 and done.stdout == ""
    assert (
        done.stderr.startswith("error: ")
        and done.stderr.count("\n") == 1
        and message in done.stderr
    )
