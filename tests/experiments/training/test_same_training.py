"""Trials that differ in how they are scored alone: one is trained, the others are copies."""

import json
import shutil

import pytest

from experiments.inference import Translator
from experiments.system.files import read_json
from experiments.training import loop
from experiments.training.population import Population
from experiments.training.start_point import UNFINISHED, StartPoint, copy_training
from tests.experiments import tiny
from tests.experiments.training.trials import metrics

TRAINED = dict(training__average=2, training__keep_best=True)
SCORED = dict(
    evaluation__beam=3,
    evaluation__weights="average",
    evaluation__examples=1,
    evaluation__head_importance=True,
)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    path = tmp_path_factory.mktemp("first") / "trial"
    loop.run(tiny.shared(**TRAINED), tiny.corpus(), path)
    return path


@pytest.fixture
def steps(monkeypatch):
    """The numbers of steps that are made."""
    made = []
    step = Population.step

    def counted(self, slots, count):
        made.append(count)
        return step(self, slots, count)

    monkeypatch.setattr(Population, "step", counted)
    return made


def train(path, alike=(), **changes):
    settings = tiny.shared(**TRAINED | changes)
    return loop.run(settings, tiny.corpus(), path, start=StartPoint(alike=alike))


def without_clock(result):
    names = ("seconds", "tokens_per_second", "peak_memory")
    return {name: value for name, value in result.items() if name not in names}


def test_another_score_is_that_of_a_trial_by_itself(first, tmp_path, steps):
    copied = train(tmp_path / "copied", alike=(first,), **SCORED)
    assert steps == []
    record = read_json(tmp_path / "copied" / "record.json")
    assert record["begun"] == dict(trained_as=str(first))
    alone = train(tmp_path / "alone", **SCORED)
    assert sum(steps) == 12
    assert without_clock(copied) == without_clock(alone)
    assert metrics(tmp_path / "copied") == metrics(tmp_path / "alone")
    lines = tiny.corpus().test.text.source
    texts = (tmp_path / "alone" / "translations.txt").read_text("utf-8").split("\n")
    assert Translator(tmp_path / "copied")(lines) == texts[:-1]
    kept = [(path / "checkpoints").iterdir() for path in (first, tmp_path / "copied")]
    assert {path.name for path in kept[0]} == {path.name for path in kept[1]}


@pytest.mark.parametrize(
    "changes",
    [
        dict(seed=1),
        dict(training__learning_rate=0.9),
        # It decides what is logged while a trial trains.
        dict(evaluation__sentences=4),
    ],
    ids=str,
)
def test_other_training_is_not_taken(first, tmp_path, changes):
    assert copied(tmp_path, first, **changes) is None
    assert not list(tmp_path.iterdir())


def copied(path, other, **changes):
    """What the record of a trial says of the training that it takes."""
    settings = tiny.shared(**TRAINED | changes)
    return copy_training(path, (other,), settings, tiny.corpus())


def damage_metrics(path):
    with open(path / "metrics.jsonl", "a") as file:
        file.write("{}\n")


def not_ended(path):
    (path / "result.json").unlink()


def diverged(path):
    result = json.loads((path / "result.json").read_text())
    (path / "checksums.json").unlink()
    (path / "result.json").write_text(json.dumps(result | dict(status="diverged")))


def without_checkpoints(path):
    shutil.rmtree(path / "checkpoints")


def of_other_code(path):
    record = json.loads((path / "record.json").read_text())
    (path / "checksums.json").unlink()
    (path / "record.json").write_text(json.dumps(record | dict(code="another")))


def gone(path):
    shutil.rmtree(path)


@pytest.mark.parametrize("change", [damage_metrics, diverged, of_other_code, gone])
def test_what_was_changed_is_not_taken(first, tmp_path, change):
    other = shutil.copytree(first, tmp_path / "other")
    (tmp_path / "second").mkdir()
    change(other)
    assert copied(tmp_path / "second", other) is None
    assert not list((tmp_path / "second").iterdir())


@pytest.mark.parametrize("change", [not_ended, without_checkpoints])
def test_a_trial_trains_where_another_has_nothing_to_take(
    first, tmp_path, steps, change
):
    other = shutil.copytree(first, tmp_path / "other")
    change(other)
    train(tmp_path / "second", alike=(other,), evaluation__weights="average")
    assert sum(steps) == 12
    assert read_json(tmp_path / "second" / "record.json")["begun"] is None


def test_a_copy_that_was_killed_is_made_again(first, tmp_path, steps):
    path = tmp_path / "second"
    shutil.copytree(first / "checkpoints" / "8", path / UNFINISHED / "8")
    result = train(path, alike=(path, first), evaluation__weights="average")
    assert steps == [] and result["status"] == "finished"
    assert not (path / UNFINISHED).exists()


def test_a_trial_of_its_own_goes_on(first, tmp_path, steps):
    path = tmp_path / "own"
    path.mkdir()
    shutil.copytree(first / "checkpoints" / "8", path / "checkpoints" / "8")
    train(path, alike=(first,), evaluation__weights="average")
    assert sum(steps) == 4
