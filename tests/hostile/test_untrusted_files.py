"""Files from strangers: nothing in them is executed, none leads out of its directory,
and each damage is one line."""

import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from attn.io.safetensors import load
from attn.io.torch import from_torch
from experiments.data.vocabulary import digest
from experiments.inference import Translator
from experiments.report.results import read_results
from experiments.report.sql import run_query
from experiments.sweep.plan import plan_trials
from experiments.sweep.workdir import adopt_directories, open_workdir
from experiments.system import files
from experiments.system.checksums import write_checksums
from experiments.training.checkpoints import Checkpoints
from experiments.trial.program import initial_state, program_of
from launch import command
from tests.experiments import tiny
from tests.hostile.garbage import GARBAGE, Bomb, one_line, pickled


@pytest.fixture
def bomb(tmp_path):
    """Where a file will be if anything unpickles it."""
    path = tmp_path / "executed"
    yield path
    assert not path.exists()


def test_what_is_nested_too_deeply_is_no_json():
    assert files.parse('{"a":' * 50 + "1" + "}" * 50)
    for levels in (51, 100_000):
        with pytest.raises(ValueError, match="nested deeper than 50 levels"):
            files.parse('{"a":' * levels + "1" + "}" * levels)


# Weights


def test_no_pickle_of_an_npz_is_loaded(tmp_path, bomb):
    for name, content in (
        ("a.npz", pickled(tmp_path / "a.npz", bomb)),
        ("b.npz", pickle.dumps(Bomb(bomb))),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(
            ValueError, match=f"{name} is no .npz file of arrays: .*pickle"
        ):
            load(tmp_path / name)
    assert np.load(
        tmp_path / "a.npz", allow_pickle=True
    )  # not read yet: it would make the file


def zipped(**members) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def npy(header) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


def an_array(array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


WHOLE = zipped(w=an_array(np.arange(1000.0)))


@pytest.mark.parametrize(
    "content",
    [
        *GARBAGE,
        b"text",
        WHOLE[:500],
        WHOLE[:200] + b"\xff" * 50 + WHOLE[250:],
        zipped(w=b"text"),
        an_array(np.ones(3)),
        zipped(
            w=npy(
                b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000000,)}"
            )
        ),
        zipped(w=npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-3,)}")),
        zipped(w=npy(b"__import__('os').abort()")),
        zipped(w=npy(b"(" * 5000)),
        zipped(w=an_array(np.array(["text"]))),
        zipped(w=an_array(np.zeros(2, [("a", float)]))),
        WHOLE[:-5],
    ],
)
def test_an_npz_that_is_none(content, tmp_path):
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"x.npz is no .npz file of arrays"):
        load(path)


def safetensors(header, numbers=b"12345678") -> bytes:
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(header).to_bytes(8, "little") + header + numbers


