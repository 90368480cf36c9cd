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


def test_trials_come_in_the_order_of_the_sweep_with_their_status(tmp_path):
    failed = {"status": "failed", "error": "line one\nline two", "traceback": "..."}
    book = read_results(
        fakes.sweep(
            tmp_path,
            [
                ({"model.h": 8, "seed": 3}, fakes.finished(), {}),
                ({"model.h": 1}, failed, {}),
                ({}, None, {}),
                ({"seed": 1}, None, None),
            ],
        )
    )

    assert [trial.name for trial in book.trials] == [
        "h=8 seed=3",
        "h=1",
        "base",
        "seed=1",
    ]
    assert [trial.status for trial in book.trials] == [
        "finished",
        "failed",
        "unfinished",
        "unfinished",
    ]
    assert [trial.seed for trial in book.trials] == [
        3,
        0,
        0,
        1,
    ]  # a point without a seed has the base's
    assert [trial.error for trial in book.trials] == [
        "",
        "line one line two",
        "stopped or still running, last logged at step 50 of 750",
        "not started",
    ]
    assert book.trials[0].result["exact_match"] == 0.9
    assert book.trials[0].config["model"]["h"] == 8
    assert book.trials[0].record["git"] == "0a1b2c3d"
    assert book.with_status("failed") == book.trials[1:2]


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (
            {
                "status": "diverged",
                "error": "diverged: loss is NaN\nat step 75",
                "step": 75,
            },
            "loss is NaN at step 75",
        ),
        ({"status": "diverged"}, "diverged without a message"),
        ({"status": "failed"}, "failed without a message"),
    ],
)
def test_an_end_without_scores_says_why(tmp_path, result, error):
    (trial,) = read_results(fakes.sweep(tmp_path, [({}, result, {})])).with_status(
        result["status"]
    )
    assert trial.error == error


def test_labels(tmp_path):
    fakes.sweep(
        tmp_path,
        [({"label": "(A)\x1b h=1", "model.h": 1}, None, None), ({}, None, None)],
    )
    text = json.loads((tmp_path / "sweep.json").read_text())
    del text["trials"][1]["label"]
    (tmp_path / "sweep.json").write_text(json.dumps(text))
    labelled, other = read_results(tmp_path).trials
    assert (labelled.label, labelled.point, labelled.name) == (
        "(A) h=1",
        {"model.h": 1},
        "h=1",
    )
    assert other.label == ""


def test_sentences(tmp_path):
    kept = fakes.sentences(np.random.default_rng(0), 5, 0.0)
    fakes.sweep(
        tmp_path,
        [
            ({}, fakes.finished(), {"sentences": kept}),
            ({"seed": 1}, fakes.finished(), {}),
        ],
    )
    with_them, without = read_results(tmp_path).trials
    assert read_sentences(without) == {}
    sentences = read_sentences(with_them)
    assert sentences.keys() == kept.keys()
    for name, values in kept.items():
        np.testing.assert_array_equal(sentences[name], values)
    (with_them.directory / "sentences.npz").write_bytes(b"PK\x03\x04cut")
    assert read_sentences(with_them) == {}


def test_flat():
    assert flatten_settings({"a": 1, "b": {"c": 2, "d": {"e": [3]}}, "f": {}}) == {
        "a": 1,
        "b.c": 2,
        "b.d.e": [3],
    }


def test_changes_leaves_out_the_seed_and_what_equals_the_base(tmp_path):
    book = read_results(
        fakes.sweep(tmp_path, [({"model.h": 4, "model.d_k": 8, "seed": 1}, None, {})])
    )
    assert book.changes(book.trials[0]) == {"model.d_k": 8}


def test_a_single_run_is_a_ledger_of_one_trial(tmp_path):
    config = fakes.settings.resolve(fakes.QUICK, {"seed": 7}).to_dict()
    fakes.trial(tmp_path, config, fakes.finished(), name="h=4", point={"model.h": 4})
    (trial,) = read_results(str(tmp_path)).trials
    assert (trial.name, trial.seed, trial.status, trial.directory) == (
        "h=4",
        7,
        "finished",
        tmp_path,
    )
    assert read_results(tmp_path).changes(trial) == {
        "model.h": 4
    }  # no base to compare with: all it sets


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
    assert [(line["step"], line["split"]) for line in trial.metrics] == [
        (25, "train"),
        (50, "train"),
        (50, "validation"),
    ]


