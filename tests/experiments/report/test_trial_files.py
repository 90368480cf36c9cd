"""Reads workdirs in any state that a killed run leaves."""

import json

import numpy as np
import pytest

from experiments.errors import one_line
from experiments.report.trial_files import (
    ResultsError,
    flatten_settings,
    read_results,
)
from experiments.report.trial_outputs import (
    read_examples,
    read_positions,
    read_sentences,
)
from experiments.system.checksums import write_checksums, write_sealed
from tests.experiments import fakes

pytestmark = pytest.mark.quick


def one_trial(workdir, result=None, point=None, **options):
    """A sweep of one trial, read."""
    fakes.sweep(workdir, [(point or {}, result, options)])
    (trial,) = read_results(workdir).trials
    return trial


def test_trials_come_in_the_order_of_the_sweep_with_their_status(tmp_path):
    failed = {"status": "failed", "error": "line one\nline two", "traceback": "..."}
    trials = [
        ({"model.h": 8, "seed": 3}, fakes.finished(), {}),
        ({"model.h": 1}, failed, {}),
        ({}, None, {}),
        ({"seed": 1}, None, None),
    ]
    book = read_results(fakes.sweep(tmp_path, trials))
    # A point without a seed has the base's.
    stopped = "stopped or still running, last logged at step 50 of 750"
    assert [(t.name, t.seed, t.status, t.error) for t in book.trials] == [
        ("h=8 seed=3", 3, "finished", ""),
        ("h=1", 0, "failed", "line one line two"),
        ("base", 0, "unfinished", stopped),
        ("seed=1", 1, "unfinished", "not started"),
    ]
    assert book.trials[0].result["exact_match"] == 0.9
    assert book.trials[0].config["model"]["h"] == 8
    assert book.trials[0].record["git"] == "0a1b2c3d"
    assert book.with_status("failed") == book.trials[1:2]


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (fakes.DIVERGED | {"error": "diverged: NaN\nat step 75"}, "NaN at step 75"),
        ({"status": "diverged"}, "diverged without a message"),
        ({"status": "failed"}, "failed without a message"),
    ],
)
def test_an_end_without_scores_has_a_reason(tmp_path, result, error):
    assert one_trial(tmp_path, result).error == error


def test_labels(tmp_path):
    label = {"label": "(A)\x1b h=1", "model.h": 1}
    fakes.sweep(tmp_path, [(label, None, None), ({}, None, None)])
    text = json.loads((tmp_path / "sweep.json").read_text())
    del text["trials"][1]["label"]
    (tmp_path / "sweep.json").write_text(json.dumps(text))
    labelled, other = read_results(tmp_path).trials
    found = (labelled.label, labelled.point, labelled.name)
    assert found == ("(A) h=1", {"model.h": 1}, "h=1")
    assert other.label == ""


def test_one_line_drops_what_a_terminal_obeys():
    assert one_line("a\n\tb\x1b[31m\x07 c") == "a b [31m c"
    assert one_line(None) == ""


def test_sentences(tmp_path):
    kept = fakes.sentences(np.random.default_rng(0), 5, 0.0)
    trial = one_trial(tmp_path, fakes.finished(), sentences=kept)
    sentences = read_sentences(trial)
    assert sentences.keys() == kept.keys()
    for name, values in kept.items():
        np.testing.assert_array_equal(sentences[name], values)
    path = trial.directory / "sentences.npz"
    path.write_bytes(b"PK\x03\x04cut")
    assert read_sentences(trial) == {}
    np.savez(path, **kept | {"test_source": np.zeros(4, int)})
    with pytest.raises(ResultsError, match="the arrays of test have the shapes"):
        read_sentences(trial)
    path.unlink()
    assert read_sentences(trial) == {}


def test_nested_settings_are_flattened():
    nested = {"a": 1, "b": {"c": 2, "d": {"e": [3]}}, "f": {}}
    assert flatten_settings(nested) == {"a": 1, "b.c": 2, "b.d.e": [3]}


def test_changes_leaves_out_the_seed_and_what_equals_the_base(tmp_path):
    point = {"model.h": 4, "model.d_k": 8, "seed": 1}
    book = read_results(fakes.sweep(tmp_path, [(point, None, {})]))
    assert book.changes(book.trials[0]) == {"model.d_k": 8}


def test_a_single_run_is_results_of_one_trial(tmp_path):
    config = fakes.settings.resolve(fakes.QUICK, {"seed": 7}).to_dict()
    fakes.trial(tmp_path, config, fakes.finished(), name="h=4", point={"model.h": 4})
    results = read_results(str(tmp_path))
    (trial,) = results.trials
    found = (trial.name, trial.seed, trial.status, trial.directory)
    assert found == ("h=4", 7, "finished", tmp_path)
    # There is no base to compare with: all it sets.
    assert results.changes(trial) == {"model.h": 4}


@pytest.mark.parametrize(
    "cut",
    [
        '{"step": 75, "spl',
        '{"step": 75, "split": "train", "loss": 1',
        "7",
        "null",
        "\0\0",
    ],
)
def test_a_half_written_line_of_metrics_is_skipped(tmp_path, cut):
    fakes.sweep(tmp_path, [({}, None, {})])
    with open(tmp_path / "trials/00/metrics.jsonl", "a") as file:
        file.write(cut)
    (trial,) = read_results(tmp_path).trials
    steps = [(line["step"], line["split"]) for line in trial.metrics]
    assert steps == [(25, "train"), (50, "train"), (50, "validation")]


