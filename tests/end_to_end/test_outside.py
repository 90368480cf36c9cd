"""A user's own score and positions, in files outside of the repository, trained in
worker processes."""

import hashlib
import json

import pytest

from experiments import inference
from experiments.settings import OutsideError
from experiments.sweep.here import Here, Wishes
from experiments.sweep.plan import plan_trials
from experiments.sweep.workdir import adopt_directories, is_finished, open_workdir
from experiments.system.signals import Interruption
from tests.experiments import tiny
from tests.experiments.settings.test_user_code import COSINE, KERPLE


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep of a cosine score and of KERPLE's positions; (workdir, file, planned)."""
    folder = tmp_path_factory.mktemp("outside")
    scores = folder / "my_scores.py"
    scores.write_text(COSINE)
    positions = folder / "kerple.py"
    positions.write_text(KERPLE)
    workdir = folder / "runs"
    points = [
        {"model.score": f"{scores}:Cosine(start=3)"},
        {"model.positions": f"{positions}:Kerple"},
    ]
    planned = plan_trials(tiny.config(), points)
    open_workdir(workdir, "tiny.py", tiny.config(), ["own"], planned)
    here = Here(
        workdir,
        {planned[0].settings.data: tiny.corpus()},
        Wishes(workers=1),
        print,
        Interruption(),
    )
    for _ in here.train(planned):
        pass
    return workdir, scores, planned


@pytest.mark.ci
def test_the_trials_finish(swept):
    workdir, _, planned = swept
    for one in planned:
        result = json.loads((workdir / one.directory / "result.json").read_text())
        assert result["status"] == "finished", result


@pytest.mark.ci
def test_the_record_holds_the_source(swept):
    workdir, _, planned = swept
    directory = workdir / planned[0].directory
    assert (directory / "outside" / "my_scores.py").read_text() == COSINE
    record = json.loads((directory / "record.json").read_text())
    digest = hashlib.sha256(COSINE.encode()).hexdigest()
    assert record["outside"] == {"my_scores.py": digest}


@pytest.mark.ci
def test_the_model_is_loaded_again(swept):
    workdir, _, planned = swept
    loaded = inference.load_model(workdir / planned[0].directory)
    values = loaded.state.params["decoder_0"]["cross_attention"]
    assert any("score" in name for name in values)


@pytest.mark.ci
def test_a_changed_source_is_not_taken_for_the_old_one(swept):
    workdir, scores, planned = swept
    scores.write_text(COSINE.replace("1e-6", "1e-5"))
    try:
        again = plan_trials(tiny.config(), [planned[0].point])
        (one,) = adopt_directories(workdir, again)
        assert one.directory != planned[0].directory
        assert not is_finished(workdir, one)
        with pytest.raises(OutsideError, match="its source has changed"):
            inference.load_model(workdir / planned[0].directory)
    finally:
        scores.write_text(COSINE)
