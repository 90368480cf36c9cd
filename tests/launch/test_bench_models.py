"""The benchmarks of training and decoding: equal work, what passes, and real runs."""

import dataclasses
import importlib.util
import json
import subprocess
import sys

import jax
import numpy as np
import pytest
import rich.console

from experiments.data.vocabulary import BOS, EOS
from experiments.trial.program import (
    count_parameters,
    initial_state,
    program_of,
)
from launch.bench import cold_start
from launch.bench.cold_start import Start
from launch.bench.decoding import attn as decoding_attn
from launch.bench.decoding import case as searches
from launch.bench.harness import libraries, run
from launch.bench.harness.benchmark import Request
from launch.bench.harness.run import Cell
from launch.bench.training import case as steps
from launch.bench.training import jax as training_jax

STEP = dataclasses.replace(steps.TINY, turn=0.05)
SEARCH = dataclasses.replace(searches.TINY[0], turn=0.2)


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(
        bool(missing), reason=f"not installed: {', '.join(missing)}"
    )


# The same work


def test_the_batch_of_others_is_of_the_same_pairs():
    source, target = steps.sentences(STEP)
    padded = steps.padded(STEP)
    np.testing.assert_array_equal(padded[0][:, :-1], source)
    np.testing.assert_array_equal(padded[1][:, 1:], target)
    np.testing.assert_array_equal(padded[2][:, :-1], target)
    ends = padded[0][:, -1], padded[1][:, 0], padded[2][:, -1]
    assert [set(end) for end in ends] == [{EOS}, {BOS}, {EOS}]
    assert len(np.unique(source)) > STEP.tokens


def test_marks_are_never_the_likeliest():
    weights = searches.weights(SEARCH)
    silent = (weights["embedding"] == 0).all(-1)
    assert silent.nonzero()[0].tolist() == searches.MARKS


# What passes


@pytest.mark.parametrize(
    ("losses", "wrong"),
    [
        ([6.4, 6.1], ""),
        ([6.4, 6.5], "goes from 6.40 to 6.50"),
        ([9.4, 6.1], "goes from 9.40"),
        ([5.0, 4.0], "goes from 5.00"),
        ([6.4, np.nan], "to nan"),
    ],
)
def test_a_step_must_learn(losses, wrong):
    error, why = STEP.check({"it": {"losses": np.array(losses)}}, "it")
    assert wrong in why and bool(wrong) == bool(why)
    np.testing.assert_equal(error, losses[-1])


def test_a_search_must_find_the_first_library_s_tokens():
    tokens = searches.sources(SEARCH)
    other_mark = tokens.copy()
    one_other = tokens.copy()
    another = tokens + 1
    other_mark[:, -1] = 0
    one_other[2, 3] = 0
    samples = {
        name: {"tokens": x}
        for name, x in dict(
            a=tokens, b=other_mark, c=one_other, d=another, e=tokens[:, :-1]
        ).items()
    }
    assert SEARCH.check(samples, "a") == SEARCH.check(samples, "b") == (0.0, "")
    assert SEARCH.check(samples, "c") == (1 / 30, "")
    assert SEARCH.check(samples, "d") == (1.0, "100% of the tokens differ")
    assert SEARCH.check(samples, "e") == (1.0, "(5, 6) tokens, not (5, 7)")


# Starts


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Writes a module with an adapter that takes 0.2 s, and one that fails.

    The first notes its environment.
    """
    (tmp_path / "toy_peers.py").write_text(f"""
import os, pathlib, time
from launch.bench.harness.libraries import Adapter, Program

def slow(case):
    assert case["is"] == "pickled" and "JAX_COMPILATION_CACHE_DIR" not in os.environ
    line = os.environ["XDG_CACHE_HOME"] + os.environ["NPROC"] + " "
    with pathlib.Path({str(tmp_path)!r}, "caches").open("a") as file:
        file.write(line)
    return Program(lambda: time.sleep(0.2), None)

ADAPTERS = {{"slow": Adapter(slow), "failing": Adapter(lambda case: 1 / 0)}}
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "somewhere")
    return tmp_path


