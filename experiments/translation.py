"""A trained model from its directory, as a function from lines to lines."""

import functools
import sys
from pathlib import Path

import jax

from experiments import evaluation, population, trial
from experiments.checkpoints import Checkpoints, shapes
from experiments.files import read_json
from experiments.records import WorkdirError
from experiments.settings import resolve
from experiments.tokens import Vocabulary


class Translator:
    """Translates with the newest checkpoint of one trial's directory.

    Raises WorkdirError where there is none, naming what is there.
    """

    def __init__(self, workdir: Path):
        record, config = read_json(workdir / "record.json"), read_json(workdir / "config.json")
        if record is None or config is None:
            raise WorkdirError(_not_a_trial(workdir))
        self._settings = resolve(config)
        self._vocabulary = Vocabulary((workdir / "vocabulary.model").read_bytes())
        self._program = trial.program(self._settings, self._vocabulary.size, record["length"])
        self._state = _restore(workdir, self._program, self._settings)
        search = functools.partial(evaluation.greedy_search, self._program, self._settings.evaluation.max_pieces)
        self._search = jax.jit(search)

    def __call__(self, lines: list[str]) -> list[str]:
        """Translations in order, an empty one for an empty line. A line too long for the model is cut, and said so."""
        sources = self._vocabulary.encode(line.strip() for line in lines)
        most = self._program.length - 1  # and the end mark
        for number, source in enumerate(sources, start=1):
            if len(source) > most:
                print(f"line {number} has {len(source)} pieces and is cut to {most}, the most this model reads",
                      file=sys.stderr)
        cut = [source[:most] for source in sources]
        rows = min(self._settings.evaluation.rows, max(1, len(cut)))
        return evaluation.translate(self._search, self._state, self._vocabulary, cut, rows, self._program.length)


def _restore(workdir, program, settings):
    state = population.on_all_devices(trial.initial_state(program, settings, jax.jit(trial.initial_variables,
                                                                                      static_argnums=0)))
    with Checkpoints(workdir / "checkpoints") as checkpoints:
        if checkpoints.latest() is None:
            raise WorkdirError(f"{workdir} has no checkpoint yet; train it first")
        return checkpoints.restore(shapes(state))[0]


def _not_a_trial(workdir):
    if sweep := read_json(workdir / "sweep.json"):
        trials = ", ".join(str(workdir / t["directory"]) for t in sweep["trials"][:3])
        return f"{workdir} holds a whole sweep; name one of its trials: {trials}, ..."
    return f"{workdir} holds no trained model (no record.json): train one there with python -m launch.train"
