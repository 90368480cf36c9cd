"""Texts that a trained language model writes."""

import functools
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attn import sample
from experiments import trial
from experiments.records import WorkdirError
from experiments.tokens import BOS, EOS
from experiments.trained import load


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
            raise WorkdirError(f"{workdir} has a model that translates, and writes nothing by itself: "
                               "launch.translate uses it")
        self._most = settings.evaluation.max_pieces
        self._variables = dict(params=state.params, positions=state.positions)
        self._sample = jax.jit(functools.partial(sample, trial.model(self._program), bos=BOS, eos=EOS),
                               static_argnames="most")

    def __call__(self, count: int, *, beginning: str = "", seed: int = 0, most: int | None = None,
                 temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> list[Text]:
        """`count` texts that begin with `beginning`, of at most `most` pieces, the end mark included, or as many as the
        trial's evaluation.max_pieces; the other arguments are those of `attn.sample`.

        Raises WorkdirError for more pieces than the model reads, or a beginning that leaves no room.
        """
        most, given = most or self._most, self._vocabulary.encode([beginning.strip()])[0]
        if most > self._program.length:
            raise WorkdirError(f"{most} pieces are more than the {self._program.length} that this model reads")
        if len(given) >= most:
            raise WorkdirError(f"the beginning has {len(given)} pieces; a text has at most {most}, end mark included")
        rows = np.tile(np.append(given, 0).astype(np.int32), (count, 1))
        found = jax.device_get(self._sample(
            self._variables, jax.random.key(seed), jnp.asarray(rows), jnp.full(count, len(given)), most=most,
            temperature=temperature, top_k=top_k, top_p=top_p))
        return [Text(float(p), text) for p, text in zip(found.log_probs, self._vocabulary.decode(found.pieces),
                                                        strict=True)]
