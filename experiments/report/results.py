"""What a workdir holds: the trials of a sweep, or of one run, read back from their files.

Files are read as a run leaves them, also one that was killed half way: what is missing or cut short counts as
not there yet. What no run writes, such as a text for a number, is an error, so that the rest of the code need not
think of it; nothing in a file is executed. Nothing here writes.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from attn.io.safetensors import load
from experiments.errors import UserError, one_line
from experiments.system.files import DamagedError, inside, parse

KINDS = ("encoder", "decoder", "cross")
"""Encoder self-attention, decoder self-attention, and the decoder's attention to the encoder."""


ENDS = ("finished", "failed", "diverged")
"""The statuses that a result.json gives; of these only a failed trial is run again by the next call."""


STATUSES = (*ENDS, "unfinished")


NUMBERS = (
    "parameters",
    "perplexity",
    "bleu",
    "bleu_detokenized",
    "chrf",
    "exact_match",
    "alignment_error",
    "test_perplexity",
    "steps",
    "seconds",
    "tokens_per_second",
    "real_tokens",
    "test_sentences",
)
"""What a result.json has numbers for, where it has them."""


DRAWN = 1e100
"""Beyond, a number is as good as infinite: axes with a log scale overflow."""


class ResultsError(UserError):
    """A workdir without results to read; the message says what was looked for and how to make it."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One trial as its directory tells it; what its files do not hold yet is empty."""

    name: str
    point: Mapping[str, Any]
    """Flat {dotted key: value}: what the sweep set on top of its base, the seed among it."""
    seed: int | None
    directory: Path
    config: Mapping[str, Any]
    """Resolved settings, nested."""
    record: Mapping[str, Any]
    """Where and with what it ran: versions, git commit, hashes, device, start."""
    metrics: tuple[Mapping[str, Any], ...]
    """By rising step; of a step that a resumed run logged twice, the later line."""
    result: Mapping[str, Any] | None
    status: str
    """One of STATUSES."""
    label: str = ""
    """The name that the sweep gives to this trial's row; empty for a row that is called after what it changes."""

    @property
    def error(self) -> str:
        """One line saying why there is no result; empty for a finished trial."""
        if self.status in ("failed", "diverged"):
            said = one_line(self.result.get("error")).removeprefix(f"{self.status}: ")
            return said or f"{self.status} without a message"
        if self.status == "finished":
            return ""
        if not self.directory.is_dir():
            return "not started"
        step, steps = (
            max((line["step"] for line in self.metrics), default=0),
            look_up_setting(self.config, "training.steps"),
        )
        return f"stopped or still running, last logged at step {step}" + (
            f" of {steps}" if steps else ""
        )

    def curve(self, split: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """(steps, values) of `metric` on the split "train" or "validation", where it is a number that can be drawn."""
        pairs = [
            (line["step"], line.get(metric))
            for line in self.metrics
            if line["split"] == split
        ]
        pairs = [
            (step, value)
            for step, value in pairs
            if isinstance(value, (int, float)) and abs(value) < DRAWN
        ]
        return np.array([step for step, _ in pairs]), np.array(
            [value for _, value in pairs], float
        )


@dataclasses.dataclass(frozen=True)
class Results:
    """The trials of a workdir, in the order of its sweep."""

    workdir: Path
    trials: tuple[Trial, ...]
    config: str = ""
    """The sweep's config file; empty for the workdir of a single run."""
    base: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The sweep's settings before any point is put on top, nested; empty for a single run."""
    sweeps: tuple[str, ...] = ()

    def of(self, status: str) -> tuple[Trial, ...]:
        """The trials of one of STATUSES."""
        return tuple(trial for trial in self.trials if trial.status == status)

    def changes(self, trial: Trial) -> dict[str, Any]:
        """What `trial`'s point really changes against the base, apart from the seed; {} for the base itself."""
        return {
            key: value
            for key, value in trial.point.items()
            if key != "seed" and look_up_setting(self.base, key) != value
        }


@dataclasses.dataclass(frozen=True)
class Example:
    """A test sentence with its attention: encoder (N, h, n, n), decoder (N, h, m, m), cross (N, h, m, n)."""

    source: str
    reference: str
    translation: str
    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    """What the decoder read, the start mark first: the m queries of the decoder."""
    attention: Mapping[str, np.ndarray]

    def axes(self, kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(queries, keys): the tokens along the rows and the columns of a map."""
        return (
            self.source_tokens if kind == "encoder" else self.target_tokens,
            self.target_tokens if kind == "decoder" else self.source_tokens,
        )


def read_results(workdir: str | Path) -> Results:
    """The ledger of a sweep's workdir (it has sweep.json) or of a single run's (it has config.json).

    Raises LedgerError for any other workdir.
    """
    workdir = Path(workdir)
    if (workdir / "sweep.json").exists():
        return _read_sweep(workdir)
    if (workdir / "config.json").exists():
        record = _json(workdir / "record.json")
        point = _expected(workdir / "record.json", record, "point", dict)
        return Results(
            workdir,
            (
                _read_trial(
                    workdir, record.get("name") or workdir.resolve().name, point, {}
                ),
            ),
        )
    found = "has neither" if workdir.is_dir() else "is no directory, so it has neither"
    raise ResultsError(
        f"workdir {str(workdir)!r} {found} sweep.json nor config.json: no results to read; make some with "
        f"`python -m launch.sweep --config=experiments/configs/quick.py --sweep=table,seed --workdir={workdir}`"
    )


def read_examples(trial: Trial) -> list[Example]:
    """The test sentences whose attention `trial` kept; [] where it kept none.

    Raises LedgerError for what is no sentence, and if a map does not fit its tokens.
    """
    texts, arrays = (
        _json(trial.directory / "examples.json", list),
        _arrays(trial, "examples.npz"),
    )
    built = []
    for i, text in enumerate(texts):
        attention = {
            kind: arrays[f"{i}/{kind}"] for kind in KINDS if f"{i}/{kind}" in arrays
        }
        if not attention:
            continue
        example = _example(trial.directory / "examples.json", text, attention)
        for kind, weights in attention.items():
            expected = tuple(map(len, example.axes(kind)))
            if weights.ndim != 4 or weights.shape[2:] != expected:
                raise ResultsError(
                    f"{trial.directory / 'examples.npz'}: {i}/{kind} has shape {weights.shape}, but "
                    f"examples.json gives it {expected[0]} queries and {expected[1]} keys"
                )
        built.append(example)
    return built


def read_heads(trial: Trial) -> dict[str, np.ndarray]:
    """What `experiments.heads` measured of the trial, by "kind/what"; {} where it was not asked to.

    Raises LedgerError for arrays of other shapes than (layers, heads), for shares one axis more.
    """
    found = _arrays(trial, "heads.npz")
    for name, array in found.items():
        if (
            array.ndim != 2 + name.endswith("/shares")
            or array.dtype.kind != "f"
            or not array.size
        ):
            raise ResultsError(
                f"{trial.directory / 'heads.npz'}: {one_line(name)} has shape {array.shape}"
            )
    return found


def read_positions(trial: Trial) -> np.ndarray | None:
    """The encoder's position table (L, d_model) at the end of training; None where there is none.

    Raises LedgerError for an array of other axes.
    """
    table = _arrays(trial, "examples.npz", ["positions"]).get("positions")
    if table is not None and (table.ndim != 2 or not table.size):
        raise ResultsError(
            f"{trial.directory / 'examples.npz'}: positions has shape {table.shape}, not (L, d_model)"
        )
    return table


def read_sentences(trial: Trial) -> dict[str, np.ndarray]:
    """What each sentence of the validation and test sets contributes to the scores; {} where `trial` kept none.

    Trials on the same corpus have the same sentences in the same order.

    - validation_nll (V,) Σ −log p over a sentence's target tokens, validation_tokens (V,) their number, both with the
      end mark: perplexity is exp(Σ nll / Σ tokens); validation_source (V,) tokens of the source, end mark included;
    - test_bleu (S, 10) correct 1- to 4-grams, all 1- to 4-grams, length and reference length: BLEU is a function of
      their sums; test_exact (S,) whether the translation is the reference; test_source (S,).

    Raises LedgerError for arrays of other shapes, and for counts that are no integers.
    """
    found = _arrays(trial, "sentences.npz")
    for split, names in (
        ("validation", ("nll", "tokens", "source")),
        ("test", ("bleu", "exact", "source")),
    ):
        shapes = {
            name: found[f"{split}_{name}"].shape
            for name in names
            if f"{split}_{name}" in found
        }
        wanted = {
            name: (*shapes[names[0]][:1], 10)[: 1 + (name == "bleu")]
            for name in names
            if names[0] in shapes
        }
        counts = [
            found[f"{split}_{name}"].dtype
            for name in shapes
            if name in ("tokens", "source", "bleu")
        ]
        if found and (
            shapes != wanted or any(dtype.kind not in "iu" for dtype in counts)
        ):
            raise ResultsError(
                f"{trial.directory / 'sentences.npz'}: the arrays of {split} have the shapes {shapes}, "
                f"and what is counted is of {', '.join(map(str, counts))}"
            )
    return found


def look_up_setting(settings: Mapping[str, Any], key: str, default=None):
    """The value of the dotted `key` in nested settings."""
    for name in key.split("."):
        if not isinstance(settings, Mapping) or name not in settings:
            return default
        settings = settings[name]
    return settings


def flatten_settings(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Nested settings as {dotted key: value}."""
    found = {}
    for name, value in settings.items():
        found |= (
            flatten_settings(value, f"{path}{name}.")
            if isinstance(value, Mapping)
            else {f"{path}{name}": value}
        )
    return found


def _read_sweep(workdir):
    path = workdir / "sweep.json"
    sweep = _json(path)
    try:
        base, sweeps = (
            {**sweep["base"]},
            [one_line(name) for name in sweep.get("sweeps", ())],
        )
        trials = [
            _read_trial(
                inside(workdir, t["directory"], path),
                t["name"],
                {**t["point"]},
                base,
                t.get("label"),
            )
            for t in sweep["trials"]
        ]
    except (AttributeError, KeyError, TypeError, DamagedError) as error:
        raise ResultsError(
            f"{path} is damaged ({one_line(error)}): remove it and call launch.sweep on this workdir "
            "again, which writes it anew and keeps the finished trials"
        ) from error
    return Results(
        workdir,
        tuple(trials),
        config=one_line(sweep.get("config")),
        base=base,
        sweeps=tuple(sweeps),
    )


def _read_trial(directory, name, point, base, label=""):
    config, record, result = (
        _json(directory / f"{name}.json") for name in ("config", "record", "result")
    )
    for inner in ("versions", "corpus_counts"):
        _expected(directory / "record.json", record, inner, dict)
    for number in NUMBERS:
        _expected(directory / "result.json", result, number, (int, float))
    _expected(directory / "result.json", result, "beside", dict)
    for key, value in point.items():
        if isinstance(value, (dict, list)):
            raise ResultsError(
                f"{directory}: its point has {key}={value!r}, which is no setting"
            )
    seeds = dict(seed=point.get("seed", config.get("seed", base.get("seed"))))
    status = result.get("status") if result.get("status") in ENDS else "unfinished"
    return Trial(
        one_line(name),
        {one_line(key): value for key, value in point.items()},
        _expected(directory, seeds, "seed", int, None),
        directory,
        config,
        record,
        _metrics(directory / "metrics.jsonl"),
        result or None,
        status,
        one_line(label),
    )


def _expected(path, values, key, kinds, default=MappingProxyType({})):
    """values[key], `default` where it is not there. Raises LedgerError for a value of other kinds."""
    value = values.get(key)
    if value is None:
        return default
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise ResultsError(
            f"{path}: {key} is {one_line(repr(value))[:100]}, which no run writes; restore the file"
        )
    return value


def _json(path, kind=dict):
    """What a JSON file holds; an empty `kind` if it is missing, cut short, or of another kind."""
    try:
        value = parse(path.read_bytes())
    except (OSError, ValueError):
        return kind()
    return value if isinstance(value, kind) else kind()


def _metrics(path):
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return ()
    latest = {}
    for line in lines:
        try:
            entry = parse(line)
            step, split = entry["step"], entry["split"]
            if type(step) is int and 0 <= step < 2**63 and isinstance(split, str):
                latest[step, split] = entry
        except (ValueError, KeyError, TypeError):  # a kill cuts the last line short
            continue
    return tuple(latest[key] for key in sorted(latest))


def _example(path, text, attention):
    text = text if isinstance(text, dict) else {}
    sentences = [text.get(name) for name in ("source", "reference", "translation")]
    tokens = [text.get(f"{side}_tokens") for side in ("source", "target")]
    if not all(
        isinstance(side, list) and all(isinstance(one, str) for one in side)
        for side in (sentences, *tokens)
    ):
        raise ResultsError(
            f"{path}: no sentence with its tokens is {one_line(repr(text))[:100]}; remove the file"
        )
    return Example(*sentences, *map(tuple, tokens), attention)


def _arrays(trial, name, only=None):
    """The arrays of an .npz file, those of the names `only`; {} where it is missing or cut short."""
    try:
        return load(trial.directory / name, only)
    except (OSError, ValueError):
        return {}