def test_a_step_logged_again_after_a_resume_counts_once_the_later_line(tmp_path):
    fakes.sweep(tmp_path, [({}, None, {"logged": ()})])
    logged = [(25, 5.0), (50, 4.0), (75, 3.0), (50, 4.5), (60, 4.0), (100, np.nan)]
    lines = [{"step": step, "split": "train", "loss": loss} for step, loss in logged]
    (tmp_path / "trials/00/metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    steps, losses = read_results(tmp_path).trials[0].curve("train", "loss")
    assert steps.tolist() == [25, 50, 60, 75]
    assert losses.tolist() == [5.0, 4.5, 4.0, 3.0]


@pytest.mark.parametrize(
    "file",
    ["config.json", "record.json", "result.json", "examples.json", "examples.npz"],
)
@pytest.mark.parametrize(
    "content", [None, b"", b'{"status": "fin', b"[1, 2", b"PK\x03\x04cut"]
)
def test_missing_and_half_written_files_count_as_not_there(tmp_path, file, content):
    trial = one_trial(tmp_path, fakes.finished(), pairs=fakes.PAIRS)
    path = trial.directory / file
    path.unlink() if content is None else path.write_bytes(content)
    (trial,) = read_results(tmp_path).trials
    assert trial.status == ("unfinished" if file == "result.json" else "finished")
    assert len(read_examples(trial)) == (0 if file.startswith("examples") else 3)
    assert (read_positions(trial) is None) == (file == "examples.npz")


def test_examples_give_each_map_the_tokens_of_its_axes(tmp_path):
    point = {"model.h": 2}
    trial = one_trial(tmp_path, fakes.finished(), point, pairs=fakes.PAIRS[1:2])
    (example,) = read_examples(trial)
    source, target = example.source_tokens, example.target_tokens
    n, m = len(source), len(target)
    assert n != m
    shapes = {kind: weights.shape[2:] for kind, weights in example.attention.items()}
    assert shapes == {"encoder": (n, n), "decoder": (m, m), "cross": (m, n)}
    axes = {kind: example.axes(kind) for kind in shapes}
    assert axes["encoder"] == (source, source)
    assert axes["decoder"] == (target, target)
    assert axes["cross"] == (target, source)
    assert read_positions(trial).shape == (48, 64)


def test_a_map_that_does_not_fit_its_tokens_is_an_error(tmp_path):
    trial = one_trial(tmp_path, fakes.finished(), pairs=fakes.PAIRS[:1])
    np.savez(trial.directory / "examples.npz", **{"0/cross": np.zeros((2, 4, 3, 5))})
    message = r"0/cross has shape \(2, 4, 3, 5\).*9 queries and 9 keys"
    with pytest.raises(ResultsError, match=message):
        read_examples(trial)


@pytest.mark.parametrize("text", [[1], [{"source": "x"}]])
def test_texts_that_no_run_writes_are_an_error(tmp_path, text):
    trial = one_trial(tmp_path, fakes.finished(), pairs=fakes.PAIRS[:1])
    (trial.directory / "examples.json").write_text(json.dumps(text))
    with pytest.raises(ResultsError, match="sentence 0 has what no run writes"):
        read_examples(trial)


@pytest.mark.parametrize(
    "make",
    [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_text("")],
)
def test_a_workdir_without_results_is_one_error_with_the_remedy(tmp_path, make):
    make(tmp_path / "empty")
    expected = r"empty.*sweep\.json nor config\.json.*launch\.sweep .*--workdir="
    with pytest.raises(ResultsError, match=expected) as error:
        read_results(tmp_path / "empty")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"base": {}, "tri',
        "[]",
        '{"base": {}, "trials": [{"name": "x"}]}',
        '{"base": {}, "trials": 3}',
        '{"base": {}, "trials": [{"name": "x", "directory": "x", "point": 3}]}',
    ],
)
def test_a_damaged_sweep_json_is_an_error_with_the_remedy(tmp_path, text):
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(ResultsError, match=r"sweep\.json is damaged.*launch\.sweep"):
        read_results(tmp_path)


def test_files_that_changed_since_a_trial_ended_are_named(tmp_path):
    trial = one_trial(tmp_path, fakes.finished())
    names = ("record.json", "metrics.jsonl", "result.json")
    write_checksums(trial.directory, names)
    said = []
    read_results(tmp_path, say=said.append)
    assert said == []
    with open(trial.directory / "metrics.jsonl", "ab") as file:
        file.write(b"12\n")
    read_results(tmp_path, say=said.append)
    (line,) = said
    assert "trials/00: changed" in line and "is no metrics" in line
    path = trial.directory / "result.json"
    path.write_text(path.read_text().replace("1.25", "1.24"))
    with pytest.raises(ResultsError, match=r"result\.json is not what the trial wrote"):
        read_results(tmp_path)


def test_a_sweep_file_that_was_changed_is_damaged(tmp_path):
    fakes.sweep(tmp_path, [({"model.h": 8}, fakes.finished(), {})])
    path = tmp_path / "sweep.json"
    write_sealed(path, json.loads(path.read_text()))
    assert read_results(tmp_path).trials[0].point == {"model.h": 8}
    path.write_text(path.read_text().replace('"model.h": 8', '"model.h": 4'))
    with pytest.raises(ResultsError, match="it is not what was written"):
        read_results(tmp_path)
