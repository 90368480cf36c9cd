"""DiskCached programs give the same numbers, are found without tracing, and only where they fit."""

import contextlib
import dataclasses
import functools
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn.positions import Rotary
from experiments.system import program_cache
from experiments.system.program_cache import DiskCached
from experiments.trial import lanes as lanes_module
from experiments.trial.lanes import Lanes, check_lanes
from tests.experiments.programs import programs_in

X = jnp.arange(6.0)


@pytest.fixture
def folder(tmp_path):
    """The folder of programs, in a cache of its own."""
    with programs_in(tmp_path):
        yield tmp_path / "programs"


class Traced:
    """A function that counts how often it is traced."""

    def __init__(self, factor=2.0):
        self.times = 0
        self.factor = factor

    def __call__(self, x):
        self.times += 1
        return {"y": self.factor * jnp.sin(x)}

    def kept(self, *key, wrap=jax.jit):
        return DiskCached(wrap(self), *(key or ("a name",)))


def as_another_process(traced, x=X, *key):
    """Calls a function as a process would that has just started; returns its result."""
    return traced.kept(*key)(x)["y"]


def test_a_second_process_traces_nothing_and_gets_the_same_numbers(folder):
    first, second = Traced(), Traced()
    expected = as_another_process(first)
    np.testing.assert_array_equal(as_another_process(second), expected)
    np.testing.assert_array_equal(expected, jax.jit(Traced())(X)["y"])
    assert (first.times, second.times) == (1, 0)
    kept = second.kept()
    kept(X)
    kept(X)
    assert second.times == 0


@pytest.mark.parametrize("strategy", ["pmap", "shard_map"])
def test_steps_are_kept_and_donate(folder, strategy, monkeypatch):
    def steps(state, hyper, corpus, slots, count):
        traced.append(strategy)
        total = jax.lax.psum(slots.sum(), lanes_module.AXIS)
        return jax.tree.map(lambda x: x + hyper * total * count, state), dict(
            loss=total
        )

    traced = []
    # In place of that of a function of this project.
    monkeypatch.setattr(program_cache, "_text", lambda key: "steps")
    lanes = Lanes(strategy=strategy)
    states = lanes.stack([{"w": np.arange(3.0, dtype=np.float32)}])
    hypers = lanes.stack([np.float32(2)])
    slots = np.ones((1, 1, jax.local_device_count(), 2), np.float32)
    results = []
    for _ in range(2):
        run = lanes_module.distribute(steps, lanes)
        given = jax.tree.map(jnp.copy, states)
        result, metrics = run(given, hypers, None, slots, 3)
        assert given["w"].is_deleted()
        results.append((result["w"], metrics["loss"]))
    assert len(traced) == 1
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


@pytest.mark.parametrize(
    "x",
    [
        jnp.arange(7.0),
        jnp.arange(6),
        jnp.arange(6.0).reshape(2, 3),
        np.float32(1),
        1.0,
        jax.device_put(X, jax.devices()[-1]),
    ],
    ids=["longer", "integers", "matrix", "number", "weak number", "elsewhere"],
)
def test_other_arguments_are_other_programs(folder, x):
    as_another_process(Traced())
    other = Traced()
    kept = other.kept()
    kept(X)
    np.testing.assert_allclose(kept(x)["y"], 2 * np.sin(x), rtol=1e-6)
    assert other.times == 1
    # Both stay.
    kept(X)
    kept(x)
    assert other.times == 1


@pytest.mark.parametrize("out_axes", [0, None], ids=["spread", "replicated"])
def test_takes_what_pmap_has_made(folder, out_axes):
    rows = jnp.arange(6.0 * jax.local_device_count()).reshape(-1, 6)
    x = jax.pmap(lambda x: 2 * x, out_axes=out_axes)(
        rows if out_axes == 0 else rows[:1].repeat(len(rows), 0)
    )
    traced = Traced()
    kept = traced.kept()
    for _ in range(2):
        np.testing.assert_allclose(kept(x)["y"], 2 * np.sin(x), rtol=1e-6)
    # Older JAX once more, by jit.
    assert traced.times <= 2


@pytest.mark.parametrize("what", ["source", "option", "variable", "bound value"])
def test_what_decides_a_program_is_in_its_name(folder, what, monkeypatch):
    as_another_process(Traced(), X, 1)
    other = Traced()
    key = (1,)
    with contextlib.ExitStack() as changed:
        if what == "source":
            monkeypatch.setattr(program_cache, "_sources", lambda: "edited")
        elif what == "option":
            changed.enter_context(jax.default_matmul_precision("float32"))
        elif what == "variable":
            monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
        else:
            key = (2,)
        as_another_process(other, X, *key)
    assert other.times == 1


def test_an_edit_elsewhere_compiles_nothing(folder, monkeypatch):
    expected = as_another_process(Traced())
    monkeypatch.setattr(program_cache, "_sources", lambda: "edited")
    monkeypatch.setattr(program_cache, "_compile", None)
    edited = Traced()
    np.testing.assert_array_equal(as_another_process(edited), expected)
    assert edited.times == 1
    # From now on it has that name too.
    as_another_process(edited)
    assert edited.times == 1


def test_an_edit_of_the_function_compiles_another_program(folder, monkeypatch):
    as_another_process(Traced())
    monkeypatch.setattr(program_cache, "_sources", lambda: "edited")
    edited = as_another_process(Traced(factor=3.0))
    np.testing.assert_allclose(edited, 3 * np.sin(X), rtol=1e-6)


@dataclasses.dataclass(frozen=True)
class FromOutside:
    size: int = 3


