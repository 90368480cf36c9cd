"""The worked examples of CONTRIBUTING.md run as they stand there, on a tiny model."""

import re
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Context
from experiments.configs import labels, tasks
from experiments.data.dataset import prepare
from experiments.data.vocabulary import NOTHING, NOTHING_ID
from experiments.evaluation.metrics import METRICS
from experiments.report.write import write_report
from experiments.settings import resolve
from experiments.sweep.plan import check_all, plan_trials
from experiments.sweep.points import expand, load_config, sweeps_of
from experiments.training import loop
from launch import check
from tests.experiments import tiny_config

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
BLOCKS = re.findall(r"```python\n(# (\S+\.py)\n.*?)```", TEXT, re.DOTALL)
FILES = {name: code for code, name in BLOCKS}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the examples, which is the current one, as in a user's terminal."""
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def train(folder, config=None, **settings):
    """Trains a tiny model with some settings, MODEL__NAME for model.name."""
    point = {key.replace("__", "."): value for key, value in settings.items()}
    resolved = resolve(config or tiny_config.get_config(), point)
    return loop.run(resolved, prepare(resolved.data), folder / "run"), resolved


def test_all_examples_are_tried():
    assert set(FILES) == {
        "my_score.py",
        "cooling.py",
        "value_residual.py",
        "squared_relu.py",
        "kerple.py",
        "signs.py",
        "my_metric.py",
        "reversal.py",
        "parity.py",
        "tone.py",
        "my_config.py",
    }


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("my_score.py:Cosine", marks=pytest.mark.ci),
        pytest.param("cooling.py:Cooling", marks=pytest.mark.ci),
        pytest.param("value_residual.py:ValueResidual", marks=pytest.mark.ci),
        pytest.param("squared_relu.py:SquaredReLU", marks=pytest.mark.ci),
        "kerple.py:Kerple",
        pytest.param("reversal.py:Reversal(length=7)", marks=pytest.mark.ci),
        "my_metric.py:TER",
        "tone.py:Tone(length=7)",
    ],
)
def test_the_contract_is_kept(folder, name):
    _, rows = check.run(name)
    assert len(rows) >= 8
    assert [row for row in rows if not row.ok] == []


@pytest.mark.ci
def test_a_score_that_breaks_the_contract_is_told(folder):
    code = FILES["my_score.py"].replace("@ unit(k).T", "@ unit(k)[:1].T")
    assert code != FILES["my_score.py"]
    (folder / "wrong.py").write_text(code)
    _, rows = check.run("wrong.py:Cosine")
    assert [row.what for row in rows if not row.ok]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("model__score", "my_score.py:Cosine"),
        ("model__score", "cooling.py:Cooling(steps=2.0)"),
        ("model__normaliser", "squared_relu.py:SquaredReLU"),
        ("model__positions", "kerple.py:Kerple"),
        ("training__optimizer", "signs.py:signs(weight_decay=0.1)"),
    ],
)
def test_a_model_trains_with_it_and_keeps_its_source(folder, key, name):
    result, _ = train(folder, **{key: name})
    assert result["status"] == "finished"
    file = name.partition(":")[0]
    assert (folder / "run" / "outside" / file).read_text() == FILES[file]


def test_the_temperature_falls(folder):
    cooling = runpy.run_path("cooling.py")["Cooling"]
    score = cooling.init(jax.random.key(0), h=1, d_q=2, d_k=2, rise=2.0, steps=10.0)
    q, k = jnp.array([[3.0, 1.0]]), jnp.array([[2.0, 5.0]])
    for step, temperature in ((0, 3), (10, 1 + 2 / np.e), (10**6, 1), (None, 1)):
        scores = score.in_context(Context(step=step))(q, k)
        expected = 11 / (temperature * np.sqrt(2))
        np.testing.assert_allclose(scores, [[expected]], rtol=1e-6)


@pytest.mark.ci
def test_the_value_residual_trains_as_that_of_the_library(folder):
    ours, _ = train(
        folder, model__N=2, model__residual="value_residual.py:ValueResidual"
    )
    (folder / "run").rename(folder / "own")
    theirs, _ = train(folder, model__N=2, model__residual="values")
    (folder / "run").rename(folder / "known")
    without, _ = train(folder, model__N=2)
    assert ours["perplexity"] == pytest.approx(theirs["perplexity"], rel=1e-5)
    assert ours["perplexity"] != pytest.approx(without["perplexity"], rel=1e-5)


def test_a_variant_takes_forty_lines():
    for name in ("cooling.py", "value_residual.py"):
        assert FILES[name].count("\n") <= 40, name


@pytest.mark.ci
def test_the_metric_is_scored_and_reported(folder):
    result, settings = train(folder, evaluation__metric="my_metric.py:TER")
    assert 0 <= result["ter"] < 1000
    metrics = (*METRICS, *settings.evaluation.own_metrics)
    report = write_report(folder / "run", metrics)
    for path in (report.csv, report.markdown, report.html):
        assert "ter" in path.read_text().lower()


def test_the_corpus_is_read(folder):
    settings = resolve(
        tiny_config.get_config(), {"data.corpus": "reversal.py:Reversal(length=4)"}
    )
    dataset = prepare(settings.data)
    source = dataset.test.text.source[0]
    assert dataset.test.text.target[0] == source[::-1]
    assert len(source.split()) == 4


def test_the_task_is_read(folder):
    config = tasks.get_config("recall")
    settings = resolve(config, {"data.corpus": "parity.py:Parity(length=9)"})
    dataset = prepare(settings.data)
    # Padding, two marks, the unknown and NOTHING beside its symbols.
    assert dataset.vocabulary().size == 5 + 5
    for source, target in zip(*dataset.test.text, strict=True):
        asked = [word == "?" for word in source.split()]
        assert [word != NOTHING for word in target.split()] == asked
    answers = dataset.vocabulary().encode(["_", "even", "odd"])
    assert answers[0].tolist() == [NOTHING_ID]
    used = np.concatenate(dataset.test.ids.target)
    assert {*used} == {*np.concatenate(answers)}


@pytest.mark.ci
def test_a_classifier_learns_its_labels(folder):
    assert len(FILES["tone.py"].splitlines()) <= 40
    config = labels.get_config()
    result, _ = train(
        folder,
        config,
        data__corpus="tone.py:Tone",
        model__N=1,
        training__steps=150,
        training__evaluate_every=75,
        training__save_every=75,
    )
    # The more frequent label has hardly more than half.
    assert result["accuracy"] > 0.9 and "bleu" not in result
    report = write_report(folder / "run").markdown.read_text()
    assert "accuracy" in report and "perplexity" not in report


def test_the_config_plans_its_sweep(folder):
    module = load_config(str(folder / "my_config.py"))
    config = module.get_config()
    points = expand(sweeps_of(module), ["mine"], config, seeds=2)
    trials = plan_trials(config, points)
    assert len(trials) == 8
    check_all(trials)
