"""A trial's directory: whose it is, what is known of it, and its files.

Every file is written so that a crash leaves no half. `config.json` is written first and
`result.json` last; the directory of a trial that has ended is never written again.
"""

import datetime
import functools
import io
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from experiments.data.dataset import Dataset
from experiments.errors import WorkdirError
from experiments.evaluation.metric_file import ENDED, read_metrics
from experiments.evaluation.perplexity import of_scores
from experiments.settings import Settings, schema
from experiments.system import checksums, code, machine
from experiments.system.files import (
    DamagedError,
    link_or_copy,
    read_json,
    remove,
    remove_leftovers,
    to_json,
    write_bytes,
    write_json,
    write_text,
)
from experiments.training.checkpoints import FOLDER

BEGUN = ("config.json", "record.json", "vocabulary.model")
"""The files that are written when a trial begins."""

FILES = (
    *BEGUN,
    "metrics.jsonl",
    "translations.txt",
    "sources.txt",
    "references.txt",
    "sentences.npz",
    "examples.npz",
    "examples.json",
    "heads.npz",
)
"""All files of a trial but result.json, whose checksums are kept at its end."""

DATA_ORDER = (
    "seed",
    "training.batch_size",
    "training.sequence_length",
    "training.bucket_by_length",
    "data.max_length",
)
"""The settings that the order of the data depends on, beside the data themselves."""

STEPS = "training.steps"

RESULT_REMEDY = (
    "restore it, or remove it, and the same command makes it again from the checkpoints"
)


