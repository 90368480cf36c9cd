"""The benchmark of attention: what passes, and the tables of what is timed."""

import dataclasses
import importlib.util
import json

import jax
import numpy as np
import pytest

from attn.contract import oracle
from attn.jax_versions import jax_nn_takes_window
from launch.bench.attention import cases
from launch.bench.attention import jax as jax_libraries
from launch.bench.attention.jax import Jax
from launch.bench.harness import libraries, run
from launch.bench.harness.run import Cell
from tests.launch.bench_toys import tiny, wrong

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


def checked(adapter, case, as_case=None):
    """Returns the error of an adapter's sample of a case, and the complaint."""
    # Other libraries add arrays of different ranks.
    with jax.numpy_rank_promotion("allow"):
        sample = adapter.compile(case).sample()
    return (as_case or case).check({"it": sample}, "it")


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
        error, complaint = checked(jax_libraries.ADAPTERS[name], case)
        assert error < 1e-5 and complaint == "", name


VARIANTS = ["alibi", "table", "softcap", "sink"]


@pytest.mark.parametrize(
    ("mask", "variant"),
    [("packed", ""), ("padding", ""), *(("causal", x) for x in VARIANTS)],
)
def test_masks_and_variants_pass_the_check(mask, variant):
    case = tiny("gradient", mask=mask, variant=variant)
    names = ["attn", "textbook"]
    if variant not in ("softcap", "sink"):
        names += ["jax.nn", "flax"]
    for name in names:
        error, complaint = checked(jax_libraries.ADAPTERS[name], case)
        assert error < 1e-5 and complaint == "", name
    plain = tiny("gradient", mask="full" if mask == "padding" else "causal")
    # A cap of 50 changes little of scores about 1; and a table has its own gradient.
    if variant not in ("softcap", "table"):
        assert checked(jax_libraries.ADAPTERS["attn"], plain, as_case=case)[1]


@needs_torch
@pytest.mark.ci
def test_torch_agrees_with_masks_and_variants():
    with run.workers({"torch": cases.TORCH, "torch:flex": cases.TORCH}) as running:

        def agrees(name, *arguments, **options):
            case = tiny(*arguments, **options)
            cell = run.run_case(case, [name], running, 1)[name]
            assert (cell.status, cell.why) == ("timed", "")
            assert cell.error < 1e-5

        for mask in ("window", "packed", "padding"):
            agrees("torch", "gradient", mask=mask)
            agrees("torch:flex", mask=mask)
        for variant in ("alibi", "table"):
            agrees("torch", "gradient", variant=variant)
        # On a CPU its compiled kernel gives no LSE, which a sink takes.
        for variant in ("alibi", "table", "softcap"):
            agrees("torch:flex", variant=variant)


@pytest.mark.parametrize("name", ["jax.nn", "flax"])
def test_a_score_that_a_library_lacks_is_unsupported(name):
    with pytest.raises(libraries.Unsupported, match="no additive score"):
        jax_libraries.ADAPTERS[name].compile(tiny(score="additive", mask="full"))


@pytest.mark.parametrize("direction", cases.PASSES)
def test_what_is_wrong_does_not_pass(direction):
    least = 10 * cases.TOLERANCES["float32"]
    case = tiny(direction)
    assert checked(Jax(wrong), case)[0] > least
    textbook = Jax(jax_libraries.textbook)
    full = tiny(direction, mask="full")
    assert checked(textbook, full, as_case=case)[0] > least
    sample = textbook.compile(case).sample()
    nan = {name: np.full_like(x, np.nan) for name, x in sample.items()}
    error, complaint = case.check({"it": nan}, "it")
    assert error == float("inf") and "off by inf" in complaint


def test_an_error_is_in_parts_of_the_largest_value():
    assert (
        oracle.error({"a": np.array([1.0, 3.0])}, {"a": np.array([1.0, 4.0])}) == 1 / 4
    )
    assert oracle.error(np.array([-np.inf, 0.5]), np.array([-np.inf, 0.0])) == 0.5
    with pytest.raises(ValueError, match="a given, b expected"):
        oracle.error({"a": np.zeros(1)}, {"b": np.zeros(1)})


