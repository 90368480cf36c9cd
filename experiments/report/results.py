"""Reads the trials of a sweep, or of one run, back from the files of their workdir.

Files may be in any state that a killed run leaves: what is missing or cut short counts as
not there yet. What no run writes, such as a text for a number, is an error, so that the
rest of the code can trust what it reads. Nothing in a file is executed, nothing is written.
"""

import dataclasses
import functools
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from experiments.errors import UserError, one_line
from experiments.evaluation.metric_file import ENDED, read_metrics
from experiments.evaluation.metrics import METRICS, OF_ATTENTION, Metric
from experiments.system.checksums import changed_files, unseal
from experiments.system.files import DamagedError, inside, parse

KINDS = ("encoder", "decoder", "cross")
"""Encoder self-attention, decoder self-attention, and the decoder's attention to the encoder."""

ENDS = ("finished", "failed", "diverged")
"""The statuses that a result.json gives; of these only a failed trial is run again."""

STATUSES = (*ENDS, "unfinished")

ROLES = ("compared", "untuned", "tuning")
"""What a trial is for in a sweep with --tune, see `experiments.report.tuning`."""

NUMBERS = (
    "parameters",
    "bleu_detokenized",
    *(metric.key for metric in OF_ATTENTION),
    "test_perplexity",
    "steps",
    "seconds",
    "tokens_per_second",
    "training_flops",
    "peak_memory",
    "real_tokens",
    "test_sentences",
)
"""The numbers of a result.json beside those of the metrics, each of which may be missing."""

LARGEST_UNPACKED = 2**30
"""The most bytes of an .npz file's arrays, which a small file may claim many of."""

LARGEST_DRAWN = 1e100
"""Larger numbers count as infinite in figures: axes with a log scale overflow."""


class ResultsError(UserError):
    """Raised for a workdir without readable results; the message gives the remedy."""


