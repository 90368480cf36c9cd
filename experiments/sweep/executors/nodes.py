"""Trains each trial on several nodes at once, one trial after another."""

import concurrent.futures as futures
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from experiments.sweep.claims import SILENCE
from experiments.sweep.joiner import name_of, run_trials
from experiments.sweep.plan import Trial, group_trials, lane_key
from experiments.sweep.schedule import Layout, Schedule
from experiments.sweep.workdir import record_failure
from experiments.system.signals import STATUS, Interrupted, Interruption

LOG = "nodes.log"
"""The file in a trial's directory with what its processes said."""

WAYS = Schedule(Layout("on several nodes", 1, 1), "as asked")


class Nodes:
    """Trains trials by a command that starts a process on each node."""

    def __init__(
        self,
        workdir: Path,
        command: Sequence[str],
        interruption: Interruption,
        silence: float = SILENCE,
        job: str | None = None,
    ):
        """Runs `command` with --trial=NAME for each trial, as srun and launch.trial."""
        self._workdir = workdir
        self._worker = _Launcher(command)
        self._interruption = interruption
        self._silence = silence
        self._job = job
        self._training = iter(())

    def submit(self, trials: list[Trial]) -> None:
        """Notes what is to be trained."""
        self._interruption.unsaved = True  # the processes on the nodes have it
        self._training = run_trials(
            self,
            self._workdir,
            trials,
            lambda free: [(group, WAYS) for group in group_trials(free)],
            self._interruption,
            stays=False,
            silence=self._silence,
            job=self._job,
        )

    def workers(self, layout: Layout) -> list["_Launcher"]:
        """Returns the one that starts the processes of a trial."""
        return [self._worker]

    def poll(self) -> bool:
        """Goes on for half a second."""
        return next(self._training, self) is not self

    def leave(self) -> None:
        """Ends the processes of the trial that is trained."""
        self._training.close()
        self._worker.restart()
        self._interruption.unsaved = False


class _Launcher:
    """Starts the processes of one trial at a time, as a `workers.Worker` does in its own."""

    def __init__(self, command):
        self._command = list(command)
        self._threads = futures.ThreadPoolExecutor(1)
        self._process = None
        self.program = None

    def run(self, workdir: Path, trials: list[Trial], lanes: int) -> futures.Future:
        (trial,) = trials
        self.program = lane_key(trial.settings)
        return self._threads.submit(self._train, workdir, trial)

    def terminate(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def restart(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.kill()

    def exit_status(self) -> int | None:
        return self._process and self._process.returncode

    def _train(self, workdir, trial):
        log = workdir / trial.directory / LOG
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [*self._command, f"--trial={name_of(trial)}"]
        with open(log, "a", encoding="utf-8") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file)
            status = self._process.wait()
        if status == STATUS:
            raise Interrupted
        if status != 0:
            lines = log.read_text(errors="replace").splitlines()
            said = [line for line in lines if line.startswith("error: ")] or lines
            last = said[-1] if said else "no word"
            message = f"exit status {status}: {last.removeprefix('error: ')}"
            record_failure(workdir, trial, message, "\n".join(lines[-20:]))
