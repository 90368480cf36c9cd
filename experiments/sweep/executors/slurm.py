"""Trains trials in the tasks of a SLURM array, each of which joins the sweep.

A task is `launch.sweep --join` in a child process: it takes trials until none is free. It
saves and asks to be started again when SLURM's time is over, when it is preempted, and at
SIGTERM; no administrator has to set anything for that.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.errors import UserError, one_line
from experiments.sweep.claims import list_claims
from experiments.sweep.joiner import name_of
from experiments.sweep.plan import Trial
from experiments.system.checksums import read_sealed, write_sealed
from experiments.system.signals import STATUS

JOBS = "jobs"
"""The folder of scripts and logs."""

ASK_EVERY = 15.0
"""Seconds between two questions to SLURM."""

GRACE = 120
"""Seconds before the end of a task's time at which it is asked to save."""

LINES = 20
"""Lines of the log of a task that failed."""


class SlurmError(UserError):
    """Raised for what SLURM refuses, in its own words."""


class Slurm:
    """Submits arrays of tasks, and asks what has become of them."""

    def __init__(
        self,
        workdir: Path,
        jobs: int,
        flags: Mapping[str, str],
        join: Sequence[str],
        say: Callable[[str], None],
        nodes: int = 1,
    ):
        """Submits at most `jobs` tasks, each with so many nodes, that run the command `join`.

        `flags` are sbatch's, such as {"partition": "gpu"}.
        """
        self._nodes = nodes
        self._workdir = workdir
        self._jobs = jobs
        self._flags = flags
        self._join = list(join)
        self._say = say
        self._names = set()
        self._asked = -ASK_EVERY
        self._are_left = True
        self._reported = set()

    def submit(self, trials: list[Trial]) -> None:
        """Submits a task for each trial, up to the limit, less those that are there still."""
        _check_installed()
        self._names = {name_of(trial) for trial in trials}
        tasks = tasks_of(self._workdir)
        there = [task for task, state in tasks.items() if state != "COMPLETING"]
        # Failures of tasks before this call are no news.
        self._reported = set(failures(self._workdir))
        if there:
            self._say(f"{len(there)} tasks of an earlier call are there: {_few(there)}")
        count = min(self._jobs, len(trials)) - len(there)
        if count > 0:
            number = self._submit(count)
            _note(self._workdir, number)
            self._say(
                f"SLURM job {number}: {count} tasks, logs in {self._workdir / JOBS}. Ctrl-C "
                f"leaves them; launch.cancel --workdir={self._workdir} ends them"
            )
        self._asked = -ASK_EVERY
        self._are_left = True

    def poll(self) -> bool:
        """Waits a second; returns whether there is work, and tasks that run or wait."""
        time.sleep(1.0)
        if self._names <= list_claims(self._workdir).ended:
            return False
        if time.monotonic() - self._asked > ASK_EVERY:
            self._are_left = bool(tasks_of(self._workdir))
            self._asked = time.monotonic()
            for task, lines in failures(self._workdir).items():
                if task not in self._reported:
                    self._reported.add(task)
                    self._say(f"task {task} ended without its work:\n{lines}")
        return self._are_left

    def leave(self) -> None:
        """Leaves the tasks where they are."""

    def _submit(self, count):
        import submitit

        executor = submitit.SlurmExecutor(self._workdir / JOBS, max_num_timeout=10**6)
        given, additional = _parameters(self._flags, self._nodes)
        executor.update_parameters(
            job_name="attn-sweep",
            array_parallelism=count,
            additional_parameters=additional,
            **given,
        )
        task = Task(self._workdir / JOBS, self._join)
        try:
            jobs = executor.map_array(task, range(count))
        except Exception as error:
            # submitit's own error has sbatch's words at its end.
            raise SlurmError(f"sbatch refuses: {one_line(_words(error))}") from error
        return jobs[0].job_id.split("_")[0]


