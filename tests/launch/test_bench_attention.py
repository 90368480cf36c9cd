"""The benchmark of attention: exact values, what passes, and its tables."""

import dataclasses
import importlib.util
import json

import jax
import numpy as np
import pytest

from attn.jax_versions import jax_nn_takes_window
from launch.bench.attention import cases, oracle, picture
from launch.bench.attention import command as attention
from launch.bench.attention import jax as jax_libraries
from launch.bench.attention.call import Call
from launch.bench.attention.jax import Jax
from launch.bench.attention.normalisers import NORMALISERS
from launch.bench.conformance import contract, inputs
from launch.bench.conformance.contract import Verdict
from launch.bench.harness import libraries, run
from launch.bench.harness.run import Cell
from tests.attn import oracle as textbook_oracle
from tests.calls import call
from tests.launch.bench_toys import tiny, wrong

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)

# Exact values

PARAMETERS = {"scaled_dot": (), "bilinear": ("w",), "additive": ("w_q", "w_k", "w_v")}


def score_of_a_head(score, x, h):
    """Returns the score of one query and one key, in the words of tests.attn.oracle."""
    if score == "bilinear":
        return lambda q, k: q @ x["w"][h] @ k
    if score == "additive":
        return lambda q, k: x["w_v"][h] @ np.tanh(q @ x["w_q"][h] + k @ x["w_k"][h])
    return textbook_oracle.scaled_dot


@pytest.mark.parametrize("score", PARAMETERS)
def test_exact_values_are_the_oracles(score):
    x = inputs.inputs(names=PARAMETERS[score])
    visible = inputs.DENSE & inputs.visible(x, Call(lengths=inputs.EMPTY))
    out, lse = oracle.attention(x, visible, score)
    for b in range(inputs.B):
        for h in range(inputs.H):
            q, k, v = (x[name][b, :, h] for name in "qkv")
            form = score_of_a_head(score, x, h)
            expected = textbook_oracle.attention(q, k, v, visible[b, h], form)
            np.testing.assert_allclose(out[b, :, h], expected[0], rtol=1e-10)
            np.testing.assert_allclose(lse[b, :, h], expected[1], rtol=1e-10)


@pytest.mark.parametrize("score", PARAMETERS)
def test_exact_gradients_are_those_of_the_values(score):
    """Takes the complex step through the values, along all arrays at once."""
    x = inputs.inputs(names=("bias", *PARAMETERS[score]))
    dx = inputs.like(x)
    g = inputs.weights(x)
    h = np.random.default_rng(5).normal(size=(inputs.B, inputs.N, inputs.H))
    step = {name: a + 1e-30j * dx[name] for name, a in x.items()}
    out, lse = oracle.attention(step, inputs.DENSE, score)
    gradients = oracle.attention_gradient(x, inputs.DENSE, g, h, score)
    assert gradients.keys() == x.keys()
    along = sum((gradients[name] * dx[name]).sum() for name in x)
    expected = ((g * out).sum() + (h * lse).sum()).imag / 1e-30
    np.testing.assert_allclose(along, expected, rtol=1e-11)


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_exact_gradients_under_each_normaliser_are_those_of_the_values(normaliser):
    """By differences, and by the complex step, in which entmax uses its own gradient."""
    x = inputs.inputs()
    dx = inputs.like(x)
    g = inputs.weights(x)
    visible = inputs.visible(x, Call(lengths=inputs.EMPTY))

    def loss(step):
        moved = {name: a + step * dx[name] for name, a in x.items()}
        out, _ = oracle.attention(moved, visible, normaliser=normaliser)
        assert (out[0] == 0).all()
        return (g * out).sum()

    gradients = oracle.attention_gradient(x, visible, g, normaliser=normaliser)
    along = sum((gradients[name] * dx[name]).sum() for name in x)
    np.testing.assert_allclose(along, loss(1e-30j).imag / 1e-30, rtol=1e-11)
    # Of the third derivatives 1e-10 is left, and of rounding too.
    differences = (loss(1e-5) - loss(-1e-5)) / 2e-5
    np.testing.assert_allclose(along, differences, rtol=1e-6)


def test_exact_gradient_of_a_query_that_sees_nothing_is_zero():
    x = inputs.inputs()
    g = np.zeros((inputs.B, inputs.N, inputs.H, inputs.K))
    h = np.zeros((inputs.B, inputs.N, inputs.H))
    g[0] = 1
    h[0] = 1
    gradients = inputs.exact_gradient(x, Call(lengths=inputs.EMPTY), "softmax", g, h)
    assert all((a == 0).all() for a in gradients.values())


