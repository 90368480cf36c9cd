"""The benchmark and the conformance table: selection, checks, tables, and real worker processes on small cases."""

import dataclasses
import functools
import importlib.util
import json
import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich.console

from launch.bench.attention import cases, picture
from launch.bench.attention import command as attention
from launch.bench.attention import jax as jax_libraries
from launch.bench.attention import oracle as exact
from launch.bench.attention.call import Call
from launch.bench.attention.cases import Case
from launch.bench.attention.jax import Jax
from launch.bench.conformance import command as conformance
from launch.bench.conformance import inputs, probes
from launch.bench.conformance.probes import Verdict
from launch.bench.decoding.case import LIBRARIES as DECODING
from launch.bench.harness import benchmark, libraries, process, run, table
from launch.bench.harness.libraries import BenchError, Library
from launch.bench.harness.run import Cell
from launch.bench.training.case import LIBRARIES as TRAINING
from tests.attn import oracle

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


def tiny(direction="forward", score="scaled_dot", mask="causal", **options):
    """Longer than a window reaches."""
    return Case("tiny", direction, score, n=97, b=2, h=3, d=5, mask=mask, **options)


def wrong(x, call):
    """Right but for its scale."""
    return jax_libraries.textbook({**x, "q": 1.01 * x["q"]}, call)


def dying(x, call):
    """Takes its process with it, if asked for a causal mask."""
    if call.causal is not None:
        os._exit(1)
    return jax_libraries.textbook(x, call)


def crooked(x, call):
    """Scores too large, by the more the longer the keys are."""
    return jax_libraries.textbook(
        {**x, "q": x["q"] * (1 + 1e-3 * x["k"].shape[1])}, call
    )


def careless(x, call):
    """What many write: and each of it breaks a line of the contract."""
    dtype = x["q"].dtype
    q, k, v = (
        x[name].astype(jnp.float32) if dtype == jnp.float64 else x[name]
        for name in "qkv"
    )
    s = jnp.einsum("bnhd,bmhd->bhnm", q, k) * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    visible = jax_libraries._visible(
        x, dataclasses.replace(call, causal=None if call.causal is None else 0)
    )
    s = s if visible is None else jnp.where(visible, s, jnp.finfo(s.dtype).min)
    weights = jax.nn.softmax(s, axis=-1)
    if call.rate:
        kept = jax.random.bernoulli(
            jax.random.key(call.seed or 0), 1 - call.rate, (1, 1, *s.shape[2:])
        )
        weights = weights * kept / (1 - call.rate)
    out = jnp.einsum("bhnm,bmhv->bnhv", weights, v).astype(dtype)
    lse = jnp.moveaxis(jax.nn.logsumexp(jax.lax.stop_gradient(s), axis=-1), 1, 2)
    return out, lse


ADAPTERS = {"wrong": Jax(wrong), "dying": Jax(dying)}
TOYS = {name: Library(__name__) for name in ADAPTERS}


@pytest.fixture
def one_thread(monkeypatch):
    monkeypatch.setenv("NPROC", "1")


# Exact values


PARAMETERS = {"scaled_dot": (), "bilinear": ("w",), "additive": ("w_q", "w_k", "w_v")}


@pytest.mark.parametrize("score", PARAMETERS)
def test_exact_values_are_the_oracles(score):
    x = inputs.inputs(names=PARAMETERS[score])
    form = {
        "scaled_dot": lambda h: oracle.scaled_dot,
        "bilinear": lambda h: lambda q, k: q @ x["w"][h] @ k,
        "additive": lambda h: (
            lambda q, k: x["w_v"][h] @ np.tanh(q @ x["w_q"][h] + k @ x["w_k"][h])
        ),
    }[score]
    visible = inputs.DENSE & inputs.visible(x, Call(lengths=inputs.EMPTY))
    out, lse = exact.attention(x, visible, score)
    for b in range(inputs.B):
        for h in range(inputs.H):
            wanted = oracle.attention(
                *(x[name][b, :, h] for name in "qkv"), visible[b, h], form(h)
            )
            np.testing.assert_allclose(out[b, :, h], wanted[0], rtol=1e-10)
            np.testing.assert_allclose(lse[b, :, h], wanted[1], rtol=1e-10)


@pytest.mark.parametrize("score", PARAMETERS)
def test_exact_gradients_are_the_values_own(score):
    """Against the complex step through the values, along a random direction of every array at once."""
    x = inputs.inputs(names=("bias", *PARAMETERS[score]))
    dx, g, h = (
        inputs.like(x),
        inputs.weights(x),
        np.random.default_rng(5).normal(size=(inputs.B, inputs.N, inputs.H)),
    )
    out, lse = exact.attention(
        {name: a + 1e-30j * dx[name] for name, a in x.items()}, inputs.DENSE, score
    )
    found = exact.attention_gradient(x, inputs.DENSE, g, h, score)
    assert found.keys() == x.keys()
    along = sum((found[name] * dx[name]).sum() for name in x)
    np.testing.assert_allclose(
        along, ((g * out).sum() + (h * lse).sum()).imag / 1e-30, rtol=1e-11
    )


