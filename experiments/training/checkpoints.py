"""What a trial saves to go on after an interruption, by orbax: its state, its data iterator's, and checksums of both.

    checkpoints/STEP    every save_every steps: what is resumed from, and averaged at the end
    interrupted/STEP    where a run was told to stop in between, or began from another trial
    best/STEP           the weights of the lowest validation perplexity, with training.keep_best
    damaged/            what was found damaged, moved here whole

Beside `state`, a checkpoint has `notes`: JSON with the iterator's state, what is noted for the next line of
metrics.jsonl, and of each array its shape and checksum.
"""

import contextlib
import functools
import gc
import json
import logging
import math
import os
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp

from attn.hashing import mix
from experiments.errors import CheckpointError
from experiments.system.machine import is_out_of_memory

SAVED, BETWEEN, BEST = "checkpoints", "interrupted", "best"


class Damaged(Exception):
    """One checkpoint that cannot be read or is not what was saved; the message says why."""


class Restored(NamedTuple):
    """A state, its data iterator's, and what was noted since the last line of metrics.jsonl."""

    state: Any
    data: dict[str, int]
    noted: Mapping[str, Any] = MappingProxyType({})


@jax.jit
def checksum(x):
    """Σ_i mix(word_i xor mix(i)) mod 2^32 over the 32-bit words of an array, bit by bit as they are.

    `mix` is a bijection, so a change within one word is always found, any other but for one in 2^32. Sums of integers
    have no order: the same on every backend and any number of devices.
    """
    words = jax.lax.bitcast_convert_type(
        x, jnp.dtype(f"uint{8 * min(4, x.dtype.itemsize)}")
    ).reshape(-1)
    places = jax.lax.iota(jnp.uint32, words.size)
    return mix(words.astype(jnp.uint32) ^ mix(places)).sum(dtype=jnp.uint32)


