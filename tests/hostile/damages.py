"""Damages the files of a trial and of a sweep, each in each way.

What follows must be bit-identical to what follows undamaged, or be named in one line: an
error that a user can mend, or a warning. A traceback, and other numbers in silence, are
failures. Damages of the cache are in tests/experiments/data/test_dataset.py.
"""

import contextlib
import io
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.data import dataset
from experiments.errors import UserError
from experiments.report.trial_files import read_results
from experiments.report.trial_outputs import read_examples, read_sentences
from experiments.settings import Settings
from experiments.sweep import workdir as sweep_workdir
from experiments.sweep.plan import plan_trials
from experiments.system.signals import Interrupted
from experiments.training import loop
from tests.experiments import tiny

CLOCKED = ("seconds", "tokens_per_second", "peak_memory")
SEEDS = (0, 1)
POINT = {
    **tiny.POINT,
    **tiny.SHARED,
    "data.heldout": 8,
    "training.keep_best": True,
    "training.log_every": 3,
    "training.save_every": 6,
    "evaluation.examples": 1,
}
STEPS = ("6", "9")
"""The steps of checkpoints: the schedule's, which is the best, and of the interruption."""
LOOKS = 7
"""How often a trial looks whether it is to stop until step 9, between checkpoint and end."""


class Case(NamedTuple):
    """Holds a damage: of which file of which state, and how."""

    state: str
    file: str
    harm: str

    @property
    def name(self) -> str:
        return f"{self.state}: {self.file} {self.harm}"


def cut(path: Path, other: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def zero(path: Path, other: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def flip(path: Path, other: Path) -> None:
    content = bytearray(path.read_bytes() or b"\0")
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def make_a_directory(path: Path, other: Path) -> None:
    path.unlink()
    path.mkdir()


def swap(path: Path, other: Path) -> None:
    if other.is_file():
        shutil.copyfile(other, path)
    else:
        path.unlink()


HARMS: dict[str, Callable[[Path, Path], None]] = {
    "cut": cut,
    "zeroed": zero,
    "flipped": flip,
    "directory": make_a_directory,
    "swapped": swap,
}


class World:
    """Holds undamaged states, each twice, as neighbours, and what follows from each."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.trials = plan_trials({}, [POINT | {"seed": seed} for seed in SEEDS])
        self.corpus = dataset.prepare(self.trials[0].settings.data)
        for trial in self.trials:
            half = folder / "half" / trial.directory
            with contextlib.suppress(Interrupted):
                self._run(half, trial.settings, tiny.StopAt(LOOKS))
            assert (half / "checkpoints" / "9").exists()
            ended = folder / "ended" / trial.directory
            shutil.copytree(half, ended)
            self._run(ended, trial.settings)
        config = tiny.config()
        sweep_workdir.open_workdir(folder / "ended", "tiny.py", config, [], self.trials)
        self.expected = {}
        for state, follow in self.states.items():
            self.expected[state] = follow(self._copy(state, "expected"))

    @property
    def states(self) -> dict[str, Callable[[Path], Any]]:
        return dict(half=self._go_on, ended=self._look_at)

    def cases(self) -> list[Case]:
        """Lists all damages: each of a file, and three of each file of a checkpoint.

        A checkpoint's file has its like in the other, so that both have all five.
        """
        cases = []
        for state in self.states:
            places = Counter()
            for file in self._files(state):
                harms = list(HARMS)
                if step := _step_of(file):
                    first = places[step] + 3 * STEPS.index(step)
                    harms = [harms[(first + i) % len(harms)] for i in range(3)]
                    places[step] += 1
                cases += [Case(state, file, harm) for harm in harms]
        return cases

    def outcome(self, case: Case) -> str:
        """Returns "same" or "named", or else what went wrong."""
        place = self._copy(case.state, "damaged")
        path = place / case.file
        other = self._other(case)
        HARMS[case.harm](path, other)
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                actual = self.states[case.state](place)
        except UserError as error:
            return "named" if "\n" not in str(error) else f"lines: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if _are_equal(actual, self.expected[case.state]):
            return "same"
        return "named" if said.getvalue().strip() else "other numbers in silence"

    def _files(self, state) -> Iterator[str]:
        root = self.folder / state
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            is_top = state == "ended" and "/" not in name
            # Checkpoints of a trial that has ended are as those of one that has not.
            is_again = state == "ended" and "checkpoints/" in name
            if path.name == ".lock" or is_again:
                continue
            if path.is_file() and (self._first in name or is_top):
                yield name

    @property
    def _first(self):
        return self.trials[0].directory

    def _other(self, case):
        """Returns the same file of the neighbour."""
        name = case.file.replace(self._first, self.trials[1].directory)
        return self.folder / case.state / name

    def _copy(self, state, name):
        place = self.folder / name
        shutil.rmtree(place, ignore_errors=True)
        # Of trials that have not ended one goes on, and needs no other.
        part = self._first if state == "half" else "."
        shutil.copytree(self.folder / state / part, place / part)
        return place

    def _run(self, path, settings: Settings, interruption=None):
        return loop.run(settings, self.corpus, path, interruption=interruption)

    def _go_on(self, place):
        path = place / self._first
        result = self._run(path, self.trials[0].settings)
        texts = {
            name: (path / name).read_bytes()
            for name in ("translations.txt", "vocabulary.model", "config.json")
        }
        lines = (path / "metrics.jsonl").read_text().splitlines()
        metrics = [_unclocked(json.loads(line)) for line in lines]
        with np.load(path / "sentences.npz") as arrays:
            sentences = {name: arrays[name].tolist() for name in arrays}
        return _unclocked(result), texts, metrics, sentences

    def _look_at(self, place):
        done = [sweep_workdir.is_finished(place, trial) for trial in self.trials]
        sweep_workdir.adopt_directories(place, self.trials)
        result = self._run(place / self._first, self.trials[0].settings)
        results = read_results(place)
        read = []
        for trial in results.trials:
            arrays = {k: v.tolist() for k, v in read_sentences(trial).items()}
            examples = [repr(example) for example in read_examples(trial)]
            values = (trial.name, dict(trial.point), trial.label, trial.config)
            read.append((*values, trial.record, trial.metrics, arrays, examples))
        return done, result, results.base, results.sweeps, read


def _step_of(file: str) -> str | None:
    """Returns the step of the checkpoint that a file is of."""
    return next((step for step in STEPS if f"checkpoints/{step}/" in file), None)


def _unclocked(entries):
    return {key: value for key, value in entries.items() if key not in CLOCKED}


def _are_equal(actual, expected) -> bool:
    # Through repr, in which NaN equals itself and a float has all its digits.
    return repr(actual) == repr(expected)