class RunDir:
    """Reads and writes the files of one trial; `say` gets a line for each damaged one."""

    def __init__(self, path: str | Path, say: Callable[[str], None] | None = None):
        self.path = Path(path)
        self._say = say or functools.partial(print, file=sys.stderr, flush=True)

    def open(self, settings: Settings) -> dict[str, Any] | None:
        """Makes the directory that of `settings`.

        Returns the result if the trial has ended, None if it is to be run. One that is to
        have more steps than before goes on, see `_lengthen`. Raises WorkdirError for a
        directory of other settings, naming what differs, and for a sweep's directory, and
        DamagedError for a result that is not what the trial wrote. Other files of an ended
        trial that are not are named.
        """
        if (self.path / "sweep.json").exists():
            raise WorkdirError(
                f"{self.path} is the directory of a sweep; choose another --workdir for "
                "a single trial"
            )
        ours = settings.to_dict()
        theirs = read_json(self.path / "config.json")
        if theirs is None:
            write_json(self.path / "config.json", ours)
        elif _is_longer(theirs, ours):
            self._lengthen(look_up(theirs, STEPS), settings)
        elif theirs != ours:
            shorter = self.path / f"at-{settings.training.steps}"
            kept = ""
            if shorter.exists():
                kept = f"{shorter} is the trial of {settings.training.steps} steps. "
            raise WorkdirError(
                f"{self.path} belongs to another config: {differences(theirs, ours)}. {kept}"
                f"Choose another --workdir, where --resume={self.path} goes on from the "
                "newest checkpoint if the data are the same and the optimizer's state fits, "
                "or remove this one"
            )
        # Of a writer that was killed; whoever calls this has the directory locked.
        names = (*FILES, "result.json", checksums.NAME)
        remove_leftovers(self.path, names)
        result = read_result(self.path)
        if result is None or result.get("status") not in ENDED:
            return None
        if changed := checksums.changed_files(self.path):
            self._say(
                f"{self.path}: {', '.join(sorted(changed))} changed since the trial ended: restore "
                "them, or remove result.json, and the same command makes again what it "
                "can from the checkpoints"
            )
        return result

    def _lengthen(self, before: int, settings: Settings) -> None:
        """Makes a trial of `before` steps one of more, which goes on from its checkpoint.

        What it has reached stays as it is, in the folder at-STEPS. Where those steps are a
        multiple of the intervals of evaluations and checkpoints, the trial becomes what it
        would have been with more steps from the first on.

        Raises WorkdirError where more steps would have made it another trial.
        """
        t = settings.training
        if t.schedule_choice.decays:
            raise WorkdirError(
                f"{self.path} has {STEPS}={before}, towards which training.schedule="
                f"{t.schedule} decays: {STEPS}={t.steps} is another trial. Choose another "
                f"--workdir, with --init_from={self.path} for its weights; with the schedules "
                "constant and paper a trial can go on"
            )
        result = read_result(self.path)
        if result is not None and result.get("status") in ENDED:
            self._check_goes_on(result, before)
            kept = self.path / f"at-{before}"
            self._copy_ended(kept)
            (self.path / "result.json").unlink()
            # Those of the files that are about to change.
            checksums.write_checksums(self.path, ["record.json"])
            self._say(f"{kept} keeps the trial of {before} steps")
        # Last: until then the same command begins all this again.
        write_json(self.path / "config.json", settings.to_dict())

    def _check_goes_on(self, result, before):
        """Raises WorkdirError for a trial that more steps would not change."""
        if result["status"] == "diverged":
            raise WorkdirError(
                f"{self.path}: {result['error']}; more steps change nothing. Choose another "
                "--workdir, and a lower training.learning_rate"
            )
        if result["steps"] < before:
            raise WorkdirError(
                f"{self.path} ended at step {result['steps']} of {before}, where validation "
                "perplexity had stopped falling; more steps change nothing. To go on choose "
                f"another --workdir, with --resume={self.path} --config.training.until=steps"
            )

    def _copy_ended(self, target):
        """Copies an ended trial to a folder, wholly or not at all.

        Checkpoints are linked, and so take room only once the trial has removed its own.
        """
        if target.exists():
            return
        unfinished = target.with_name(f"{target.name}.copying")
        remove(unfinished)
        names = [*FILES, "result.json", checksums.NAME]
        for path in [*(self.path / name for name in names), *self._outside_files()]:
            if path.is_file():
                copy = unfinished / path.relative_to(self.path)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
        if (self.path / FOLDER).is_dir():
            shutil.copytree(
                self.path / FOLDER,
                unfinished / FOLDER,
                copy_function=link_or_copy,
            )
        os.rename(unfinished, target)

    def _outside_files(self):
        return sorted((self.path / "outside").glob("*"))

    def check_data(self, prepared: Dataset) -> None:
        """Raises WorkdirError if the trial began with other text or another vocabulary.

        Raises DamagedError where the record of that is not what was written.
        """
        path = self.path / "record.json"
        record = read_json(path)
        if record is None:
            return
        if checksums.changed_files(self.path, [path.name]):
            raise DamagedError(path, "it is not what was written")
        if changed := other_data(record, prepared):
            raise WorkdirError(
                f"{self.path} was begun with other data: {changed}. "
                "Restore the files it was begun with, or choose another --workdir"
            )

    def describe(
        self,
        name: str,
        point: dict,
        settings: Settings,
        prepared: Dataset,
        length: int,
        origin: dict | None,
        goes_on: bool = False,
    ) -> None:
        """Writes record.json where there is none, and the vocabulary of the trial's ids.

        A vocabulary that was lost or damaged since is written again, and so are the
        sources of classes from outside.

        `length` is the model's longest row; `origin` names the other trial that this one
        started from, None for a fresh start and for one that goes on. Where it `goes_on` by
        other code than before, the record has both.
        """
        record = read_json(self.path / "record.json")
        is_new = record is None
        # Before record.json, which makes the directory a trial's for those who read it.
        self._keep("vocabulary.model", prepared.vocabulary_model, is_new)
        sources = self._keep_sources(settings, is_new)
        if record is not None:
            # It may have got more steps since.
            changed = dict(
                code=self._code(record, goes_on), settings_digest=settings.digest()
            )
            # An earlier start from the other trial ended before its first checkpoint.
            if origin:
                changed["begun"] = origin
            if record | changed != record:
                self._write_record(record | changed)
            return
        known = dict(
            name=name, point=point, length=length, outside=sources, begun=origin
        )
        self._write_record(known | _surroundings(settings, prepared))

    def _code(self, record, goes_on):
        """Returns the name of the code that makes the trial, or of all that have."""
        before = code.of(record)
        if not goes_on:
            return code.now()
        # What has gone on once is no code's alone.
        if before is not None and before.rpartition(" ")[2] == code.now():
            return before
        self._say(
            f"{self.path} was begun by other code ({before}, now {code.now()}): a table "
            "leaves it out, but for --mixed_code"
        )
        return f"{before} {code.now()}"

    def _write_record(self, record):
        # A kill in between leaves a record without a checksum, not one with another's.
        (self.path / checksums.NAME).unlink(missing_ok=True)
        write_json(self.path / "record.json", record)
        checksums.write_checksums(self.path, ["record.json"])

    def _keep(self, name: str, content: bytes, is_new: bool) -> None:
        """Writes a file that is not there as it should be; names it unless it `is_new`."""
        path = self.path / name
        if path.is_file() and path.read_bytes() == content:
            return
        if not is_new:
            state = "damaged" if path.exists() else "missing"
            self._say(f"{path} is {state}: it is written again")
        write_bytes(path, content)

    def _keep_sources(self, settings: Settings, is_new: bool) -> dict[str, str]:
        """Writes the source of each class from outside. Returns their SHA-256 by name."""
        hashes = {}
        for outside in settings.outside():
            name = outside.file.name
            # Files of one name, from different folders, must not overwrite each other.
            if hashes.get(name, outside.sha256) != outside.sha256:
                name = f"{outside.sha256}-{name}"
            hashes[name] = outside.sha256
            self._keep(f"outside/{name}", outside.source, is_new)
        return hashes

    def resume(self, logged: str = "") -> Callable[[], float]:
        """Makes metrics.jsonl what `logged` returned at the checkpoint that a run goes on from.

        A killed run may have logged steps that no checkpoint holds, which come again. A file
        that lacks what was logged is named. Returns a clock: seconds of work, which go on
        from those of the last line.
        """
        path = self.path / "metrics.jsonl"
        if not self.logged().startswith(logged):
            self._say(
                f"{path} is damaged: it is written again, as the checkpoint has it"
            )
        write_text(path, logged)
        lines = self.metrics()
        before = lines[-1]["seconds"] if lines else 0.0
        start = time.perf_counter()
        return lambda: before + time.perf_counter() - start

    def logged(self) -> str:
        """Returns the text of metrics.jsonl, which checkpoints keep."""
        path = self.path / "metrics.jsonl"
        return path.read_text(errors="replace") if path.is_file() else ""

    def metrics(self, split: str | None = None) -> list[dict[str, Any]]:
        """Returns the lines of metrics.jsonl, or of one split: "train" or "validation"."""
        lines = read_metrics(self.path / "metrics.jsonl").lines
        return [line for line in lines if split in (None, line["split"])]

    def append_metrics(self, line: dict[str, Any]) -> None:
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")

    def perplexities(self) -> dict[int, float]:
        """Returns {step: validation perplexity} of all evaluations."""
        return {line["step"]: of_scores(line) for line in self.metrics("validation")}

    def speed(self) -> float | None:
        """Returns target tokens a second: the median, for first lines include compilation.

        None where no line of training is left.
        """
        speeds = [line["tokens_per_second"] for line in self.metrics("train")]
        return float(np.median(speeds)) if speeds else None

    def flops(self) -> int | None:
        """Returns the FLOPs of all steps of this trial; None where a line does not say."""
        work = [line.get("flops") for line in self.metrics("train")]
        # Lines of a model that does not state it have none.
        return int(sum(work)) if work and None not in work else None

    def write_text(self, name: str, text: str) -> None:
        write_text(self.path / name, text)

    def write_arrays(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        # In memory first, so that the file is written whole or not at all.
        packed = io.BytesIO()
        np.savez_compressed(packed, **arrays)
        write_bytes(self.path / name, packed.getvalue())

    def write_examples(self, records: list, arrays: dict[str, np.ndarray]) -> None:
        self.write_arrays("examples.npz", arrays)
        write_json(self.path / "examples.json", records)

    def finish(self, result: dict[str, Any]) -> None:
        """Writes the checksums of all files, and result.json: the trial has ended."""
        content = to_json(result).encode()
        names = (*FILES, *(f"outside/{path.name}" for path in self._outside_files()))
        coming = {"result.json": content}
        checksums.write_checksums(self.path, names, coming)
        write_bytes(self.path / "result.json", content)


def _surroundings(settings, prepared) -> dict[str, Any]:
    """Returns what a record says of the settings, the data, the code and the machine."""
    now = datetime.datetime.now(datetime.UTC)
    return dict(
        settings_digest=settings.digest(),
        versions=machine.versions(),
        python=platform.python_version(),
        git=machine.git_commit(),
        code=code.now(),
        **_data(prepared),
        **(dict(labels=list(prepared.labels)) if prepared.labels else {}),
        corpus_counts=prepared.counts,
        device=machine.device(),
        devices=jax.device_count(),
        threads=machine.threads(),
        processes=jax.process_count(),
        started=now.isoformat(timespec="seconds"),
    )


def training_digest(settings: Settings) -> str:
    """Returns eight digits of the settings that a trial's checkpoints depend on.

    The number of steps is not among them: a trial may get more.
    """
    values = settings.to_dict()
    del values["evaluation"]
    del values["training"]["steps"]
    return schema.digest(values)


def read_result(directory: Path) -> dict[str, Any] | None:
    """Returns a trial's result.json, None where there is none.

    Raises DamagedError where a trial has ended and this is not what it wrote.
    """
    path = directory / "result.json"
    try:
        result = read_json(path)
    except DamagedError as error:
        raise DamagedError(path, error.why, RESULT_REMEDY) from None
    if result is None or result.get("status") not in ENDED:
        return result
    if path.name in checksums.changed_files(directory, [path.name]):
        raise DamagedError(path, "it is not what the trial wrote", RESULT_REMEDY)
    return result


def read_trial(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a trial's config.json and record.json; raises WorkdirError where it has none."""
    config = read_json(path / "config.json")
    record = read_json(path / "record.json")
    if config is not None and record is not None:
        return config, record
    if sweep := read_json(path / "sweep.json"):
        trials = sweep.get("trials")
        first = trials[:3] if isinstance(trials, list) else []
        named = [trial.get("directory") for trial in first if isinstance(trial, dict)]
        names = ", ".join(f"{path}/{name}" for name in named)
        raise WorkdirError(
            f"{path} holds a whole sweep; name one of its trials: {names}, ..."
        )
    raise WorkdirError(
        f"{path} holds no trained model (no record.json): "
        "train one there with python -m launch.train"
    )


def other_data(record: dict, prepared: Dataset) -> str:
    """Lists in what the data of a record.json differ from `prepared`: "corpus 1f, now 2e"."""
    changed = []
    for key, now in _data(prepared).items():
        if record.get(key) != now:
            changed.append(f"{key} {record.get(key)}, now {now}")
    return ", ".join(changed)


def _data(prepared):
    return dict(corpus=prepared.corpus_digest, vocabulary=prepared.vocabulary().digest)


def look_up(config: dict | None, key: str) -> Any:
    """Returns the value of a dotted key, None where the config lacks it."""
    for name in key.split("."):
        # A config.json may hold anything.
        config = config.get(name) if isinstance(config, dict) else None
    return config


def _is_longer(theirs, ours):
    """Returns whether a config differs from another by more steps alone."""
    before = look_up(theirs, STEPS)
    if not isinstance(before, int) or before >= look_up(ours, STEPS):
        return False
    training = ours["training"] | dict(steps=before)
    return theirs == ours | dict(training=training)


def differences(theirs: dict, ours: dict) -> str:
    """Lists the settings in which two configs differ: "model.h is 4, asked for 2"."""
    a, b = (flatten_dict(config, sep=".") for config in (theirs, ours))
    keys = sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))
    return ", ".join(f"{k} is {a.get(k)!r}, asked for {b.get(k)!r}" for k in keys)
