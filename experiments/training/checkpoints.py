"""The checkpoints that a trial goes on from, averages, and takes its best weights of.

    checkpoints/STEP/state            arrays, by orbax
    checkpoints/STEP/checksums.json   notes, and the SHA-256 of each file; written last
    damaged/STEP                      a checkpoint that was found damaged, moved here whole

Notes are the trial, the state of the data iterator, what is noted for the next line of
metrics.jsonl, whether the checkpoint is scheduled, and so averaged, or of another reason, and
its perplexity where that is the lowest so far.
"""

import concurrent.futures
import contextlib
import functools
import itertools
import logging
import math
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.errors import CheckpointError, few, one_line
from experiments.system import checksums
from experiments.system.files import DamagedError, remove
from experiments.system.machine import is_out_of_memory
from experiments.system.process import Process

FOLDER = "checkpoints"

SMALL = 2**20
"""Bytes from which an array is written by itself. Orbax takes a millisecond of a core for each,
and a state of six layers has a thousand, most of them biases and scales."""


ONE_AT_A_TIME = threading.Lock()
"""Held while orbax reads or writes: two trials of a process that save at once may wait for each
other's signals for ever, as orbax numbers the operations of a process."""


class Restored(NamedTuple):
    """A state on the host, its data iterator's, and what was noted since the last line."""

    state: Any
    data: dict[str, int]
    noted: Mapping[str, Any] = MappingProxyType({})


class Best(NamedTuple):
    """The step of the lowest validation perplexity."""

    step: int
    perplexity: float