def test_starts_are_timed_in_processes_of_their_own(toy):
    start = cold_start.start("toy_peers", "slow", {"is": "pickled"}, 3)
    # The whole process takes longer than its call, which sleeps for so long.
    assert 0.2 <= start.call < start.cold
    assert start.cached > 0.2
    assert start.why == ""


def test_both_starts_share_a_cache_of_their_own(toy):
    cold_start.start("toy_peers", "slow", {"is": "pickled"}, 3)
    cold, cached = (toy / "caches").read_text().split()
    assert cold == cached
    assert cold.endswith("3")
    assert not cold.startswith("somewhere")


@pytest.mark.usefixtures("toy")
def test_a_failing_start_says_so():
    assert cold_start.start("toy_peers", "failing", {}, 1) == Start(
        why="the process ended with status 1"
    )


# Tables


def test_a_table_has_tokens_a_second_and_notes():
    cells = {
        "attn": Cell(seconds=[0.5, 0.9, 0.1], temporary_bytes=2**20, growth_bytes=0),
        "torch": Cell(seconds=[1.5], growth_bytes=2**19),
        "flax": Cell("failed", "the process died"),
    }
    table = run.table({STEP: cells}, steps.NOTES)
    headings = ("", "step, ms", "to attn", "tokens/s", "MiB", "to attn")
    assert table.headings == headings
    assert [row[1:] for row in table.rows] == [
        ("500", "1.0x", "168", "1.0", "1.0x"),
        ("1,500", "3.0x", "56.0", "0.5 [3]", "0.5x"),
        ("failed [5]", "", "", "", ""),
    ]
    assert [row[0].split()[0] for row in table.rows] == list(cells)
    assert table.notes[4] == "flax: the process died"
    assert {*steps.NOTES} == {*steps.LIBRARIES}
    assert {*searches.NOTES} == {*searches.LIBRARIES}


def test_tokens_that_differ_are_a_note():
    cells = {
        "attn": Cell(seconds=[0.1], growth_bytes=2**20, error=0.0),
        "ctranslate2": Cell(seconds=[0.35], growth_bytes=2**19, error=0.25),
    }
    table = run.table({SEARCH: cells}, {})
    assert table.rows[0][1:4] == ("100", "1.0x", "350")
    assert table.rows[1][1] == "350 [2]"
    assert table.notes[1].startswith("25.0% of the tokens are others than those of")


def test_starts_are_medians(monkeypatch, tmp_path):
    given = iter([Start(2.0, 1.0, 1.5), Start(9.0, 1.2, 1.6), Start(3.0, 1.1, 1.7)])
    monkeypatch.setattr(cold_start, "start", lambda *_: next(given, Start(why="no")))
    request = Request(
        tmp_path,
        rich.console.Console(quiet=True),
        cases=[STEP],
        libraries={"attn": steps.JAX, "flax": steps.JAX},
        rounds=3,
    )
    text, record = cold_start.measure(request).files
    rows = [line.split("|") for line in text.read_text().splitlines() if "|" in line]
    assert [cell.strip() for cell in rows[2][2:5]] == ["3.0", "1.1", "1.6"]
    assert "flax: no" in text.read_text()
    assert len(json.loads(record.read_text())["starts"]["attn"]) == 3


# Real runs


@pytest.mark.ci
@pytest.mark.parametrize("name", training_jax.ADAPTERS)
def test_every_library_learns(name):
    library = steps.LIBRARIES[name]
    # This process has four devices.
    case = dataclasses.replace(STEP, pairs=8)
    # Other libraries add arrays of different ranks.
    with jax.numpy_rank_promotion("allow"):
        sample = libraries.load(library.module, name).compile(case).sample()
    assert case.check({name: sample}, name)[1] == ""


@pytest.mark.ci
@pytest.mark.parametrize("name", ["torch", "torch:as-paper"])
@needs("torch")
def test_torch_learns_in_its_process(name, monkeypatch):
    monkeypatch.setenv("NPROC", "1")
    with run.workers({name: steps.LIBRARIES[name]}) as running:
        cell = run.run_case(STEP, [name], running, 1)[name]
    assert cell.status == "timed", cell.why


