"""The parts that all benchmarks share: selection, worker processes, memory and tables."""

import functools
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import rich.console

from experiments.errors import UserError
from launch.bench.attention import cases
from launch.bench.decoding.case import LIBRARIES as DECODING
from launch.bench.harness import libraries, run, worker
from launch.bench.harness.benchmark import select
from launch.bench.harness.report import Table, markdown, number, ratio, show
from launch.bench.training.case import LIBRARIES as TRAINING
from tests.launch.bench_toys import TOYS, tiny

# Turns


@pytest.mark.parametrize(
    ("platform", "order"),
    [("cpu", "run wait " * 4), ("cuda", "run wait run run run wait")],
)
def test_only_a_cpu_is_waited_for_between_calls(platform, order, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", platform)
    said = []
    built = libraries.Program(
        run=lambda: said.append("run"), sample=dict, wait=lambda _: said.append("wait")
    )
    worker.take_turn(libraries.Adapter(None, built), 3)
    # What has been waited for already is there.
    assert " ".join(said).replace("wait wait", "wait") == order.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/stat")
def test_what_another_process_takes_is_seen():
    built = libraries.Program(run=lambda: time.sleep(0.5), sample=dict)
    adapter = libraries.Adapter(None, built)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            turn = worker.take_turn(adapter, 1)
        finally:
            other.kill()
    # Others may have the cores as well, but this one has its share of them.
    assert turn.others > 0.2 and turn.seconds >= 0.5


def test_a_table_says_what_was_disturbed_or_cut():
    cell = dict(seconds=[0.1, 0.1], rounds=7)
    cells = {
        "attn": run.Cell(**cell, others=[0.05, 0.1]),
        "torch": run.Cell(
            seconds=[0.1] * 7, calls=1, rounds=7, others=[1.5] + [0.5] * 6
        ),
        "flax": run.Cell(seconds=[0.01] * 7, calls=1, rounds=7, others=[1.0] * 7),
    }
    table = run.table({tiny(): cells}, notes={})
    assert [row[1] for row in table.rows] == ["100 [1]", "100 [2]", "10.0"]
    assert table.notes[0] == "2 of 7 rounds: a case's time is limited"
    assert table.notes[1] == "other processes or machines had 0.6 cores meanwhile"


# Selection


def names(chosen):
    return [case.name for case in select(chosen, cases.CASES)]


def test_without_names_all_cases_are_picked():
    assert select(None, cases.CASES) == list(cases.CASES)
    assert len(set(names(None))) == len(cases.CASES)


def test_cases_are_picked_by_the_beginning_of_their_names():
    assert names(["dot-512"]) == ["dot-512-forward", "dot-512-gradient"]
    assert {case.score for case in select(["add"], cases.CASES)} == {"additive"}


def test_picked_cases_keep_their_order():
    assert names(["window-8192-gradient", "dot-2048-causal"]) == [
        "dot-2048-causal-forward",
        "dot-2048-causal-gradient",
        "window-8192-gradient",
    ]


@pytest.mark.parametrize(
    ("function", "argument", "message"),
    [
        (names, ["dott"], "begins with 'dott'; known: dot-128-forward, dot-128-grad"),
        (names, [], "no case begins with ''"),
        (
            functools.partial(libraries.select, known=cases.LIBRARIES),
            ["attn", "flux"],
            "unknown peer 'flux'; known: attn, attn:",
        ),
        (
            functools.partial(libraries.select, known=DECODING),
            ["torch"],
            "known: attn, ctranslate2",
        ),
        (functools.partial(libraries.select, known=TRAINING), [], "names no library"),
    ],
)
def test_an_unknown_name_is_an_error_that_lists_the_known(function, argument, message):
    with pytest.raises(UserError, match=message):
        function(argument)


def test_a_library_is_installed_when_its_packages_are(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not libraries.installed(cases.TORCH)
    assert libraries.installed(cases.JAX)


# Worker processes


@pytest.fixture
def one_thread(monkeypatch):
    monkeypatch.setenv("NPROC", "1")


@pytest.mark.ci
@pytest.mark.usefixtures("one_thread")
def test_cases_run_in_worker_processes():
    """A wrong library is not timed; one that dies stops neither others nor itself."""
    running_names = ["attn", "wrong", "dying"]
    second = tiny("gradient", mask="full", only=("dying",))
    with run.workers({"attn": cases.JAX, **TOYS}) as running:
        cells = run.run_case(tiny("gradient"), running_names, running, 3)
        others = run.run_case(second, running_names, running, 1)
    attn, wrong, dying = (cells[name] for name in running_names)
    assert attn.status == "timed"
    assert attn.calls > 1
    assert attn.error < 1e-5
    assert attn.temporary_bytes > 0
    assert len(attn.seconds) == 3
    assert min(attn.seconds) > 0
    assert (wrong.status, wrong.seconds) == ("wrong", [])
    assert "not timed" in wrong.why
    assert wrong.error > 1e-3
    assert dying.status == "failed"
    assert "the process died" in dying.why
    statuses = [others[name].status for name in running_names]
    assert statuses == ["left out", "left out", "timed"]


def sleep(adapter):
    time.sleep(30)


def environment(adapter):
    values = [os.environ[name] for name in ("NPROC", "OMP_NUM_THREADS")]
    return os.getpid(), [*values, os.environ["JAX_PLATFORMS"]]


@pytest.mark.ci
@pytest.mark.usefixtures("one_thread")
def test_what_takes_too_long_is_given_up(monkeypatch):
    toy = worker.Worker(TOYS["wrong"], "wrong", 3)
    try:
        before, values = toy.call(environment)
        assert values == ["3", "3", "cpu"]
        with monkeypatch.context() as patch:
            patch.setattr(worker, "TIME_LIMIT", 0.5)
            with pytest.raises(worker.Failed, match=r"took more than 0\.5 s"):
                toy.call(sleep)
        assert toy.call(environment)[0] != before
    finally:
        toy.stop()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux says it")
def test_the_growth_of_memory_is_seen():
    growth = worker.peak_growth(lambda: np.ones(2**23))
    assert 0.9 * 2**26 < growth < 1.5 * 2**26
    assert worker.peak_growth(lambda: None) < 2**23


# Tables


def test_a_ratio_needs_both_numbers():
    assert ratio(340.0, 1.0) == "340x"
    assert ratio(0.056, 1.0) == "0.056x"
    assert ratio(1.0, None) == ratio(None, 1.0) == ratio(1, 0) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.6, "12,346"), (99.4, "99.4"), (0.96, "1.0"), (0.0123, "0.012")],
)
def test_a_number_has_two_digits_at_least(value, text):
    assert number(value) == text


@pytest.fixture
def table():
    """Returns a table with two notes, the first used twice."""
    table = Table("title", ("", "a|b"))
    cells = [table.noted("x", note) for note in ("one", "two", "one")]
    assert cells == ["x [1]", "x [2]", "x [1]"]
    table.rows.append(("row", "x [1]"))
    return table


def test_a_note_is_numbered_once(table):
    assert table.notes == ["one", "two"]
    assert "1. one\n2. two" in markdown(table)


def test_markdown_is_escaped(table):
    assert r"|  | a\|b |" in markdown(table)


def test_notes_are_shown(table, capsys):
    show(table, rich.console.Console(width=80))
    assert "[2] two" in capsys.readouterr().out
