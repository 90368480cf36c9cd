"""Expanding, checking and naming points; what a workdir remembers; who may write to it;
failures that stay where they are."""

import json
import os
import platform
import re
import signal
import subprocess
import sys

import pytest

from attn.nn.norms import Post
from experiments.errors import WorkdirError
from experiments.settings import SettingsError, default_config
from experiments.sweep import plan
from experiments.sweep.plan import check_all, plan_trials
from experiments.sweep.points import (
    NAMES,
    SweepError,
    describe_point,
    expand,
    select_points,
    sweeps_of,
)
from experiments.sweep.workdir import (
    adopt_directories,
    is_finished,
    open_workdir,
    record_failure,
)
from experiments.system.files import LockedError, lock, slug
from experiments.trial import cost
from tests.experiments import tiny, tiny_config

pytestmark = pytest.mark.quick

KNOWN = sweeps_of(tiny_config)


def planned(*names, config=None):
    return plan_trials(config or tiny_config.get_config(), expand(KNOWN, list(names)))


def set_by(point):
    """Returns the settings of a point, without its names."""
    return {key: value for key, value in point.items() if key not in NAMES}


def test_a_trial_is_called_by_its_label_and_seed():
    points = [{"label": "one head", "model.h": 1, "seed": 3}, {"model.h": 2, "seed": 0}]
    labelled, other = plan_trials(tiny.config(), points)
    assert (labelled.title, labelled.name) == ("one head seed=3", "h=1 seed=3")
    assert other.title == other.name == "h=2 seed=0"


def test_a_trial_without_a_label_is_called_by_what_its_sweeps_say():
    trials = planned("heads", "positions", "seed")
    # d_k follows from h.
    assert trials[0].name == "h=1 d_k=16 positions=sinusoidal seed=0"
    assert trials[0].title == "h=1 positions=sinusoidal seed=0"
    assert trials[0].parts == {"h": "1", "positions": "sinusoidal"}


def test_a_part_is_a_label_or_the_value_of_the_one_setting():
    known = {
        "rows": labelled,
        "mixed": lambda: [{}, {"model.h": 1, "model.N": 2}, {"model.h": 4}],
        "rates": lambda: [{}, {"training.learning_rate": 2.0}],
        **KNOWN,
    }

    def parts(*names):
        points = expand(known, names, tiny.config(), seeds=2)
        return list(dict.fromkeys(str(point.get("parts")) for point in points))

    assert parts("rows") == ["{'rows': 'base'}", "{'rows': 'wide'}"]
    assert parts("mixed")[:2] == ["{'mixed': 'base'}", "{'mixed': 'h=1 N=2'}"]
    assert parts("rates")[1] == "{'learning_rate': '2.0'}"
    assert parts("rows", "heads")[-1] == "{'rows': 'wide', 'h': '2'}"
    # Two headings that are alike tell nothing apart.
    alike = {"all": lambda: [{"model.N": 1}], "one": lambda: [{"model.encoder.N": 2}]}
    assert "parts" not in expand(alike, ["all", "one"])[0]


def test_a_product_varies_its_last_sweep_fastest():
    points = expand(KNOWN, ["heads", "seed"])
    assert [set_by(point) for point in points] == [
        {"model.h": h, "model.d_k": 16 // h, "seed": s} for h in (1, 2) for s in (0, 1)
    ]
    assert expand(KNOWN, []) == [{}]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["hades"],
            "no sweep named 'hades' (known: heads, d_k, positions, scores, seed, typo, nothing)",
        ),
        (["heads", "d_k"], "sweeps 'heads' and 'd_k' both set model.d_k"),
        (["seed", "nothing"], "sweep 'nothing' has no points"),
        (["heads", "seed"], "sweeps 'seed' and '--seeds=3' both set seed"),
    ],
)
def test_what_cannot_be_expanded_is_named(names, message):
    with pytest.raises(SweepError, match=re.escape(message)):
        expand(KNOWN, names, seeds=3)


def test_seeds_are_the_innermost_product():
    points = expand(KNOWN, ["positions"], seeds=2)
    assert [set_by(point) for point in points] == [
        {"model.positions": p, "seed": s}
        for p in ("sinusoidal", "none")
        for s in (0, 1)
    ]
    assert expand(KNOWN, [], seeds=1) == [{"seed": 0}]


def labelled(config):
    yield {"label": "base"}
    yield {"label": "wide", "model.d_ff": 2 * config.model.d_ff}


def test_a_sweep_that_changes_the_config_changes_its_own_alone():
    def change(config):
        config.model.h = 7
        config.seed = 7
        yield {"model.N": 1}

    config = tiny.config()
    (point,) = expand({"change": change}, ["change"], config)
    assert set_by(point) == {"model.N": 1}
    assert config.model.h == 2 and config.seed == 0


def test_a_sweep_may_take_the_config():
    assert (
        expand({"rows": labelled}, ["rows"], tiny_config.get_config())[1]["model.d_ff"]
        == 48
    )


