"""A trained model as a function from lines to lines."""

import functools
import sys
from pathlib import Path

from experiments import evaluation
from experiments.evaluation import Hypothesis, Search
from experiments.population import Lanes, each
from experiments.records import WorkdirError
from experiments.trained import load


class Translator:
    """Translates with the weights that the settings of a trial's directory name, of its newest checkpoints.

    `beam` and `alpha` are the settings' own where None; each translation begins with the text `prefix`.

    Raises WorkdirError where there is no model, naming what is there, and where it cannot do what is asked, and what
    `load` raises.
    """

    def __init__(self, workdir: Path, *, beam: int | None = None, alpha: float | None = None, n_best: int = 1,
                 prefix: str = ""):
        point = {"evaluation.beam": beam, "evaluation.alpha": alpha}
        self._settings, self._vocabulary, self._program, state = load(
            workdir, {key: value for key, value in point.items() if value is not None})
        if self._program.kind == "language":
            raise WorkdirError(f"{workdir} has a language model, which translates nothing: launch.sample uses it")
        self._search = each(functools.partial(evaluation.search, self._program, *self._how(n_best, prefix)))
        self._states = Lanes().stack([state])

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