@needs("torch")
def test_dropout_of_torch_can_stand_in_the_papers_places():
    """In a process of its own, as PyTorch's threads would meet JAX's here."""
    code = """
from torch import nn
from launch.bench.training import case as steps
from launch.bench.training import torch as training_torch
case = steps.Case(N=1, d_model=12, d_ff=10, h=3, vocabulary=50, pairs=2, tokens=3)
for as_paper in (False, True):
    model = training_torch.model(case, as_paper)
    kinds = nn.Dropout | nn.MultiheadAttention
    modules = [m for m in model.modules() if isinstance(m, kinds)]
    rates = [m.p if isinstance(m, nn.Dropout) else m.dropout for m in modules]
    print(sum(rate == case.P_drop for rate in rates), sum(rate == 0 for rate in rates))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True
    )
    # Sums of embeddings and positions 1, sub-layer outputs 2 + 3; inside, 1 + 2
    # attentions and 1 + 1 hidden layers.
    assert done.stdout.split() == ["11", "0", "6", "5"]


@pytest.mark.ci
@pytest.mark.parametrize("beam", [1, 3])
@needs("ctranslate2")
def test_all_libraries_find_the_same_translations(beam, monkeypatch):
    monkeypatch.setenv("NPROC", "1")
    case = dataclasses.replace(SEARCH, beam=beam)
    names = list(searches.LIBRARIES)
    with run.workers(searches.LIBRARIES) as running:
        cells = run.run_case(case, names, running, 1)
    assert [cell.status for cell in cells.values()] == ["timed"] * 3
    for name in ("ctranslate2", "ctranslate2:one-thread"):
        assert cells[name].error <= (0.0 if beam == 1 else 0.1)


@pytest.mark.parametrize("beam", [pytest.param(1, marks=pytest.mark.ci), 3])
def test_attn_searches_for_as_many_tokens(beam):
    tokens = decoding_attn.search(dataclasses.replace(SEARCH, beam=beam)).sample()[
        "tokens"
    ]
    assert tokens.shape == (5, 7) and (tokens[:, -1] == EOS).all()
    assert (
        not np.isin(tokens[:, :-1], searches.MARKS).any() and len(np.unique(tokens)) > 3
    )


@pytest.mark.parametrize("known", [steps.LIBRARIES, searches.LIBRARIES])
def test_every_library_has_an_adapter(known):
    for name, library in known.items():
        assert library.needs or libraries.load(library.module, name).compile


def parameters_of_attn(case):
    """Counts the numbers in the parameters of the state that attn_step trains."""
    settings = training_jax.settings(case)
    program = program_of(settings, case.vocabulary, case.tokens)
    shapes = jax.eval_shape(lambda: initial_state(program, settings))
    return count_parameters(settings, shapes)


def test_attn_s_step_is_of_the_model_that_the_case_names():
    """Counts against the closed formula, with sizes that differ from each other."""
    case = steps.Case(N=3, d_model=20, d_ff=14, h=5, vocabulary=31, pairs=2, tokens=6)
    attention = 4 * case.d_model**2
    feed_forward = 2 * case.d_model * case.d_ff + case.d_ff + case.d_model
    norm = 2 * case.d_model
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    layers = case.N * (encoder + decoder)
    assert parameters_of_attn(case) == case.vocabulary * case.d_model + layers


def test_attn_s_step_has_the_dropout_that_the_case_names():
    paper = training_jax.settings(STEP).rates
    assert (paper.P_drop, paper.P_attention, paper.P_ff) == (0.01, 0.0, 0.0)
    everywhere = training_jax.settings(STEP, everywhere=True).rates
    assert (everywhere.P_drop, everywhere.P_attention, everywhere.P_ff) == (0.01,) * 3


def test_the_batch_is_of_the_sizes_that_the_case_names():
    settings = training_jax.settings(STEP)
    assert settings.training.batch_size == STEP.pairs
    assert settings.training.sequence_length == settings.data.max_length == STEP.tokens


@pytest.mark.ci
def test_lanes_train_side_by_side():
    devices = len(jax.devices())
    case = dataclasses.replace(STEP, pairs=8, lanes=devices)
    sample = training_jax.attn_step(case).sample()
    assert case.check({"attn": sample}, "attn")[1] == ""
    with pytest.raises(libraries.Unsupported, match="one trial at a time"):
        training_jax.flax_step(case)
