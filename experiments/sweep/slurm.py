"""Trains trials in the tasks of a SLURM array, each of which joins the sweep.

A task is `launch.sweep --join`, which takes trials until none is free. It saves and goes back
to the queue when SLURM's time is over, when it is preempted, and at SIGTERM; no administrator
has to set anything for that.
"""

import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from experiments.errors import UserError, few, one_line
from experiments.sweep.claims import list_claims
from experiments.sweep.joiner import name_of
from experiments.sweep.plan import Trial
from experiments.system.checksums import read_sealed, write_sealed
from experiments.system.files import write_text
from experiments.system.signals import STATUS

JOBS = "jobs"
"""The folder of the script and of logs."""

ASK_EVERY = 15.0
"""Seconds between two questions to SLURM."""

PAUSE = 1.0
"""Seconds between two looks at the claims."""

GRACE = 120
"""Seconds before the end of a task's time at which it is asked to save."""

SCRIPT = """\
#!/bin/bash
# A task of {workdir}: it trains what is free there.
export SRUN_CPUS_PER_TASK=${{SLURM_CPUS_PER_TASK:-}}
[ -n "$SRUN_CPUS_PER_TASK" ] || unset SRUN_CPUS_PER_TASK
name=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID
stop() {{ stopped=1; [ -z "$joiner" ] || {stop}; }}
joiner= stopped=
# Before the sweep starts, as a signal in between would end this script alone.
trap stop TERM
{start} &
joiner=$!
[ -z "$stopped" ] || stop
wait "$joiner"
# The signal ends `wait` too, while the sweep still saves.
while kill -0 "$joiner" 2>/dev/null; do wait "$joiner"; done
# Bash keeps the status of a process that has ended.
wait "$joiner"
status=$?
# 143: stopped before it could say that it saves.
if [ "$status" = {again} ] || [ "$status" = 143 ]; then
  # SLURM ends this script then; without the pause it might end by itself, and be done.
  scontrol requeue "$name" && sleep 600
elif [ "$status" != 0 ]; then
  {{ tail -n 20 {jobs}/"$name.out"; echo "(exit status $status)"; }} > {jobs}/"$name.failed"
fi
exit "$status"
"""


AS_STEP = "srun --overlap --nodes=1 --ntasks=1 "
"""How a joiner is started: SLURM signals steps alone when a job is preempted."""

STOP_STEP = 'scancel --signal=TERM "$name"'
"""How it is stopped: srun would kill it at SIGTERM."""

STOP = 'kill -TERM "$joiner"'
"""How one is stopped whose trials are steps, each by an srun that must not get the signal."""


class SlurmError(UserError):
    """Raised for what SLURM refuses, in its own words."""


def wait_for_others(workdir: Path, trials: Sequence[Trial]) -> Iterator[None]:
    """Yields every second until whoever joins has trained all trials."""
    names = {name_of(trial) for trial in trials}
    while not names <= list_claims(workdir).ended:
        yield
        time.sleep(PAUSE)


def train_on_slurm(
    workdir: Path,
    trials: Sequence[Trial],
    jobs: int,
    flags: Mapping[str, str],
    join: Sequence[str],
    say: Callable[[str], None],
    nodes: int = 1,
) -> Iterator[None]:
    """Has tasks of an array train; yields every second while any of them runs or waits.

    There is a task for each trial, at most `jobs`, less those of an earlier call. Each has
    `nodes` nodes, and runs the command `join`. `flags` are sbatch's, such as
    {"partition": "gpu"}.
    """
    tasks = tasks_of(workdir, always=True)
    there = [task for task, state in tasks.items() if state != "COMPLETING"]
    # Failures of tasks before this call are no news.
    reported = set(failures(workdir))
    if there:
        say(f"{len(there)} tasks of an earlier call are there: {few(there, 5)}")
    count = min(jobs, len(trials)) - len(there)
    if count > 0:
        number = submit(workdir, count, flags, join, nodes)
        say(
            f"SLURM job {number}: {count} tasks, logs in {workdir / JOBS}. Ctrl-C "
            f"leaves them; launch.cancel --workdir={workdir} ends them"
        )
    asked = -ASK_EVERY
    are_left = True
    for _ in wait_for_others(workdir, trials):
        if time.monotonic() - asked > ASK_EVERY:
            asked = time.monotonic()
            are_left = bool(tasks_of(workdir))
            for task, lines in failures(workdir).items():
                if task not in reported:
                    reported.add(task)
                    say(f"task {task} ended without its work:\n{lines}")
        if not are_left:
            return
        yield