class Checkpoints:
    """Writes the checkpoints of the trial in `workdir` in the background, and reads them.

    The newest two are kept, the newest `keep` that are scheduled, and the best.
    keep=None is for reading only, from a trial that may be running; a damaged checkpoint
    then stays where it is. `trial` names the trial, if it is known: the checkpoints of
    another count as damaged. `say` gets a line for each damaged one. As a context manager
    it waits at its end for the save that is under way.
    """

    def __init__(
        self,
        workdir: Path,
        keep: int | None,
        trial: str = "",
        say: Callable[[str], None] | None = None,
    ):
        self._workdir = Path(workdir).absolute()
        self._directory = self._workdir / FOLDER
        self._keep = keep
        self._trial = trial
        self._say = say or functools.partial(print, file=sys.stderr, flush=True)
        self._saving = None
        # Of several processes orbax asks all to save together, into one file system. Here
        # the first has the whole state, and the directory, which the others need not see;
        # so a child of it, to which JAX has one process, calls orbax.
        self._beside = Process(_begin) if jax.process_count() > 1 else Thread()

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints that were written whole, the newest last."""
        paths = self._directory.glob(f"*/{checksums.NAME}")
        names = (path.parent.name for path in paths)
        return sorted(int(name) for name in names if name.isdecimal())

    def save(
        self,
        step: int,
        state,
        data: Mapping[str, int],
        noted: Mapping[str, Any] = MappingProxyType({}),
        scheduled: bool = True,
        perplexity: float | None = None,
    ) -> None:
        """Starts saving the arrays of the pytree `state`, with notes.

        Only those that are `scheduled` are averaged; `perplexity` is that of the validation
        set, if it is the lowest so far. A step that has a checkpoint already gets the new
        notes alone, as its state is the same. Waits first for the save before; raises what
        `wait` does.
        """
        self.wait()
        notes = dict(step=step, trial=self._trial, data=dict(data), noted=dict(noted))
        notes |= dict(scheduled=scheduled, perplexity=perplexity)
        path = self._directory / str(step)
        with self._errors_of(step):
            if old := self._sealed(step):
                notes["layout"] = old["notes"]["layout"]
                checksums.write_sealed(path / checksums.NAME, dict(old, notes=notes))
                return
            self._remove_unfinished()
        kept = self._kept({step: notes})
        # Now, as the next step may overwrite them.
        arrays = _named(jax.device_get(state))
        self._saving = step, self._beside.submit(_write, path, arrays, notes, kept)

    def wait(self) -> None:
        """Waits for the save that is under way; raises CheckpointError if it failed."""
        if self._saving is None:
            return
        step, saving = self._saving
        # First, so that a failure is raised once and not again at the end.
        self._saving = None
        with self._errors_of(step):
            saving.result()

    @contextlib.contextmanager
    def _errors_of(self, step):
        """Turns an error of writing a checkpoint into a CheckpointError."""
        try:
            yield
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise CheckpointError(
                f"{self._directory / str(step)} cannot be written: {_cause(error)}. Make "
                "room or give the right to write; the same command then goes on from the "
                "checkpoint before"
            ) from error

    def restore(self, template) -> Restored | None:
        """Restores the newest whole checkpoint; returns None if there are none.

        Its state is a pytree like `template`, on the host. What is empty in `template` is
        not read. A damaged checkpoint is named, moved to WORKDIR/damaged, and the one before
        is read. Raises CheckpointError where all are damaged, or the newest does not fit.
        """
        self.wait()
        steps = self.steps()
        for step in reversed(steps):
            if read := self._read(step, template):
                state, notes = read
                return Restored(state, notes["data"], notes["noted"])
        if steps or any(self._workdir.glob("damaged/*")):
            raise CheckpointError(
                f"all checkpoints of {self._workdir} are damaged: bring one back from a "
                "copy, or begin anew with another --workdir, or after removing this one"
            )
        return None

    def best(self) -> Best | None:
        """Returns the best step whose checkpoint is whole, and its perplexity."""
        self.wait()
        for step in reversed(self.steps()):
            if self.noted(step).get("perplexity") is None:
                continue
            if notes := self._whole(step):
                return Best(step, notes["perplexity"])
        return None

    def weights(self, name: str, state, count: int):
        """Returns (`state` with the weights `name`, the steps that they come from).

        Weights are the parameters and position tables. "raw": as they are; "average": of the
        last `count` scheduled checkpoints; "ema": the state's moving averages; "best": of
        the lowest validation perplexity, and as they are where none can be read.
        """
        if name == "average":
            return self.average(state, count)
        if name == "best":
            if (best := self.best()) and (
                read := self._read(best.step, _weights(state))
            ):
                return state._replace(**read[0]), [best.step]
            self._say(
                f"{self._directory} has no whole checkpoint of the best weights: the "
                "newest weights are taken for them"
            )
        if name == "ema":
            state = state._replace(**state.ema)
        return state, [int(state.step)]

    def average(self, state, count: int):
        """Returns (`state` with the mean weights of the last `count` scheduled, their steps).

        Where there are fewer, it is their mean; a damaged
        one is named and left out. The mean is taken in float64. Raises CheckpointError where
        none is left.
        """
        self.wait()
        scheduled = [step for step in self.steps() if self.noted(step).get("scheduled")]
        weights = _weights(state)
        sums = jax.tree.map(lambda x: np.zeros(x.shape), weights)
        steps = []
        # One after another, so that memory does not grow with `count`.
        for step in scheduled[-count:]:
            if read := self._read(step, weights):
                sums = jax.tree.map(np.add, sums, read[0])
                steps.append(step)
        if not steps:
            raise CheckpointError(
                f"{self._directory} has no whole checkpoint to average"
            )
        mean = jax.tree.map(
            lambda s, x: (s / len(steps)).astype(x.dtype), sums, weights
        )
        return state._replace(**mean), steps

    def arrays(self, step: int) -> dict[str, np.ndarray] | None:
        """Returns all arrays of a checkpoint by name; None, with a line, if it is damaged."""
        notes = self._whole(step)
        return notes and self._load(step, notes["layout"])

    def _remove_unfinished(self):
        whole = self.steps()
        for path in self._directory.glob("*"):
            if path.name.isdecimal() and int(path.name) not in whole:
                self._say(f"{path} was not written to its end: it is removed")
                remove(path)

    def _kept(self, coming):
        """Returns the steps to keep once those of `coming`, {step: notes}, are written."""
        notes = {step: self.noted(step) for step in self.steps()} | coming
        steps = sorted(notes)
        scheduled = [step for step in steps if notes[step].get("scheduled")]
        best = [step for step in steps if notes[step].get("perplexity") is not None]
        # Two at least: the one before is used where the newest is damaged, or not whole yet.
        return {*steps[-2:], *scheduled[-self._keep :], *best[-1:]}

    def _read(self, step, template):
        """Returns (a pytree like `template`, the notes); None if the checkpoint is damaged."""
        notes = self._whole(step)
        if notes is None:
            return None
        wanted = _named(template)
        self._check_fit(step, notes["layout"], wanted)
        try:
            arrays = self._load(step, notes["layout"], wanted)
        except Exception as error:
            # The run that writes may have removed it meanwhile.
            if self._keep is not None or is_out_of_memory(error):
                raise
            self._set_aside(step, _cause(error))
            return None
        leaves = [arrays[name] for name in wanted]
        return jax.tree.unflatten(jax.tree.structure(template), leaves), notes

    def _check_fit(self, step, layout, wanted):
        """Raises CheckpointError unless there are arrays of these shapes and dtypes."""
        entries = itertools.chain(*layout.values())
        saved = {name: (dtype, tuple(shape)) for name, dtype, shape in entries}
        for name, leaf in wanted.items():
            dtype, shape = saved.get(name, (None, None))
            if (dtype, shape) != (str(leaf.dtype), leaf.shape):
                theirs = f"is {dtype} {shape}" if dtype else "is not"
                of_optimizer = name.startswith("moments/")
                remedy = "; --init_from takes the weights alone" if of_optimizer else ""
                raise CheckpointError(
                    f"{self._directory / str(step)} does not fit: {name} {theirs} there, "
                    f"and {leaf.dtype} {leaf.shape} here{remedy}"
                )

    def _load(self, step, layout, names=None):
        """Returns {name: array}: at least those of `names`, or all."""
        needed = {
            key: entries
            for key, entries in layout.items()
            if names is None or any(name in names for name, *_ in entries)
        }
        path = self._directory / str(step)
        vectors = self._beside.submit(_load, path, list(needed)).result()
        return _separated(vectors, needed)

    def _sealed(self, step):
        """Returns what checksums.json has; {} where it is missing or damaged."""
        try:
            path = self._directory / str(step) / checksums.NAME
            return checksums.read_sealed(path) or {}
        except (DamagedError, OSError):
            return {}

    def noted(self, step: int) -> dict[str, Any]:
        """Returns the notes of a checkpoint; {} where they are missing or damaged."""
        return self._sealed(step).get("notes", {})

    def _whole(self, step):
        """Returns the notes of a checkpoint; None, and sets it aside, if it is damaged."""
        notes = self.noted(step)
        theirs = notes.get("trial")
        if changed := checksums.changed_files(self._directory / str(step)):
            why = f"{few(changed, 1)}: not what was saved"
        elif notes.get("step") != step:
            # The directory may have been copied from another step's.
            why = f"its notes are of step {notes.get('step')}"
        elif theirs and self._trial and theirs != self._trial:
            why = f"it is of another trial, {theirs}"
        else:
            return notes
        self._set_aside(step, why)
        return None

    def _set_aside(self, step, why):
        """Moves a checkpoint into WORKDIR/damaged, unless for reading only, and says so."""
        path = self._directory / str(step)
        if self._keep is None:
            self._say(f"{path} is damaged ({why}) and left out")
            return
        target = self._workdir / "damaged" / str(step)
        target.parent.mkdir(exist_ok=True)
        # One that was damaged before, at this step.
        remove(target)
        os.rename(path, target)
        self._say(f"{path} is damaged ({why}): moved to {target}")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        try:
            self.wait()
        finally:
            self._beside.stop()


class Thread(concurrent.futures.ThreadPoolExecutor):
    """Runs functions one at a time in a thread, as a `Process` does."""

    def __init__(self):
        super().__init__(1, "checkpoints")

    stop = concurrent.futures.ThreadPoolExecutor.shutdown


def _begin():
    """Prepares a child process."""
    # The parent gets SIGTERM too, and may then ask for a save.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # The trial's devices are the parent's. JAX is imported by now, and has read the variable.
    os.environ["JAX_PLATFORMS"] = "cpu"
    jax.config.update("jax_platforms", "cpu")


def _write(path, arrays, notes, kept):
    """Writes a checkpoint, and removes those beside it whose steps are not `kept`."""
    vectors, notes["layout"] = _joined(arrays)
    training = _orbax().training
    with (
        ONE_AT_A_TIME,
        training.Checkpointer(
            path.parent,
            preservation_policy=training.preservation_policies.CustomSteps(kept),
            # A killed run leaves them.
            cleanup_tmp_directories=True,
        ) as checkpointer,
    ):
        state = dict(state=vectors)
        checkpointer.save_checkpointables(int(path.name), state, force=True)
    sums = checksums.of(path, (file for file in path.rglob("*") if file.is_file()))
    checksums.write_sealed(path / checksums.NAME, dict(sha256=sums, notes=notes))


def _load(path, keys):
    """Returns {key: vector} of these keys."""
    if not keys:
        return {}
    orbax = _orbax()
    context = orbax.Context()
    # Reads what is asked for, and leaves the rest on disk.
    context.pytree.loading.partial_load = True
    with context:
        shapes = dict(state=dict.fromkeys(keys, np.ndarray))
        with ONE_AT_A_TIME:
            return orbax.load_checkpointables(path, shapes)["state"]


def _weights(state):
    return dict(params=state.params, positions=state.positions)


def _named(tree):
    """Returns {name: leaf}, the names as params/encoder_0/…"""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _joined(arrays):
    """Returns (vectors as they are written, their layout).

    Small arrays of one dtype and one field of the state are one vector. The layout is
    {vector: [[name, dtype, shape], ...]}, of the arrays one after another.
    """
    layout = {}
    for name, x in arrays.items():
        field = name.partition("/")[0]
        key = name if x.nbytes >= SMALL else f"{field}.{x.dtype}"
        layout.setdefault(key, []).append([name, str(x.dtype), list(x.shape)])
    vectors = {}
    for key, entries in layout.items():
        parts = [arrays[name].reshape(-1) for name, *_ in entries]
        vectors[key] = np.concatenate(parts) if parts[1:] else parts[0]
    # Orbax writes no empty array.
    return {key: x for key, x in vectors.items() if x.size}, layout


def _separated(vectors, layout):
    """Returns {name: array}, from vectors of this layout."""
    arrays = {}
    for key, entries in layout.items():
        start = 0
        for name, dtype, shape in entries:
            vector = vectors.get(key, np.zeros(0, jnp.dtype(dtype)))
            stop = start + math.prod(shape)
            arrays[name] = vector[start:stop].reshape(shape)
            start = stop
    return arrays


@functools.cache
def _orbax():
    """Imports orbax, which a run does not need before its first checkpoint, and silences it.

    It reports each save, and of each array what a failed save left unfinished.
    """
    from orbax.checkpoint import v1

    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    hook = sys.unraisablehook

    def without_closed_loops(unraisable):
        if str(unraisable.exc_value) != "Event loop is closed":
            hook(unraisable)

    sys.unraisablehook = without_closed_loops
    return v1


def _cause(error):
    """Returns the innermost error in one line: its beginning, and its end, with the reason."""
    # What is raised while another error is handled may lead back to itself.
    seen = set()
    while (inner := error.__cause__ or error.__context__) and id(inner) not in seen:
        seen.add(id(inner))
        error = inner
    # Tensorstore appends places in its own source.
    text = re.sub(r" \[(os_error|source|tensorstore).*", "", one_line(error))
    text = text or type(error).__name__
    return text if len(text) < 200 else f"{text[:60]} … {text[-120:]}"
