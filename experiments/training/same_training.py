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
from experiments.training.checkpoints import FOLDERS
from experiments.training.run_dir import other_data, read_result

UNFINISHED = "copying"
"""The folder of a trial that is there until a copy is whole."""


def copy_training(
    path: Path, alike: Iterable[Path], settings: Settings, prepared: Dataset
) -> dict[str, Any] | None:
    """Copies what a trial of `alike` has trained to `path`, which has no checkpoint yet.

    Returns what record.json is to say of it. Returns None where none of them has ended, with
    the same training by this code and as it was written, or there is a
    checkpoint already.
    """
    if (path / UNFINISHED).exists():
        # A process was killed while it copied: what it has moved by then is no whole.
        for folder in (*FOLDERS, UNFINISHED):
            remove(path / folder)
    if any((path / folder).exists() for folder in FOLDERS):
        return None
    for other in alike:
        # It is one of those that train as it does.
        if other != path and _has_trained(other, settings, prepared):
            _copy(other, path)
            return dict(trained_as=str(other.absolute()))
    return None


def _has_trained(other, settings, prepared):
    try:
        result = read_result(other)
        config = read_json(other / "config.json")
        record = read_json(other / "record.json")
    except DamagedError:
        return False
    if not all(isinstance(read, dict) for read in (result, config, record)):
        return False
    # One that has diverged, or lost a file since, is no reason not to train.
    if result.get("status") != "finished":
        return False
    if without_scoring(config) != without_scoring(settings.to_dict()):
        return False
    if code.of(record) != code.now():
        return False
    known = ("config.json", "record.json", "metrics.jsonl")
    return not changed_files(other, known) and not other_data(record, prepared)


def _copy(other, path):
    shutil.copyfile(other / "metrics.jsonl", path / "metrics.jsonl")
    (path / UNFINISHED).mkdir()
    for folder in FOLDERS:
        if (other / folder).exists():
            shutil.copytree(other / folder, path / UNFINISHED / folder)
    for copy in (path / UNFINISHED).iterdir():
        os.rename(copy, path / copy.name)
    # Last: as long as it is there, the copy is not whole.
    remove(path / UNFINISHED)