def test_exact_gradient_of_a_query_that_sees_nothing_is_zero():
    x = inputs.inputs()
    g, h = (
        np.zeros((inputs.B, inputs.N, inputs.H, inputs.K)),
        np.zeros((inputs.B, inputs.N, inputs.H)),
    )
    g[0], h[0] = 1, 1
    found = inputs.exact_gradient(x, Call(lengths=inputs.EMPTY), g, h)
    assert all((a == 0).all() for a in found.values())


# Cases


def test_cases_are_picked_by_name_and_prefix():
    assert benchmark.select(None, cases.CASES) == list(cases.CASES)
    assert [case.name for case in benchmark.select(["dot-512"], cases.CASES)] == [
        "dot-512-forward",
        "dot-512-gradient",
    ]
    picked = [
        case.name
        for case in benchmark.select(
            ["window-8192-gradient", "dot-2048-causal"], cases.CASES
        )
    ]
    assert picked == [
        "dot-2048-causal-forward",
        "dot-2048-causal-gradient",
        "window-8192-gradient",
    ]
    assert {case.score for case in benchmark.select(["add"], cases.CASES)} == {
        "additive"
    }
    assert len({case.name for case in cases.CASES}) == len(cases.CASES)


pick = functools.partial(benchmark.select, cases=cases.CASES)


@pytest.mark.parametrize(
    ("function", "argument", "message"),
    [
        (
            pick,
            ["dott"],
            "no case begins with 'dott'; known: dot-128-forward, dot-128-gradient,",
        ),
        (pick, [], "no case begins with ''"),
        (
            functools.partial(libraries.select, known=cases.LIBRARIES),
            ["attn", "flux"],
            "unknown peer 'flux'; known: attn, attn:tiled",
        ),
        (
            functools.partial(libraries.select, known=DECODING),
            ["torch"],
            "known: attn, transformers, ctranslate2",
        ),
        (functools.partial(libraries.select, known=TRAINING), [], "names nobody"),
    ],
)
def test_an_unknown_name_is_an_error_that_lists_the_known(function, argument, message):
    with pytest.raises(BenchError, match=message):
        function(argument)


@pytest.fixture
def fast_compiler():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()


@pytest.mark.usefixtures("fast_compiler")
@pytest.mark.parametrize("direction", cases.PASSES)
@pytest.mark.parametrize(
    ("score", "mask"),
    [
        ("scaled_dot", "causal"),
        ("scaled_dot", "window"),
        ("bilinear", "full"),
        ("additive", "full"),
    ],
)
def test_what_is_right_passes_the_check(score, mask, direction):
    case = tiny(direction, score, mask)
    for name in ("attn", "textbook", "jax.nn", "flax"):
        if score == "additive" and name in ("jax.nn", "flax"):
            with pytest.raises(libraries.Unsupported, match="no additive score"):
                jax_libraries.ADAPTERS[name].compile(case)
        else:
            with jax.numpy_rank_promotion("allow"):
                assert (
                    cases.error(
                        case, jax_libraries.ADAPTERS[name].compile(case).sample()
                    )
                    < 1e-5
                ), name


@pytest.mark.parametrize("direction", cases.PASSES)
def test_what_is_wrong_does_not(direction):
    case = tiny(direction)
    assert cases.error(case, Jax(wrong).compile(case).sample()) > 10 * cases.TOLERANCE
    other = Jax(jax_libraries.textbook).compile(tiny(direction, mask="full")).sample()
    assert cases.error(case, other) > 10 * cases.TOLERANCE
    nan = {name: np.full_like(a, np.nan) for name, a in other.items()}
    assert cases.error(case, nan) == float("inf")


# Workers


@pytest.mark.ci
@pytest.mark.usefixtures("one_thread")
def test_cases_run_in_worker_processes():
    """What is right is timed, what is wrong is not, and what dies neither stops the others nor its own next case."""
    names = ["attn", "wrong", "dying"]
    with run.workers({"attn": cases.JAX, **TOYS}) as running:
        cells = run.run_case(tiny("gradient"), names, running, 3)
        others = run.run_case(
            tiny("gradient", mask="full", only=("dying",)), names, running, 1
        )
    assert [cells[name].status for name in names] == ["timed", "wrong", "failed"]
    assert len(cells["attn"].seconds) == 3 and all(s > 0 for s in cells["attn"].seconds)
    assert (
        cells["attn"].calls > 1
        and cells["attn"].error < 1e-5
        and cells["attn"].temporary_bytes > 0
    )
    assert (
        "not timed" in cells["wrong"].why
        and not cells["wrong"].seconds
        and cells["wrong"].error > 1e-3
    )
    assert "the process died" in cells["dying"].why
    assert [others[name].status for name in names] == ["left out", "left out", "timed"]