# What passes


# The forward pass is in every gradient; how it is called does not depend on the rest.
@pytest.mark.parametrize(
    ("score", "mask", "direction"),
    [
        ("scaled_dot", "causal", "forward"),
        ("scaled_dot", "causal", "gradient"),
        ("scaled_dot", "window", "gradient"),
        ("bilinear", "full", "gradient"),
        ("additive", "full", "gradient"),
    ],
)
def test_what_is_right_passes_the_check(score, mask, direction):
    case = tiny(direction, score, mask)
    names = ["attn", "textbook"]
    if score != "additive":
        names += ["flax"]
        # Old versions of jax.nn ignore a window, so they are not asked for it.
        names += ["jax.nn"] if mask != "window" or jax_nn_takes_window() else []
    for name in names:
        with jax.numpy_rank_promotion("allow"):
            sample = jax_libraries.ADAPTERS[name].compile(case).sample()
        assert cases.error(case, sample) < 1e-5, name


@pytest.mark.parametrize(
    ("name", "direction"),
    [("attn:relu", "forward"), *((name, "gradient") for name in cases.NORMALISERS)],
)
def test_each_normaliser_passes_the_check_and_no_other_does(name, direction):
    case = tiny(direction, mask="causal")
    sample = jax_libraries.ADAPTERS[name].compile(case).sample()
    error, complaint = case.check({name: sample}, name)
    assert error < 1e-5
    assert complaint == ""
    other = "attn:relu" if name != "attn:relu" else "attn"
    assert case.check({other: sample}, other)[1]


@pytest.mark.ci
def test_the_flag_compares_normalisers(tmp_path, monkeypatch):
    # Each has a process of its own.
    compared = {name: cases.NORMALISERS[name] for name in ("attn", "attn:relu")}
    monkeypatch.setattr(cases, "NORMALISERS", compared)
    arguments = ["--tiny", "--rounds=1", "--normalisers", f"--directory={tmp_path}"]
    done = call("bench.__main__", "attention", *arguments)
    assert done.returncode == 0, done.stderr
    for case in json.loads((tmp_path / "results.json").read_text())["cases"]:
        peers = {peer: entry.get("median") for peer, entry in case["peers"].items()}
        assert peers.keys() == compared.keys()
        assert None not in peers.values()


@pytest.mark.parametrize("name", ["jax.nn", "flax"])
def test_a_score_that_a_library_lacks_is_unsupported(name):
    with pytest.raises(libraries.Unsupported, match="no additive score"):
        jax_libraries.ADAPTERS[name].compile(tiny(score="additive", mask="full"))


@pytest.mark.parametrize("direction", cases.PASSES)
def test_what_is_wrong_does_not_pass(direction):
    case = tiny(direction)
    sample = Jax(wrong).compile(case).sample()
    assert cases.error(case, sample) > 10 * cases.TOLERANCES["float32"]


@pytest.mark.parametrize("direction", cases.PASSES)
def test_another_mask_does_not_pass(direction):
    full = tiny(direction, mask="full")
    sample = Jax(jax_libraries.textbook).compile(full).sample()
    assert cases.error(tiny(direction), sample) > 10 * cases.TOLERANCES["float32"]


@pytest.mark.parametrize(
    ("score", "direction"),
    [("scaled_dot", "forward"), ("scaled_dot", "gradient"), ("additive", "gradient")],
)
def test_bfloat16_has_a_tolerance_of_its_own(score, direction):
    case = dataclasses.replace(
        tiny(direction, score, "causal"), dtype="bfloat16", n=64, d=16
    )
    for name in ("attn", "textbook"):
        with jax.numpy_rank_promotion("allow"):
            sample = jax_libraries.ADAPTERS[name].compile(case).sample()
        error, complaint = case.check({name: sample}, name)
        # Rounding shows, so it was in bfloat16.
        assert error > 1e-4 and not complaint
    assert dataclasses.replace(case, mask="full").check({name: sample}, name)[1]


@pytest.mark.parametrize(
    ("platforms", "dtype", "products"),
    [
        ("", "float32", "float32"),
        ("cpu", "bfloat16", "bfloat16"),
        ("gpu", "float32", "tf32"),
        ("cuda,cpu", "float32", "tf32"),
        ("cuda", "bfloat16", "bfloat16"),
        ("tpu", "float32", "bfloat16"),
    ],
)
def test_an_accelerator_rounds_the_factors_of_float32_products(
    platforms, dtype, products, monkeypatch
):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert dataclasses.replace(tiny(), dtype=dtype).products == products