class Place:
    """The newest `keep` checkpoints in `directory`, each whole or not at all, written in the background.

    keep=None is for reading only, from a directory that a run may be writing to, or that is not there.
    """

    def __init__(self, directory: Path, keep: int | None):
        _hush()
        self.directory, self.keep = Path(directory).absolute(), keep
        registry = ocp.handlers.local_registry()
        registry.add(ocp.handlers.JsonHandler, checkpointable_name="notes")
        # partial_load: reads what is asked for, and leaves the rest of a checkpoint on the disk.
        self._context = ocp.Context(
            pytree_options=ocp.options.PyTreeOptions(
                loading=ocp.options.PyTreeOptions.Loading(partial_load=True)
            ),
            checkpointables_options=ocp.options.CheckpointablesOptions(
                registry=registry
            ),
        )
        self._opened = self._saving = None
        self._failed = False

    @property
    def _checkpointer(self):
        if self._opened is None:
            self._opened = ocp.training.Checkpointer(
                self.directory,
                context=self._context,
                preservation_policy=ocp.training.preservation_policies.LatestN(
                    self.keep
                ),
                cleanup_tmp_directories=self.keep is not None,
            )
        return self._opened

    def steps(self) -> list[int]:
        """The steps of all checkpoints, the newest last; orbax gives one its name when it is whole."""
        there = self.directory.iterdir() if self.directory.is_dir() else ()
        return sorted(int(path.name) for path in there if path.name.isdecimal())

    def save(self, step: int, state: dict[str, Any], notes: dict[str, Any]) -> None:
        """Starts saving; waits first for the save before it, which orbax would otherwise skip this one for.

        Raises CheckpointError where the save before could not be written, or this one cannot be begun.
        """
        self.wait()
        if step in self.steps():
            return
        notes = dict(notes, step=step, arrays=_described(state))
        with self._written(step):
            saving = self._checkpointer.save_checkpointables_async(
                step,
                dict(state=state, notes=dict(notes, digest=_digest(notes))),
                force=True,
            )
        self._saving = step, saving

    def wait(self) -> None:
        """Until the save that is under way has ended. Raises CheckpointError where it could not be written."""
        if self._saving is not None:
            (step, saving), self._saving = self._saving, None
            with self._written(step):
                saving.result()

    def notes(self, step: int) -> dict[str, Any] | None:
        """A checkpoint's notes; None of one that was saved before there were any. Raises Damaged."""
        path = self.directory / str(step)
        if not (path / "notes").exists() and (path / "data").exists():
            return None
        found = self._load(step, dict(notes=None))["notes"]
        if (
            not isinstance(found, dict)
            or found.pop("digest", None) != _digest(found)
            or found["step"] != step
        ):
            raise Damaged("its notes are not what was saved")
        return found

    def read(
        self, step: int, wanted: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """(a state like `wanted`, on its devices, the notes). What is empty in `wanted` is not looked for.

        Raises Damaged, and CheckpointError where the checkpoint is of another shape.
        """
        wanted = {
            name: value for name, value in wanted.items() if jax.tree.leaves(value)
        }
        notes, names = self.notes(step), dict(_named(wanted))
        if notes is not None:
            self._check_fit(step, notes["arrays"], names)
        found = self._load(step, dict(state=shapes(wanted)))["state"]
        if notes is not None:
            for name, value in _sums(found).items():
                if value != notes["arrays"][name][2]:
                    raise Damaged(f"{name} is not what was saved")
        return found, notes

    def _check_fit(self, step, there, names):
        for name, leaf in names.items():
            shape, dtype, _ = there.get(name, (None, None, None))
            if (shape, dtype) != (list(leaf.shape), str(leaf.dtype)):
                has = f"is {dtype} {tuple(shape)}" if shape is not None else "is not"
                raise CheckpointError(
                    f"{self.directory / str(step)} does not fit: {name} {has} there, and "
                    f"{leaf.dtype} {leaf.shape} here"
                )

    def _load(self, step, wanted):
        with _quiet():
            try:
                with self._context:
                    return ocp.load_checkpointables(self.directory / str(step), wanted)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                why = _cause(error)
            gc.collect()
        raise Damaged(why)

    def set_aside(self, step: int, why: Damaged, damaged: Path) -> str:
        """Moves a checkpoint into the directory `damaged`, unless this place is only read. Returns what to say of it."""
        path = self.directory / str(step)
        if self.keep is None:
            return f"{path} is damaged ({why}) and left out"
        name = (
            str(step)
            if self.directory.name == SAVED
            else f"{self.directory.name}-{step}"
        )
        free = (damaged / (f"{name}-{i}" if i else name) for i in range(sys.maxsize))
        target = next(path for path in free if not path.exists())
        damaged.mkdir(exist_ok=True)
        os.rename(path, target)
        self._checkpointer.reload()
        return f"{path} is damaged ({why}): moved to {target}"

    def close(self) -> None:
        try:
            self.wait()
        finally:
            # It raises again what went wrong in writing, which has been told.
            with (
                contextlib.suppress(Exception)
                if self._failed
                else contextlib.nullcontext()
            ):
                if self._opened is not None:
                    self._opened.close()

    @contextlib.contextmanager
    def _written(self, step):
        """Turns what goes wrong in writing into one line."""
        try:
            yield
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._failed = True
            raise CheckpointError(
                f"{self.directory / str(step)} cannot be written: {_cause(error)}. Make room or give "
                "the right to write; the same command then goes on from the checkpoint before"
            ) from error


class Checkpoints:
    """The checkpoints of the trial in `workdir`: the newest `keep`, one in between, the best.

    keep=None is for reading only, from a trial that may be running; a damaged checkpoint is then not moved away.
    A context manager: leaving it, by whatever way, waits for the save that is under way.
    """

    def __init__(
        self, workdir: Path, keep: int | None, say: Callable[[str], None] | None = None
    ):
        self._workdir = Path(workdir)
        one = None if keep is None else 1
        self._saved, self._between, self._best = (
            Place(self._workdir / name, n)
            for name, n in ((SAVED, keep), (BETWEEN, one), (BEST, one))
        )
        self._say = say or functools.partial(print, file=sys.stderr, flush=True)

    def latest(self) -> int | None:
        """The step of the newest whole checkpoint that can be gone on from, or None."""
        return max([*self._saved.steps(), *self._between.steps()], default=None)

    def save(
        self,
        step: int,
        state,
        data: dict[str, int],
        noted: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Starts saving; waits first for all saves before it."""
        # With this checkpoint a step is behind the trial, and what it was worth is not measured again.
        self._best.wait()
        self._saved.save(step, state._asdict(), dict(data=data, noted=dict(noted)))

    def save_between(
        self,
        step: int,
        state,
        data: dict[str, int],
        noted: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """As `save`, at a step that no average is to have; nothing where the newest is of this step. Waits for it."""
        self.wait()
        if self.latest() != step:
            self._between.save(
                step, state._asdict(), dict(data=data, noted=dict(noted))
            )
            self._between.wait()

    def save_best(self, step: int, state, perplexity: float) -> None:
        """Starts saving the weights alone."""
        weights = dict(step=state.step, params=state.params, positions=state.positions)
        self._best.save(step, weights, dict(perplexity=perplexity))

    def restore(self, state) -> Restored | None:
        """The newest checkpoint that is whole, as a tree like the NamedTuple `state`, on its devices; None if there
        are none.

        Fields that are empty in `state` are not looked for, so that a checkpoint from before they existed can be read.
        A damaged one is named, moved to WORKDIR/damaged, and the one before is read.

        Raises CheckpointError where all are damaged, or the newest is of another shape.
        """
        there = sorted(
            (
                (step, place)
                for place in (self._between, self._saved)
                for step in place.steps()
            ),
            key=lambda one: one[0],
        )
        for step, place in reversed(there):
            try:
                found, notes = place.read(step, state._asdict())
            except Damaged as error:
                self._set_aside(place, step, error)
                continue
            notes = notes or dict(data={}, noted={})
            return Restored(state._replace(**found), notes["data"], notes["noted"])
        if there or self._lost():
            raise CheckpointError(
                f"all checkpoints of {self._workdir} are damaged: bring one back from a copy, or "
                f"begin anew with another --workdir, or after removing this one"
            )
        return None

    def best_perplexity(self, state) -> float:
        """Of the weights kept as the best, which are read whole; infinite where there are none."""
        found = self._read_best(state)
        return found[1]["perplexity"] if found else math.inf

    def weights(self, name: str, state, count: int):
        """(`state` with the weights `name` for its parameters and position tables, the steps they come from).

        "raw": as they are; "average": of the last `count` checkpoints; "ema": the state's moving averages; "best":
        of the lowest validation perplexity, and as they are where none can be read.
        """
        if name == "average":
            return self.average(state, count)
        if name == "best":
            if found := self._read_best(state):
                return state._replace(**found[0]), [found[1]["step"]]
            self._say(
                f"{self._best.directory} has no whole checkpoint: the newest weights are taken for the best"
            )
        return (state._replace(**state.ema) if name == "ema" else state), [
            int(state.step)
        ]

    def average(self, state, count: int):
        """(`state` with the mean parameters and position tables of the last `count` checkpoints, their steps).

        Of those that there are, where they are fewer; a damaged one is named and left out. The mean is taken in
        float64. Raises CheckpointError where none is left.
        """
        self._saved.wait()
        wanted, steps = dict(params=state.params, positions=state.positions), []
        sums = jax.tree.map(lambda x: np.zeros(x.shape), wanted)
        for step in self._saved.steps()[-count:]:
            try:
                found = self._saved.read(step, wanted)[0]
            except Damaged as error:
                self._set_aside(self._saved, step, error)
                continue
            sums = jax.tree.map(lambda s, x: s + np.asarray(x), sums, wanted | found)
            steps.append(step)
        if not steps:
            raise CheckpointError(
                f"{self._saved.directory} has no whole checkpoint to average"
            )
        mean = jax.tree.map(
            lambda s, x: jax.device_put((s / len(steps)).astype(x.dtype), x.sharding),
            sums,
            wanted,
        )
        return state._replace(**mean), steps

    def _read_best(self, state):
        self._best.wait()
        for step in reversed(self._best.steps()):
            try:
                return self._best.read(
                    step, dict(params=state.params, positions=state.positions)
                )
            except Damaged as error:
                self._set_aside(self._best, step, error)
        return None

    def wait(self) -> None:
        """Until all saves that are under way have ended."""
        for place in (self._best, self._between, self._saved):
            place.wait()

    def _set_aside(self, place, step, why):
        self._say(place.set_aside(step, why, self._workdir / "damaged"))

    def _lost(self):
        return [
            path
            for path in (self._workdir / "damaged").glob("*")
            if not path.name.startswith(BEST)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        with contextlib.ExitStack() as closing:
            for place in (self._saved, self._between, self._best):
                closing.callback(place.close)


def shapes(tree):
    """`tree` without its numbers: what orbax needs to know to restore its like."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree
    )


def _named(tree):
    """(name, leaf) of each leaf, the name as params/encoder_0/…"""
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _sums(tree):
    named = _named(tree)
    return dict(
        zip(
            (name for name, _ in named),
            map(int, jax.device_get([checksum(leaf) for _, leaf in named])),
            strict=True,
        )
    )


def _described(state):
    sums = _sums(state)
    return {
        name: [list(leaf.shape), str(leaf.dtype), sums[name]]
        for name, leaf in _named(state)
    }


def _digest(notes):
    return zlib.crc32(json.dumps(notes, sort_keys=True).encode())


@functools.cache
def _hush():
    """Orbax reports each save, errors that it raises too, and for each array what its end left unfinished."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    hook = sys.unraisablehook

    def without_closed_loops(found):
        if str(found.exc_value) != "Event loop is closed":
            hook(found)

    sys.unraisablehook = without_closed_loops


@contextlib.contextmanager
def _quiet():
    """Without a word for each array whose reading failed too, or was not finished, when another's failed."""
    log, hook = logging.getLogger("asyncio"), sys.unraisablehook
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        log.disabled, sys.unraisablehook = True, lambda found: None
        try:
            yield
        finally:
            log.disabled, sys.unraisablehook = False, hook


def _cause(error):
    """The innermost error in one line: how it begins, which is the kind, and how it ends, which is the reason."""
    seen = (
        set()
    )  # what is raised while another error is handled may lead back to itself
    while (inner := error.__cause__ or error.__context__) and id(inner) not in seen:
        seen.add(id(inner))
        error = inner
    text = (
        re.sub(r" \[(os_error|source|tensorstore).*", "", " ".join(str(error).split()))
        or type(error).__name__
    )
    return text if len(text) < 200 else f"{text[:60]} … {text[-120:]}"