def test_labels_are_of_rows_and_join_in_products():
    known = {
        "rows": labelled,
        "rates": lambda: [{}, {"training.learning_rate": 2.0}],
        "data": lambda: [{"label": "more", "data.pairs": 400}],
        **KNOWN,
    }
    config = tiny_config.get_config()

    def labels(*names, seeds=None):
        return [point["label"] for point in expand(known, names, config, seeds)]

    assert (
        labels("rows", "seed")
        == ["base", "base", "wide", "wide"]
        == labels("rows", seeds=2)
    )
    assert labels("rows", "data") == ["base, more", "wide, more"]
    assert labels("rates", "rows") == [
        "base",
        "wide",
        "learning_rate=2.0, base",
        "learning_rate=2.0, wide",
    ]
    one, *_ = plan_trials(config, expand(known, ["rows"], config, 2))
    assert (one.label, one.name, one.point) == ("base", "seed=0", {"seed": 0})
    assert one._replace(label="", parts={}) == planned("seed")[0]


def test_two_rows_of_one_label_are_refused():
    points = [{"label": "x", "model.h": 1, "seed": seed} for seed in (0, 1)]
    assert len(plan_trials(tiny_config.get_config(), points)) == 2
    with pytest.raises(
        SweepError, match=r"two rows have the label 'x', one of them the point d_ff=25:"
    ):
        plan_trials(
            tiny_config.get_config(), [*points, {"label": "x", "model.d_ff": 25}]
        )


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ("(A) h=1", ["h=1 seed=0", "h=1 seed=1"]),
        ("h=1", ["h=1 seed=0", "h=1 seed=1"]),
        ("^base|seed=1", ["h=1 seed=1", "seed=2"]),
        ("", ["h=1 seed=0", "h=1 seed=1", "h=4 seed=0", "seed=2"]),
    ],
)
def test_only_finds_text_or_an_expression_in_label_or_name(only, names):
    points = [
        {"label": "(A) h=1", "model.h": 1, "seed": 0},
        {"label": "(A) h=1", "model.h": 1, "seed": 1},
        {"label": "(A) h=4", "model.h": 4, "seed": 0},
        {"label": "base", "seed": 2},
    ]
    assert [describe_point(point) for point in select_points(points, only)] == names


@pytest.mark.parametrize("only", ["h=3", "(h=1"])
def test_only_that_finds_nothing_tells_what_there_is(only):
    points = expand(KNOWN, ["heads"], seeds=5)
    with pytest.raises(
        SweepError,
        match=re.escape(
            f"--only={only} finds none of the 10 points; their names are "
            "'h=1 d_k=16 seed=0', 'h=1 d_k=16 seed=1', "
        ),
    ) as caught:
        select_points(points, only)
    assert str(caught.value).endswith("'h=2 d_k=8 seed=2', …")


def test_a_bad_point_is_refused_before_anything_runs():
    with pytest.raises(
        SettingsError,
        match=re.escape("model.hh: no such setting; did you mean model.h?"),
    ):
        planned("typo")
    with pytest.raises(
        SettingsError,
        match=r"model\.h=0 must be at least 1 and .* \(in the point h=0 seed=1\)",
    ):
        plan_trials(tiny_config.get_config(), [{"model.h": 0, "seed": 1}])


def test_points_of_equal_settings_are_one_trial():
    points = [{}, {"model.h": 2}, {"model.h": 1}, {"seed": 0}]
    assert [p.name for p in plan_trials(tiny_config.get_config(), points)] == [
        "base",
        "h=1",
    ]


def test_each_size_and_each_design_is_built_once(monkeypatch):
    initialised = []
    losses = []

    def spy(module, name, calls):
        function = getattr(module, name)

        def counted(program, *rest):
            model = program.model
            calls.append((model.N, model.d_ff, model.norm))
            return function(program, *rest)

        monkeypatch.setattr(module, name, counted)

    spy(cost, "initial_variables", initialised)
    spy(plan, "token_losses", losses)
    # Of these d_ff no other test has anything, so nothing is remembered.
    points = [
        {
            "model.d_ff": d_ff,
            "model.N": N,
            "model.P_drop": P,
            "training.schedule": f"paper(warmup={w})",
            "data.vocabulary_size": 507,
        }
        for d_ff in (29, 31)
        for N in (1, 3)
        for P in (0.1, 0.2)
        for w in (2, 3)
    ]
    check_all(plan_trials(tiny_config.get_config(), points))
    assert losses == [(1, 29, Post())]
    assert [d_ff for _, d_ff, _ in initialised] == [29, 31]


def test_positions_are_built_for_the_heads_own_width():
    point = {"model.positions": "rotary(fraction=0.5)", "model.d_k": 4}
    check_all(plan_trials(tiny_config.get_config(), [point]))