def test_nan_does_not_pass():
    sample = {"out": np.full((cases.CHECKED_ROWS, 5), np.nan)}
    assert cases.error(tiny(), sample) == float("inf")


@needs_torch
def test_torch_passes_the_check_in_its_process(monkeypatch):
    monkeypatch.setenv("NPROC", "1")
    with run.workers({"torch": cases.LIBRARIES["torch"]}) as running:
        for score in PARAMETERS:
            mask = "window" if score == "scaled_dot" else "full"
            for direction in cases.PASSES:
                case = tiny(direction, score, mask)
                cell = run.run_case(case, ["torch"], running, 1)["torch"]
                assert cell.status == "timed", cell.why
                assert cell.by_hand == (score != "scaled_dot")
                assert cell.error < 1e-5
        line = "a mask that is not boolean is an error"
        verdict = running["torch"].call(contract.attempt, line)
        assert verdict == Verdict("breaks", "adds it to the scores")


# Tables


def made_up():
    """Returns timings as a run might measure them."""
    return {
        "attn": Cell(
            seconds=[0.001, 0.009, 0.002], temporary_bytes=2**20, growth_bytes=0
        ),
        "jax.nn": Cell(
            seconds=[0.0068, 0.0069, 0.0060],
            temporary_bytes=2**20,
            growth_bytes=5 * 2**19,
        ),
        "torch": Cell(seconds=[0.0002], growth_bytes=2**19),
        "flax": Cell("unsupported", "no additive score"),
        "textbook": Cell("wrong", "off by 1.0e-01", seconds=[]),
        "attn:tiled": Cell("failed", "the process died", temporary_bytes=2**20),
    }


def test_the_table_has_medians_ratios_and_reasons():
    table = attention.table("tiny", {tiny(): made_up()})
    assert table.title == "tiny: scaled dot, causal; batch 2, 3 heads, n 97, d 5"
    assert table.headings == ("", "forward, ms", "to attn", "MiB", "to attn")
    assert table.rows == [
        ("attn", "2.0", "1.0x", "1.0", "1.0x"),
        ("jax.nn", "6.8", "3.4x", "2.5", "2.5x"),
        ("torch", "0.2", "0.1x", "0.5 [1]", "0.5x"),
        ("flax", "— [2]", "", "", ""),
        ("textbook", "wrong [3]", "", "", ""),
        ("attn:tiled", "failed [4]", "", "", ""),
    ]
    assert table.notes[1:] == [
        "flax: no additive score",
        "textbook: off by 1.0e-01",
        "attn:tiled: the process died",
    ]


def test_without_attn_there_are_no_ratios():
    table = attention.table("tiny", {tiny(): {"jax.nn": made_up()["jax.nn"]}})
    assert table.rows == [("jax.nn", "6.8", "", "2.5", "")]


def test_a_library_that_is_not_installed_is_left_out(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with run.workers({"torch": cases.LIBRARIES["torch"]}) as running:
        assert running == {}
        cells = run.run_case(tiny(), ["torch"], running, 1)
    table = attention.table("tiny", {tiny(): cells})
    assert table.rows[0][1] == "— [1]"
    assert table.notes == ["torch is not installed"]


@pytest.fixture
def written(tmp_path):
    """Writes the files of two cases."""
    results = {tiny(): made_up(), tiny("gradient"): made_up()}
    table = attention.table("tiny", results)
    files = attention.write(tmp_path, results, [table])
    assert sorted(files) == sorted(tmp_path.iterdir())
    return tmp_path


def test_the_record_holds_every_timing(written):
    record = json.loads((written / "results.json").read_text())
    assert [case["name"] for case in record["cases"]] == [
        "tiny-forward",
        "tiny-gradient",
    ]
    entry = record["cases"][0]["peers"]["jax.nn"]
    assert entry["seconds"] == [0.0068, 0.0069, 0.0060]
    assert (entry["median"], entry["min"], entry["max"]) == (0.0068, 0.0060, 0.0069)


def test_the_record_says_where_and_when(written):
    record = json.loads((written / "results.json").read_text())
    assert record["versions"]["jax"] == jax.__version__
    assert record["threads"] > 0
    assert record["date"]


def test_tables_and_picture_are_written(written):
    text = (written / "table.md").read_text()
    assert "| jax.nn | 6.8 | 3.4x | 2.5 | 2.5x |" in text
    assert (written / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_stands_without_a_single_time():
    image = picture.over_n({tiny(): {"attn": Cell("failed", "")}})
    assert image.startswith(b"\x89PNG")
