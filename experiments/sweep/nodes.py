"""Trains each trial on several nodes at once, one trial after another."""

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.sweep.claims import SILENCE
from experiments.sweep.joiner import TICK, check, name_of, run_trials
from experiments.sweep.plan import Trial
from experiments.sweep.workdir import is_cancelled
from experiments.system.signals import STATUS, Interruption

LOG = "nodes.log"
"""The file in a trial's directory with what its processes said."""

LINES = 20
"""Lines of it that the result of a trial that failed has."""


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
        self._command = list(command)
        self._interruption = interruption
        self._how = dict(stays=False, silence=silence, job=job)
        self._training = iter(())

    def submit(self, trials: list[Trial]) -> None:
        """Notes what is to be trained."""
        self._interruption.unsaved = True  # the processes on the nodes have it
        arguments = self._workdir, trials, self._run, self._interruption
        self._training = run_trials(*arguments, **self._how)

    def poll(self) -> bool:
        """Goes on for half a second."""
        return next(self._training, self) is not self

    def leave(self) -> None:
        """Ends the processes of the trial that is trained."""
        self._training.close()
        self._interruption.unsaved = False

    def _run(self, board, free):
        while trial := board.take(free):
            log = self._workdir / trial.directory / LOG
            log.parent.mkdir(parents=True, exist_ok=True)
            command = [*self._command, f"--trial={name_of(trial)}"]
            with (
                open(log, "a", encoding="utf-8") as file,
                subprocess.Popen(command, stdout=file, stderr=file) as process,
            ):
                try:
                    yield from self._wait(process)
                finally:
                    process.kill()
            if process.returncode == STATUS:
                # It was told to stop, or has lost a node: a scheduler starts all again.
                self._interruption.asked = True
            check(self._workdir, self._interruption)
            if process.returncode == 0:
                board.settle(trial)
            else:
                board.fail(trial, *_failure(process.returncode, log))

    def _wait(self, process):
        was_told = False
        while process.poll() is None:
            if is_cancelled(self._workdir):
                self._interruption.asked = True
            if self._interruption.asked and not was_told:
                was_told = True
                # srun passes it on, and at SIGTERM would kill its tasks.
                process.send_signal(signal.SIGUSR2)
            time.sleep(TICK)
            yield


def _failure(status, log):
    """Returns what to say of a command that failed, in a line and in many."""
    lines = log.read_text(errors="replace").splitlines()
    said = [line for line in lines if line.startswith("error: ")] or lines
    last = said[-1] if said else "no word"
    message = f"exit status {status}: {last.removeprefix('error: ')}"
    return message, "\n".join(lines[-LINES:])