def sleep(adapter):
    time.sleep(30)


def environment(adapter):
    return os.getpid(), [
        os.environ[name] for name in ("NPROC", "OMP_NUM_THREADS", "JAX_PLATFORMS")
    ]


@pytest.mark.ci
@pytest.mark.usefixtures("one_thread")
def test_what_takes_too_long_is_given_up(monkeypatch):
    worker = process.Worker(TOYS["wrong"], "wrong", 3)
    try:
        before, values = worker.call(environment)
        assert values == ["3", "3", "cpu"]
        with monkeypatch.context() as patch:
            patch.setattr(process, "TIME_LIMIT", 0.5)
            with pytest.raises(process.Failed, match=r"took more than 0\.5 s"):
                worker.call(sleep)
        assert worker.call(environment)[0] != before
    finally:
        worker.stop()


@needs_torch
def test_torch_passes_the_check_in_its_process(monkeypatch):
    monkeypatch.setenv("NPROC", "1")
    with run.workers({"torch": cases.LIBRARIES["torch"]}) as running:
        for score in PARAMETERS:
            for direction in cases.PASSES:
                case = tiny(
                    direction, score, "window" if score == "scaled_dot" else "full"
                )
                cell = run.run_case(case, ["torch"], running, 1)["torch"]
                assert (cell.status, cell.by_hand) == (
                    "timed",
                    score != "scaled_dot",
                ) and cell.error < 1e-5
        line = "a mask that is not boolean is an error"
        assert running["torch"].call(probes.attempt, line) == Verdict(
            "breaks", "adds it to the scores"
        )


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux tells it, others do not"
)
def test_the_growth_of_memory_is_seen():
    growth = process.peak_growth(lambda: np.ones(2**23))
    assert 0.9 * 2**26 < growth < 1.5 * 2**26
    assert process.peak_growth(lambda: None) < 2**23


def test_more_memory_than_there_is_is_refused():
    process.check_room(2**20)
    with pytest.raises(MemoryError, match=r"needs 1048576\.0 GiB, and .* GiB are free"):
        process.check_room(2**50)


# Tables


def made_up():
    """Timings as a run might have found them."""
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
    filled = attention.table("tiny", {tiny(): made_up()})
    assert filled.title == "tiny: scaled dot, causal; batch 2, 3 heads, n 97, d 5"
    assert filled.headings == ("", "forward, ms", "to attn", "MiB", "to attn")
    assert filled.rows == [
        ("attn", "2.0", "1.0x", "1.0", "1.0x"),
        ("jax.nn", "6.8", "3.4x", "2.5", "2.5x"),
        ("torch", "0.2", "0.1x", "0.5 [1]", "0.5x"),
        ("flax", "— [2]", "", "", ""),
        ("textbook", "wrong [3]", "", "", ""),
        ("attn:tiled", "failed [4]", "", "", ""),
    ]
    assert filled.notes[1:] == [
        "flax: no additive score",
        "textbook: off by 1.0e-01",
        "attn:tiled: the process died",
    ]


def test_without_attn_there_are_no_ratios():
    filled = attention.table("tiny", {tiny(): {"jax.nn": made_up()["jax.nn"]}})
    assert filled.rows == [("jax.nn", "6.8", "", "2.5", "")]
    assert table.ratio(1.0, None) == table.ratio(None, 1.0) == table.ratio(1, 0) == ""
    assert table.ratio(340.0, 1.0) == "340x" and table.ratio(0.056, 1.0) == "0.056x"


