"""Worker processes: how they share a group of trials, and that measuring leads to a choice."""

import pytest

from experiments.sweep import workers
from experiments.sweep.plan import plan_trials
from experiments.sweep.schedule import Layout, layouts
from experiments.sweep.workdir import is_finished
from tests.experiments import tiny


def planned(count):
    return plan_trials({}, [tiny.POINT | {"seed": seed} for seed in range(count)])


def test_a_group_is_dealt_out():
    some = planned(5)
    assert workers._shares(some, Layout("", 2, 1)) == [([one], 1) for one in some]
    assert workers._shares(some, Layout("", 2, 4)) == [(some[::2], 4), (some[1::2], 4)]
    assert workers._shares(some[:1], Layout("", 2, 4)) == [(some[:1], 4)]


@pytest.mark.ci
def test_layouts_are_measured_and_the_best_is_taken(tmp_path):
    some = planned(3)
    said = []
    ended = []
    pools = workers.Pools({some[0].settings.data: tiny.corpus()})
    try:
        chosen = workers.schedules(pools, some, lambda group: 1e9, None, said.append)
        ((group, schedule),) = chosen
        assert group == some and schedule.layout in layouts(pools.machine, 3)
        assert schedule.why.startswith("measured: ") and schedule.why.count(
            " s"
        ) == len(layouts(pools.machine, 3))
        assert len(said) == 1 and schedule.layout.name in said[0]
        ended += [
            one.name
            for one in workers.run_all(pools, tmp_path, chosen, lambda running: None)
        ]
    finally:
        pools.stop()
    assert sorted(ended) == sorted(one.name for one in some)
    assert all(is_finished(tmp_path, one) for one in some)
