"""COMET's metric, with a stand-in for comet-score: its real weights are two gigabytes."""

import importlib
import sys

import numpy as np
import pytest

from experiments.data.dataset import prepare
from experiments.errors import UserError
from experiments.evaluation.metrics import (
    Texts,
    corpus_scores,
    sentence_arrays,
    signatures,
)
from experiments.settings import SettingsError, resolve
from experiments.training import loop
from tests.experiments import tiny

# It scores a translation by whether it is its reference, and writes what comet-score 2.2 does.
STAND_IN = """#!{python}
import argparse, json, pathlib
parser = argparse.ArgumentParser()
for flag in ("-s", "-t", "-r", "--model", "--gpus", "--to_json"):
    parser.add_argument(flag)
parser.add_argument("--quiet", action="store_true")
parser.add_argument("--only_system", action="store_true")
args = parser.parse_args()
if args.model == "broken":
    raise SystemExit("no such model")
read = lambda path: pathlib.Path(path).read_text().splitlines()
rows = zip(read(args.s), read(args.t), read(args.r), strict=True)
scores = [dict(src=s, mt=t, ref=r, COMET=float(t == r)) for s, t, r in rows]
pathlib.Path(args.to_json).write_text(json.dumps({{args.t: scores}}))
with open("{calls}", "a") as file:
    file.write(args.model + "\\n")
"""
NAME = "experiments.evaluation.comet"
TEXTS = Texts(
    ["Wie geht es?", "Ja"],
    ["Wie geht es?", "Nein"],
    sources=["How are you?", "Yes"],
)


@pytest.fixture
def comet(tmp_path, monkeypatch):
    """The module, where the stand-in is on the PATH; `calls` is a file of its calls."""
    script = tmp_path / "comet-score"
    calls = tmp_path / "calls"
    script.write_text(STAND_IN.format(python=sys.executable, calls=calls))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    return importlib.import_module(NAME), calls


def test_the_corpus_has_the_mean_of_its_sentences(comet):
    module, calls = comet
    metrics = [module.COMET()]
    scores = corpus_scores(TEXTS, metrics)
    arrays = sentence_arrays(TEXTS, metrics)
    assert scores == {"comet": 0.5}
    np.testing.assert_array_equal(arrays["test_comet"], [1.0, 0.0])
    # Once for both.
    assert calls.read_text().splitlines() == ["Unbabel/wmt22-comet-da"]
    assert "Unbabel/wmt22-comet-da" in signatures(scores, "", metrics)["comet"]


def test_a_call_that_fails_is_one_line(comet):
    module, _ = comet
    metric = module.COMET("broken")
    with pytest.raises(UserError, match=r"failed \(no such model\): run it by hand"):
        metric.of_corpus(TEXTS)


def test_without_the_command_one_line_says_how(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    with pytest.raises(SettingsError, match=r"COMET.*: COMET needs .* pipx install"):
        resolve({"evaluation": {"metric": f"{NAME}:COMET"}})


@pytest.mark.ci
def test_a_trial_has_it_at_its_end_alone(comet, tmp_path):
    settings = tiny.shared(evaluation__metric=f"{NAME}:COMET")
    result = loop.run(settings, prepare(settings.data), tmp_path / "run")
    assert 0 <= result["comet"] <= 1
    assert result["signatures"].keys() == {"bleu", "chrf", "comet"}
    assert "comet" not in (tmp_path / "run" / "metrics.jsonl").read_text()
