"""A trial from its settings to its files, and through interruptions."""

import json

import jax
import numpy as np
import pytest

from experiments import training
from experiments.records import WorkdirError
from experiments.translation import Translator
from tests.experiments import tiny


class Interrupted(Exception):
    pass


def run(workdir, settings=None, stop_at=None):
    """Runs the tiny trial; with `stop_at`, as if the power went when that step was logged."""

    def say(line):
        if stop_at is not None and f"step {stop_at:6d}  loss" in line:
            raise Interrupted

    return training.run(settings or tiny.resolve(), tiny.corpus(), workdir, say=say)


def metrics(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "tokens_per_second")} for line in lines]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("finished")
    return workdir, run(workdir)


def test_files_say_everything(finished):
    workdir, result = finished
    assert json.loads((workdir / "result.json").read_text()) == result
    assert result["status"] == "finished" and result["steps"] == 12 and result["test_sentences"] == 12
    assert len((workdir / "translations.txt").read_text().split("\n")) == 13
    record = json.loads((workdir / "record.json").read_text())
    assert record["corpus"] == tiny.corpus().corpus_digest and record["versions"]["jax"] == jax.__version__
    assert record["devices"] == 4
    assert [(line["step"], line["split"]) for line in metrics(workdir)] == [
        (4, "train"), (6, "validation"), (8, "train"), (12, "train"), (12, "validation")]
    arrays, examples = np.load(workdir / "examples.npz"), json.loads((workdir / "examples.json").read_text())
    assert len(examples) == 2
    n, m = len(examples[0]["source_pieces"]), len(examples[0]["target_pieces"])
    assert arrays["0/encoder"].shape == (1, 2, n, n) and arrays["0/cross"].shape == (1, 2, m, n)
    np.testing.assert_allclose(arrays["0/cross"].astype(float).sum(-1), 1, atol=5e-3)


def test_a_finished_trial_is_not_run_again(finished, monkeypatch):
    workdir, result = finished
    monkeypatch.setattr(training, "_train", lambda *_: pytest.fail("trained again"))
    assert run(workdir) == result


@pytest.mark.parametrize("stop_at", [4, 8, 12])
def test_an_interrupted_trial_ends_the_same(finished, tmp_path, stop_at):
    workdir, result = finished
    with pytest.raises(Interrupted):
        run(tmp_path, stop_at=stop_at)
    again = run(tmp_path)
    unclocked = {"seconds", "tokens_per_second"}
    assert {k: v for k, v in again.items() if k not in unclocked} == {
        k: v for k, v in result.items() if k not in unclocked}
    assert metrics(tmp_path) == metrics(workdir)
    assert (tmp_path / "translations.txt").read_bytes() == (workdir / "translations.txt").read_bytes()


def test_a_directory_of_other_settings_is_refused(finished, tmp_path):
    workdir, _ = finished
    with pytest.raises(WorkdirError, match=r"another config: model\.h is 2, asked for 4, seed is 0, asked for 1"):
        run(workdir, tiny.resolve(model__h=4, seed=1))
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(WorkdirError, match="directory of a sweep"):
        run(tmp_path)


def test_translator_keeps_order_and_empty_lines(finished, capsys):
    workdir, _ = finished
    translate = Translator(workdir)
    lines = tiny.corpus().test.text.source
    found = translate(["", *lines, "  ", lines[0]])
    assert found[0] == found[-2] == "" and found[-1] == found[1]
    assert found[1:-2] == (workdir / "translations.txt").read_text().split("\n")[:-1]
    assert translate([]) == []
    translate(["5 " * 100])
    assert "line 1 has 200 pieces and is cut to 47" in capsys.readouterr().err


def test_translator_without_a_model(tmp_path):
    with pytest.raises(WorkdirError, match="holds no trained model"):
        Translator(tmp_path)
    (tmp_path / "sweep.json").write_text(json.dumps(dict(trials=[dict(directory="trials/a")])))
    with pytest.raises(WorkdirError, match=r"name one of its trials: .*trials/a"):
        Translator(tmp_path)