FROM_OUTSIDE = type("FromOutside", (FromOutside,), {"__module__": "somebodys_scores"})


@pytest.mark.parametrize(
    "part",
    [
        FROM_OUTSIDE(),
        (Rotary(), FROM_OUTSIDE()),
        lambda x: x,
        lanes_module._one_group(check_lanes),
        object(),
    ],
    ids=["class", "nested", "lambda", "function in a function", "object"],
)
def test_code_from_outside_is_found_by_its_text_alone(folder, part, monkeypatch):
    as_another_process(Traced(), X, part)
    other = Traced()
    monkeypatch.setattr(program_cache, "_compile", None)
    as_another_process(other, X, part)
    assert other.times == 1


def test_functions_of_this_project_have_names_with_what_they_are_bound_to():
    def name(*key):
        return DiskCached(jax.jit(jnp.sin), *key)._key

    bound = [
        functools.partial(check_lanes, 1),
        functools.partial(check_lanes, 2),
        functools.partial(check_lanes, devices=1),
        (check_lanes, Lanes()),
        (check_lanes, Lanes(strategy="shard_map")),
        (check_lanes, Rotary()),
        (check_lanes, Rotary(base=5.0)),
        (check_lanes, "1"),
        (check_lanes, 1),
        (check_lanes, 1.0),
        (check_lanes, True),
    ]
    assert len({name(part) for part in bound}) == len(bound)
    assert None not in {name(part) for part in bound}
    assert name(functools.partial(check_lanes, 1)) == name(bound[0])


@pytest.mark.parametrize("damage", [b"", b"no program"], ids=["empty", "other"])
def test_a_damaged_file_is_compiled_anew(folder, damage):
    expected = as_another_process(Traced())
    (program,) = [path for path in folder.iterdir() if not path.is_symlink()]
    whole = program.read_bytes()
    for content in (damage, whole[: len(whole) // 2]):
        program.write_bytes(content)
        np.testing.assert_array_equal(as_another_process(Traced()), expected)
        assert len(program.read_bytes()) > len(whole) // 2
    third = Traced()
    as_another_process(third)
    assert third.times == 0


@pytest.mark.parametrize("option", ["jax_disable_jit", "jax_debug_nans"])
def test_who_looks_for_a_mistake_has_jits_own_way(folder, option):
    function = Traced()
    kept = function.kept()
    kept(X)
    jax.config.update(option, True)
    try:
        with (
            pytest.raises(FloatingPointError)
            if "nans" in option
            else contextlib.nullcontext()
        ):
            kept(jnp.full(6, jnp.inf))
    finally:
        jax.config.update(option, False)
    # In the second case once more than jit compiles, to find the line.
    assert function.times > 1


def test_nothing_is_kept_without_a_cache(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not jax.config.jax_compilation_cache_dir
    as_another_process(Traced())
    again = Traced()
    as_another_process(again)
    assert again.times == 1
    assert not list(tmp_path.iterdir())


def test_a_cache_that_cannot_be_written_is_no_obstacle(folder):
    folder.write_text("a file in the folder's place")
    np.testing.assert_allclose(as_another_process(Traced()), 2 * np.sin(X), rtol=1e-6)


def test_programs_that_call_python_are_not_kept(folder):
    def function(x):
        return jax.pure_callback(np.sin, x, x)

    for _ in range(2):
        kept = DiskCached(jax.jit(function), "calls")
        np.testing.assert_allclose(kept(X), np.sin(X), rtol=1e-6)


def test_derivatives_and_maps_go_through(folder):
    kept = Traced().kept()
    kept(X)
    np.testing.assert_allclose(
        jax.vmap(lambda x: kept(x)["y"])(X), 2 * np.sin(X), rtol=1e-6
    )
    assert jax.eval_shape(kept, X)["y"].shape == X.shape


def test_errors_of_a_call_are_its_own(folder):
    kept = Traced().kept()
    kept(X)
    with pytest.raises(TypeError, match="str"):
        kept("text")


def test_what_jax_has_in_its_own_cache_is_compiled_anew(folder):
    """A program that was read from there lacks its code when it is written again."""
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    try:
        expected = jax.jit(Traced())(X)["y"]
        assert list(folder.parent.iterdir())
        for _ in range(2):
            np.testing.assert_array_equal(as_another_process(Traced()), expected)
    finally:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", before)


def test_jaxs_own_cache_goes_on(folder):
    as_another_process(Traced())
    assert jax.config.jax_enable_compilation_cache
    assert program_cache._folder() == folder


TWICE = """
import json, sys
import jax
from experiments.system import machine
machine.use_compile_cache()
traced = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **more: traced.append(more.get("fun_name"))
)
from experiments.trial.program import initial_state, program_of
from tests.experiments import tiny
settings = tiny.resolve(**json.loads(sys.argv[1]))
state = initial_state(program_of(settings, 100, 20), settings)
total = float(sum(abs(leaf).sum() for leaf in jax.tree.leaves(jax.device_get(state.params))))
print(json.dumps([total, "initial_variables" in traced]))
"""


@pytest.mark.parametrize(
    ("changes", "again"),
    [
        ({}, "false"),
        # An orthogonal matrix is drawn by LAPACK, which a process has to load first.
        ({"model__decoder_mixing": "recurrence(cell=lstm)"}, "true"),
    ],
    ids=["kept", "LAPACK"],
)
def test_two_processes(tmp_path, monkeypatch, changes, again):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    words = [sys.executable, "-c", TWICE, json.dumps(changes)]
    first, second = [
        subprocess.run(words, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert first.split(",")[0] == second.split(",")[0]
    assert "true" in first
    assert again in second
