"""Sweeps on a real SLURM: whatever happens, the table is that of an undisturbed sweep."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

from experiments.sweep import slurm
from experiments.sweep.claims import list_claims
from experiments.sweep.plan import plan_trials
from tests.calls import call
from tests.end_to_end import faults
from tests.experiments import tiny

pytestmark = [
    pytest.mark.ci,
    # How ml_collections loads a config.
    pytest.mark.filterwarnings("ignore:.*load_module:DeprecationWarning"),
]

ROOT = Path(__file__).parents[2]
CONFIG = "tests/experiments/tiny_config.py"


def sizes(steps):
    return (
        f"--config.training.steps={steps}",
        "--config.training.schedule=paper(warmup=40)",
        f"--config.training.evaluate_every={steps // 2}",
        f"--config.training.save_every={steps // 6}",
    )


def arguments(workdir, *flags, sweep="positions", seeds=4, steps=240):
    return [
        sys.executable,
        "-m",
        "launch.sweep",
        f"--config={CONFIG}",
        f"--sweep={sweep}",
        f"--seeds={seeds}",
        f"--workdir={workdir}",
        *sizes(steps),
        *flags,
    ]


def on_slurm(workdir, *flags, **options):
    # Of two CPUs each task has one, as the nodes are one machine.
    slurm = ("--on=slurm", "--jobs=2", "--workers=1", "--silence=20")
    return arguments(workdir, *slurm, *flags, **options)


def run_here(workdir, *flags, **options):
    """Trains the same sweep without SLURM."""
    done = call_sweep(arguments(workdir, "--workers=1", *flags, **options))
    assert done.returncode == 0, done.stderr
    return workdir


def call_sweep(command):
    """Calls in this process what `arguments` gives."""
    return call("sweep", *command[3:])


class Sweep:
    """A sweep's command on the cluster, and what there is of its trials."""

    def __init__(self, cluster, workdir):
        self.cluster = cluster
        self.workdir = workdir
        self.log = workdir.with_suffix(".log")
        # {result.json: when it was written}, of trials that had ended.
        self.ended = {}

    def start(self, *flags, env=None, **options):
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                on_slurm(self.workdir, *flags, **options),
                cwd=ROOT,
                env=self.cluster.env | (env or {}),
                stdout=log,
                stderr=log,
            )

    def look(self):
        """Notes which trials have ended; none of them may be trained again."""
        for path in self.workdir.glob("trials/*/result.json"):
            if json.loads(path.read_text())["status"] != "finished":
                continue
            written = path.stat().st_mtime_ns
            assert self.ended.setdefault(path, written) == written, path
        return len(self.ended)

    def wait_for(self, trials, seconds=240):
        """Waits until so many trials have ended."""
        deadline = time.monotonic() + seconds
        while self.look() < trials:
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.2)

    def saves(self):
        """The steps of the one trial's checkpoints."""
        paths = self.workdir.glob("trials/*/checkpoints/*")
        return {int(path.name) for path in paths if path.name.isdigit()}

    def tasks(self):
        """The tasks that run, with their nodes."""
        return [
            (task, node)
            for task, state, node in self.cluster.squeue()
            if state == "RUNNING"
        ]

    def wait_for_tasks(self, count=2):
        self.cluster.wait_for(
            lambda: len(self.tasks()) >= count, f"{count} tasks that run", 90
        )
        return self.tasks()

    def end(self, seconds=240):
        assert self.process.wait(seconds) == 0, self.log.read_text()
        self.look()
        return self.log.read_text()


def test_a_sweep_survives_what_happens_on_a_cluster(cluster, tmp_path):
    """A task is stopped, another requeued, a node fails, a daemon and the command are killed,
    the controller starts again."""
    sweep = Sweep(cluster, tmp_path / "sweep")
    sweep.start()
    sweep.wait_for(1)
    (first, _), (second, _) = sweep.wait_for_tasks()
    cluster.run("scancel", "--signal=TERM", first)
    cluster.run("scontrol", "requeue", second)
    sweep.wait_for(2)
    _, (_, node) = sweep.wait_for_tasks()
    cluster.set_down(node)
    time.sleep(1)
    cluster.resume(node)
    sweep.wait_for(3)
    os.kill(sweep.process.pid, signal.SIGKILL)
    sweep.process.wait()
    # Its tasks go on, and the same command finds them.
    sweep.wait_for(4)
    sweep.start()
    cluster.restart_controller()
    sweep.wait_for(5)
    (_, node), *_ = sweep.wait_for_tasks(1)
    # What it has started goes on, and SLURM starts it again on the other node.
    cluster.kill_slurmd(node)
    sweep.wait_for(6)
    cluster.start_slurmd(node)
    (_, node), *_ = sweep.wait_for_tasks(1)
    cluster.kill_node(node)
    cluster.start_slurmd(node)
    printed = sweep.end()
    assert "tasks of an earlier call are there" in printed
    assert len(sweep.ended) == 8
    undisturbed = run_here(tmp_path / "undisturbed")
    assert faults.differences(undisturbed, sweep.workdir) == []
    # Each trial was trained to its end by one process.
    assert len(list_claims(sweep.workdir).ended) == 8