def submit(
    workdir: Path, count: int, flags: Mapping[str, str], join: Sequence[str], nodes: int
) -> str:
    """Submits tasks as `train_on_slurm` says; returns their job's number, which is kept."""
    jobs = workdir.absolute() / JOBS
    script = SCRIPT.format(
        workdir=one_line(workdir),
        start=("" if nodes > 1 else AS_STEP) + shlex.join(join),
        stop=STOP if nodes > 1 else STOP_STEP,
        again=STATUS,
        jobs=shlex.quote(str(jobs)),
    )
    write_text(jobs / "join.sh", script)
    # A percent sign would begin one of sbatch's own names.
    output = f"{jobs}/".replace("%", "%%") + "%A_%a.out"
    array = (f"--array=0-{count - 1}", f"--output={output}")
    own = sbatch_flags(flags, nodes)
    said = _run("sbatch", "--parsable", *array, *own, f"{jobs}/join.sh")
    number = said.strip().partition(";")[0]
    numbers = [*job_numbers(workdir), number]
    write_sealed(jobs / "jobs.json", dict(jobs=numbers))
    return number


def task_name() -> str | None:
    """Returns the name of the SLURM task that this process is in, None for none."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    if array:
        return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ.get("SLURM_JOB_ID")


def tasks_of(workdir: Path, always: bool = False) -> dict[str, str]:
    """Returns {task: state} of all tasks of a workdir's jobs that SLURM has still.

    A task that is COMPLETING may have ended for good, or be about to start again. Without
    jobs SLURM is asked only if `always`: whether it is there.
    """
    numbers = job_numbers(workdir)
    if not numbers and not always:
        return {}
    # All of the user's: for a job that has left the queue squeue has but an error.
    asked = _run("squeue", "--me", "--noheader", "--array", "--format=%i %T")
    states = dict(line.split() for line in asked.splitlines())
    return {
        task: state for task, state in states.items() if task.split("_")[0] in numbers
    }


def failures(workdir: Path) -> dict[str, str]:
    """Returns {task: the last lines of its log} of tasks that ended with an error."""
    paths = sorted((workdir / JOBS).glob("*.failed"))
    return {path.stem: path.read_text(errors="replace") for path in paths}


def cancel(workdir: Path) -> list[str]:
    """Cancels tasks that wait; those that run save first, and leave. Returns both."""
    tasks = list(tasks_of(workdir))
    if tasks:
        _run("scancel", "--state=PENDING", *job_numbers(workdir))
    return tasks


def job_numbers(workdir: Path) -> list[str]:
    """Returns the jobs that were submitted for a workdir."""
    return (read_sealed(workdir / JOBS / "jobs.json") or {}).get("jobs", [])


def on_nodes(nodes: int, command: Sequence[str]) -> list[str]:
    """Returns how a task of several nodes starts a process on each of them."""
    each = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
    return ["srun", "--overlap", "--kill-on-bad-exit=0", *each, *command]


def sbatch_flags(flags: Mapping[str, str], nodes: int) -> list[str]:
    """Returns all flags of sbatch for tasks of so many nodes: a user's, and what they lack."""
    # An hour, as there may be no default.
    minutes = flags.get("time", "60")
    # Of a short time a third is left to save.
    grace = min(GRACE, 20 * int(minutes)) if minutes.isdecimal() else GRACE
    signal = f"B:TERM@{grace}"
    own = {"job-name": "attn-sweep", "time": minutes, "signal": signal}
    given = own | {"open-mode": "append"} | dict(flags)
    if nodes > 1:
        # The joiner is one process, which starts those of a trial beside itself.
        given |= {"nodes": nodes, "ntasks-per-node": 1}
    return ["--requeue", *(f"--{name}={value}" for name, value in given.items())]


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise SlurmError(
            f"there is no {command[0]} here: --on=slurm is for a machine that submits jobs"
        ) from None
    except subprocess.CalledProcessError as error:
        match = re.search(r"sbatch: error: (.*)", error.stderr)
        said = match[1] if match else error.stderr
        raise SlurmError(f"{command[0]} refuses: {one_line(said)}") from None
    return done.stdout
