"""Trials of a sweep that train alike, and differ in how they are scored at the end.

One of them is trained. The others begin with a copy of its checkpoints and of its lines of
metrics, as if they had been killed at their end, and are only scored. Their weights are the
same to the last bit.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.data.dataset import Dataset
from experiments.settings import Settings, without_scoring
from experiments.system import code
from experiments.system.checksums import changed_files
from experiments.system.files import DamagedError, read_json, remove
from experiments.training.checkpoints import FOLDER
from experiments.training.run_dir import other_data, read_result

UNFINISHED = "copying"
"""The folder of a trial that is there until a copy is whole."""


def copy_training(
    path: Path, alike: Iterable[Path], settings: Settings, prepared: Dataset
) -> dict[str, Any] | None:
    """Copies what a trial of `alike` has trained to `path`, which has no checkpoint yet.

    Returns what record.json is to say of it; None where there is a checkpoint already, or
    none of them has ended with the same training by this code, unchanged since.
    """
    # Of a process that was killed while it copied.
    remove(path / UNFINISHED)
    if (path / FOLDER).exists():
        return None
    for other in alike:
        # It is one of those that train as it does.
        if other != path and _has_trained(other, settings, prepared):
            shutil.copyfile(other / "metrics.jsonl", path / "metrics.jsonl")
            shutil.copytree(other / FOLDER, path / UNFINISHED)
            # At once, so that no part of a copy is taken for the whole.
            os.rename(path / UNFINISHED, path / FOLDER)
            return dict(trained_as=str(other.absolute()))
    return None


def _has_trained(other, settings, prepared):
    try:
        result = read_result(other)
        config = read_json(other / "config.json")
        record = read_json(other / "record.json")
    except DamagedError:
        return False
    # One that has diverged, or lost a file since, is no reason not to train.
    if None in (result, config, record) or result.get("status") != "finished":
        return False
    known = ("config.json", "record.json", "metrics.jsonl")
    return (
        without_scoring(config) == without_scoring(settings.to_dict())
        and code.of(record) == code.now()
        and not changed_files(other, known)
        and not other_data(record, prepared)
        and (other / FOLDER).exists()
    )