@pytest.mark.parametrize(
    "content",
    [
        *GARBAGE,
        safetensors([]),
        safetensors(3),
        safetensors(b"[" * 100_000),
        safetensors(b"\xff\xff"),
        b"\xff" * 20,
        *(
            safetensors({"w": entry})
            for entry in (
                None,
                [],
                3,
                {},
                {"dtype": "F32"},
                {"dtype": "F32", "shape": [2]},
                *(
                    {"dtype": kind, "shape": shape, "data_offsets": offsets}
                    for kind, shape, offsets in (
                        (["F32"], [2], [0, 8]),
                        ("F32", 2, [0, 8]),
                        ("F32", "2", [0, 8]),
                        ("F32", [2.0], [0, 8]),
                        ("F32", [-1], [0, 8]),
                        ("F32", [10**12], [0, 8]),
                        ("F32", [2, 10**30], [0, 8]),
                        ("F32", [2], 8),
                        ("F32", [2], [0]),
                        ("F32", [2], [-8, 0]),
                        ("F32", [2], [0, 8, 9]),
                        ("F32", [2], [8, 0]),
                        ("F32", [2], [4, 12]),
                        ("F32", [2], [0, 99]),
                        ("F32", [True, 2], [0, 8]),
                        ("O", [1], [0, 8]),
                        ("F32", [2], [10**30, 10**30 + 8]),
                        ("F32", [2], [None, 8]),
                        ("F32", [float("nan")], [0, 8]),
                    )
                ),
            )
        ),
    ],
)
def test_a_safetensors_file_that_is_none(content, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"x.safetensors(:| is no safetensors file)"
    ) as caught:
        load(path)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"encoder.layers.999999999.x": np.ones(3)},
            "the names are of 1000000000 layers, and there are 2 arrays",
        ),
        ({"generator.bias": np.array(["text"])}, "generator.bias is not 0"),
        ({"src_embed.weight": np.ones(())}, "not the"),
        ({"src_embed.weight": np.array([["a"]])}, "not the arrays"),
        ({"src_pos.weight": np.ones(())}, "not the arrays"),
        ({"encoder.layers.0.linear1.weight": np.ones((3, 0))}, "no mat"),
        ({"src_embed.weight": None}, "not the arrays"),
    ],
)
def test_arrays_that_are_no_model(arrays, message):
    with pytest.raises(ValueError, match=message):
        from_torch({"encoder.layers.0.linear1.weight": np.ones((3, 4))} | arrays, 2)


# A trial's directory


@pytest.fixture
def trained(tmp_path):
    """What launch.translate reads of a trial, as far as its checkpoints."""
    workdir = tmp_path / "one"
    vocabulary = tiny.corpus().vocabulary()
    files.write_json(workdir / "config.json", tiny.resolve().to_dict())
    files.write_json(
        workdir / "record.json", dict(length=48, vocabulary=vocabulary.digest)
    )
    files.write_bytes(workdir / "vocabulary.model", vocabulary.model)
    return workdir


@pytest.mark.parametrize("name", ["config.json", "record.json", "vocabulary.model"])
def test_translate_names_the_file_that_is_garbage(name, trained, capsys):
    for content in GARBAGE:
        (trained / name).write_bytes(content)
        said = one_line(lambda: Translator(trained), capsys)
        assert str(trained / name) in said and "damaged" in said
    assert name != "vocabulary.model" or "restore it" in said


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("record.json", {"length": 10**12}, "length=1000000000000 is none of 48 to"),
        ("record.json", {"length": "48"}, "length='48' is none"),
        ("record.json", {"length": 47}, "length=47 is none"),
        ("record.json", {"length": True}, "length=True is none"),
        (
            "record.json",
            {"vocabulary": "0" * 16},
            "vocabulary.model is damaged (it is not the vocabulary 0000000000000000",
        ),
        (
            "config.json",
            {"model": 3},
            "config.json is damaged (model must be a group of settings, not 3)",
        ),
        (
            "config.json",
            {"model": {"N": 10**9}},
            "config.json is damaged (model.N=1000000000 must be at least 1 and at",
        ),
        (
            "config.json",
            {"seed": "<script>"},
            "config.json is damaged (seed='<script>' must be int, not str)",
        ),
    ],
)
def test_translate_names_the_value_that_no_trial_wrote(
    name, change, message, trained, capsys
):
    files.write_json(trained / name, files.read_json(trained / name) | change)
    assert message in one_line(lambda: Translator(trained), capsys)


def test_translate_refuses_settings_that_were_changed_since(trained, capsys):
    write_checksums(trained, ["config.json", "record.json"])
    config = files.read_json(trained / "config.json")
    config["evaluation"]["beam"] += 1
    files.write_json(trained / "config.json", config)
    said = one_line(lambda: Translator(trained), capsys)
    assert f"{trained / 'config.json'} is damaged (it is not what the trial" in said


@pytest.mark.parametrize("content", [b"", b"garbage", b"\0" * 100])
def test_a_vocabulary_that_only_the_record_vouches_for(content, trained, capsys):
    files.write_json(
        trained / "record.json", dict(length=48, vocabulary=digest(content))
    )
    (trained / "vocabulary.model").write_bytes(content)
    assert "vocabulary.model is damaged (" in one_line(
        lambda: Translator(trained), capsys
    )


