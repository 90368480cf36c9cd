"""The probes of attention's contract, on libraries that keep and that break it."""

import pytest

import attn
from launch.bench.attention import jax as jax_libraries
from launch.bench.attention.cases import NORMALISERS
from launch.bench.attention.jax import Jax
from launch.bench.conformance import command as conformance
from launch.bench.conformance import contract, probes
from launch.bench.conformance.contract import Verdict
from tests.launch.bench_toys import careless, crooked


@pytest.fixture
def fast_probes(monkeypatch):
    """Leaves three of the pairs of options, as each is a program of its own."""
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
        line: contract.attempt(jax_libraries.ADAPTERS["attn:reference"], line)
        for line in contract.LINES
    }
    assert verdicts.pop(MEMORY).kind == "breaks"
    assert {
        line: verdict for line, verdict in verdicts.items() if verdict.kind != "keeps"
    } == {}
    assert contract.attempt(jax_libraries.ADAPTERS["attn:tiled"], MEMORY) == Verdict(
        "keeps"
    )


def test_each_normaliser_has_a_column():
    named = {name.removeprefix("attn:") for name in NORMALISERS}
    assert named - {"attn"} == {*attn.NORMALISERS} - {"softmax"}


@pytest.mark.ci
@pytest.mark.usefixtures("fast_probes")
# All of them have to keep what tests/attn asks; one has a log-sum-exp, and one has none.
@pytest.mark.parametrize("name", ["scalable_softmax", "entmax"])
def test_a_normaliser_keeps_every_line_but_those_on_the_lse(name):
    library = jax_libraries.ADAPTERS[f"attn:{name}"]
    verdicts = {line: contract.attempt(library, line) for line in contract.LINES}
    has_lse = name == "scalable_softmax"
    assert {
        line: verdict
        for line, verdict in verdicts.items()
        if verdict.kind != ("keeps" if has_lse or "LSE" not in line else "cannot")
    } == {}


@pytest.mark.ci
@pytest.mark.usefixtures("fast_probes")
def test_what_is_careless_breaks_what_it_should():
    verdicts = {line: contract.attempt(Jax(careless), line) for line in contract.LINES}
    keeps = {line for line, verdict in verdicts.items() if verdict.kind == "keeps"}
    assert keeps == KEPT_BY_THE_CARELESS
    findings = {line: verdict.finding for line, verdict in verdicts.items()}
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
        line: contract.attempt(Jax(crooked), line).kind for line in KEPT_BY_THE_CARELESS
    }
    assert kinds == dict.fromkeys(KEPT_BY_THE_CARELESS, "breaks")


def test_what_a_library_refuses_it_neither_keeps_nor_breaks():
    def refuses(x, call):
        raise ValueError("not today")

    kinds = {contract.attempt(Jax(refuses), line).kind for line in contract.LINES}
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
