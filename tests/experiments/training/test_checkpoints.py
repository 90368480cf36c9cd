"""Checkpoints on a disk that is not to be trusted."""

import concurrent.futures
import json
import math
import resource
import shutil
import threading
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from orbax.checkpoint import v1 as orbax

from experiments.errors import CheckpointError
from experiments.training import checkpoints as module
from experiments.training.checkpoints import Best, Checkpoints


class State(NamedTuple):
    step: Any
    params: Any
    positions: Any
    moments: Any = ()
    ema: Any = ()


def state(step, size=300):
    params = dict(
        w=jnp.arange(size, dtype=jnp.float32) + step, b=jnp.full((3, 5), 2.0 * step)
    )
    return State(jnp.int32(step), params, dict(table=jnp.zeros(4)), dict(m=jnp.ones(7)))


def data(step):
    return dict(epoch=step // 5, part=2, batch=step % 5)


NOTED = dict(metrics=dict(loss=[0.1, math.inf]))


def assert_same(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(actual)]
    assert dtypes == [leaf.dtype for leaf in jax.tree.leaves(expected)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A trial saved at 4, 8 and 12, kept whole."""
    workdir = tmp_path_factory.mktemp("whole")
    with Checkpoints(workdir, keep=3) as checkpoints:
        for step in (4, 8, 12):
            checkpoints.save(step, state(step), data(step), NOTED)
    return workdir


@pytest.fixture
def workdir(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "trial")


def content(workdir, step):
    """The file that has the arrays of a checkpoint."""
    files = (workdir / f"checkpoints/{step}/state/d").iterdir()
    return max(files, key=lambda path: path.stat().st_size)


def flip(path):
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 16
    path.write_bytes(changed)


def replace(part):
    """Returns a damage: a part of checkpoint 12 is that of checkpoint 8."""

    def damage(workdir):
        shutil.rmtree(workdir / "checkpoints/12" / part)
        shutil.copytree(
            workdir / "checkpoints/8" / part, workdir / "checkpoints/12" / part
        )

    return damage


def change_notes(workdir):
    path = workdir / "checkpoints/12/checksums.json"
    path.write_text(path.read_text().replace('"batch": 2', '"batch": 3'))


DAMAGE = {
    "a flipped bit": lambda workdir: flip(content(workdir, 12)),
    "cut off": lambda workdir: content(workdir, 12).write_bytes(b"x"),
    "gone": lambda workdir: content(workdir, 12).unlink(),
    "endless metadata": lambda workdir: (
        workdir / "checkpoints/12/_CHECKPOINT_METADATA"
    ).write_text("[" * 100_000),
    "notes changed": change_notes,
    # Each file is whole in itself: only the checksums tell.
    "another's arrays": replace("state"),
    "another's name": replace("."),
}


def files(folder):
    return {
        path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_found_and_the_checkpoint_before_is_used(workdir, damage):
    damage(workdir)
    hurt = files(workdir / "checkpoints/12")
    said = []
    with Checkpoints(workdir, keep=None, say=said.append) as checkpoints:
        assert int(checkpoints.restore(state(0)).state.step) == 8
    assert len(said) == 1 and "left out" in said[0]
    assert files(workdir / "checkpoints/12") == hurt
    with Checkpoints(workdir, keep=3, say=said.append) as checkpoints:
        restored = checkpoints.restore(state(0))
        assert_same(restored.state, state(8))
        assert (restored.data, restored.noted) == (data(8), NOTED)
        checkpoints.save(12, state(12), data(12))
    assert len(said) == 2 and "\n" not in said[1]
    assert str(workdir / "checkpoints/12") in said[1]
    assert str(workdir / "damaged/12") in said[1]
    assert files(workdir / "damaged/12") == hurt
    with Checkpoints(workdir, keep=3) as checkpoints:
        assert_same(checkpoints.restore(state(0)).state, state(12))


def test_a_checkpoint_that_was_not_written_to_its_end_is_none(workdir):
    """As a kill leaves it before its checksums."""
    (workdir / "checkpoints/12/checksums.json").unlink()
    said = []
    with Checkpoints(workdir, keep=3, say=said.append) as checkpoints:
        assert checkpoints.steps() == [4, 8]
        assert int(checkpoints.restore(state(0)).state.step) == 8 and said == []
        checkpoints.save(12, state(12), data(12))
    assert "checkpoints/12 was not written to its end" in said[0] and len(said) == 1
    with Checkpoints(workdir, keep=3) as checkpoints:
        assert_same(checkpoints.restore(state(0)).state, state(12))


def test_a_checkpoint_of_another_trial_is_not_gone_on_from(workdir):
    """It has the same shapes, and checksums that are right."""
    with Checkpoints(workdir, keep=3, trial="ours") as checkpoints:
        checkpoints.save(16, state(16), data(16))
    said = []
    with Checkpoints(workdir, None, "theirs", said.append) as checkpoints:
        assert int(checkpoints.restore(state(0)).state.step) == 12
    assert "it is of another trial, ours" in said[0]


def test_an_average_leaves_out_what_is_damaged_or_not_scheduled(workdir):
    flip(content(workdir, 8))
    said = []
    with Checkpoints(workdir, keep=3, say=said.append) as checkpoints:
        checkpoints.save(13, state(13), data(13), scheduled=False)
        average, steps = checkpoints.weights("average", state(13), 3)
    assert steps == [4, 12] and (workdir / "damaged/8").is_dir()
    assert "checkpoints/8 is damaged" in said[0]
    np.testing.assert_array_equal(average.params["w"], np.arange(300) + 8)
    assert average.params["w"].dtype == np.float32


def test_nothing_is_begun_anew_over_damaged_checkpoints(workdir):
    for step in (4, 8, 12):
        flip(content(workdir, step))
    for _ in range(2):
        with (
            Checkpoints(workdir, keep=3, say=lambda line: None) as checkpoints,
            pytest.raises(
                CheckpointError,
                match=r"all checkpoints of .*trial are damaged: .* another --workdir",
            ),
        ):
            checkpoints.restore(state(0))
    assert {path.name for path in (workdir / "damaged").iterdir()} == {"12", "4", "8"}


def test_what_is_kept(tmp_path):
    """The newest two, as many scheduled as are averaged, and the best."""
    best = {2: 5.0, 3: 4.0}
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in range(1, 11):
            scheduled = step % 4 == 0
            checkpoints.save(
                step, state(step), data(step), {}, scheduled, best.get(step)
            )
        checkpoints.wait()
        assert checkpoints.steps() == [3, 4, 8, 9, 10]
        assert checkpoints.best() == Best(3, 4.0)
        weights, steps = checkpoints.weights("best", state(10), 0)
        assert steps == [3]
        assert_same(jax.tree.map(jnp.asarray, weights.params), state(3).params)
        assert int(weights.step) == 10


def test_a_damaged_best_is_the_newest(workdir):
    said = []
    with Checkpoints(workdir, keep=3, say=said.append) as checkpoints:
        assert checkpoints.best() is None
        checkpoints.save(13, state(13), data(13), {}, False, 2.5)
        assert checkpoints.best() == Best(13, 2.5)
        flip(content(workdir, 13))
        weights, steps = checkpoints.weights("best", state(14), 0)
        assert_same(weights, state(14))
        assert steps == [14]
    assert "checkpoints/13 is damaged" in said[0] and "newest weights" in said[1]


def test_a_step_that_is_saved_again_gets_its_notes(workdir):
    """An interruption may come between what is noted and what the schedule asks for."""
    before = files(workdir / "checkpoints/12/state")
    with Checkpoints(workdir, keep=3) as checkpoints:
        checkpoints.save(12, state(12), data(13), dict(flops=3), True, 2.5)
        restored = checkpoints.restore(state(0))
        assert (restored.data, restored.noted) == (data(13), dict(flops=3))
        assert checkpoints.best() == Best(12, 2.5)
    assert files(workdir / "checkpoints/12/state") == before


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            state(0, 299),
            r"params/w is float32 \(300,\) there, and float32 \(299,\) here",
        ),
        (
            state(0)._replace(step=jnp.float32(0)),
            r"step is int32 \(\) there, and float32 \(\) here",
        ),
        (
            state(0)._replace(ema=dict(v=jnp.zeros(2))),
            r"ema/v is not there, and float32 \(2,\) here",
        ),
    ],
)
def test_a_checkpoint_of_another_shape_is_not_damaged(workdir, template, message):
    with (
        Checkpoints(workdir, keep=3) as checkpoints,
        pytest.raises(CheckpointError, match=message),
    ):
        checkpoints.restore(template)
    assert not (workdir / "damaged").exists()


PARAMS = dict(
    wide=jnp.arange(2**18, dtype=jnp.float32).reshape(2**9, 2**9),
    half=jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3),
    bias=jnp.arange(5, dtype=jnp.float32),
    scale=jnp.arange(7, dtype=jnp.float32) + 0.5,
    empty=jnp.zeros((0, 3)),
)
OPTIMIZERS = {
    "adamw": optax.adamw(optax.cosine_decay_schedule(0.1, 9), mu_dtype=jnp.bfloat16),
    "clipped momentum": optax.chain(
        optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9, nesterov=True)
    ),
    "by parameter": optax.multi_transform(
        dict(a=optax.lion(0.1), b=optax.set_to_zero()),
        dict(wide="a", half="b", bias="a", scale="b", empty="b"),
    ),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_any_optimizers_state_comes_back(tmp_path, optimizer):
    """Trees of tuples, NamedTuples and dictionaries; arrays of every shape and dtype."""
    saved = State(jnp.int32(7), PARAMS, (), optimizer.init(PARAMS))
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(7, saved, data(7))
        blank = jax.tree.map(lambda x: jnp.full_like(x, -1), saved)
        assert_same(checkpoints.restore(blank).state, saved)
        weights = checkpoints.restore(blank._replace(moments=())).state
        assert_same(weights, saved._replace(moments=()))


def test_small_arrays_are_written_as_one_and_found_by_name(tmp_path):
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(7, State(jnp.int32(7), PARAMS, ()), data(7))
        checkpoints.wait()
        names = {f"params/{name}": x for name, x in PARAMS.items()}
        assert_same(checkpoints.arrays(7), names | dict(step=jnp.int32(7)))
    written = orbax.load_checkpointables(tmp_path / "checkpoints/7", None)["state"]
    sizes = {"params/wide": 2**18, "params.float32": 12, "params.bfloat16": 6}
    assert {key: x.size for key, x in written.items()} == sizes | {"step.int32": 1}


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """Orbax is held up; the state that was saved may change meanwhile."""
    go_on = threading.Event()
    join = module._joined

    def held_up(arrays):
        assert go_on.wait(20)
        return join(arrays)

    monkeypatch.setattr(module, "_joined", held_up)
    saved = jax.tree.map(np.array, state(4))
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(4, jax.tree.map(jnp.asarray, saved), data(4))
        with pytest.raises(concurrent.futures.TimeoutError):
            checkpoints._saving[1].result(0)
        go_on.set()
        assert_same(checkpoints.restore(state(0)).state, saved)


@pytest.mark.ci
def test_of_several_processes_the_first_has_a_child_that_writes(tmp_path, monkeypatch):
    with monkeypatch.context() as several:
        several.setattr(jax, "process_count", lambda: 2)
        kept = Checkpoints(tmp_path / "kept", keep=2)
        failing = Checkpoints(tmp_path / "failing", keep=2)
    with kept:
        for step in (4, 8, 12):
            kept.save(step, state(step), data(step), NOTED)
        restored = kept.restore(state(0))
        assert_same(restored.state, state(12))
        assert (restored.data, restored.noted) == (data(12), NOTED)
        assert kept.weights("average", state(12), 5)[1] == [8, 12]
    with failing:
        (tmp_path / "failing").mkdir()
        (tmp_path / "failing/checkpoints").write_text("no directory")
        failing.save(4, state(4), data(4))
        with pytest.raises(CheckpointError, match="checkpoints/4 cannot be written"):
            failing.wait()


def test_a_full_disk_leaves_what_was_saved(workdir):
    """With a limit on the size of files, which is an error of the system's like a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Checkpoints(workdir, keep=3) as checkpoints:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        try:
            checkpoints.save(16, state(16, 30_000), data(16))
            with pytest.raises(
                CheckpointError,
                match=r"checkpoints/16 cannot be written: .*File too large. Make room",
            ):
                checkpoints.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        checkpoints.save(16, state(16), data(16))
    with Checkpoints(workdir, keep=3) as checkpoints:
        assert_same(checkpoints.restore(state(0)).state, state(16))
        assert checkpoints.steps() == [8, 12, 16]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no room"), "no room"),
        (OSError(), "OSError"),
    ],
)
def test_a_reason_is_in_words(error, expected):
    assert module._cause(error) == expected


def test_notes_are_plain_json(workdir):
    notes = json.loads((workdir / "checkpoints/12/checksums.json").read_text())["notes"]
    assert (notes["step"], notes["data"], notes["scheduled"]) == (12, data(12), True)


def test_trials_of_one_process_save_one_at_a_time(tmp_path, monkeypatch):
    """Orbax numbers the operations of a process: two at once wait for each other for ever."""
    busy = threading.Lock()
    seen = []

    def save(self, step, *arguments, **options):
        is_free = busy.acquire(blocking=False)
        seen.append((step, is_free))
        time.sleep(0.2)
        if is_free:
            busy.release()
        # As where the disk is full; nothing is written.
        raise OSError("no space")

    monkeypatch.setattr(orbax.training.Checkpointer, "save_checkpointables", save)
    trials = [Checkpoints(tmp_path / name, keep=1) for name in "ab"]
    for step, checkpoints in enumerate(trials):
        checkpoints.save(step, state(step), data(step))
    for checkpoints in trials:
        with pytest.raises(CheckpointError, match="cannot be written"):
            checkpoints.wait()
    assert sorted(seen) == [(0, True), (1, True)]
