"""A sweep that goes on after its code has changed says so before it trains."""

import json

import pytest

from experiments.errors import WorkdirError
from experiments.sweep.plan import plan_trials
from experiments.sweep.workdir import check_one_code
from experiments.system import code
from tests.experiments import tiny

pytestmark = pytest.mark.quick


@pytest.fixture
def asked(tmp_path):
    """Asks of four trials, of which two have begun, the first by this code."""
    planned = plan_trials(tiny.config(), [{"seed": seed} for seed in range(4)])

    def ask(other="another", mixed_code=False, decides=False):
        for trial, name in zip(planned, (code.now(), other), strict=False):
            folder = tmp_path / trial.directory
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "record.json").write_text(json.dumps({"code": name}))
        said = []
        how = dict(mixed_code=mixed_code, decides=decides)
        check_one_code(tmp_path, planned, said.append, **how)
        return "\n".join(said)

    return ask


def test_it_is_said(asked):
    assert asked().startswith(
        "1 of 4 trials were made by other code than this (seed=1): only trials of one code "
        "are compared. --mixed_code takes them together"
    )


def test_what_to_train_next_depends_on_no_other_code(asked):
    with pytest.raises(WorkdirError, match="give --mixed_code, or another --workdir"):
        asked(decides=True)


@pytest.mark.parametrize("decides", [False, True])
def test_with_mixed_code_they_stay(asked, decides):
    said = asked(mixed_code=True, decides=decides)
    assert "and are compared all the same (--mixed_code)" in said


def test_nothing_is_said_of_one_code(asked):
    assert asked(other=code.now(), decides=True) == ""