class Task:
    """What a task of the array does: it joins the sweep in a process of its own.

    submitit takes SIGTERM for itself and ignores it, so that this process would not save.
    """

    def __init__(self, folder: Path, join: Sequence[str]):
        self._folder = Path(folder)
        self._join = list(join)
        self._child = None

    def __getstate__(self):
        # submitit writes a task to a file.
        return vars(self) | dict(_child=None)

    def __call__(self, index: int) -> int:
        """Returns the child's status; asks SLURM to start it again if it was stopped."""
        log = self._folder / f"{task_name()}.out"
        with open(log, "a", encoding="utf-8") as file:
            self._child = subprocess.Popen(
                self._join, stdout=file, stderr=file, preexec_fn=_leave_usr2
            )
            # Not wait(), which keeps a lock that the signal handler would need.
            while (status := self._child.poll()) is None:
                time.sleep(0.2)
        # By its own handler of SIGTERM, or before it had one.
        if status in (STATUS, -signal.SIGTERM):
            _requeue()
        elif status != 0:
            lines = log.read_text(errors="replace").splitlines()[-LINES:]
            text = "\n".join([*lines, f"(exit status {status})"])
            (self._folder / f"{task_name()}.failed").write_text(text)
        return status

    def checkpoint(self, index: int):
        """Is called by submitit when the time is over: saves, and has it started again."""
        import submitit

        if self._child and self._child.returncode is None:
            os.kill(self._child.pid, signal.SIGTERM)
            # It is left to __call__ to take its status.
            os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)
        return submitit.helpers.DelayedSubmission(self, index)


def _leave_usr2():
    """Has the child ignore the signal by which SLURM tells submitit of the end."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def task_name() -> str | None:
    """Returns the name of the SLURM task that this process is in, None for none."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    if array:
        return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ.get("SLURM_JOB_ID")


def tasks_of(workdir: Path) -> dict[str, str]:
    """Returns {task: state} of all tasks of a workdir's jobs that SLURM has still.

    A task that is COMPLETING may have ended for good, or be about to start again.
    """
    numbers = job_numbers(workdir)
    if not numbers:
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


def _note(workdir, number):
    path = workdir / JOBS / "jobs.json"
    write_sealed(path, dict(jobs=[*job_numbers(workdir), number]))


def on_nodes(nodes: int, command: Sequence[str]) -> list[str]:
    """Returns how a task of several nodes starts a process on each of them."""
    each = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
    return ["srun", "--overlap", "--kill-on-bad-exit=0", *each, *command]


def _parameters(flags, nodes):
    """Returns submitit's parameters for sbatch's flags, and what it passes on as it is."""
    additional = dict(flags)
    minutes = _minutes(additional.pop("time", "60"))
    given = dict(
        time=minutes,
        # Of a short time a third is left to save.
        signal_delay_s=int(min(GRACE, 60 * minutes / 3)),
        stderr_to_stdout=True,
    )
    if nodes > 1:
        # The task is one process, which starts those of a trial beside itself.
        additional |= {"nodes": nodes, "ntasks-per-node": 1}
        given["srun_args"] = ["--nodes=1", "--ntasks=1", "--overlap"]
    return given, additional | {"requeue": True}


def _minutes(text):
    """Returns the minutes of --slurm.time, which may be 240, 4:00:00 or 1-12."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not match:
        raise SlurmError(
            f"--slurm.time={text} is no time: give minutes, 4:00:00, or 1-12 for days-hours"
        )
    days, first, second, _ = (int(x) if x else 0 for x in match.groups())
    if match[1]:
        minutes = (24 * days + first) * 60 + second
    elif match[4]:
        minutes = first * 60 + second
    else:
        minutes = first
    return max(1, minutes)


def _check_installed():
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise SlurmError(
            "--on=slurm needs submitit: make install EXTRAS=slurm, or pip install submitit"
        ) from None
    _run("squeue", "--version")


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise SlurmError(
            f"there is no {command[0]} here: --on=slurm is for a machine that submits jobs"
        ) from None
    except subprocess.CalledProcessError as error:
        raise SlurmError(f"{command[0]} says: {one_line(error.stderr)}") from None
    return done.stdout


def _requeue():
    """Asks SLURM to start this task again, and waits for its end."""
    number = os.environ["SLURM_JOB_ID"]
    done = subprocess.run(["scontrol", "requeue", number], check=False)
    if done.returncode == 0:
        # SLURM ends this process now.
        time.sleep(600)


def _few(tasks):
    shown = ", ".join(tasks[:5])
    return shown if len(tasks) <= 5 else f"{shown} and {len(tasks) - 5} more"


def _words(error: Any) -> str:
    text = str(error)
    match = re.search(r"sbatch: error: (.*)", text)
    return match[1] if match else text
