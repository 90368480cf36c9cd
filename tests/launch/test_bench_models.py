"""The benchmarks of training and decoding: equal work, what passes, and real runs."""

import dataclasses
import importlib.util
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich.console

from attn import Mask
from experiments.data.batches import Batches
from experiments.data.vocabulary import BOS, EOS
from experiments.trial import flops
from experiments.trial.program import (
    count_parameters,
    initial_state,
    program_of,
)
from launch.bench.decoding import attn as decoding_attn
from launch.bench.decoding import case as searches
from launch.bench.decoding import command as decoding
from launch.bench.harness import cold_start, libraries, run
from launch.bench.harness.cold_start import Start
from launch.bench.harness.run import Cell
from launch.bench.training import case as steps
from launch.bench.training import command as training
from launch.bench.training import jax as training_jax
from launch.bench.training import products

STEP = dataclasses.replace(steps.TINY, turn=0.05)
SEARCH = dataclasses.replace(searches.TINY[0], turn=0.2)


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(
        bool(missing), reason=f"not installed: {', '.join(missing)}"
    )


# The same work


def test_packed_rows_hold_the_pairs_that_others_get_padded():
    batch = next(
        Batches(
            training_jax.encoded(STEP),
            batch_size=STEP.pairs,
            sequence_length=STEP.tokens,
            seed=0,
        )
    )
    assert (batch.source_segments == 1).all() and (batch.target_segments == 1).all()
    packed, padded = (
        np.hstack(arrays)
        for arrays in (
            (batch.source, batch.target_in, batch.target_out),
            steps.padded(STEP),
        )
    )
    assert sorted(map(tuple, packed)) == sorted(map(tuple, padded))
    source, target_in, target_out = steps.padded(STEP)
    assert (
        (source[:, -1] == EOS).all()
        and (target_in[:, 0] == BOS).all()
        and (target_out[:, -1] == EOS).all()
    )
    assert (target_in[:, 1:] == target_out[:, :-1]).all()
    assert len(np.unique(source)) > STEP.tokens


def test_weights_are_those_of_the_transformer():
    """Compares every name and shape, and the matrices that other libraries get."""
    model = decoding_attn.transformer(SEARCH)
    row = jnp.zeros((1, 2), jnp.int32)
    expected = jax.eval_shape(
        lambda: model.init(
            jax.random.key(0),
            row,
            row,
            row,
            row,
            source_mask=Mask(),
            target_mask=Mask(),
            cross_mask=Mask(),
        )
    )
    variables = {
        "params": searches.weights(SEARCH),
        "positions": {
            name: {"table": searches.positions(SEARCH)}
            for name in expected["positions"]
        },
    }
    assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, expected)
    silent = (variables["params"]["embedding"] == 0).all(-1)
    assert silent.nonzero()[0].tolist() == searches.MARKS
    draw = np.random.default_rng(0)
    x = draw.normal(size=5)
    w = draw.normal(size=(5, 2, 3))
    heads = draw.normal(size=(2, 3))
    np.testing.assert_allclose(
        searches.into_heads(w) @ x, np.einsum("d,dhk->hk", x, w).ravel()
    )
    np.testing.assert_allclose(
        searches.out_of_heads(w.transpose(1, 2, 0)) @ heads.ravel(),
        np.einsum("hv,hvd->d", heads, w.transpose(1, 2, 0)),
    )


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
from launch.bench.harness.program import Adapter, Program

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
    start = cold_start.measure("toy_peers", "slow", {"is": "pickled"}, 3)
    # The whole process takes longer than its call, which sleeps for so long.
    assert 0.2 <= start.call < start.cold
    assert start.cached > 0.2
    assert start.why == ""


def test_both_starts_share_a_cache_of_their_own(toy):
    cold_start.measure("toy_peers", "slow", {"is": "pickled"}, 3)
    cold, cached = (toy / "caches").read_text().split()
    assert cold == cached
    assert cold.endswith("3")
    assert not cold.startswith("somewhere")


