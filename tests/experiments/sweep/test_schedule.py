"""Which way a group of trials is run."""

import pytest

from experiments.sweep.schedule import (
    LanesError,
    Layout,
    asked_by_user,
    choose,
    layouts,
    seconds,
)
from experiments.system.machine import Machine
from experiments.training.speed import Measured

LAPTOP, SERVER, GPU, TPU = (
    Machine("cpu", 1, 2),
    Machine("cpu", 1, 64),
    Machine("gpu", 1, 16),
    Machine("tpu", 8, 96),
)


@pytest.mark.parametrize(
    ("machine", "trials", "processes", "expected"),
    [
        (LAPTOP, 1, None, [(1, 1)]),
        (LAPTOP, 3, None, [(2, 1)]),
        (SERVER, 5, None, [(5, 1)]),
        (Machine("cpu", 1, 1), 9, None, [(1, 1)]),
        (GPU, 1, None, [(1, 1)]),
        (GPU, 15, None, [(1, 15), (1, 4), (1, 1)]),
        (GPU, 500, None, [(1, 64), (1, 16), (1, 1)]),
        (TPU, 15, None, [(1, 16), (1, 8), (1, 1)]),
        (TPU, 3, None, [(1, 8), (1, 1)]),
        (Machine("cpu", 4, 2), 6, None, [(1, 8), (1, 4), (1, 1)]),
        # A group of one trial, beside others.
        (LAPTOP, 1, 9, [(2, 1)]),
        (SERVER, 3, 60, [(60, 1)]),
        # Memory has room for fewer than there are.
        (SERVER, 5, 4, [(4, 1)]),
        (SERVER, 5, 1, [(1, 1)]),
        (GPU, 1, 9, [(1, 1)]),
    ],
)
def test_layouts(machine, trials, processes, expected):
    found = layouts(machine, trials, processes)
    assert [(layout.workers, layout.lanes) for layout in found] == expected


def test_threads_share_the_cores():
    assert [Layout("", n, 1).threads(SERVER) for n in (1, 5, 64)] == [64, 12, 1]
    assert Layout("", 1, 8).threads(GPU) == GPU.cores > 1


@pytest.mark.parametrize(
    ("steps", "speeds", "chosen", "asked"),
    [
        # 20 seconds with 8 lanes: nothing else is tried.
        (100, {8: 0.1, 2: 0.05, 1: 0.001}, 8, [8]),
        # 1,010, 2,010 and 90 seconds.
        (10_000, {8: 0.1, 2: 0.05, 1: 0.001}, 1, [8, 2, 1]),
        # Without memory for 8, 12 and 15 minutes.
        (10_000, {8: None, 2: 0.018, 1: 0.011}, 2, [8, 2, 1]),
    ],
)
def test_what_ends_first_is_chosen(steps, speeds, chosen, asked):
    tried = []

    def measure(layout):
        tried.append(layout.lanes)
        step = speeds[layout.lanes]
        return step and Measured(10, step)

    schedule = choose(GPU, [steps] * 8, measure)
    assert schedule.layout.lanes == chosen
    assert tried == asked
    assert ("measured: lanes (8) " in schedule.why) == (len(asked) > 1)


def test_nothing_is_measured_without_a_choice():
    assert choose(LAPTOP, [100] * 3, measure=None).layout.workers == 2
    assert choose(GPU, [100], measure=None).layout.lanes == 1


def test_trials_go_where_it_is_free_first():
    """100 on one lane, 60 + 50 on the other."""
    assert seconds(Layout("", 1, 2), [100, 60, 50], Measured(5, 2)) == 5 + 2 * 110
    assert seconds(Layout("", 1, 3), [100, 60, 50], Measured(5, 2)) == 5 + 2 * 100


def test_a_persons_wish():
    assert asked_by_user(LAPTOP, 0, 0) is None
    assert asked_by_user(LAPTOP, 3, 0)[1:] == (3, 1) and asked_by_user(GPU, 0, 7)[
        1:
    ] == (1, 7)
    with pytest.raises(
        LanesError, match="--lanes=6 must be divisible by the number of devices, 8"
    ):
        asked_by_user(TPU, 0, 6)
