"""The lines of attention's contract, on libraries that keep and that break them."""

import pytest

from launch.bench import conformance
from launch.bench.attention import jax as jax_libraries
from launch.bench.attention.jax import Jax
from launch.bench.conformance import LINES, Verdict, attempt
from tests.launch.bench_toys import careless, wrong

MEMORY = "a window of 64 at n = 4096 takes less than n² memory"


@pytest.mark.ci
def test_the_reference_keeps_every_line_but_that_on_memory():
    reference = jax_libraries.ADAPTERS["attn:reference"]
    verdicts = {line: attempt(reference, line) for line in LINES}
    assert verdicts.pop(MEMORY).kind == "breaks"
    others = {line for line, verdict in verdicts.items() if verdict.kind != "keeps"}
    assert others == set()
    assert attempt(jax_libraries.ADAPTERS["attn"], MEMORY) == Verdict("keeps")


@pytest.mark.ci
def test_what_is_careless_breaks_what_it_should():
    verdicts = {line: attempt(Jax(careless), line) for line in LINES}
    keeps = {line for line, verdict in verdicts.items() if verdict.kind == "keeps"}
    assert keeps == {"output equals float64 to rounding, under every mask", "d_v ≠ d_k"}
    findings = {line: verdict.finding for line, verdict in verdicts.items()}
    assert findings["LSE is differentiable"] == "gives 0"
    number_mask = findings["a mask that is not boolean is an error"]
    assert number_mask == "takes 0.0 and 1.0 as False and True"
    dropout = findings["dropout differs between heads and examples"]
    assert dropout == "alike in 15 pairs of heads"
    hidden = findings["NaN or Inf in a hidden key or value reaches no output"]
    assert hidden.startswith("nan of v: gives NaN; inf of v")


def test_a_wrong_scale_breaks_what_the_careless_keeps():
    for line in ("output equals float64 to rounding, under every mask", "d_v ≠ d_k"):
        verdict = attempt(Jax(wrong), line)
        assert verdict.kind == "breaks" and "off by" in verdict.finding


def test_what_a_library_refuses_it_neither_keeps_nor_breaks():
    def refuses(x, call):
        raise ValueError("not today")

    verdicts = {attempt(Jax(refuses), line) for line in LINES}
    assert {verdict.kind for verdict in verdicts} == {"cannot"}


def test_the_table_of_verdicts_has_footnotes():
    verdicts = {
        "one line": {"a": Verdict("keeps"), "b": Verdict("breaks", "gives NaN")},
        "another": {
            "a": Verdict("absent", "not installed"),
            "b": Verdict("breaks", "gives NaN"),
        },
    }
    filled = conformance.table(verdicts)
    assert filled.headings == ("", "a", "b")
    assert filled.notes == ["gives NaN", "not installed"]
    assert filled.rows == [
        ("one line", "keeps", "breaks [1]"),
        ("another", "absent [2]", "breaks [1]"),
    ]