def test_a_peer_that_is_not_installed_is_left_out(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not libraries.installed(cases.LIBRARIES["torch"])
    assert libraries.installed(cases.JAX)
    with run.workers({"torch": cases.LIBRARIES["torch"]}) as running:
        assert running == {}
        cells = run.run_case(tiny(), ["torch"], running, 1)
    filled = attention.table("tiny", {tiny(): cells})
    assert filled.rows[0][1] == "— [1]" and filled.notes == ["torch is not installed"]


def test_files_hold_every_timing(tmp_path):
    results = {tiny(): made_up(), tiny("gradient"): made_up()}
    filled = attention.table("tiny", results)
    assert sorted(attention.write(tmp_path, results, [filled])) == sorted(
        tmp_path.iterdir()
    )
    record = json.loads((tmp_path / "results.json").read_text())
    assert (
        record["versions"]["jax"] == jax.__version__
        and record["threads"] > 0
        and record["date"]
    )
    (one, _), seconds = record["cases"], [0.0068, 0.0069, 0.0060]
    found = one["peers"]["jax.nn"]
    assert one["name"] == "tiny-forward" and found["seconds"] == seconds
    assert (found["median"], found["min"], found["max"]) == (0.0068, 0.0060, 0.0069)
    assert "| jax.nn | 6.8 | 3.4x | 2.5 | 2.5x |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_stands_without_a_single_time():
    assert picture.over_n({tiny(): {"attn": Cell("failed", "")}}).startswith(b"\x89PNG")


def test_a_note_is_numbered_once(capsys):
    filled = table.Table("title", ("", "a|b"))
    assert [filled.noted("x", note) for note in ("one", "two", "one")] == [
        "x [1]",
        "x [2]",
        "x [1]",
    ]
    filled.rows.append(("row", "x [1]"))
    assert filled.notes == ["one", "two"]
    assert r"|  | a\|b |" in table.markdown(filled)
    assert "1. one\n2. two" in table.markdown(filled)
    table.show(filled, rich.console.Console(width=80))
    assert "[2] two" in capsys.readouterr().out


# Conformance


@pytest.fixture
def fast_probes(fast_compiler, monkeypatch):
    """Of the options' pairs three, as each is a program of its own."""
    monkeypatch.setattr(
        probes,
        "OPTIONS",
        {name: probes.OPTIONS[name] for name in ("mask", "causal", "bias")},
    )


KEPT_BY_THE_CARELESS = {
    "output equals float64 to rounding: full, causal, window, padding",
    "output equals float64 to rounding: dense mask",
    "forward mode",
    "second order",
    "gradients under vmap",
    "d_v ≠ d_k",
    "more hidden keys change the output by rounding only",
}
MEMORY = "a window of 64 at n = 4096 takes less than n² memory"


@pytest.mark.ci
@pytest.mark.usefixtures("fast_probes")
def test_the_reference_keeps_every_line_but_that_on_memory():
    verdicts = {
        line: probes.attempt(jax_libraries.ADAPTERS["attn:reference"], line)
        for line in probes.LINES
    }
    assert verdicts.pop(MEMORY).kind == "breaks"
    assert {
        line: verdict for line, verdict in verdicts.items() if verdict.kind != "keeps"
    } == {}
    assert probes.attempt(jax_libraries.ADAPTERS["attn:tiled"], MEMORY) == Verdict(
        "keeps"
    )


@pytest.mark.ci
@pytest.mark.usefixtures("fast_probes")
def test_what_is_careless_breaks_what_it_should():
    found = {line: probes.attempt(Jax(careless), line) for line in probes.LINES}
    kept = {line for line, verdict in found.items() if verdict.kind == "keeps"}
    assert kept == KEPT_BY_THE_CARELESS
    findings = {line: verdict.finding for line, verdict in found.items()}
    assert findings["a query that sees nothing: output 0"] == "gives mean(v)"
    assert findings["LSE is differentiable"] == "its gradient is 0"
    assert (
        findings["a mask that is not boolean is an error"]
        == "takes 0.0 and 1.0 as False and True"
    )
    assert (
        findings["dropout differs between heads and examples"]
        == "the same in every head and example"
    )
    assert (
        findings["no argument is ignored in silence"]
        == "ignores bias, bias beside mask, bias beside causal"
    )
    assert findings["bfloat16: LSE in float32"].startswith("returns bfloat16")


@pytest.mark.usefixtures("fast_probes")
def test_what_is_wrong_breaks_the_lines_that_the_careless_keeps():
    kinds = {
        line: probes.attempt(Jax(crooked), line).kind for line in KEPT_BY_THE_CARELESS
    }
    assert kinds == dict.fromkeys(KEPT_BY_THE_CARELESS, "breaks")


def test_what_a_library_refuses_it_neither_keeps_nor_breaks():
    def refuses(x, call):
        raise ValueError("not today")

    kinds = {probes.attempt(Jax(refuses), line).kind for line in probes.LINES}
    assert kinds == {"cannot"}


def test_the_table_of_verdicts_has_footnotes():
    verdicts = {
        "one line": {"a": Verdict("keeps"), "b": Verdict("breaks", "gives mean(v)")},
        "another": {
            "a": Verdict("absent", "not installed"),
            "b": Verdict("breaks", "gives mean(v)"),
        },
    }
    filled = conformance.table(verdicts)
    assert filled.headings == ("", "a", "b") and filled.notes == [
        "gives mean(v)",
        "not installed",
    ]
    assert filled.rows == [
        ("one line", "keeps", "breaks [1]"),
        ("another", "absent [2]", "breaks [1]"),
    ]
