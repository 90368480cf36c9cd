"""What sbatch is given, and its script with stand-ins for SLURM's programs."""

import os
import signal
import subprocess

import pytest

from experiments.errors import UserError
from experiments.sweep import slurm

PROGRAMS = {
    "squeue": "",
    "sbatch": 'echo "sbatch $*" >> "$LOG"; echo 17',
    "srun": 'echo "as a step" >> "$LOG"; shift 3; exec "$@"',
    "scontrol": 'echo "scontrol $*" >> "$LOG"; exit 1',
    "scancel": 'echo "scancel $*" >> "$LOG"; kill -TERM "$(cat "$LOG.pid")"',
}
JOINER = """
trap 'sleep 0.5; echo saved >> "$LOG"; exit 75' TERM
echo $$ > "$LOG.pid"; echo "no device here"
if [ -n "$STATUS" ]; then exit "$STATUS"; fi
echo ready; while true; do sleep 0.05; done
"""
TASK = dict(SLURM_ARRAY_JOB_ID="17", SLURM_ARRAY_TASK_ID="4")


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A function that submits a sweep and starts a task of it."""
    log = tmp_path / "log"
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(log))

    def start(status="", nodes=1):
        join = ["bash", "-c", JOINER]
        assert slurm.submit(tmp_path / "a b", 2, {}, join, nodes) == "17"
        submitted, *_ = log.read_text().splitlines()
        script = tmp_path / "a b/jobs/join.sh"
        assert submitted.startswith("sbatch --parsable --array=0-1 --output=")
        assert submitted.endswith(str(script))
        assert slurm.job_numbers(tmp_path / "a b") == ["17"]
        log.write_text("")
        return subprocess.Popen(
            ["bash", script],
            env=os.environ | TASK | dict(STATUS=status),
            stdout=subprocess.PIPE,
            text=True,
        )

    start.log = log
    return start


@pytest.mark.parametrize("status", ["0", "3", "75", "143"])
def test_a_task_ends_as_what_joins_and_goes_back_where_that_was_stopped(
    start, tmp_path, status
):
    (tmp_path / "a b/jobs").mkdir(parents=True)
    (tmp_path / "a b/jobs/17_4.out").write_text("no device here\n")
    process = start(status)
    process.communicate(timeout=60)
    assert process.returncode == int(status)
    goes_back = ["scontrol requeue 17_4"] if status in ("75", "143") else []
    assert start.log.read_text().splitlines() == ["as a step", *goes_back]
    failed = {"17_4": "no device here\n(exit status 3)\n"} if status == "3" else {}
    assert slurm.failures(tmp_path / "a b") == failed


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_task_waits_until_what_joins_has_saved(start, nodes):
    """Where trials are steps themselves, what joins is none and is told by the script."""
    process = start(nodes=nodes)
    while process.stdout.readline() != "ready\n":
        pass
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 75
    told = ["as a step", "scancel --signal=TERM 17_4"] if nodes == 1 else []
    expected = [*told, "saved", "scontrol requeue 17_4"]
    assert start.log.read_text().splitlines() == expected


@pytest.mark.parametrize(
    ("time", "grace"), [("1", 20), ("5", 100), ("240", 120), ("4:00:00", 120)]
)
def test_a_short_time_leaves_most_of_it_to_train(time, grace):
    flags = slurm.sbatch_flags(dict(time=time, gres="gpu:1"), nodes=1)
    assert {f"--time={time}", f"--signal=B:TERM@{grace}", "--gres=gpu:1"} <= {*flags}


def test_flags_of_sbatch_are_those_of_the_user_first():
    flags = slurm.sbatch_flags({"job-name": "mine", "nodes": "3"}, nodes=4)
    assert "--job-name=mine" in flags and "--time=60" in flags
    assert "--nodes=4" in flags and "--nodes=3" not in flags


def test_without_slurm_it_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is no squeue here"):
        next(slurm.train_on_slurm(tmp_path, [], 2, {}, [], print))
