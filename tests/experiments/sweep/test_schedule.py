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
    ("machine", "trials", "expected"),
    [
        (LAPTOP, 1, [(1, 1)]),
        (LAPTOP, 3, [(2, 1), (1, 1), (1, 3)]),
        (SERVER, 5, [(5, 1), (1, 1), (1, 4)]),
        (Machine("cpu", 1, 1), 9, [(1, 1), (1, 4)]),
        (GPU, 1, [(1, 1)]),
        (GPU, 15, [(1, 15), (1, 4), (1, 1)]),
        (GPU, 500, [(1, 64), (1, 16), (1, 1)]),
        (TPU, 15, [(1, 16), (1, 8), (1, 1)]),
        (TPU, 3, [(1, 8), (1, 1)]),
        (Machine("cpu", 4, 2), 6, [(1, 8), (1, 4), (1, 1)]),
    ],
)
def test_layouts(machine, trials, expected):
    assert [
        (layout.workers, layout.lanes) for layout in layouts(machine, trials)
    ] == expected


@pytest.mark.parametrize(
    ("machine", "trials", "processes", "expected"),
    [
        # A group of one trial, beside others.
        (LAPTOP, 1, 9, [(2, 1), (1, 1)]),
        (SERVER, 3, 60, [(60, 1), (1, 1), (1, 3)]),
        # Memory has room for fewer than there are.
        (SERVER, 5, 4, [(4, 1), (1, 1), (1, 4)]),
        (SERVER, 5, 1, [(1, 1), (1, 4)]),
        (GPU, 1, 9, [(1, 1)]),
    ],
)
def test_groups_share_processes(machine, trials, processes, expected):
    assert [
        (layout.workers, layout.lanes) for layout in layouts(machine, trials, processes)
    ] == expected


def test_threads_share_the_cores():
    assert [Layout("", n, 1).threads(SERVER) for n in (1, 5, 64)] == [64, 12, 1]
    assert Layout("", 1, 8).threads(GPU) == GPU.cores > 1


def test_what_ends_first_is_chosen():
    steps = [100] * 3
    speeds = {
        (2, 1): Measured(10, 1.0),
        (1, 1): Measured(10, 0.6),
        (1, 3): Measured(20, 1.8),
    }
    asked = []

    def measure(layout):
        asked.append(layout.name)
        return speeds[layout.workers, layout.lanes]

    chosen = choose(LAPTOP, steps, 1e4, measure)  # 210, 190 and 200 seconds
    assert chosen.layout == Layout("one after another", 1, 1) and asked == [
        "processes",
        "one after another",
        "lanes",
    ]
    assert (
        "processes (2 × 1) 210 s" in chosen.why and "lanes (1 × 3) 200 s" in chosen.why
    )
    speeds[1, 3] = Measured(20, 1.6)
    assert choose(LAPTOP, steps, 1e4, measure).layout.name == "lanes"
    speeds[1, 3] = None
    assert choose(LAPTOP, steps, 1e4, measure).layout.name == "one after another"
    asked.clear()
    assert choose(LAPTOP, steps, 30, measure).layout.name == "processes" and not asked
    assert (
        choose(LAPTOP, [100], 1e4, measure).layout.name == "one after another"
        and not asked
    )


def test_without_a_guess_the_likely_best_way_gives_it():
    asked = []

    def measure(layout):
        asked.append(layout.lanes)
        return Measured(10, {8: 0.1, 2: 0.05, 1: 0.001}[layout.lanes]) if fits else None

    fits = True
    assert choose(GPU, [100] * 8, None, measure).layout.lanes == 8 and asked == [
        8
    ]  # 20 seconds
    asked.clear()
    assert choose(GPU, [10_000] * 8, None, measure).layout.lanes == 1 and asked == [
        8,
        2,
        1,
    ]  # 1010 and more, 90
    fits = False
    assert "inf" in choose(GPU, [100] * 8, None, measure).why


def test_trials_go_where_it_is_free_first():
    """100 on one place, 60 + 50 on the other."""
    assert seconds(Layout("", 2, 1), [100, 60, 50], Measured(5, 2)) == 5 + 2 * 110
    assert seconds(Layout("", 1, 3), [100, 60, 50], Measured(5, 2)) == 5 + 2 * 100


def test_processes_that_others_fill_cost_their_share():
    assert seconds(Layout("", 4, 1), [100, 60], Measured(5, 2)) == (205 + 125) / 4
    # 0.6 seconds a step with both cores, 1 with one of them.
    speeds = {2: Measured(10, 1.0), 1: Measured(10, 0.6)}
    measure = lambda layout: speeds[layout.workers]
    assert choose(LAPTOP, [100], 1e4, measure, 9).layout.workers == 2
    speeds[1] = Measured(10, 0.4)
    assert choose(LAPTOP, [100], 1e4, measure, 9).layout.workers == 1


def test_a_persons_wish():
    assert asked_by_user(LAPTOP, 0, 0) is None
    assert asked_by_user(LAPTOP, 3, 0)[1:] == (3, 1) and asked_by_user(GPU, 0, 7)[
        1:
    ] == (1, 7)
    with pytest.raises(
        LanesError, match="--lanes=6 must be divisible by the number of devices, 8"
    ):
        asked_by_user(TPU, 0, 6)
