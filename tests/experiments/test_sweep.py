"""Expanding, checking and naming points; what a workdir remembers; failures that stay where they are."""

import json
import re

import pytest

from experiments import sweep, training
from experiments.files import slug
from experiments.records import WorkdirError
from experiments.settings import SettingsError, default_config
from experiments.sweep import SweepError
from tests.experiments import tiny, tiny_config

KNOWN = sweep.sweeps(tiny_config)


def planned(*names, config=None):
    return sweep.plan(config or tiny_config.get_config(), sweep.expand(KNOWN, list(names)))


def test_a_product_varies_its_last_sweep_fastest():
    points = sweep.expand(KNOWN, ["heads", "seed"])
    assert points == [{"model.h": h, "model.d_k": 16 // h, "seed": s} for h in (1, 2) for s in (0, 1)]
    assert sweep.expand(KNOWN, []) == [{}]


@pytest.mark.parametrize(("names", "message"), [
    (["hades"], "no sweep named 'hades' (known: heads, d_k, positions, seed, typo, nothing)"),
    (["heads", "d_k"], "sweeps 'heads' and 'd_k' both set model.d_k"),
    (["seed", "nothing"], "sweep 'nothing' has no points"),
])
def test_what_cannot_be_expanded_is_named(names, message):
    with pytest.raises(SweepError, match=re.escape(message)):
        sweep.expand(KNOWN, names)


def test_a_bad_point_is_refused_before_anything_runs():
    with pytest.raises(SettingsError, match=re.escape("model.hh: no such setting; did you mean model.h?")):
        planned("typo")
    with pytest.raises(SettingsError, match=r"model\.h=0 must be at least 1 \(in the point h=0 seed=1\)"):
        sweep.plan(tiny_config.get_config(), [{"model.h": 0, "seed": 1}])


def test_points_of_equal_settings_are_one_trial():
    points = [{}, {"model.h": 2}, {"model.h": 1}, {"seed": 0}]
    assert [p.name for p in sweep.plan(tiny_config.get_config(), points)] == ["base", "h=1"]


def test_directories_are_readable_distinct_and_stay_inside():
    directories = [p.directory for p in planned("heads", "positions", "seed")]
    assert len(set(directories)) == 8
    assert re.fullmatch(r"trials/h=1,d_k=16,positions=sinusoidal,seed=0-[0-9a-f]{8}", directories[0])
    assert slug("directory=../../etc/passwd x") == "directory=..,..,etc,passwd,x"
    assert "/" not in slug("a/b\\c\n") and slug("../..") == ""


def test_every_point_of_every_config_builds():
    for name in ("quick", "multi30k"):
        module = sweep.load(f"experiments/configs/{name}.py")
        known = sweep.sweeps(module)
        for one in known:
            sweep.check_all(sweep.plan(module.get_config(), sweep.expand(known, [one])))


def test_the_quick_table_has_what_the_readme_promises():
    module = sweep.load("experiments/configs/quick.py")
    points = sweep.plan(module.get_config(), sweep.expand(sweep.sweeps(module), ["table", "seed"]))
    models = {(p.settings.model.h, p.settings.model.d_k, p.settings.model.positions) for p in points}
    assert models == {(4, 16, "sinusoidal"), (4, 16, "learned"), (4, 16, "none"), (4, 4, "sinusoidal"),
                      (4, 8, "sinusoidal"), (1, 64, "sinusoidal"), (2, 32, "sinusoidal"), (8, 8, "sinusoidal")}
    assert len(points) == 16


def test_a_workdir_grows_and_refuses_another_config(tmp_path):
    config = tiny_config.get_config()
    sweep.open_workdir(tmp_path, "tiny.py", config, ["seed"], planned("seed"))
    sweep.open_workdir(tmp_path, "tiny.py", config, ["heads", "seed"], planned("heads", "seed"))
    book = json.loads((tmp_path / "sweep.json").read_text())
    assert [t["name"] for t in book["trials"]] == [p.name for p in planned("heads", "seed") + planned("seed")]
    other = default_config()
    other.update_from_flattened_dict(tiny.POINT | {"model.d_ff": 25})
    with pytest.raises(WorkdirError, match=r"another config: model\.d_ff is 24, asked for 25"):
        sweep.open_workdir(tmp_path, "tiny.py", other, [], planned("seed", config=other))


def test_a_failure_is_recorded_and_goes_no_further(tmp_path, monkeypatch):
    one, *_ = planned("seed")

    def broken(*args, **kwargs):
        raise FloatingPointError("loss is\nNaN")

    monkeypatch.setattr(training, "run", broken)
    sweep.attempt(tmp_path, one, tiny.corpus())
    result = json.loads((tmp_path / one.directory / "result.json").read_text())
    assert result["status"] == "failed" and result["error"] == "FloatingPointError: loss is NaN"
    assert "in broken" in result["traceback"]
    assert not sweep.finished(tmp_path, one)
