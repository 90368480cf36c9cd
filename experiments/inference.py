"""Loads a trained model from its directory, to translate lines or to sample texts."""

import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import attn.io
from attn import sample
from experiments.data.batches import Encoded
from experiments.data.corpora import Pairs
from experiments.data.lines import as_text
from experiments.data.vocabulary import BOS, EOS, Labels, Vocabulary, digest
from experiments.errors import WorkdirError, few
from experiments.evaluation.answers import choose, choose_batch
from experiments.evaluation.attention_maps import (
    Sentences,
    attention_of,
    attention_weights,
)
from experiments.evaluation.decode import Hypothesis, Search, search_batch, translate
from experiments.settings import OutsideError, Settings, SettingsError, resolve
from experiments.system import checksums
from experiments.system.files import DamagedError, read_json
from experiments.training.checkpoints import Checkpoints
from experiments.training.run_dir import read_trial
from experiments.trial.lanes import Lanes, over_lanes
from experiments.trial.program import (
    Program,
    State,
    build_model,
    initial_state,
    program_of,
)

WEIGHTS = "model.safetensors"
"""The file of weights of a directory that launch.export has written."""

MAX_LENGTH = 2**21
"""The most tokens that a model may read: twice the largest sequence length."""


class TrainedModel(NamedTuple):
    """Holds a trial's model with the weights that its settings name."""

    settings: Settings
    vocabulary: Vocabulary
    program: Program
    state: State
    labels: tuple[str, ...] = ()

    def sources(self, lines: Sequence[str]) -> list[np.ndarray]:
        """Returns the tokens of each line; one too long for the model is cut, with a warning."""
        sources = self.vocabulary.encode(as_text(line) for line in lines)
        # The end mark takes one place.
        max_length = self.program.length - 1
        for number, source in enumerate(sources, start=1):
            if len(source) > max_length:
                print(
                    f"line {number} has {len(source)} tokens and is cut to {max_length}, "
                    "the most this model reads",
                    file=sys.stderr,
                )
        return [source[:max_length] for source in sources]

    def unseen(self, lines: Sequence[str]) -> str:
        """Returns a line on characters that the vocabulary lacks, which are spelled in bytes; ""
        where it has all."""
        found = {}
        for number, ids in enumerate(
            self.vocabulary.encode(map(as_text, lines)), start=1
        ):
            for character in sorted(self.vocabulary.spelled(ids)):
                found.setdefault(character, number)
        if not found:
            return ""
        named = [f"{character} in line {n}" for character, n in found.items()]
        return (
            "characters that the model has never seen, and reads as bytes: "
            f"{few(named, 5)}"
        )


def load_model(
    workdir: Path, point: Mapping[str, Any] = MappingProxyType({})
) -> TrainedModel:
    """Loads the model of the newest checkpoints in `workdir`.

    Its settings are the trial's with those of `point` on top.

    Raises WorkdirError where there is no model, naming what is there; DamagedError and
    CheckpointError for files that are not what a trial wrote.
    """
    config, record = read_trial(workdir)
    _check_unchanged(workdir)
    _check(workdir, record, config)
    # The directory may be another person's: code that it names is not run unasked.
    settings = resolve(config, point, trusted=False)
    vocabulary = _vocabulary(workdir / "vocabulary.model", record)
    labels = tuple(record.get("labels", ()))
    program = program_of(settings, vocabulary.size, record["length"], len(labels))
    state = jax.device_get(_restore(workdir, program, settings))
    return TrainedModel(settings, vocabulary, program, state, labels)