@pytest.mark.usefixtures("toy")
def test_a_failing_start_says_so():
    assert cold_start.measure("toy_peers", "failing", {}, 1) == Start(
        why="the process ended with status 1"
    )


# Tables


def test_the_table_of_training():
    cells = {
        "attn": Cell(seconds=[0.5, 0.9, 0.1], temporary_bytes=2**20, growth_bytes=0),
        "torch": Cell(seconds=[1.5], growth_bytes=2**19),
        "flax": Cell("failed", "the process died"),
        "torch:as-paper": Cell(seconds=[1.0]),
    }
    starts = {
        "attn": Start(9.0, 3.0, 4.5),
        "torch": Start(2.0, 2.0, 1.4),
        "torch:as-paper": Start(why="no luck"),
    }
    table = training.table(STEP, cells, starts)
    assert [row[1:] for row in table.rows] == [
        ("500", "1.0x", "168", "84.0", "1.0", "1.0x", "4.0", "9.0", "3.0"),
        ("1,500", "3.0x", "56.0", "28.0", "0.5", "0.5x", "0", "2.0", "2.0"),
        ("failed [7]", *[""] * 8),
        ("1,000", "2.0x", "84.0", "42.0", "—", "", "— [9]", "", ""),
    ]
    assert [row[0].split()[0] for row in table.rows] == list(cells) and len(
        table.headings
    ) == 10
    assert (
        table.notes[6] == "flax: the process died"
        and table.notes[8] == "torch:as-paper: no luck"
    )
    assert set(training.NOTES) == set(steps.LIBRARIES)


def test_the_table_of_decoding(tmp_path):
    greedy = dataclasses.replace(SEARCH, beam=1)
    results = {
        SEARCH: {
            "attn": Cell(seconds=[0.1], growth_bytes=2**20, error=0.0),
            "ctranslate2": Cell(seconds=[0.35], growth_bytes=2**19, error=0.25),
        },
        greedy: {
            "attn": Cell(seconds=[0.05], error=0.0),
            "ctranslate2": Cell("left out", "ctranslate2 is not installed"),
        },
    }
    table = decoding.table("batch-5", results)
    assert table.headings[1:7] == (
        "beam 3, ms",
        "tokens/s",
        "to attn",
        "MiB",
        "same tokens",
        "greedy, ms",
    )
    assert table.rows[0][1:] == (
        "100",
        "350",
        "1.0x",
        "1.0",
        "100.0% [1]",
        "50.0",
        "700",
        "1.0x",
        "—",
        "100.0% [1]",
    )
    assert table.rows[1][1:6] == ("350", "100", "3.5x", "0.5", "75.0% [1]")
    assert (
        table.rows[1][6:] == ("— [3]", "", "", "", "")
        and "not installed" in table.notes[2]
    )
    files = decoding.write(tmp_path, results, [table])
    assert (
        sorted(files) == sorted(tmp_path.iterdir()) and "75.0%" in files[0].read_text()
    )
    record = json.loads(files[1].read_text())
    assert [case["name"] for case in record["cases"]] == [
        "batch-5-beam-3",
        "batch-5-greedy",
    ]
    assert (
        record["cases"][0]["peers"]["ctranslate2"]["median"] == 0.35
        and "ctranslate2" in record["versions"]
    )
    assert set(decoding.NOTES) == set(searches.LIBRARIES)


def test_starts_are_left_out_where_nobody_asks_for_them(monkeypatch, tmp_path):
    cells = {"attn": Cell(seconds=[0.2])}
    monkeypatch.setattr(run, "run_case", lambda *arguments: cells)
    monkeypatch.setattr(cold_start, "measure", lambda *arguments: Start(2.0, 1.0, 1.5))
    console = rich.console.Console(quiet=True)
    for with_starts, columns in ((True, ["1.3", "2.0", "1.0"]), (False, ["", "", ""])):
        table, record = training.measure_case(
            {"attn": steps.JAX}, 1, tmp_path, console, STEP, with_starts
        )
        assert bool(json.loads(record.read_text())["starts"]) == with_starts
        row = next(line for line in table.read_text().splitlines() if "| attn" in line)
        assert [cell.strip() for cell in row.split("|")[-4:-1]] == columns


