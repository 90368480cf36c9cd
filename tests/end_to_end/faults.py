"""Stops a run at random moments, starts it again, and compares its files with another's.

    python -m tests.end_to_end.faults --kills=5
    python -m tests.end_to_end.faults train --kills=100
    python -m tests.end_to_end.faults train --kills=20 --signal=TERM

The other run is left alone. The first command stops a sweep, the others a single trial,
whose checkpoints are compared array by array. The signal is SIGKILL if none is named; after
SIGTERM a run must leave within seconds with the status for it. Prints what differs, and ends
with status 1 if anything does. Times and speeds are not compared.
"""

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from experiments.system.signals import STATUS

CLOCKED = {"seconds", "tokens_per_second", "peak_memory", "started", "mfu"}
SAME_BYTES = ("translations.txt", "vocabulary.model", "config.json", "sentences.npz")
TRIAL = (
    "--config.training.steps=1500",
    "--config.training.log_every=5",
    "--config.training.evaluate_every=75",
    "--config.training.save_every=50",
    "--config.training.average=3",
    "--config.training.ema=0.9",
    "--config.training.keep_best=True",
    "--config.evaluation.beam=2",
)
"""A trial of the tiny config that saves and evaluates most of its time."""
LEAVING = 30.0
"""Seconds that a process told by SIGTERM has, on a busy machine of few cores."""


CONFIG = "--config=tests/experiments/tiny_config.py"
COMMANDS = {
    "sweep": [sys.executable, "-m", "launch.sweep", CONFIG],
    "train": [sys.executable, "-m", "launch.train", CONFIG, *TRIAL],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", default="sweep", choices=[*COMMANDS])
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--signal", default="KILL", choices=["KILL", "TERM", "INT"])
    given = parser.parse_args()
    numbers = given.kills * [getattr(signal, f"SIG{given.signal}")]
    is_sweep = given.what == "sweep"
    different = differences if is_sweep else differences_of_trials
    with tempfile.TemporaryDirectory() as directory:
        chance = random.Random(0)
        command = [*COMMANDS[given.what], *["--sweep=heads,seed"] * is_sweep]
        differing = compare(command, Path(directory), numbers, chance, different)
    sys.exit(1 if differing else 0)


def compare(
    command: list[str],
    directory: Path,
    numbers: Sequence[signal.Signals],
    chance: random.Random,
    different: Callable[[Path, Path], list[str]],
) -> list[str]:
    """Runs the command alone, and again with these signals; prints and returns what differs.

    They come at any time after the first trial has begun. A run that ends before all have
    come is compared, and another begun in a new directory.
    """
    alone = directory / "alone"
    span = run([*command, f"--workdir={alone}"], alone)
    differing = []
    numbers = [*numbers]
    made = 0
    turn = 0
    print(f"left alone: {span:.0f} s", flush=True)
    while made < len(numbers):
        turn += 1
        workdir = directory / f"killed-{turn}"
        killed = [*command, f"--workdir={workdir}"]
        while made < len(numbers):
            wait = chance.uniform(0.05, 0.95) * span
            number = numbers[made]
            if ended := run(killed, workdir, wait, number):
                # With what the first has compiled it takes less time.
                span = min(span, ended)
                break
            made += 1
            print(f"{made}: run {turn} ended {wait:.1f} s after it began", flush=True)
        else:
            run(killed, workdir)
        differing += different(alone, workdir)
    print(*differing or [f"no difference after {made} signals"], sep="\n")
    return differing


def run(
    command: list[str],
    workdir: Path,
    seconds: float | None = None,
    number: signal.Signals = signal.SIGKILL,
) -> float | None:
    """Runs a command to its end, or for so many seconds from when a trial has begun.

    SIGKILL goes to all workers too, any other signal to the one process. Returns the seconds
    from when a trial has begun to the end, None where the signal was sent before. SystemExit
    is raised where the command fails, or does not leave in time, or with another status than
    it should.
    """
    started = time.time()
    # What a trial locks when it begins, or goes on.
    locks = "trials/*/.lock" if "launch.sweep" in command else ".lock"
    pipes = dict(stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        while process.poll() is None:
            if any(path.stat().st_mtime > started for path in workdir.glob(locks)):
                break
            time.sleep(0.02)
        begun = time.monotonic()
        try:
            said = process.communicate(timeout=seconds)[1]
        except subprocess.TimeoutExpired:
            end(process, number)
            return None
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}:\n{said}")
    # Never 0, which would be no end.
    return max(time.monotonic() - begun, 1e-3)


def end(process, number) -> None:
    """Sends the signal in the middle of whatever the run does, and waits for its end."""
    if number == signal.SIGKILL:
        os.killpg(process.pid, number)
        process.communicate()
        return
    process.send_signal(number)
    told = time.monotonic()
    try:
        said = process.communicate(timeout=LEAVING)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise SystemExit(f"{number.name}: still there {LEAVING:.0f} s later") from None
    # It may have been at its end.
    if process.returncode not in (0, STATUS):
        raise SystemExit(f"{number.name}: status {process.returncode}\n{said}")
    print(f"status {process.returncode}, {time.monotonic() - told:.1f} s later")


def differences(one: Path, other: Path) -> list[str]:
    """What the workdirs of two sweeps differ in, beside times."""
    trials = []
    for directory in (one, other):
        entries = json.loads((directory / "sweep.json").read_text())["trials"]
        trials.append({entry["directory"]: entry for entry in entries})
    differing = []
    if trials[0] != trials[1]:
        only_one_has = trials[0].keys() ^ trials[1].keys()
        differing.append(f"sweep.json: {only_one_has or 'points differ'}")
    for name in trials[0]:
        found = differences_of_files(one / name, other / name)
        differing += [f"{name}/{line}" for line in found]
    return differing


def differences_of_trials(one: Path, other: Path) -> list[str]:
    """Lists what two trials differ in: their files, and the arrays of checkpoints, bit by bit."""
    a, b = arrays(one), arrays(other)
    differing = [f"{name}: only one has it" for name in sorted(a.keys() ^ b.keys())]
    differing += [
        f"{name}: other numbers"
        for name in sorted(a.keys() & b.keys())
        if a[name].tobytes() != b[name].tobytes()
    ]
    return differences_of_files(one, other) + differing


def arrays(workdir: Path) -> dict[str, np.ndarray]:
    """Returns all arrays of the checkpoints that a trial's result came from, by name.

    Others may lie beside them, half deleted: a kill may come while old ones are removed.
    """
    from experiments.training.checkpoints import Checkpoints

    beside = json.loads((workdir / "result.json").read_text())["beside"]
    steps = {step for scores in beside.values() for step in scores["steps"]}
    with Checkpoints(workdir, keep=None) as checkpoints:
        return {
            f"checkpoints/{step} {name}": array
            for step in sorted(steps)
            for name, array in checkpoints.arrays(step).items()
        }


def differences_of_files(a: Path, b: Path) -> list[str]:
    differing = []
    for file in SAME_BYTES:
        if (a / file).read_bytes() != (b / file).read_bytes():
            differing.append(file)
    for file in ("result.json", "metrics.jsonl"):
        for x, y in itertools.zip_longest(lines(a / file), lines(b / file)):
            if x != y:
                differing.append(f"{file}: {x} or {y}")
    return differing


def lines(path):
    """The objects in a file, one a line or one in all, without times."""
    text = path.read_text()
    texts = [text] if path.suffix == ".json" else text.splitlines()
    for own in map(json.loads, texts):
        yield {key: value for key, value in own.items() if key not in CLOCKED}


if __name__ == "__main__":
    main()
