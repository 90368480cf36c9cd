"""A folder of checkpoints, by orbax: each is whole or damaged, and checksums say which.

Beside `state`, a checkpoint has `notes`: JSON with the caller's notes, and of each array its
shape, dtype and checksum. Small arrays of one dtype are written as one:

    state/arrays/NAME     an array of SMALL bytes and more
    state/joined/DTYPE    the others, one after another in the order of notes["joined"][DTYPE]
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
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attn.random_bits import mix
from experiments.errors import CheckpointError
from experiments.system.machine import is_out_of_memory

SMALL = 2**20
"""Bytes from which an array is written by itself. Orbax takes three milliseconds of a core for
each, and a model of four layers has 370, most of them biases and scales."""


class Damaged(Exception):
    """Raised for a checkpoint that cannot be read or is not what was saved; says why."""


def _orbax():
    """Imports orbax: a run has no use for it before its first checkpoint."""
    from orbax.checkpoint import v1

    return v1


def checksum(x):
    """Computes Σ_i mix(word_i xor mix(i)) mod 2^32 over the 32-bit words of an array.

    `mix` is a bijection, so a change within one word always shows, and any other but for
    one in 2^32. Sums of integers have no order: they are the same on every backend and any
    number of devices.
    """
    # JAX has no 64-bit integers by default, so a wider number is several words.
    dtype = jnp.dtype(f"uint{8 * min(4, x.dtype.itemsize)}")
    words = jax.lax.bitcast_convert_type(x, dtype).reshape(-1)
    places = jax.lax.iota(jnp.uint32, words.size)
    return mix(words.astype(jnp.uint32) ^ mix(places)).sum(dtype=jnp.uint32)


@jax.jit
def checksums(leaves):
    """Computes the checksum of each array."""
    return [checksum(leaf) for leaf in leaves]


class CheckpointStore:
    """Keeps the newest `keep` checkpoints in `directory`, written in the background.

    keep=None is for reading only, from a directory that a run may be writing to, or that
    does not exist. `trial` is the name of the trial that they are of, empty if unknown.
    """

    def __init__(self, directory: Path, keep: int | None, trial: str = ""):
        _silence_orbax()
        self.directory = Path(directory).absolute()
        self.keep = keep
        self._trial = trial
        # Opened when first needed: orbax makes the directory, which a reader must not.
        self._opened = None
        self._saving = None
        self._failed = False

    @functools.cached_property
    def _context(self):
        ocp = _orbax()
        registry = ocp.handlers.local_registry()
        registry.add(ocp.handlers.JsonHandler, checkpointable_name="notes")
        # partial_load: reads what is asked for, and leaves the rest of a checkpoint on disk.
        loading = ocp.options.PyTreeOptions.Loading(partial_load=True)
        return ocp.Context(
            pytree_options=ocp.options.PyTreeOptions(loading=loading),
            checkpointables_options=ocp.options.CheckpointablesOptions(
                registry=registry
            ),
        )

    @property
    def _checkpointer(self):
        if self._opened is None:
            ocp = _orbax()
            policies = ocp.training.preservation_policies
            self._opened = ocp.training.Checkpointer(
                self.directory,
                context=self._context,
                preservation_policy=policies.LatestN(self.keep),
                # A killed run leaves them; a reader could remove what a run is writing.
                cleanup_tmp_directories=self.keep is not None,
            )
        return self._opened

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints, the newest last."""
        # Orbax gives a checkpoint its name when it is whole.
        paths = self.directory.iterdir() if self.directory.is_dir() else ()
        return sorted(int(path.name) for path in paths if path.name.isdecimal())

    def save(self, step: int, state: dict[str, Any], notes: dict[str, Any]) -> None:
        """Starts saving; nothing where the step has a checkpoint.

        Waits first for the save before, because orbax would otherwise skip this one. Raises
        CheckpointError where the save before could not be written, or this one cannot start.
        """
        self.wait()
        if step in self.steps():
            return
        arrays, joined = _joined(state)
        notes = dict(notes, step=step, arrays=_described(state), joined=joined)
        notes["trial"] = self._trial
        with self._errors_in_one_line(step):
            saving = self._checkpointer.save_checkpointables_async(
                step,
                dict(state=arrays, notes=dict(notes, digest=_digest(notes))),
                force=True,
            )
        self._saving = (step, saving)

    def wait(self) -> None:
        """Waits for the save that is under way, and raises CheckpointError if it failed."""
        if self._saving is None:
            return
        step, saving = self._saving
        # First, so that a failure is raised once and not again at the end.
        self._saving = None
        with self._errors_in_one_line(step):
            saving.result()

    def notes(self, step: int) -> dict[str, Any] | None:
        """Returns a checkpoint's notes; None of one from before there were any.

        Raises Damaged.
        """
        path = self.directory / str(step)
        if not (path / "notes").exists() and (path / "data").exists():
            return None
        notes = self._load(step, dict(notes=None))["notes"]
        if (
            not isinstance(notes, dict)
            or notes.pop("digest", None) != _digest(notes)
            # The directory may have been copied from another step's.
            or notes["step"] != step
        ):
            raise Damaged("its notes are not what was saved")
        # Those of earlier versions have no name.
        theirs = notes.pop("trial", "")
        if theirs and self._trial and theirs != self._trial:
            raise Damaged(f"it is of another trial, {theirs}")
        return notes

    def read(
        self, step: int, template: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Returns (a state like `template`, on its devices, the notes).

        What is empty in `template` is not read. Raises Damaged, and CheckpointError where
        the checkpoint is of another shape.
        """
        template = {
            name: value for name, value in template.items() if jax.tree.leaves(value)
        }
        notes = self.notes(step)
        if notes is not None:
            # Before arrays are read, so that the error can name the first that differs.
            self._check_fit(step, notes["arrays"], dict(_named(template)))
        state = self._read_state(step, template, notes)
        if notes is not None:
            _check_sums(state, notes)
        return state, notes

    def arrays(self, step: int) -> dict[str, np.ndarray]:
        """Returns all arrays of a checkpoint, by their names in its notes.

        Raises Damaged, also for a checkpoint of an earlier version, without such notes.
        """
        notes = self.notes(step)
        if notes is None or "joined" not in notes:
            raise Damaged("it is of an earlier version, whose trees orbax reads")
        arrays = self._arrays(step, notes, list(notes["arrays"]))
        _check_sums(arrays, notes)
        return jax.tree.map(np.asarray, arrays)

    def _read_state(self, step, template, notes):
        # Earlier versions wrote each array by itself, in the state's tree.
        if notes is None or "joined" not in notes:
            return self._load(step, dict(state=_shapes(template)))["state"]
        wanted = dict(_named(template))
        arrays = self._arrays(step, notes, list(wanted))
        # All at once, as each call takes as long.
        found = jax.device_put(
            [arrays[name] for name in wanted],
            [leaf.sharding for leaf in wanted.values()],
        )
        return jax.tree.unflatten(jax.tree.structure(template), found)

    def _arrays(self, step, notes, names):
        """Returns {name: array} of these, on the first device or the host."""
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

        def shaped(shape, dtype):
            return jax.ShapeDtypeStruct(shape, dtype, sharding=device)

        vectors = {}
        small = set()
        for dtype, joined in notes["joined"].items():
            sizes = [math.prod(notes["arrays"][name][0]) for name in joined]
            vectors[dtype] = shaped((sum(sizes),), dtype)
            small.update(joined)
        large = [name for name in names if name not in small]
        arrays = {name: shaped(*notes["arrays"][name][:2]) for name in large}
        loaded = self._load(step, dict(state=_without_empty(arrays, vectors)))["state"]
        found = _separated(loaded.get("joined", {}), notes) | loaded.get("arrays", {})
        return {name: found[name] for name in names}

    def _check_fit(self, step, saved, expected):
        for name, leaf in expected.items():
            shape, dtype, _ = saved.get(name, (None, None, None))
            if (shape, dtype) != (list(leaf.shape), str(leaf.dtype)):
                theirs = f"is {dtype} {tuple(shape)}" if shape is not None else "is not"
                raise CheckpointError(
                    f"{self.directory / str(step)} does not fit: {name} {theirs} there, "
                    f"and {leaf.dtype} {leaf.shape} here"
                )

    def _load(self, step, template):
        with _quiet():
            try:
                with self._context:
                    path = self.directory / str(step)
                    return _orbax().load_checkpointables(path, template)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                reason = _cause(error)
            # While it is quiet: what a failed read leaves complains when it is freed.
            gc.collect()
        # Outside of `except`, so that the error keeps no arrays that were read.
        raise Damaged(reason)

    def set_aside(self, step: int, reason: Damaged, damaged: Path) -> str:
        """Moves a checkpoint into the directory `damaged`, unless this store is read only.

        It is named as its step, after the store unless that is "checkpoints". Returns what
        to say of it.
        """
        path = self.directory / str(step)
        if self.keep is None:
            return f"{path} is damaged ({reason}) and left out"
        prefix = (
            "" if self.directory.name == "checkpoints" else f"{self.directory.name}-"
        )
        name = f"{prefix}{step}"
        names = (f"{name}-{i}" if i else name for i in range(sys.maxsize))
        target = next(damaged / n for n in names if not (damaged / n).exists())
        damaged.mkdir(exist_ok=True)
        os.rename(path, target)
        # Orbax lists the directory once, when it is opened.
        self._checkpointer.reload()
        return f"{path} is damaged ({reason}): moved to {target}"

    def close(self) -> None:
        try:
            self.wait()
        finally:
            # Orbax raises again what went wrong in writing, which was raised before.
            errors = Exception if self._failed else ()
            with contextlib.suppress(errors):
                if self._opened is not None:
                    self._opened.close()

    @contextlib.contextmanager
    def _errors_in_one_line(self, step):
        """Turns what goes wrong in writing into a CheckpointError of one line."""
        try:
            yield
        except Exception as error:
            # That has a remedy of its own, see `out_of_memory.explained`.
            if is_out_of_memory(error):
                raise
            self._failed = True
            raise CheckpointError(
                f"{self.directory / str(step)} cannot be written: {_cause(error)}. Make "
                "room or give the right to write; the same command then goes on from the "
                "checkpoint before"
            ) from error


def _joined(state):
    """Returns the arrays as they are written, and {dtype: names} of those that are joined."""
    named = dict(_named(state))
    # All at once, or the device would be waited for again and again.
    small = jax.device_get({name: x for name, x in named.items() if x.nbytes < SMALL})
    joined = {}
    for name, x in small.items():
        joined.setdefault(str(x.dtype), []).append(name)
    arrays = {name: x for name, x in named.items() if name not in small}
    vectors = {
        dtype: np.concatenate([small[name].reshape(-1) for name in names])
        for dtype, names in joined.items()
    }
    return _without_empty(arrays, vectors), joined


def _without_empty(arrays, vectors):
    """Returns the tree that is written, which has no empty part: orbax would not."""
    tree = dict(arrays=arrays, joined=vectors)
    return {kind: part for kind, part in tree.items() if part}


def _separated(vectors, notes):
    """Returns {name: array} of those that were joined."""
    arrays = {}
    for dtype, vector in vectors.items():
        vector = np.asarray(vector)
        start = 0
        for name in notes["joined"][dtype]:
            shape = notes["arrays"][name][0]
            stop = start + math.prod(shape)
            arrays[name] = vector[start:stop].reshape(shape)
            start = stop
    return arrays


def _shapes(tree):
    """Returns `tree` without its numbers, which is what orbax needs to restore its like."""

    def shape_of(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)

    return jax.tree.map(shape_of, tree)


def _named(tree):
    """Returns (name, leaf) of each leaf, the name as params/encoder_0/…"""
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _checksums(tree):
    named = _named(tree)
    sums = jax.device_get(checksums([leaf for _, leaf in named]))
    return {name: int(value) for (name, _), value in zip(named, sums, strict=True)}


def _check_sums(tree, notes):
    """Raises Damaged where an array is not what the notes say."""
    for name, value in _checksums(tree).items():
        if value != notes["arrays"][name][2]:
            raise Damaged(f"{name} is not what was saved")


def _described(state):
    """Returns {name: [shape, dtype, checksum]} of each array."""
    sums = _checksums(state)
    return {
        name: [list(leaf.shape), str(leaf.dtype), sums[name]]
        for name, leaf in _named(state)
    }


def _digest(notes):
    return zlib.crc32(json.dumps(notes, sort_keys=True).encode())


@functools.cache
def _silence_orbax():
    """Silences orbax, once and for all.

    It reports each save, also errors that it raises, and for each array what its end, or a
    failed save, left unfinished.
    """
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    hook = sys.unraisablehook

    def without_closed_loops(unraisable):
        if str(unraisable.exc_value) != "Event loop is closed":
            hook(unraisable)

    sys.unraisablehook = without_closed_loops


@contextlib.contextmanager
def _quiet():
    """Silences what is said, when one array cannot be read, of each other array."""
    log = logging.getLogger("asyncio")
    hook = sys.unraisablehook
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        log.disabled = True
        sys.unraisablehook = lambda unraisable: None
        try:
            yield
        finally:
            log.disabled = False
            sys.unraisablehook = hook


def _cause(error):
    """Returns the innermost error in one line: its beginning and its end.

    The beginning says the kind of error, the end its reason.
    """
    # What is raised while another error is handled may lead back to itself.
    seen = set()
    while (inner := error.__cause__ or error.__context__) and id(inner) not in seen:
        seen.add(id(inner))
        error = inner
    text = " ".join(str(error).split())
    # Tensorstore appends places in its own source.
    text = re.sub(r" \[(os_error|source|tensorstore).*", "", text)
    if not re.search(r"[A-Za-z]{2}", text):
        # Such as a KeyError's, which is the key alone.
        text = f"{type(error).__name__} {text}".rstrip()
    return text if len(text) < 200 else f"{text[:60]} … {text[-120:]}"