@pytest.mark.parametrize(
    ("score", "direction"),
    [("scaled_dot", "forward"), ("scaled_dot", "gradient"), ("additive", "gradient")],
)
def test_bfloat16_has_a_tolerance_of_its_own(score, direction):
    case = tiny(direction, score)
    case = dataclasses.replace(case, dtype="bfloat16", n=64, d=16)
    for name in ("attn", "textbook"):
        error, complaint = checked(jax_libraries.ADAPTERS[name], case)
        # Rounding shows, so it was in bfloat16.
        assert error > 1e-4 and not complaint
    full = dataclasses.replace(case, mask="full")
    assert checked(jax_libraries.ADAPTERS["attn"], case, as_case=full)[1]


@pytest.mark.parametrize(
    ("platforms", "dtype", "products"),
    [
        ("", "float32", "float32"),
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


@needs_torch
def test_torch_passes_the_check_in_its_process(monkeypatch):
    monkeypatch.setenv("NPROC", "1")
    with run.workers({"torch": cases.TORCH}) as running:
        for score in ("scaled_dot", "bilinear", "additive"):
            mask = "window" if score == "scaled_dot" else "full"
            for direction in cases.PASSES:
                case = tiny(direction, score, mask)
                cell = run.run_case(case, ["torch"], running, 1)["torch"]
                assert cell.status == "timed", cell.why
                assert cell.by_hand == (score != "scaled_dot")
                assert cell.error < 1e-5


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
        "attn:blocks": Cell("failed", "the process died", temporary_bytes=2**20),
    }


def test_the_table_has_medians_ratios_and_reasons():
    table = run.table({tiny(): made_up()}, notes={})
    sizes = "batch 2, 3 heads, n 97, d 5, float32"
    assert table.title == f"tiny: scaled dot, causal; {sizes}"
    assert table.headings == ("", "forward, ms", "to attn", "MiB", "to attn")
    assert table.rows == [
        ("attn", "2.0", "1.0x", "1.0", "1.0x"),
        ("jax.nn", "6.8", "3.4x", "2.5", "2.5x"),
        ("torch", "0.2", "0.1x", "0.5 [1]", "0.5x"),
        ("flax", "— [2]", "", "", ""),
        ("textbook", "wrong [3]", "", "", ""),
        ("attn:blocks", "failed [4]", "", "", ""),
    ]
    assert table.notes[1:] == [
        "flax: no additive score",
        "textbook: off by 1.0e-01",
        "attn:blocks: the process died",
    ]


def test_without_attn_there_are_no_ratios():
    table = run.table({tiny(): {"jax.nn": made_up()["jax.nn"]}}, notes={})
    assert table.rows == [("jax.nn", "6.8", "", "2.5", "")]


def test_a_library_that_is_not_installed_is_left_out(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with run.workers({"torch": cases.TORCH}) as running:
        assert running == {}
        cells = run.run_case(tiny(), ["torch"], running, 1)
    table = run.table({tiny(): cells}, notes={})
    assert table.rows[0][1] == "— [1]"
    assert table.notes == ["torch is not installed"]


def test_files_hold_the_tables_every_timing_and_where_it_was_measured(tmp_path):
    results = {tiny(): made_up(), tiny("gradient"): made_up()}
    table = run.table(results, notes={"attn": "as it is"})
    files = run.write(tmp_path, "attention", results, [table])
    assert sorted(files) == sorted(tmp_path.iterdir())
    assert "| jax.nn | 6.8 | 3.4x | 2.5 | 2.5x |" in files[0].read_text()
    record = json.loads(files[1].read_text())
    names = [case["name"] for case in record["cases"]]
    assert names == ["tiny-forward", "tiny-gradient"]
    entry = record["cases"][0]["peers"]["jax.nn"]
    assert entry["seconds"] == [0.0068, 0.0069, 0.0060]
    assert (entry["median"], entry["min"], entry["max"]) == (0.0068, 0.0060, 0.0069)
    assert record["versions"]["jax"] == jax.__version__
    assert record["threads"] > 0 and record["date"]
