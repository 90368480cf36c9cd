"""The comparison of tests/end_to_end/faults.py, and its quick form."""

import json
import random
import signal
import subprocess
import time
from typing import Any, NamedTuple

import jax.numpy as jnp
import pytest

from experiments.system.signals import LINE, STATUS
from experiments.training.checkpoints import Checkpoints
from tests.end_to_end import faults


def workdir(path, **changed):
    """A sweep's directory of one trial; `changed` is {file: text}."""
    files = {
        "result.json": json.dumps(dict(bleu=3.5, seconds=1.5)),
        "config.json": "{}",
        "sentences.npz": "x",
        "metrics.jsonl": '{"step": 4, "seconds": 9.5}\n',
        "translations.txt": "ein Hund\n",
        "vocabulary.model": "v",
    }
    (path / "trials/a").mkdir(parents=True)
    (path / "sweep.json").write_text(
        json.dumps(dict(trials=[dict(directory="trials/a", point={})]))
    )
    for name, text in (files | changed).items():
        (path / "trials/a" / name).write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("result.json", '{"bleu": 3.5000001, "seconds": 1.5}'),
        ("translations.txt", "ein Hund \n"),
        ("metrics.jsonl", '{"step": 5, "seconds": 9.5}\n'),
        ("metrics.jsonl", 2 * '{"step": 4, "seconds": 9.5}\n'),
        ("vocabulary.model", "w"),
    ],
)
def test_every_difference_is_seen(tmp_path, name, text):
    one, other = workdir(tmp_path / "one"), workdir(tmp_path / "other", **{name: text})
    (difference,) = faults.differences(one, other)
    assert difference.startswith(f"trials/a/{name}")


class State(NamedTuple):
    step: Any
    params: Any
    positions: Any = ()
    moments: Any = ()


def test_every_bit_of_a_checkpoint_is_compared(tmp_path):
    x = jnp.arange(5.0)
    moved = x.at[3].multiply(1 + 2**-23)
    for name, value in (("one", x), ("same", x), ("other", moved)):
        steps = {key: dict(steps=[4]) for key in ("raw", "average", "best")}
        workdir(tmp_path / name, **{"result.json": json.dumps(dict(beside=steps))})
        with Checkpoints(tmp_path / name / "trials/a", keep=2) as checkpoints:
            checkpoints.save(4, State(jnp.int32(4), dict(w=value)), dict(epoch=0))
            between = 5 if name == "same" else 6
            state = State(jnp.int32(9), dict(w=value))
            checkpoints.save(between, state, dict(epoch=0), {}, scheduled=False)
        (tmp_path / name / "trials/a/checkpoints/3").mkdir()  # half deleted
    one, same, other = (tmp_path / x / "trials/a" for x in ("one", "same", "other"))
    assert faults.differences_of_trials(one, same) == []
    assert faults.differences_of_trials(one, other) == [
        "checkpoints/4 params/w: other numbers"
    ]
    assert len(faults.arrays(one)) == 2


def test_times_are_no_difference(tmp_path):
    one = workdir(tmp_path / "one")
    same = workdir(tmp_path / "b", **{"result.json": '{"bleu": 3.5, "seconds": 7}'})
    assert faults.differences(one, same) == []
    (one / "sweep.json").write_text(json.dumps(dict(trials=[])))
    assert faults.differences(one, same) == ["sweep.json: {'trials/a'}"]


@pytest.mark.ci
def test_a_trial_ended_at_random_ends_the_same(tmp_path):
    command = [*faults.COMMANDS["train"], "--config.training.steps=300"]
    numbers = [*3 * [signal.SIGKILL], signal.SIGTERM]
    different = faults.differences_of_trials
    assert faults.compare(command, tmp_path, numbers, random.Random(2), different) == []


@pytest.mark.ci
def test_a_sweep_killed_at_random_ends_the_same(tmp_path):
    command = [*faults.COMMANDS["sweep"], "--sweep=seed", "--workers=1"]
    kills = 2 * [signal.SIGKILL]
    different = faults.differences
    assert faults.compare(command, tmp_path, kills, random.Random(1), different) == []


@pytest.mark.ci
def test_a_sweep_that_is_told_to_stop_tells_its_workers(tmp_path):
    """Only the signal makes them save: by themselves they would at their last step alone."""
    names = ("steps", "evaluate_every", "save_every")
    never = [f"--config.training.{name}=40000" for name in names]
    command = [*faults.COMMANDS["sweep"], "--sweep=seed", *never]
    pipes = dict(stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen([*command, f"--workdir={tmp_path}"], **pipes) as process:
        try:
            end = time.monotonic() + 300
            logs = "trials/*/metrics.jsonl"
            while not any(path.stat().st_size for path in tmp_path.glob(logs)):
                assert process.poll() is None and time.monotonic() < end
                time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=faults.LEAVING)[1]
        finally:
            # Left alone it would train for hours.
            process.kill()
    assert process.returncode == STATUS and said.strip() == LINE
    assert list(tmp_path.glob("trials/*/checkpoints/*/checksums.json"))
    assert not list(tmp_path.glob("trials/*/result.json"))
