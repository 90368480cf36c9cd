"""A trained model from its directory, as a function from lines to lines."""

import functools
import sys
from pathlib import Path

import jax

from experiments import evaluation, trial
from experiments.checkpoints import Checkpoints
from experiments.evaluation import Hypothesis, Search
from experiments.files import DamagedError, read_json
from experiments.population import Lanes, each
from experiments.records import WorkdirError, not_a_trial
from experiments.settings import SettingsError, resolve
from experiments.tokens import Vocabulary, digest

LONGEST = 2**21
"""Pieces that a model may read: twice the most of a row."""


class Translator:
    """Translates with the weights that the settings of a trial's directory name, of its newest checkpoints.

    `beam` and `alpha` are the settings' own where None; each translation begins with the text `prefix`.

    Raises WorkdirError where there is no model, naming what is there, and where it cannot do what is asked;
    DamagedError and CheckpointError for files that are not what a trial wrote.
    """

    def __init__(self, workdir: Path, *, beam: int | None = None, alpha: float | None = None, n_best: int = 1,
                 prefix: str = ""):
        record, config = read_json(workdir / "record.json"), read_json(workdir / "config.json")
        if record is None or config is None:
            raise WorkdirError(not_a_trial(workdir))
        _check(workdir, record, config)
        point = {"evaluation.beam": beam, "evaluation.alpha": alpha}
        self._settings = resolve(config, {key: value for key, value in point.items() if value is not None})
        self._vocabulary = _vocabulary(workdir / "vocabulary.model", record)
        self._program = trial.program(self._settings, self._vocabulary.size, record["length"])
        self._search = each(functools.partial(evaluation.search, self._program, *self._how(n_best, prefix)))
        self._states = Lanes().stack([jax.device_get(_restore(workdir, self._program, self._settings))])

    def _how(self, n_best, prefix):
        e, pieces = self._settings.evaluation, tuple(self._vocabulary.encode([prefix.strip()])[0].tolist())
        if n_best > e.beam:
            raise WorkdirError(f"n_best={n_best} translations need a beam of at least {n_best}, and it is {e.beam}")
        if len(pieces) >= e.max_pieces:
            raise WorkdirError(f"the prefix has {len(pieces)} pieces; a translation has at most {e.max_pieces}, "
                               "end mark included")
        return Search(e.beam, e.alpha, e.max_pieces, e.extra, n_best), pieces

    def __call__(self, lines: list[str]) -> list[str]:
        """The best translation of each line, see `n_best`."""
        return [best[0].text for best in self.n_best(lines)]

    def n_best(self, lines: list[str]) -> list[list[Hypothesis]]:
        """Translations in order, the best first; an empty one for an empty line.

        A line too long for the model is cut, and said so. A short line may have fewer than were asked for.
        """
        sources = self._vocabulary.encode(line.strip() for line in lines)
        most = self._program.length - 1  # and the end mark
        for number, source in enumerate(sources, start=1):
            if len(source) > most:
                print(f"line {number} has {len(source)} pieces and is cut to {most}, the most this model reads",
                      file=sys.stderr)
        cut = [source[:most] for source in sources]
        rows = min(self._settings.evaluation.rows, max(1, len(cut)))
        (found,) = evaluation.translate(self._search, self._states, self._vocabulary, cut, rows, self._program.length)
        return found


def _check(workdir, record, config):
    """Raises DamagedError for a record.json or config.json that no trial wrote."""
    try:
        settings = resolve(config)
    except SettingsError as error:
        raise DamagedError(workdir / "config.json", error) from None
    length, needed = record.get("length"), max(settings.training.row_pieces, settings.evaluation.max_pieces)
    if type(length) is not int or not needed <= length <= LONGEST:
        raise DamagedError(workdir / "record.json", f"length={length!r} is none of {needed} to {LONGEST} pieces")


def _vocabulary(path, record):
    """The vocabulary in the file `path`. Raises DamagedError where it is none, or not the one of record.json."""
    try:
        model = path.read_bytes()
        # Before sentencepiece sees it, which is not made for what is no model.
        if not model or digest(model) != record.get("vocabulary"):
            raise DamagedError(path, f"it is not the vocabulary {record.get('vocabulary')} that record.json names")
        return Vocabulary(model)
    except (OSError, RuntimeError) as error:
        raise DamagedError(path, error) from None


def _restore(workdir, program, settings):
    init = jax.jit(trial.initial_variables, static_argnums=0)
    state = jax.device_put(trial.initial_state(program, settings, init)._replace(moments=()))
    with Checkpoints(workdir, keep=None) as checkpoints:
        found = checkpoints.restore(state)
        if found is None:
            raise WorkdirError(f"{workdir} has no checkpoint yet; train it first")
        return checkpoints.weights(settings.evaluation.weights, found.state, settings.training.average)[0]
