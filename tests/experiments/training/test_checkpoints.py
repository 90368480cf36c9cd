"""Checkpoints on a disk that is not to be trusted."""

import math
import resource
import shutil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from orbax.checkpoint import v1 as ocp

from attn.random_bits import mix
from experiments.errors import CheckpointError
from experiments.training import checkpoint_store
from experiments.training.checkpoint_store import (
    CheckpointStore,
    Damaged,
    checksum,
)
from experiments.training.checkpoints import Checkpoints


class State(NamedTuple):
    step: Any
    params: Any
    positions: Any
    moments: Any = ()
    ema: Any = ()


def state(step, size=300):
    return State(
        jnp.int32(step),
        dict(
            w=jnp.arange(size, dtype=jnp.float32) + step, b=jnp.full((3, 5), 2.0 * step)
        ),
        dict(table=jnp.zeros(4)),
        dict(m=jnp.ones(7)),
    )


def data(step):
    return dict(epoch=step // 5, part=2, batch=step % 5)


def same(actual, step):
    jax.tree.map(np.testing.assert_array_equal, actual, state(step))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A trial saved at 4, 8 and 12, kept whole."""
    workdir = tmp_path_factory.mktemp("whole")
    with Checkpoints(workdir, keep=3) as checkpoints:
        for step in (4, 8, 12):
            checkpoints.save(
                step, state(step), data(step), dict(metrics=dict(loss=[0.1, math.inf]))
            )
    return workdir


@pytest.fixture
def workdir(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "trial")


def content(workdir, step):
    """The file that has the arrays of a checkpoint."""
    return max(
        (workdir / f"checkpoints/{step}/state/d").iterdir(),
        key=lambda path: path.stat().st_size,
    )


@pytest.mark.parametrize(
    "array",
    [
        np.linspace(-1, 1, 77, dtype=np.float32).reshape(7, 11),
        np.int32(5),
        np.arange(9, dtype=np.uint8),
        jnp.arange(6, dtype=jnp.bfloat16),
    ],
)
def test_every_flipped_bit_changes_the_checksum(array):
    words = np.asarray(array).view(f"u{min(4, array.dtype.itemsize)}").reshape(-1)
    places = np.asarray(mix(jnp.arange(words.size, dtype=jnp.uint32)))
    by_hand = (
        np.asarray(mix(jnp.asarray(words.astype(np.uint32) ^ places)))
        .astype(np.uint64)
        .sum()
        % 2**32
    )
    assert int(checksum(jnp.asarray(array))) == by_hand
    checksums = {int(by_hand)}
    for place, bit in [
        (i, b)
        for i in {0, words.size // 2, words.size - 1}
        for b in range(8 * words.dtype.itemsize)
    ]:
        flipped = words.copy()
        flipped[place] ^= words.dtype.type(1 << bit)
        checksums.add(
            int(
                checksum(
                    jnp.asarray(
                        flipped.view(np.asarray(array).dtype).reshape(np.shape(array))
                    )
                )
            )
        )
    assert (
        len(checksums)
        == 1 + len({0, words.size // 2, words.size - 1}) * 8 * words.dtype.itemsize
    )


def test_a_checksum_is_the_same_however_an_array_is_spread():
    mesh = Mesh(np.array(jax.local_devices()), ("d",))
    array = jnp.arange(48.0).reshape(8, 6)
    for spec in (P(), P("d"), P(None)):
        assert int(checksum(jax.device_put(array, NamedSharding(mesh, spec)))) == int(
            checksum(array)
        )
    assert int(checksum(array.at[0].set(array[1]).at[1].set(array[0]))) != int(
        checksum(array)
    )


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


DAMAGE = {
    "a flipped bit": lambda workdir: flip(content(workdir, 12)),
    "cut off": lambda workdir: content(workdir, 12).write_bytes(
        content(workdir, 12).read_bytes()[:500]
    ),
    "gone": lambda workdir: content(workdir, 12).unlink(),
    "empty metadata": lambda workdir: (
        workdir / "checkpoints/12/state/_METADATA"
    ).write_text(""),
    "endless metadata": lambda workdir: (
        workdir / "checkpoints/12/_CHECKPOINT_METADATA"
    ).write_text("[" * 100_000),
    "notes gone": lambda workdir: shutil.rmtree(workdir / "checkpoints/12/notes"),
    "notes changed": lambda workdir: (
        path := workdir / "checkpoints/12/notes/data.json"
    ).write_text(path.read_text().replace('"batch": 2', '"batch": 3')),
    # Each file is whole in itself: only the checksums tell.
    "another's arrays": lambda workdir: (
        shutil.rmtree(workdir / "checkpoints/12/state"),
        shutil.copytree(
            workdir / "checkpoints/8/state", workdir / "checkpoints/12/state"
        ),
    ),
    "another's name": lambda workdir: (
        shutil.rmtree(workdir / "checkpoints/12"),
        shutil.copytree(workdir / "checkpoints/8", workdir / "checkpoints/12"),
    ),
}


def test_a_checkpoint_of_another_trial_is_not_gone_on_from(workdir):
    """It has the same shapes, and checksums that are right."""
    with Checkpoints(workdir, keep=3, trial="ours") as checkpoints:
        checkpoints.save(16, state(16), data(16))
    said = []
    with Checkpoints(workdir, None, "theirs", said.append) as checkpoints:
        # Those before have no name, as earlier versions wrote them.
        assert int(checkpoints.restore(state(0)).state.step) == 12
    assert "it is of another trial, ours" in said[0]
    with Checkpoints(workdir, None, "ours", said.append) as checkpoints:
        assert int(checkpoints.restore(state(0)).state.step) == 16


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError(0), "KeyError 0"),
        (ValueError("no room"), "no room"),
        (OSError(), "OSError"),
    ],
)
def test_a_reason_is_in_words(error, expected):
    assert checkpoint_store._cause(error) == expected


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_and_the_checkpoint_before_is_used(workdir, kind):
    DAMAGE[kind](workdir)
    hurt = {
        path.name: path.read_bytes()
        for path in (workdir / "checkpoints/12").rglob("*")
        if path.is_file()
    }
    said = []
    with Checkpoints(workdir, keep=None, say=said.append) as checkpoints:
        assert int(checkpoints.restore(state(0)).state.step) == 8
    assert (
        len(said) == 1
        and "left out" in said[0]
        and (workdir / "checkpoints/12").exists()
    )
    with Checkpoints(workdir, keep=3, say=said.append) as checkpoints:
        restored = checkpoints.restore(state(0))
        same(restored.state, 8)
        assert (restored.data, restored.noted) == (
            data(8),
            dict(metrics=dict(loss=[0.1, math.inf])),
        )
        checkpoints.save(12, state(12), data(12))
    assert len(said) == 2 and "\n" not in said[1]
    assert (
        str(workdir / "checkpoints/12") in said[1]
        and str(workdir / "damaged/12") in said[1]
    )
    assert hurt == {
        path.name: path.read_bytes()
        for path in (workdir / "damaged/12").rglob("*")
        if path.is_file()
    }
    with Checkpoints(workdir, keep=3) as checkpoints:
        same(checkpoints.restore(state(0)).state, 12)


def test_an_average_leaves_out_what_is_damaged(workdir):
    flip(content(workdir, 8))
    said = []
    with Checkpoints(workdir, keep=3, say=said.append) as checkpoints:
        average, steps = checkpoints.weights("average", state(12), 3)
    assert (
        steps == [4, 12]
        and "checkpoints/8 is damaged" in said[0]
        and (workdir / "damaged/8").is_dir()
    )
    np.testing.assert_array_equal(average.params["w"], np.arange(300) + 8)


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
    assert sorted(path.name for path in (workdir / "damaged").iterdir()) == [
        "12",
        "4",
        "8",
    ]


def test_a_state_in_between_is_gone_on_from_and_not_averaged(workdir):
    with Checkpoints(workdir, keep=3) as checkpoints:
        checkpoints.save_between(12, state(12), data(12))
        assert not (workdir / "interrupted").exists()
        checkpoints.save_between(13, state(13), data(13), dict(flops=3))
    with Checkpoints(workdir, keep=3) as checkpoints:
        assert checkpoints.latest() == 13
        restored = checkpoints.restore(state(0))
        same(restored.state, 13)
        assert (restored.data, restored.noted) == (data(13), dict(flops=3))
        assert checkpoints.average(state(0), 2)[1] == [8, 12]
        checkpoints.save(16, state(16), data(16))
    with Checkpoints(workdir, keep=3) as checkpoints:
        same(checkpoints.restore(state(0)).state, 16)


def test_the_best_are_weights_alone_and_a_damaged_best_is_the_newest(workdir):
    with Checkpoints(workdir, keep=3) as checkpoints:
        assert checkpoints.best_perplexity(state(0)) == math.inf
        checkpoints.save_best(6, state(6), 3.5)
        checkpoints.save_best(9, state(9), 2.5)
    assert [
        path.name for path in (workdir / "best").iterdir() if path.name.isdigit()
    ] == ["9"]
    said = []
    with Checkpoints(workdir, keep=3, say=said.append) as checkpoints:
        assert checkpoints.best_perplexity(state(0)) == 2.5
        weights, steps = checkpoints.weights("best", state(12), 0)
        assert steps == [9] and int(weights.step) == 12
        same(weights._replace(step=jnp.int32(9)), 9)
        flip(
            max(
                (workdir / "best/9/state/d").iterdir(),
                key=lambda path: path.stat().st_size,
            )
        )
        weights, steps = checkpoints.weights("best", state(12), 0)
        assert (
            steps == [12]
            and (workdir / "damaged/best-9").is_dir()
            and "newest weights" in said[-1]
        )
        same(weights, 12)
    shutil.rmtree(workdir / "checkpoints")
    with Checkpoints(workdir, keep=3) as checkpoints:
        assert checkpoints.restore(state(0)) is None  # a lost best is no lost trial


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


def test_a_checkpoint_of_before_there_were_checksums_is_read(tmp_path):
    with ocp.training.Checkpointer(tmp_path / "checkpoints") as before:
        before.save_checkpointables(
            4, dict(state=state(4), data=dict(epoch=1, batch=2))
        )
    with Checkpoints(tmp_path, keep=None) as checkpoints:
        restored = checkpoints.restore(state(0)._replace(moments=()))
        same(restored.state._replace(moments=state(0).moments), 4)
        assert restored.data == {} and checkpoints.average(state(0), 3)[1] == [4]


def test_small_arrays_are_written_as_one(tmp_path):
    """Also those of other dtypes, of no dimension and of no element; the rest by themselves."""
    params = dict(
        wide=jnp.arange(2**18, dtype=jnp.float32).reshape(2**9, 2**9),
        half=jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3),
        bias=jnp.arange(5, dtype=jnp.float32),
        empty=jnp.zeros((0, 3)),
    )
    saved = State(jnp.int32(7), params, (), dict(m=jnp.float32(2.5)))
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(7, saved, data(7))
    written = ocp.metadata(tmp_path / "checkpoints/7", "state").metadata
    sizes = jax.tree.map(lambda x: math.prod(x.shape), written)
    assert sizes == dict(
        arrays={"params/wide": 2**18}, joined=dict(float32=6, bfloat16=6, int32=1)
    )
    blank = jax.tree.map(lambda x: jnp.full_like(x, -1), saved)
    with Checkpoints(tmp_path, keep=None) as checkpoints:
        restored = checkpoints.restore(blank).state
        average, _ = checkpoints.average(blank, 1)
    jax.tree.map(np.testing.assert_array_equal, restored, saved)
    assert restored.params["half"].dtype == jnp.bfloat16
    jax.tree.map(np.testing.assert_array_equal, average.params, params)
    assert int(average.step) == -1


def test_a_checkpoint_of_before_small_arrays_were_joined_is_read(tmp_path, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr(checkpoint_store, "_joined", lambda state: (state, None))
        digest = checkpoint_store._digest

        def without_joined(notes):
            del notes["joined"]
            return digest(notes)

        earlier.setattr(checkpoint_store, "_digest", without_joined)
        with Checkpoints(tmp_path, keep=1) as checkpoints:
            checkpoints.save(4, state(4), data(4))
    with Checkpoints(tmp_path, keep=None) as checkpoints:
        same(checkpoints.restore(state(0)).state, 4)
    with pytest.raises(Damaged, match="earlier version"):
        CheckpointStore(tmp_path / "checkpoints", None).arrays(4)


def test_arrays_by_name_are_compared_with_their_checksums(workdir):
    store = CheckpointStore(workdir / "checkpoints", None)
    arrays = store.arrays(12)
    assert arrays.keys() >= {"step", "params/w", "params/b", "positions/table"}
    np.testing.assert_array_equal(arrays["params/w"], state(12).params["w"])
    DAMAGE["another's arrays"](workdir)
    with pytest.raises(Damaged, match="is not what was saved"):
        store.arrays(12)


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
    with Checkpoints(workdir, keep=3) as checkpoints:
        same(checkpoints.restore(state(0)).state, 12)
        checkpoints.save(16, state(16), data(16))
    with Checkpoints(workdir, keep=3) as checkpoints:
        same(checkpoints.restore(state(0)).state, 16)
    assert sorted(
        path.name for path in (workdir / "checkpoints").iterdir() if path.name.isdigit()
    ) == ["12", "16", "8"]
