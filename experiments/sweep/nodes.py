"""Trains each trial on several nodes at once, one trial after another."""

import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
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


def train_on_nodes(
    workdir: Path,
    trials: Sequence[Trial],
    command: Sequence[str],
    interruption: Interruption,
    silence: float = SILENCE,
    job: str | None = None,
) -> Iterator[None]:
    """Runs `command` with --trial=NAME for each trial, as srun and launch.trial.

    Yields twice a second. Raises what `run_trials` does.
    """

    def run(board, free):
        while trial := board.take(free):
            log = workdir / trial.directory / LOG
            log.parent.mkdir(parents=True, exist_ok=True)
            with open(log, "a", encoding="utf-8") as file:
                own = [*command, f"--trial={name_of(trial)}"]
                status = yield from _run(own, file, workdir, interruption)
            if status == STATUS:
                # It was told to stop, or has lost a node: a scheduler starts all again.
                interruption.asked = True
            check(workdir, interruption)
            if status == 0:
                board.settle(trial)
            else:
                board.fail(trial, *_failure(status, log))

    # The processes on the nodes have it.
    interruption.unsaved = True
    try:
        how = dict(stays=False, silence=silence, job=job)
        yield from run_trials(workdir, trials, run, interruption, **how)
    finally:
        interruption.unsaved = False


def _run(command, file, workdir, interruption):
    """Runs a command to its end, and returns its status."""
    was_told = False
    with subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            while process.poll() is None:
                if is_cancelled(workdir):
                    interruption.asked = True
                if interruption.asked and not was_told:
                    was_told = True
                    # srun passes it on, and at SIGTERM would kill its tasks.
                    process.send_signal(signal.SIGUSR2)
                time.sleep(TICK)
                yield
        finally:
            process.kill()
    return process.returncode


def _failure(status, log):
    """Returns what to say of a command that failed, in a line and in many."""
    lines = log.read_text(errors="replace").splitlines()
    said = [line for line in lines if line.startswith("error: ")] or lines
    last = said[-1] if said else "no word"
    message = f"exit status {status}: {last.removeprefix('error: ')}"
    return message, "\n".join(lines[-LINES:])