def test_what_cannot_be_built_is_named(monkeypatch):
    def broken(program, *rest):
        raise TypeError(f"no d_k={program.model.d_k}")

    monkeypatch.setattr(cost, "initial_variables", broken)
    with pytest.raises(SettingsError, match="d_k=37 seed=1 cannot be built: no d_k=37"):
        check_all(plan_trials(tiny_config.get_config(), [{"model.d_k": 37, "seed": 1}]))


def test_directories_are_readable_distinct_and_stay_inside():
    directories = [p.directory for p in planned("heads", "positions", "seed")]
    assert len(set(directories)) == 8
    assert re.fullmatch(
        r"trials/h=1,d_k=16,positions=sinusoidal,seed=0-[0-9a-f]{8}", directories[0]
    )
    assert slug("directory=../../etc/passwd x") == "directory=..,..,etc,passwd,x"
    assert "/" not in slug("a/b\\c\n") and slug("../..") == ""


def test_a_workdir_grows_and_refuses_another_config(tmp_path):
    config = tiny_config.get_config()
    open_workdir(tmp_path, "tiny.py", config, ["seed"], planned("seed"))
    open_workdir(
        tmp_path, "tiny.py", config, ["heads", "seed"], planned("heads", "seed")
    )
    book = json.loads((tmp_path / "sweep.json").read_text())
    assert [t["name"] for t in book["trials"]] == [
        p.name for p in planned("heads", "seed") + planned("seed")
    ]
    other = default_config()
    other.update_from_flattened_dict(tiny.POINT | {"model.d_ff": 25})
    with pytest.raises(
        WorkdirError, match=r"another config: model\.d_ff is 24, asked for 25"
    ):
        open_workdir(tmp_path, "tiny.py", other, [], planned("seed", config=other))


def test_equal_settings_keep_their_directory_whatever_they_are_called(tmp_path):
    config = tiny_config.get_config()
    base, wide = plan_trials(config, list(labelled(config)))
    open_workdir(tmp_path, "tiny.py", config, ["rows"], [base, wide])
    first, second = adopt_directories(tmp_path, planned("seed"))
    assert (first.name, first.directory, first.label) == (
        "seed=0",
        base.directory,
        "base",
    )
    assert second == planned("seed")[1]
    open_workdir(tmp_path, "tiny.py", config, ["seed"], [first, second])
    trials = json.loads((tmp_path / "sweep.json").read_text())["trials"]
    assert [(t["name"], t["label"]) for t in trials] == [
        ("seed=0", "base"),
        ("seed=1", ""),
        ("d_ff=48", "wide"),
    ]
    # Eight digits may be those of other settings.
    (tmp_path / base.directory).mkdir(parents=True)
    (tmp_path / base.directory / "config.json").write_text(
        json.dumps(wide.settings.to_dict())
    )
    assert adopt_directories(tmp_path, planned("seed")) == planned("seed")


def test_a_directory_is_locked_for_one_at_a_time(tmp_path):
    with (
        lock(tmp_path / "new"),
        pytest.raises(
            LockedError,
            match=re.escape(
                f"new is in use by process {os.getpid()} on {platform.node()}: let it end"
            ),
        ),
        lock(tmp_path / "new"),
    ):
        pass
    with lock(tmp_path / "new"):
        pass
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(LockedError, match="file is a file; choose another --workdir"),
        lock(tmp_path / "file"),
    ):
        pass


def test_a_lock_that_is_a_link_leads_nowhere(tmp_path):
    (tmp_path / "other").write_text("somebody's")
    (tmp_path / ".lock").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"), lock(tmp_path):
        pass
    assert (tmp_path / "other").read_text() == "somebody's"


def test_a_lock_ends_with_its_process(tmp_path):
    holds = (
        "import sys; from experiments.system.files import lock\n"
        "with lock(sys.argv[1]): print(flush=True); input()"
    )
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", holds, tmp_path], **pipes) as other:
        other.stdout.readline()
        with (
            pytest.raises(LockedError, match=f"in use by process {other.pid} on"),
            lock(tmp_path),
        ):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
        with lock(tmp_path):
            assert (
                tmp_path / ".lock"
            ).read_text() == f"process {os.getpid()} on {platform.node()}"


def test_a_failure_is_one_line_and_its_trace(tmp_path):
    one, *_ = planned("seed")
    record_failure(tmp_path, one, "FloatingPointError: loss is\nNaN", "Traceback …\n")
    result = json.loads((tmp_path / one.directory / "result.json").read_text())
    assert result == dict(
        status="failed",
        error="FloatingPointError: loss is NaN",
        traceback="Traceback …\n",
    )
    assert not is_finished(tmp_path, one)


@pytest.mark.parametrize(
    ("status", "done"), [("finished", True), ("diverged", True), ("failed", False)]
)
def test_what_has_ended_is_not_run_again(tmp_path, status, done):
    one, *_ = planned("seed")
    assert not is_finished(tmp_path, one)
    (tmp_path / one.directory).mkdir(parents=True)
    (tmp_path / one.directory / "result.json").write_text(
        json.dumps(dict(status=status))
    )
    assert is_finished(tmp_path, one) == done