def test_a_trial_outlasts_its_time_limit(cluster, tmp_path):
    """SLURM has no limit below a minute, so the signal at its end is sent in its place."""
    sweep = Sweep(cluster, tmp_path / "sweep")
    options = dict(seeds=1, sweep="d_k")
    score = "--config.model.score=tests.slurm.slow:Slow"
    # Each step waits in three attentions: the trial for 72 s.
    sweep.start("--slurm.time=2", score, env={"SLOW_SCORE": "0.1"}, **options)
    for _ in range(2):
        # Those of the task before, which saved when it was told to end.
        saved = sweep.saves()
        ((task, _),) = sweep.wait_for_tasks(1)
        cluster.wait_for(lambda saved=saved: sweep.saves() - saved, "save", 120)
        assert "TimeLimit=00:02:00" in cluster.run("scontrol", "show", "job", task)
        cluster.run("scancel", "--batch", "--signal=TERM", task)
        cluster.wait_for(lambda: not sweep.tasks(), "end of the task")
    sweep.end(300)
    # Taken, given back, taken, given back, taken; on a slow machine the time ends once more.
    (number,) = list_claims(sweep.workdir).numbers.values()
    assert number >= 4
    undisturbed = run_here(tmp_path / "undisturbed", score, **options)
    assert faults.differences(undisturbed, sweep.workdir) == []


def test_a_cancelled_sweep_leaves_the_cluster_and_goes_on_later(cluster, tmp_path):
    sweep = Sweep(cluster, tmp_path / "sweep")
    score = "--config.model.score=tests.slurm.slow:Slow"
    # Each step waits in four attentions: no trial can end in less than four minutes.
    sweep.start(score, seeds=1, env={"SLOW_SCORE": "0.25"})
    cluster.wait_for(
        lambda: list(sweep.workdir.glob("trials/*/metrics.jsonl")), "a trial", 120
    )
    with mock.patch.dict(os.environ, cluster.env):
        done = call("cancel", f"--workdir={sweep.workdir}")
    assert done.returncode == 0, done.stderr
    assert "SLURM tasks among them" in done.stdout
    cluster.wait_for(lambda: not sweep.tasks(), "end of all tasks", 60)
    # The command ends, as nothing trains any more.
    assert sweep.process.wait(60) == 1
    left = list_claims(sweep.workdir)
    assert left.running() == [] and len(left.ended) == 0
    sweep.start(score, seeds=1)
    sweep.end()
    assert len(sweep.ended) == 2


def test_a_task_that_cannot_work_shows_its_last_lines(cluster, tmp_path, monkeypatch):
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(slurm, "ASK_EVERY", 1.0)
    said = []
    broken = ["bash", "-c", "echo no device here; exit 3"]
    trials = plan_trials(tiny.config(), [{"seed": 0}, {"seed": 1}])
    deadline = time.monotonic() + 90
    for _ in slurm.train_on_slurm(tmp_path, trials, 2, {}, broken, said.append):
        assert time.monotonic() < deadline
    assert said[0].startswith("SLURM job ")
    assert len(said) == 3
    for line in said[1:]:
        assert "no device here\n" in line and line.endswith("(exit status 3)\n")
    assert len(slurm.failures(tmp_path)) == 2


def test_what_sbatch_refuses_is_one_line(cluster, tmp_path):
    command = on_slurm(tmp_path / "sweep", "--slurm.partition=nowhere", seeds=1)
    with mock.patch.dict(os.environ, cluster.env):
        refused = call_sweep(command)
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    refusal = "error: sbatch refuses: invalid partition specified: nowhere\n"
    assert refused.stderr.endswith(refusal)


def test_a_trial_over_two_nodes_is_that_of_two_devices(cluster, tmp_path):
    sweep = Sweep(cluster, tmp_path / "sweep")
    # Rows that differ in their scores: one is trained, the others copy it.
    options = dict(seeds=1, steps=72, sweep="scores")
    sweep.start("--nodes=2", "--jobs=1", **options)
    sweep.end()
    records = [
        json.loads((path.parent / "record.json").read_text()) for path in sweep.ended
    ]
    assert len(records) == 3
    assert len([record for record in records if record["begun"]]) == 2
    for record in records:
        assert (record["processes"], record["devices"]) == (2, 2)
    devices = dict(JAX_NUM_CPU_DEVICES="2", NPROC="32")
    undisturbed = tmp_path / "undisturbed"
    done = subprocess.run(
        arguments(undisturbed, "--workers=1", "--lanes=1", **options),
        cwd=ROOT,
        env=os.environ | devices,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert faults.differences(undisturbed, sweep.workdir) == []