class Translator:
    """Translates with the model in a trial's directory.

    `beam` and `alpha` are those of the settings where None; each translation begins with
    the text `prefix`.

    Raises WorkdirError where there is no model, naming what is there, and where the model
    cannot do what is asked; and what `load_model` raises.
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
        point = dict(beam=beam, alpha=alpha)
        point = {
            f"evaluation.{name}": value
            for name, value in point.items()
            if value is not None
        }
        self._model = load_model(workdir, point)
        if not self._model.program.objective.searches:
            raise WorkdirError(
                f"{workdir} has a model that translates nothing: "
                f"{_use(self._model.program.objective)}"
            )
        search = self._search_settings(n_best)
        tokens = self._prefix_tokens(prefix)
        self._search = over_lanes(
            functools.partial(search_batch, self._model.program, search, tokens)
        )
        # Search runs on lanes; this is a population of one.
        self._states = Lanes().stack([self._model.state])

    def unseen(self, lines: Sequence[str]) -> str:
        """Returns a line on characters that the model has never seen, or ""."""
        return self._model.unseen(lines)

    def __call__(self, lines: list[str]) -> list[str]:
        """Returns the best translation of each line, see `n_best`."""
        return [hypotheses[0].text for hypotheses in self.n_best(lines)]

    def n_best(self, lines: list[str]) -> list[list[Hypothesis]]:
        """Returns translations in order, the best first; an empty one for an empty line.

        A line too long for the model is cut, with a warning. A short line may have fewer
        translations than were asked for.
        """
        settings, vocabulary, program, *_ = self._model
        sources = self._model.sources(lines)
        # A few lines need no whole batch, most of which would be padding.
        batch_size = min(settings.evaluation.batch_size, max(1, len(sources)))
        (translations,) = translate(
            self._search, self._states, vocabulary, sources, batch_size, program.length
        )
        return translations

    def attention(
        self, lines: Sequence[str], translations: Sequence[str]
    ) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
        """Computes where attention looks while it reads lines and writes their translations.

        Returns what `attention_maps.attention_examples` does, of the lines in order; nothing
        of an empty one.

        Raises:
          WorkdirError: the model has no attention.
        """
        settings, vocabulary, program, state, _ = self._model
        sources = self._model.sources(lines)
        weights = jax.jit(functools.partial(attention_weights, program))
        records, arrays = [], {}
        for line, ids, text in zip(lines, sources, translations, strict=True):
            if not len(ids):
                continue
            # One at a time, as a batch would have them in the order of their lengths.
            one = Sentences([ids], Pairs([line], [""]), [text])
            record, maps = attention_of(
                weights, state, vocabulary, one, program.length, program.objective
            )
            for name, map_ in maps.items():
                arrays[f"{len(records)}/{name.partition('/')[2]}"] = map_
            records += record
        if records and not arrays:
            raise WorkdirError(
                f"model.kind={settings.model.kind} with these settings has no attention to "
                "show"
            )
        return records, arrays

    def _search_settings(self, n_best):
        e = self._model.settings.evaluation
        if n_best > e.beam:
            raise WorkdirError(
                f"n_best={n_best} translations need a beam of at least {n_best}, and it is "
                f"{e.beam}"
            )
        return Search(e.beam, e.alpha, e.max_length, e.max_extra, n_best)

    def _prefix_tokens(self, prefix):
        max_length = self._model.settings.evaluation.max_length
        tokens = tuple(self._model.vocabulary.encode([as_text(prefix)])[0].tolist())
        if len(tokens) >= max_length:
            raise WorkdirError(
                f"the prefix has {len(tokens)} tokens; a translation has at most "
                f"{max_length}, end mark included"
            )
        return tokens


class Labeller:
    """Gives labels to texts with the model in a trial's directory.

    Raises WorkdirError where it has none for that, and what `load_model` raises.
    """

    def __init__(self, workdir: Path):
        self._model = load_model(workdir)
        if not self._model.labels:
            raise WorkdirError(
                f"{workdir} has a model that gives no labels: "
                f"{_use(self._model.program.objective)}"
            )
        self._choose = over_lanes(functools.partial(choose_batch, self._model.program))
        # It runs on lanes; this is a population of one.
        self._states = Lanes().stack([self._model.state])

    def __call__(self, lines: list[str]) -> list[str]:
        """Returns the label of each line."""
        program = self._model.program
        sources = self._model.sources(lines)
        if not sources:
            return []
        # Any label has the shape of the one that is asked.
        asked = Encoded(sources, [np.zeros(1, np.int32)] * len(sources))
        (labels,) = choose(
            self._choose,
            self._states,
            Labels(self._model.labels),
            asked,
            min(self._model.settings.evaluation.batch_size, len(sources)),
            program.length,
            objective=program.objective,
        )
        return labels


class Text(NamedTuple):
    """Holds a text and the natural log of its probability, its fixed beginning left out."""

    log_prob: float
    text: str


class Sampler:
    """Samples texts from the language model in a trial's directory.

    Raises WorkdirError where it is none, and what `load_model` raises.
    """

    def __init__(self, workdir: Path):
        self._model = load_model(workdir)
        objective = self._model.program.objective
        if objective.writes:
            raise WorkdirError(
                f"{workdir} has a model that writes nothing by itself: {_use(objective)}"
            )
        state = self._model.state
        self._variables = state.variables
        model = build_model(self._model.program)

        def draw(variables, *arguments, **options):
            options |= dict(bos=BOS, eos=EOS, updates=state.step)
            return sample(model, variables, *arguments, **options)

        self._sample = jax.jit(
            draw,
            # It sets the shapes; the other options are data, and compile nothing anew.
            static_argnames="max_length",
        )

    def __call__(
        self,
        count: int,
        *,
        beginning: str = "",
        seed: int = 0,
        max_length: int | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
    ) -> list[Text]:
        """Samples `count` texts that begin with `beginning`.

        They have at most `max_length` tokens, the end mark included; by default as many as
        the trial's evaluation.max_length. Other arguments are those of `attn.sample`.

        Raises WorkdirError for more tokens than the model reads, or a beginning that leaves
        no room.
        """
        settings, vocabulary, program, *_ = self._model
        max_length = max_length or settings.evaluation.max_length
        (tokens,) = vocabulary.encode([as_text(beginning)])
        if max_length > program.length:
            raise WorkdirError(
                f"{max_length} tokens are more than the {program.length} that this model "
                "reads"
            )
        if len(tokens) >= max_length:
            raise WorkdirError(
                f"the beginning has {len(tokens)} tokens; a text has at most {max_length}, "
                "end mark included"
            )
        # One more token, so that an empty beginning is an array too.
        prefix = np.append(tokens, 0).astype(np.int32)
        samples = self._sample(
            self._variables,
            jax.random.key(seed),
            jnp.asarray(np.tile(prefix, (count, 1))),
            jnp.full(count, len(tokens)),
            max_length=max_length,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
        )
        samples = jax.device_get(samples)
        texts = vocabulary.decode(samples.tokens)
        pairs = zip(samples.log_probs, texts, strict=True)
        return [Text(float(log_prob), text) for log_prob, text in pairs]


def _use(objective):
    """Returns what a trained model is for."""
    if objective.searches:
        return "launch.translate uses it"
    if objective.targets == "labels":
        return "experiments.inference.Labeller uses it"
    if objective.chooses:
        return "translations.txt there has its answers to the test set"
    return "launch.sample uses it"


def _check_unchanged(workdir):
    """Raises DamagedError for a config.json or record.json that is not what the trial wrote.

    Weights and vocabulary have checksums of their own. Other files may be missing, as in a
    copy of what a model needs.
    """
    changed = checksums.changed_files(workdir)
    for name in ("config.json", "record.json", checksums.NAME):
        if name in changed:
            raise DamagedError(workdir / name, "it is not what the trial wrote")


def _check(workdir, record, config):
    """Raises DamagedError for a record.json or config.json that no trial wrote."""
    try:
        settings = resolve(config, trusted=False)
    # That is the user's to allow or to mend, and no damage.
    except OutsideError:
        raise
    except SettingsError as error:
        raise DamagedError(workdir / "config.json", error) from None
    length = record.get("length")
    # A trial's model has room for both, see `Dataset.length`.
    least = max(settings.training.sequence_length, settings.evaluation.max_length)
    # isinstance would take JSON's true for a number.
    if type(length) is not int or not least <= length <= MAX_LENGTH:
        message = f"length={length!r} is none of {least} to {MAX_LENGTH} tokens"
        raise DamagedError(workdir / "record.json", message)


def _vocabulary(path, record):
    """Reads the vocabulary in the file `path`.

    Raises DamagedError where it is none, or not the one of record.json.
    """
    expected = record.get("vocabulary")
    try:
        model = path.read_bytes()
        # Checked first, because sentencepiece may crash on what is no model.
        if not model or digest(model) != expected:
            message = f"it is not the vocabulary {expected} that record.json names"
            raise DamagedError(path, message)
        return Vocabulary(model)
    except (OSError, RuntimeError) as error:
        raise DamagedError(path, error) from None


def _exported(workdir, program, state):
    """Returns the state with the weights that launch.export has written."""
    about = read_json(workdir / "export.json")
    try:
        arrays = attn.io.load(workdir / WEIGHTS)
        variables = attn.io.from_arrays(build_model(program), arrays)
        step = jnp.int32(about["step"])
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedError(workdir / WEIGHTS, error) from None
    return state._replace(
        step=step,
        params=variables["params"],
        positions=variables.get("positions", {}),
        numbers=variables.get("numbers", state.numbers),
    )


def _restore(workdir, program, settings):
    """Returns the newest state, with the weights that the settings name."""
    # Weights alone: the optimizer's moments are not needed.
    state = jax.device_put(initial_state(program, settings)._replace(moments=()))
    if (workdir / WEIGHTS).exists():
        return _exported(workdir, program, state)
    # For reading only, as the trial may be running.
    with Checkpoints(workdir, keep=None) as checkpoints:
        restored = checkpoints.restore(state)
        if restored is None:
            raise WorkdirError(f"{workdir} has no checkpoint; train it first")
        weights = settings.evaluation.weights
        average = settings.training.average
        state, _ = checkpoints.weights(weights, restored.state, average)
    return state