@dataclasses.dataclass(frozen=True)
class TrialResult:
    """Holds what a trial's directory says; what its files do not hold yet is empty."""

    name: str
    point: Mapping[str, Any]
    """Flat {dotted key: value}: what the sweep set on top of its base, with the seed."""
    seed: int | None
    directory: Path
    config: Mapping[str, Any]
    """Resolved settings, nested."""
    record: Mapping[str, Any]
    """Where and with what it ran: versions, git commit, hashes, device, start."""
    metrics: tuple[Mapping[str, Any], ...]
    """Logged lines by rising step; if a resumed run logged a step twice, the later line."""
    result: Mapping[str, Any] | None
    status: str
    """One of STATUSES."""
    label: str = ""
    """The sweep's name for this trial's row; empty for a row named by what it changes."""
    role: str = ""
    """One of ROLES in a sweep that was tuned; empty in another."""
    log_damage: str = ""
    """What is wrong with metrics.jsonl."""

    @property
    def error(self) -> str:
        """Says on one line why there is no result; empty for a finished trial."""
        if self.status in ("failed", "diverged"):
            message = one_line(self.result.get("error"))
            # The status stands beside it in reports.
            message = message.removeprefix(f"{self.status}: ")
            return message or f"{self.status} without a message"
        if self.status == "finished":
            return ""
        if not self.directory.is_dir():
            return "not started"
        last_step = max((line["step"] for line in self.metrics), default=0)
        steps = look_up_setting(self.config, "training.steps")
        of_steps = f" of {steps}" if steps else ""
        return f"stopped or still running, last logged at step {last_step}{of_steps}"

    def curve(self, split: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns (steps, values) of `metric` on the split "train" or "validation".

        Lines are left out where the value is no number that can be drawn.
        """
        steps = []
        values = []
        for line in self.metrics:
            value = line.get(metric)
            is_number = isinstance(value, (int, float))
            if line["split"] == split and is_number and abs(value) < LARGEST_DRAWN:
                steps.append(line["step"])
                values.append(value)
        return np.array(steps), np.array(values, float)


@dataclasses.dataclass(frozen=True)
class Results:
    """Holds the trials of a workdir, in the order of its sweep."""

    workdir: Path
    trials: tuple[TrialResult, ...]
    config: str = ""
    """The sweep's config file; empty for the workdir of a single run."""
    base: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The sweep's settings before any point is applied, nested; empty for a single run."""
    sweeps: tuple[str, ...] = ()
    looks: int | None = None
    """How often a sweep with --seeds=auto has looked at its table; None for another."""
    interest: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The differences that mattered to it."""
    tuned: tuple[str, ...] = ()
    """The dotted keys whose values were chosen for each row, with --tune."""

    def with_status(self, status: str) -> tuple[TrialResult, ...]:
        """Returns the trials that have one of STATUSES."""
        return tuple(trial for trial in self.trials if trial.status == status)

    def changes(self, trial: TrialResult) -> dict[str, Any]:
        """Returns what a trial's point changes against the base, apart from the seed.

        The base itself changes nothing: {}.
        """
        return {
            key: value
            for key, value in trial.point.items()
            if key != "seed" and look_up_setting(self.base, key) != value
        }


@dataclasses.dataclass(frozen=True)
class Example:
    """Holds a test sentence with its attention.

    Shapes: encoder (N, h, n, n), decoder (N, h, m, m), cross (N, h, m, n), with N layers,
    h heads, n source tokens and m target tokens.
    """

    source: str
    reference: str
    translation: str
    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    """What the decoder read, the start mark first: the m queries of the decoder."""
    attention: Mapping[str, np.ndarray]

    def axes(self, kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns (queries, keys): the tokens along the rows and the columns of a map."""
        queries = self.source_tokens if kind == "encoder" else self.target_tokens
        keys = self.target_tokens if kind == "decoder" else self.source_tokens
        return queries, keys


def read_results(
    workdir: str | Path,
    metrics: Sequence[Metric] = METRICS,
    say: Callable[[str], None] | None = None,
) -> Results:
    """Reads a sweep's workdir (it has sweep.json) or a single run's (it has config.json).

    `say`, or stderr, gets a line for each trial that has files which are not what it wrote.
    Raises ResultsError for any other workdir, and for files that no run writes.
    """
    workdir = Path(workdir)
    say = say or functools.partial(print, file=sys.stderr, flush=True)
    if (workdir / "sweep.json").exists():
        results = _read_sweep(workdir, metrics)
        _name_damages(results, say)
        return results
    if (workdir / "config.json").exists():
        record = _json(workdir / "record.json")
        point = _expected(workdir / "record.json", record, "point", dict)
        name = record.get("name") or workdir.resolve().name
        trial = _read_trial(workdir, name, point, {}, metrics)
        results = Results(workdir, (trial,))
        _name_damages(results, say)
        return results
    lack = "has neither" if workdir.is_dir() else "is no directory, so it has neither"
    raise ResultsError(
        f"workdir {str(workdir)!r} {lack} sweep.json nor config.json: no results to "
        "read; make some with `python -m launch.sweep "
        f"--config=experiments/configs/quick.py --sweep=table,seed --workdir={workdir}`"
    )


def read_examples(trial: TrialResult) -> list[Example]:
    """Reads the test sentences whose attention `trial` kept; [] where it kept none.

    Raises ResultsError for what is no sentence, and if a map does not fit its tokens.
    """
    texts = _json(trial.directory / "examples.json", list)
    arrays = _arrays(trial, "examples.npz")
    examples = []
    for i, text in enumerate(texts):
        # A model may lack a kind: a language model has only the decoder's.
        names = {kind: f"{i}/{kind}" for kind in KINDS}
        attention = {
            kind: arrays[name] for kind, name in names.items() if name in arrays
        }
        # A run may keep texts without their maps, which there is nothing to draw of.
        if attention:
            example = _example(trial.directory / "examples.json", text, attention)
            _check_maps(trial.directory / "examples.npz", i, example)
            examples.append(example)
    return examples


def read_heads(trial: TrialResult) -> dict[str, np.ndarray]:
    """Reads what `evaluation.head_importance` measured of the trial, by "kind/measure".

    Shapes are (layers, heads), and one axis more for shares. {} where nothing was measured.
    Raises ResultsError for other shapes.
    """
    arrays = _arrays(trial, "heads.npz")
    for name, array in arrays.items():
        # Shares have an axis for the places that a head looks at.
        axes = 3 if name.endswith("/shares") else 2
        if array.ndim != axes or array.dtype.kind != "f" or not array.size:
            path = trial.directory / "heads.npz"
            raise ResultsError(f"{path}: {one_line(name)} has shape {array.shape}")
    return arrays


def read_positions(trial: TrialResult) -> np.ndarray | None:
    """Reads the encoder's position table (L, d_model) at the end of training, if any.

    Raises ResultsError for an array of other axes.
    """
    table = _arrays(trial, "examples.npz", ["positions"]).get("positions")
    if table is not None and (table.ndim != 2 or not table.size):
        path = trial.directory / "examples.npz"
        shape = table.shape
        raise ResultsError(f"{path}: positions has shape {shape}, not (L, d_model)")
    return table


def read_sentences(
    trial: TrialResult, metrics: Sequence[Metric] = METRICS
) -> dict[str, np.ndarray]:
    """Reads what each validation and test sentence contributes to the metrics.

    Trials on the same corpus have the same sentences in the same order. Returns the arrays
    of sentences.npz, {} where `trial` kept none; a run older than a metric lacks its array.

    - validation_nll (V,) Σ −log p over a sentence's target tokens and validation_tokens
      (V,) their number, both with the end mark: perplexity is exp(Σ nll / Σ tokens);
    - validation_source (V,) and test_source (S,), the tokens of the source;
    - for every other metric its `arrays`, (S,) or (S, k), see `Metric.of_sentences`.

    Raises ResultsError for arrays of other shapes, and for counts that are no integers.
    """
    arrays = _arrays(trial, "sentences.npz")
    path = trial.directory / "sentences.npz"
    for split in ("validation", "test"):
        part = {name: array for name, array in arrays.items() if name.startswith(split)}
        _check_sentences(path, split, part)
    for metric in metrics:
        try:
            metric.statistics(arrays)
        except ValueError as error:
            raise ResultsError(
                f"{path}: the arrays of {metric.split}: {error}"
            ) from None
    return arrays


def look_up_setting(settings: Mapping[str, Any], key: str, default=None):
    """Returns the value of the dotted `key` in nested settings, else `default`."""
    for name in key.split("."):
        if not isinstance(settings, Mapping) or name not in settings:
            return default
        settings = settings[name]
    return settings


def flatten_settings(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Returns nested settings as {dotted key: value}."""
    flat = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten_settings(value, f"{path}{name}.")
        else:
            flat[f"{path}{name}"] = value
    return flat


def _read_sweep(workdir, metrics):
    path = workdir / "sweep.json"
    sweep = _json(path)
    try:
        if not unseal(sweep):
            raise DamagedError(path, "it is not what was written")
        base = {**sweep["base"]}
        sweeps = [one_line(name) for name in sweep.get("sweeps", ())]
        trials = []
        for entry in sweep["trials"]:
            # A stranger's sweep.json must not make us read elsewhere.
            directory = inside(workdir, entry["directory"], path)
            name = entry["name"]
            point = {**entry["point"]}
            trial = _read_trial(
                directory, name, point, base, metrics, entry.get("label")
            )
            role = entry.get("role")
            trials.append(
                dataclasses.replace(trial, role=role if role in ROLES else "")
            )
        looks = sweep.get("looks", {})
        count = None if not looks else int(looks["count"])
        interest = {key: float(size) for key, size in looks.get("interest", {}).items()}
        tuned = tuple(one_line(key) for key in sweep.get("tuning", {}).get("grid", {}))
    except (AttributeError, KeyError, TypeError, ValueError, DamagedError) as error:
        raise ResultsError(
            f"{path} is damaged ({one_line(error)}): remove it and call launch.sweep on "
            "this workdir again, which writes it anew and keeps the finished trials"
        ) from error
    # Texts of files are shown in terminals, which obey control characters.
    config = one_line(sweep.get("config"))
    listed = tuple(trials)
    return Results(workdir, listed, config, base, tuple(sweeps), count, interest, tuned)


def _read_trial(directory, name, point, base, metrics, label=""):
    config = _json(directory / "config.json")
    # Each may be missing: a trial writes them at different times.
    record = _json(directory / "record.json")
    result = _json(directory / "result.json")
    for key in ("versions", "corpus_counts"):
        _expected(directory / "record.json", record, key, dict)
    for key in (*[metric.key for metric in metrics], *NUMBERS):
        _expected(directory / "result.json", result, key, (int, float))
    _expected(directory / "result.json", result, "beside", dict)
    # Points are keys of dictionaries later, so their values must be hashable.
    for key, value in point.items():
        if isinstance(value, (dict, list)):
            message = f"{directory}: its point has {key}={value!r}, which is no setting"
            raise ResultsError(message)
    log = read_metrics(directory / "metrics.jsonl")
    # A point without a seed has that of its config, or of the sweep's base.
    seed = point.get("seed", config.get("seed", base.get("seed")))
    status = result.get("status")
    return TrialResult(
        name=one_line(name),
        point={one_line(key): value for key, value in point.items()},
        seed=_expected(directory, {"seed": seed}, "seed", int, None),
        directory=directory,
        config=config,
        record=record,
        metrics=_latest(log.lines),
        result=result or None,
        # No result yet, or one that was cut short, is an unfinished trial.
        status=status if status in ENDS else "unfinished",
        label=one_line(label),
        log_damage=log.damage,
    )


def _expected(path, values, key, kinds, default=MappingProxyType({})):
    """Returns values[key], or `default` where there is none.

    Raises ResultsError for a value of other types than `kinds`.
    """
    value = values.get(key)
    if value is None:
        return default
    # Python's bool is an int.
    if not isinstance(value, kinds) or isinstance(value, bool):
        text = one_line(repr(value))[:100]
        raise ResultsError(
            f"{path}: {key} is {text}, which no run writes; restore the file"
        )
    return value


def _json(path, kind=dict):
    """Reads a JSON file; an empty `kind` if it is missing, cut short, or of another kind."""
    try:
        value = parse(path.read_bytes())
    except (OSError, ValueError):
        return kind()
    return value if isinstance(value, kind) else kind()


def _name_damages(results, say):
    """Says which files are not what their trials wrote; raises ResultsError for a result."""
    for trial in results.trials:
        ended = trial.status in ENDED
        changed = changed_files(trial.directory) if ended else []
        if "result.json" in changed:
            raise ResultsError(
                f"{trial.directory}/result.json is not what the trial wrote: restore it, "
                "or remove it and train there again, which makes it from the checkpoints"
            )
        if trial.log_damage:
            changed = [name for name in changed if name != "metrics.jsonl"]
            changed.append(f"metrics.jsonl ({trial.log_damage})")
        if changed:
            names = one_line(", ".join(changed))
            say(f"{trial.directory}: changed since the trial wrote it: {names}")


def _latest(lines):
    """Returns lines by rising step; of two of one step and split the later."""
    latest = {(line["step"], line["split"]): line for line in lines}
    return tuple(latest[key] for key in sorted(latest))


def _example(path, text, attention):
    text = text if isinstance(text, dict) else {}
    sentences = [text.get(name) for name in ("source", "reference", "translation")]
    tokens = [text.get(name) for name in ("source_tokens", "target_tokens")]
    if not all(map(_is_list_of_texts, (sentences, *tokens))):
        shown = one_line(repr(text))[:100]
        message = f"{path}: no sentence with its tokens is {shown}; remove the file"
        raise ResultsError(message)
    return Example(*sentences, *map(tuple, tokens), attention)


def _is_list_of_texts(value):
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _check_maps(path, i, example):
    for kind, weights in example.attention.items():
        queries, keys = map(len, example.axes(kind))
        if weights.ndim != 4 or weights.shape[2:] != (queries, keys):
            raise ResultsError(
                f"{path}: {i}/{kind} has shape {weights.shape}, but examples.json gives "
                f"it {queries} queries and {keys} keys"
            )


def _check_sentences(path, split, arrays):
    """Raises ResultsError unless the arrays of a split have one number of sentences.

    The lengths and, for perplexity, the losses with their tokens are needed as vectors.
    """
    if not arrays:
        return
    shapes = {name: array.shape for name, array in arrays.items()}
    needed = {"validation": ("nll", "tokens", "source"), "test": ("source",)}[split]
    vectors = [shapes.get(f"{split}_{name}", ()) for name in needed]
    axes = {len(shape) for shape in vectors}
    lengths = {shape[:1] for shape in shapes.values()}
    counts = [
        arrays[name].dtype
        for name in (f"{split}_tokens", f"{split}_source")
        if name in arrays
    ]
    are_counts = all(dtype.kind in "iu" for dtype in counts)
    are_numbers = all(array.dtype.kind in "biuf" for array in arrays.values())
    if axes != {1} or len(lengths) != 1 or not are_counts or not are_numbers:
        types = ", ".join(map(str, counts))
        raise ResultsError(
            f"{path}: the arrays of {split} have the shapes {shapes}, and what is "
            f"counted is of {types}"
        )


def _arrays(trial, name, only=None):
    """Reads the arrays of an .npz file, or those named `only`; {} for a broken file.

    Raises ResultsError for one that unpacks to more than LARGEST_UNPACKED.
    """
    path = trial.directory / name
    try:
        with zipfile.ZipFile(path) as packed:
            size = sum(entry.file_size for entry in packed.infolist())
        if size <= LARGEST_UNPACKED:
            with np.load(path, allow_pickle=False) as content:
                arrays = {name: content[name] for name in only or content}
            numbers = all(array.dtype.kind in "biuf" for array in arrays.values())
            return arrays if numbers else {}
    except Exception:  # zip, zlib and numpy have one for everything that can be wrong
        return {}
    why = f"unpacks to {size:,} bytes, and {LARGEST_UNPACKED:,} are the most"
    raise ResultsError(f"{path} {why}; remove the file")