def test_a_step_logged_again_after_a_resume_counts_once_the_later_line(tmp_path):
    fakes.sweep(tmp_path, [({}, None, {"logged": ()})])
    logged = (
        (25, 5.0),
        (50, 4.0),
        (75, 3.0),
        (50, 4.5),
        (60, 4.0),
        (100, float("nan")),
    )
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
    fakes.sweep(tmp_path, [({}, fakes.finished(), {"pairs": fakes.PAIRS})])
    path = tmp_path / "trials/00" / file
    path.unlink() if content is None else path.write_bytes(content)
    (trial,) = read_results(tmp_path).trials
    assert trial.status == ("unfinished" if file == "result.json" else "finished")
    assert len(read_examples(trial)) == (0 if file.startswith("examples") else 3)
    assert (read_positions(trial) is None) == (file == "examples.npz")


def test_examples_give_each_map_the_tokens_of_its_axes(tmp_path):
    fakes.sweep(
        tmp_path, [({"model.h": 2}, fakes.finished(), {"pairs": fakes.PAIRS[1:2]})]
    )
    (trial,) = read_results(tmp_path).trials
    (example,) = read_examples(trial)
    n, m = len(example.source_tokens), len(example.target_tokens)
    assert n != m
    assert {kind: weights.shape for kind, weights in example.attention.items()} == {
        "encoder": (2, 2, n, n),
        "decoder": (2, 2, m, m),
        "cross": (2, 2, m, n),
    }
    assert example.axes("encoder") == (example.source_tokens, example.source_tokens)
    assert example.axes("decoder") == (example.target_tokens, example.target_tokens)
    assert example.axes("cross") == (example.target_tokens, example.source_tokens)
    assert read_positions(trial).shape == (48, 64)


def test_a_map_that_does_not_fit_its_tokens_is_an_error(tmp_path):
    fakes.sweep(tmp_path, [({}, fakes.finished(), {"pairs": fakes.PAIRS[:1]})])
    np.savez(tmp_path / "trials/00/examples.npz", **{"0/cross": np.zeros((2, 4, 3, 5))})
    with pytest.raises(
        ResultsError, match=r"0/cross has shape \(2, 4, 3, 5\).*9 queries and 9 keys"
    ):
        read_examples(read_results(tmp_path).trials[0])


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


def test_one_line_drops_what_a_terminal_obeys():
    assert one_line("a\n\tb\x1b[31m\x07 c") == "a b [31m c"
    assert one_line(None) == ""


def test_files_that_changed_since_a_trial_ended_are_named(tmp_path):
    fakes.sweep(tmp_path, [({}, fakes.finished(), {})])
    directory = tmp_path / "trials/00"
    names = ("record.json", "metrics.jsonl", "result.json")
    write_checksums(directory, names)
    said = []
    read_results(tmp_path, say=said.append)
    assert said == []
    with open(directory / "metrics.jsonl", "ab") as file:
        file.write(b"12\n")
    read_results(tmp_path, say=said.append)
    (line,) = said
    assert "trials/00: changed" in line and "is no metrics" in line
    path = directory / "result.json"
    path.write_text(path.read_text().replace("1.25", "1.24"))
    with pytest.raises(ResultsError, match=r"result\.json is not what the trial wrote"):
        read_results(tmp_path)


def test_checksums_read_no_files_elsewhere(tmp_path):
    (tmp_path / "outside").write_text("")
    fakes.sweep(tmp_path / "sweep", [({}, fakes.finished(), {})])
    directory = tmp_path / "sweep/trials/00"
    names = ["../../../outside", "/etc/passwd", "x" * 5000, "a\0b"]
    for checksums in (dict.fromkeys(names, ""), [], 3):
        text = json.dumps({"sha256": checksums})
        (directory / "checksums.json").write_text(text)
        said = []
        read_results(tmp_path / "sweep", say=said.append)
        assert len(said) == 1 and "\n" not in said[0]


def test_a_sweep_file_that_was_changed_is_damaged(tmp_path):
    fakes.sweep(tmp_path, [({"model.h": 8}, fakes.finished(), {})])
    path = tmp_path / "sweep.json"
    write_sealed(path, json.loads(path.read_text()))
    assert read_results(tmp_path).trials[0].point == {"model.h": 8}
    path.write_text(path.read_text().replace('"model.h": 8', '"model.h": 4'))
    with pytest.raises(ResultsError, match="it is not what was written"):
        read_results(tmp_path)
