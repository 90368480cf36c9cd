"""A trained model from its directory."""

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attn import sample
from experiments.data.vocabulary import BOS, EOS, Vocabulary, digest
from experiments.errors import WorkdirError
from experiments.evaluation.decode import Hypothesis, Search, search_batch, translate
from experiments.settings import OutsideError, Settings, SettingsError, resolve
from experiments.system.files import DamagedError, read_json
from experiments.training.checkpoints import Checkpoints
from experiments.training.run_dir import not_a_trial
from experiments.trial.lanes import Lanes, over_lanes
from experiments.trial.program import (
    Program,
    State,
    build_model,
    initial_state,
    initial_variables,
    program_of,
)

LONGEST = 2**21
"""Tokens that a model may read: twice the most of a row."""


class Trained(NamedTuple):
    """What a trial's directory holds of its model; the weights are those that its settings name."""

    settings: Settings
    vocabulary: Vocabulary
    program: Program
    state: State


def load(workdir: Path, point: Mapping[str, Any] = MappingProxyType({})) -> Trained:
    """The model in `workdir`, of its newest checkpoints, its settings with those of `point` on top.

    Raises WorkdirError where there is no model, naming what is there; DamagedError and CheckpointError for files that
    are not what a trial wrote.
    """
    record, config = (
        read_json(workdir / "record.json"),
        read_json(workdir / "config.json"),
    )
    if record is None or config is None:
        raise WorkdirError(not_a_trial(workdir))
    _check(workdir, record, config)
    settings = resolve(config, point, trusted=False)
    vocabulary = _vocabulary(workdir / "vocabulary.model", record)
    program = program_of(settings, vocabulary.size, record["length"])
    return Trained(
        settings,
        vocabulary,
        program,
        jax.device_get(_restore(workdir, program, settings)),
    )


def _check(workdir, record, config):
    """Raises DamagedError for a record.json or config.json that no trial wrote."""
    try:
        settings = resolve(config, trusted=False)
    except OutsideError:
        raise
    except SettingsError as error:
        raise DamagedError(workdir / "config.json", error) from None
    length, needed = (
        record.get("length"),
        max(settings.training.sequence_length, settings.evaluation.max_length),
    )
    if type(length) is not int or not needed <= length <= LONGEST:
        raise DamagedError(
            workdir / "record.json",
            f"length={length!r} is none of {needed} to {LONGEST} tokens",
        )


def _vocabulary(path, record):
    """The vocabulary in the file `path`. Raises DamagedError where it is none, or not the one of record.json."""
    try:
        model = path.read_bytes()
        # Before sentencepiece sees it, which is not made for what is no model.
        if not model or digest(model) != record.get("vocabulary"):
            raise DamagedError(
                path,
                f"it is not the vocabulary {record.get('vocabulary')} that record.json names",
            )
        return Vocabulary(model)
    except (OSError, RuntimeError) as error:
        raise DamagedError(path, error) from None


def _restore(workdir, program, settings):
    init = jax.jit(initial_variables, static_argnums=0)
    state = jax.device_put(initial_state(program, settings, init)._replace(moments=()))
    with Checkpoints(workdir, keep=None) as checkpoints:
        found = checkpoints.restore(state)
        if found is None:
            raise WorkdirError(f"{workdir} has no checkpoint yet; train it first")
        return checkpoints.weights(
            settings.evaluation.weights, found.state, settings.training.average
        )[0]


class Translator:
    """Translates with the weights that the settings of a trial's directory name, of its newest checkpoints.

    `beam` and `alpha` are the settings' own where None; each translation begins with the text `prefix`.

    Raises WorkdirError where there is no model, naming what is there, and where it cannot do what is asked, and what
    `load` raises.
    """

    def __init__(
        self,
        workdir: Path,
        *,
        beam: int | None = None,
        alpha: float | None = None,
        n_best: int = 1,
        prefix: str = "",
    ):
        point = {"evaluation.beam": beam, "evaluation.alpha": alpha}
        self._settings, self._vocabulary, self._program, state = load(
            workdir, {key: value for key, value in point.items() if value is not None}
        )
        if self._program.kind == "language":
            raise WorkdirError(
                f"{workdir} has a language model, which translates nothing: launch.sample uses it"
            )
        self._search = over_lanes(
            functools.partial(search_batch, self._program, *self._how(n_best, prefix))
        )
        self._states = Lanes().stack([state])

    def _how(self, n_best, prefix):
        e, tokens = (
            self._settings.evaluation,
            tuple(self._vocabulary.encode([prefix.strip()])[0].tolist()),
        )
        if n_best > e.beam:
            raise WorkdirError(
                f"n_best={n_best} translations need a beam of at least {n_best}, and it is {e.beam}"
            )
        if len(tokens) >= e.max_length:
            raise WorkdirError(
                f"the prefix has {len(tokens)} tokens; a translation has at most {e.max_length}, "
                "end mark included"
            )
        return Search(e.beam, e.alpha, e.max_length, e.max_extra, n_best), tokens

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
                print(
                    f"line {number} has {len(source)} tokens and is cut to {most}, the most this model reads",
                    file=sys.stderr,
                )
        cut = [source[:most] for source in sources]
        rows = min(self._settings.evaluation.batch_size, max(1, len(cut)))
        (found,) = translate(
            self._search,
            self._states,
            self._vocabulary,
            cut,
            rows,
            self._program.length,
        )
        return found


class Text(NamedTuple):
    """A text and the natural log of its probability, what was given of it left out."""

    log_prob: float
    text: str


class Writer:
    """Writes with the language model in a trial's directory.

    Raises WorkdirError where it is none, and what `load` raises.
    """

    def __init__(self, workdir: Path):
        settings, self._vocabulary, self._program, state = load(workdir)
        if self._program.kind != "language":
            raise WorkdirError(
                f"{workdir} has a model that translates, and writes nothing by itself: "
                "launch.translate uses it"
            )
        self._most = settings.evaluation.max_length
        self._variables = dict(params=state.params, positions=state.positions)
        self._sample = jax.jit(
            functools.partial(sample, build_model(self._program), bos=BOS, eos=EOS),
            static_argnames="max_length",
        )

    def __call__(
        self,
        count: int,
        *,
        beginning: str = "",
        seed: int = 0,
        most: int | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
    ) -> list[Text]:
        """`count` texts that begin with `beginning`, of at most `most` tokens, the end mark included, or as many as the
        trial's evaluation.max_length; the other arguments are those of `attn.sample`.

        Raises WorkdirError for more tokens than the model reads, or a beginning that leaves no room.
        """
        most, given = (
            most or self._most,
            self._vocabulary.encode([beginning.strip()])[0],
        )
        if most > self._program.length:
            raise WorkdirError(
                f"{most} tokens are more than the {self._program.length} that this model reads"
            )
        if len(given) >= most:
            raise WorkdirError(
                f"the beginning has {len(given)} tokens; a text has at most {most}, end mark included"
            )
        rows = np.tile(np.append(given, 0).astype(np.int32), (count, 1))
        found = jax.device_get(
            self._sample(
                self._variables,
                jax.random.key(seed),
                jnp.asarray(rows),
                jnp.full(count, len(given)),
                max_length=most,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
            )
        )
        return [
            Text(float(p), text)
            for p, text in zip(
                found.log_probs, self._vocabulary.decode(found.tokens), strict=True
            )
        ]