# Real runs


@pytest.mark.ci
def test_attn_trains_in_a_worker_and_is_written_down(monkeypatch, tmp_path):
    monkeypatch.setenv("NPROC", "1")
    monkeypatch.setattr(cold_start, "measure", lambda *arguments: Start(2.0, 1.0, 1.5))
    case = dataclasses.replace(STEP, turn=0.0)
    files = training.measure_case(
        {"attn": steps.JAX}, 2, tmp_path, rich.console.Console(quiet=True), case
    )
    record = json.loads(files[1].read_text())
    entry = record["peers"]["attn"]
    assert (
        entry["status"] == "timed"
        and len(entry["seconds"]) == 2
        and 5 < entry["error"] < 6.5
    )
    assert (
        record["starts"]["attn"]["cached"] == 1.0
        and record["case"]["vocabulary"] == 500
    )
    assert (
        sorted(files) == sorted(tmp_path.iterdir())
        and "| attn \\[4\\] |" in files[0].read_text()
    )


@pytest.mark.ci
@pytest.mark.parametrize("name", [*training_jax.ADAPTERS, "products"])
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


def test_products_are_all_those_of_a_step():
    """By the compiler's count, with sizes that differ from each other."""
    case = steps.Case(N=3, d_model=20, d_ff=14, h=5, vocabulary=31, pairs=2, tokens=6)
    sample = products.products(case).sample()
    assert case.check({"products": sample}, "products")[1] == ""
    # The encoder-decoder as experiments.trial.flops counts it, but for the causal half.
    program = program_of(training_jax.settings(case), case.vocabulary, case.tokens)
    lengths = [case.tokens] * case.pairs
    hidden = (
        case.pairs * case.N * 2 * case.d_model * case.tokens * (case.tokens - 1) // 2
    )
    assert (
        products.flops(case)
        == flops.of_training(program, lengths, lengths) + 6 * hidden
    )


@pytest.mark.parametrize("more", [-1, 1])
def test_a_product_too_few_or_too_many_is_no_floor(more):
    counted, expected = products.products(STEP).sample()["flops"]
    of_one = 2 * STEP.pairs * STEP.tokens * STEP.d_model**2
    sample = {"flops": np.array([counted + more * of_one, expected])}
    _, complaint = STEP.check({"products": sample}, "products")
    assert f"not {expected:,.0f}" in complaint


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
@needs("torch", "transformers", "ctranslate2")
def test_all_libraries_find_the_same_translations(beam, monkeypatch):
    monkeypatch.setenv("NPROC", "1")
    case = dataclasses.replace(SEARCH, beam=beam)
    names = list(searches.LIBRARIES)
    with run.workers(searches.LIBRARIES) as running:
        cells = run.run_case(case, names, running, 1)
    assert [cell.status for cell in cells.values()] == ["timed"] * 4
    assert cells["transformers"].error == 0.0
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
    paper = training_jax.settings(STEP).model
    assert (paper.P_drop, paper.P_attention, paper.P_ff) == (0.01, 0.0, 0.0)
    everywhere = training_jax.settings(STEP, everywhere=True).model
    assert (everywhere.P_drop, everywhere.P_attention, everywhere.P_ff) == (0.01,) * 3


def test_the_batch_is_of_the_sizes_that_the_case_names():
    settings = training_jax.settings(STEP)
    assert settings.training.batch_size == STEP.pairs
    assert settings.training.sequence_length == settings.data.max_length == STEP.tokens
