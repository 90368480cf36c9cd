"""Kills a sweep at random moments, starts it again each time, and compares what it leaves with one left alone.

    python -m tests.faults --kills=5

Prints what differs, and ends with status 1 if anything does. Times and speeds are not compared.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CLOCKED = {"seconds", "tokens_per_second", "started", "mfu"}
SAME_BYTES = ("translations.txt", "vocabulary.model", "config.json", "sentences.npz")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--config", default="tests/experiments/tiny_config.py")
    parser.add_argument("--sweep", default="heads,seed")
    parser.add_argument("--more", default="", help="More flags of launch.sweep")
    parser.add_argument("--directory", default="", help="Kept; a temporary one otherwise")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(arguments.directory or temporary)
        command = [sys.executable, "-m", "launch.sweep", f"--config={arguments.config}", f"--sweep={arguments.sweep}",
                   *arguments.more.split()]
        sys.exit(1 if compare(command, directory, arguments.kills, random.Random(arguments.seed)) else 0)


def compare(command: list[str], directory: Path, kills: int, chance: random.Random) -> list[str]:
    """Runs the sweep alone, and again with kills; prints and returns what differs.

    A sweep that ends before all kills were made is compared, and another begun in a new directory.
    """
    finish([*command, f"--workdir={directory / 'warm'}"])  # what is compiled now need not be later
    begin = time.monotonic()
    finish([*command, f"--workdir={directory / 'alone'}"])
    whole, found, made, turn = time.monotonic() - begin, [], 0, 0
    print(f"left alone: {whole:.0f} s", flush=True)
    while made < kills:
        turn += 1
        killed = [*command, f"--workdir={directory / f'killed-{turn}'}"]
        while made < kills and kill_after(killed, wait := chance.uniform(0.05, 0.95) * whole):
            made += 1
            print(f"killed {turn} after {wait:.1f} s", flush=True)
        finish(killed)
        found += differences(directory / "alone", directory / f"killed-{turn}")
    print(*found or ["no difference"], sep="\n")
    return found


def finish(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


def kill_after(command, seconds) -> bool:
    """Kills the sweep and all its workers, in the middle of whatever they do; False if it had ended before."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          start_new_session=True) as process:
        try:
            process.wait(seconds)
            return False
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return True


def differences(one: Path, other: Path) -> list[str]:
    """What two workdirs differ in, beside times."""
    found = []
    trials = [{t["directory"]: t for t in json.loads((d / "sweep.json").read_text())["trials"]} for d in (one, other)]
    if trials[0] != trials[1]:
        found.append(f"sweep.json: {trials[0].keys() ^ trials[1].keys() or 'points differ'}")
    for name in trials[0]:
        a, b = one / name, other / name
        found += [f"{name}/{file}" for file in SAME_BYTES if (a / file).read_bytes() != (b / file).read_bytes()]
        for file in ("result.json", "metrics.jsonl"):
            found += [f"{name}/{file}: {x} or {y}" for x, y in zip(lines(a / file), lines(b / file), strict=False)
                      if x != y]
            if len(lines(a / file)) != len(lines(b / file)):
                found.append(f"{name}/{file}: {len(lines(a / file))} lines or {len(lines(b / file))}")
    return found


def lines(path):
    """The objects in a file, one a line or one in all, without times."""
    text = path.read_text()
    objects = [json.loads(text)] if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]
    return [{key: value for key, value in one.items() if key not in CLOCKED} for one in objects]


if __name__ == "__main__":
    main()