def test_a_vocabulary_that_is_missing(trained, capsys):
    (trained / "vocabulary.model").unlink()
    assert "vocabulary.model is damaged ([Errno 2] No such file" in one_line(
        lambda: Translator(trained), capsys
    )


@pytest.mark.ci
def test_a_checkpoint_of_pickles(trained, bomb, capsys):
    """Every file of it; the damage is named beside the error."""
    program = program_of(tiny.resolve(), tiny.corpus().vocabulary().size, 48)
    state = initial_state(program, tiny.resolve())
    with Checkpoints(trained, keep=1) as checkpoints:
        checkpoints.save(4, state, dict(epoch=0, batch=3))
    assert Translator(trained)([""]) == [""]
    for path in (trained / "checkpoints").rglob("*"):
        if path.is_file():
            path.write_bytes(pickle.dumps(Bomb(bomb)))
    with pytest.raises(SystemExit) as end:
        command.without_traceback(lambda: Translator(trained))
    said = capsys.readouterr().err.splitlines()
    assert (
        end.value.code == 2
        and len(said) <= 2
        and said[-1].startswith("error: ")
        and str(trained) in said[-1]
    )


def test_a_sweep_is_no_trial(tmp_path, capsys):
    for content in (
        b"{}",
        b'{"trials": 3}',
        b'{"trials": [3, {}]}',
        b'{"trials": [{"directory": "x"}]}',
    ):
        (tmp_path / "sweep.json").write_bytes(content)
        assert f"{tmp_path} holds " in one_line(lambda: Translator(tmp_path), capsys)


OUTSIDE = (
    "../../x",
    "/etc",
    "",
    ".",
    "..",
    "trials/../../x",
    "a\0b",
    3,
    None,
    ["x"],
    {"x": 1},
)


@pytest.mark.parametrize("directory", OUTSIDE)
def test_a_sweep_stays_in_its_workdir(directory, tmp_path, capsys):
    """Neither does a report read outside, nor does a sweep that goes on write there."""
    workdir = tmp_path / "sweep"
    config = {}
    planned = plan_trials(config, [{"seed": 1}])
    open_workdir(workdir, "x.py", config, [], planned)
    text = json.loads((workdir / "sweep.json").read_text())
    text["trials"][0]["directory"] = directory
    (workdir / "sweep.json").write_text(json.dumps(text))
    (tmp_path / "x").mkdir()
    for call in (
        lambda: read_results(workdir),
        lambda: adopt_directories(workdir, planned),
        lambda: open_workdir(workdir, "x.py", config, [], planned),
    ):
        assert "sweep.json is damaged (" in one_line(call, capsys)
    assert not [*(tmp_path / "x").iterdir()] and [
        path.name for path in workdir.iterdir()
    ] == ["sweep.json"]


@pytest.mark.parametrize("content", GARBAGE)
def test_a_sweep_json_of_garbage(content, tmp_path, capsys):
    (tmp_path / "sweep.json").write_bytes(content)
    for call in (
        lambda: read_results(tmp_path),
        lambda: adopt_directories(tmp_path, []),
        lambda: run_query([tmp_path], "select 1"),
    ):
        assert "sweep.json is damaged (" in one_line(call, capsys)


def test_what_a_point_sets_leads_nowhere():
    points = [
        {"data.corpus": "files", "data.directory": value, "label": value}
        for value in (
            "../../x",
            "/etc/passwd",
            "..",
            ".",
            "~",
            "字" * 80,
            "con:\\x",
            "-rf",
            "a b;rm",
        )
    ]
    for one in plan_trials({}, points):
        path = Path(one.directory)
        assert (
            len(path.parts) == 2
            and path.parts[0] == "trials"
            and ".." not in path.parts
        )
        assert len(path.name.encode()) < 120 and not path.name.startswith((".", "-"))
