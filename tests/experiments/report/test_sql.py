import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import rich.console

from experiments.report.results import flatten_settings, read_results
from experiments.report.sql import Answer, QueryError, run_query, show_answer
from tests.experiments import fakes

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def workdirs(tmp_path_factory):
    """A sweep of four trials, one finished with averaged weights, one diverged, two
    not; and a single run."""
    beside = {"ema": {"steps": [750], "test": {"bleu": 97.5}}}
    sweep = fakes.sweep(
        tmp_path_factory.mktemp("sweep"),
        [
            (
                {"label": "base", "seed": 0},
                fakes.finished(1.1, 96.0, beside=beside),
                {"logged": (25, 50, 75)},
            ),
            ({"label": "(A) h=1", "model.h": 1, "seed": 0}, fakes.DIVERGED, {}),
            ({"label": "(A) h=1", "model.h": 1, "seed": 1}, None, {"logged": ()}),
            ({"label": "(A) h=1", "model.h": 1, "seed": 2}, None, None),
        ],
    )
    run = tmp_path_factory.mktemp("run")
    fakes.trial(
        run,
        fakes.settings.resolve(fakes.QUICK, {"seed": 7}).to_dict(),
        fakes.finished(1.2, 90),
        name="[red]",
    )
    return sweep, run


def rows(workdirs, sql):
    return run_query(workdirs, sql).rows


def test_a_trial_is_a_row_with_its_settings_results_and_record(workdirs):
    sweep, _ = workdirs
    assert rows(
        [sweep],
        'select name, label, seed, status, error, "model.h", perplexity, "beside.ema.test.bleu", '
        '"beside.ema.steps", "versions.jax", git, "corpus_counts.train", step from trials',
    ) == [
        (
            "seed=0",
            "base",
            0,
            "finished",
            "",
            4,
            1.1,
            97.5,
            "[750]",
            "0.10.2",
            "0a1b2c3d",
            40000,
            None,
        ),
        (
            "h=1 seed=0",
            "(A) h=1",
            0,
            "diverged",
            "loss is NaN at step 75",
            1,
            None,
            None,
            None,
            "0.10.2",
            "0a1b2c3d",
            40000,
            75,
        ),
        (
            "h=1 seed=1",
            "(A) h=1",
            1,
            "unfinished",
            "stopped or still running, last logged at step 0 of 750",
            1,
            None,
            None,
            None,
            "0.10.2",
            "0a1b2c3d",
            40000,
            None,
        ),
        (
            "h=1 seed=2",
            "(A) h=1",
            2,
            "unfinished",
            "not started",
            1,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
        ),
    ]
    ((workdir, directory),) = rows(
        [sweep], "select workdir, directory from trials where label = 'base'"
    )
    assert (Path(workdir), Path(directory)) == (sweep, sweep / "trials/00")


def test_metrics_have_a_row_a_line(workdirs):
    sweep, _ = workdirs
    lines = read_results(sweep).trials[0].metrics
    assert rows(
        [sweep], "select step, split, loss, grad_norm from metrics where label = 'base'"
    ) == [
        (line["step"], line["split"], line["loss"], line.get("grad_norm"))
        for line in lines
    ]
    assert rows(
        [sweep],
        "select name, seed, count(*) from metrics join trials using (workdir, name, seed) "
        "group by all order by name desc",
    ) == [("seed=0", 0, 4), ("h=1 seed=0", 0, 3)]


def test_several_workdirs_are_one_table(workdirs):
    assert rows(
        workdirs,
        "select workdir, count(*) from trials group by workdir order by count(*)",
    ) == [(str(workdirs[1]), 1), (str(workdirs[0]), 4)]
    assert rows(
        workdirs,
        "select t.seed, b.bleu from trials t join trials b on b.label = 'base' "
        "where t.name = '[red]'",
    ) == [(7, 96.0)]


def test_column_types(workdirs):
    types = dict(
        rows(workdirs, "select column_name, column_type from (describe trials)")
    )
    expected = {
        "bleu": "DOUBLE",  # 96.0, and 90 in the other workdir
        "model.h": "BIGINT",
        "model.biases": "BOOLEAN",
        "model.P_drop": "DOUBLE",
        "model.score": "VARCHAR",
    }
    assert {name: types[name] for name in expected} == expected


INFINITY = float("inf")


@pytest.mark.parametrize(
    ("values", "kind", "stored"),
    [
        ([None, None], "VARCHAR", [None, None]),
        ([2**63, None], "DOUBLE", [2.0**63, None]),
        ([1, True], "VARCHAR", ["1", "true"]),
        ([1, "a"], "VARCHAR", ["1", "a"]),
        ([[1, 2]], "VARCHAR", ["[1, 2]"]),
        ([INFINITY, 1], "DOUBLE", [INFINITY, 1.0]),
    ],
)
def test_columns_hold_what_json_holds(values, kind, stored, tmp_path):
    workdir = fakes.sweep(
        tmp_path,
        [
            ({"seed": i}, fakes.finished(odd=value), {})
            for i, value in enumerate(values)
        ],
    )
    assert rows([workdir], "select odd from trials") == [(value,) for value in stored]
    assert rows(
        [workdir], "select column_type from (describe trials) where column_name = 'odd'"
    ) == [(kind,)]


def test_a_workdir_without_trials_has_empty_tables(tmp_path):
    assert (
        rows(
            [fakes.sweep(tmp_path, [])], "select trials.name, step from trials, metrics"
        )
        == []
    )


@pytest.mark.parametrize(
    "sql",
    [
        "select * from '{file}'",
        "select * from read_text('{file}')",
        "select * from glob('{directory}/*')",
        "copy trials to '{directory}/new'",
        "attach '{directory}/new'",
        "export database '{directory}/new'",
        "install json",
        "set enable_external_access = true",
        "set threads = 1",
        "select * from workdirs",
    ],
)
def test_a_query_touches_nothing_but_the_tables(workdirs, tmp_path, sql):
    (tmp_path / "file.csv").write_text("a,b\n1,2\n")
    with pytest.raises(
        QueryError, match=r"^(Permission|Catalog|Invalid Input) Error: "
    ):
        run_query(workdirs, sql.format(file=tmp_path / "file.csv", directory=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["file.csv"]


@pytest.mark.parametrize(
    "sql",
    [
        "copy trials to '.tmp/x.csv'",
        "select * from read_csv('.tmp/file.csv')",
        "select * from glob('.tmp/*')",
        "attach '.tmp/a.db'",
    ],
)
def test_a_query_touches_no_temporary_folder(workdirs, tmp_path, monkeypatch, sql):
    """DuckDB's own folder for temporary files is ./.tmp, where a file may be anyone's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".tmp").mkdir()
    (tmp_path / ".tmp" / "file.csv").write_text("a,b\n1,2\n")
    with pytest.raises(QueryError, match=r"^Permission Error: "):
        run_query(workdirs, sql)
    assert [path.name for path in (tmp_path / ".tmp").iterdir()] == ["file.csv"]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("selekt 1", 'Parser Error: syntax error at or near "selekt"'),
        (
            "select modelh from trials",
            r'Binder Error: Referenced column "modelh" not found.*bindings: "model\.h"',
        ),
        ("select error('a\nb')", "Invalid Input Error: a b"),
        ("", "'' asks nothing; try"),
        ("-- x", "asks nothing"),
    ],
)
def test_a_mistake_is_one_line_of_duckdb(workdirs, sql, message):
    with pytest.raises(QueryError, match=message) as error:
        run_query(workdirs, sql)
    assert "\n" not in str(error.value) and "LINE 1" not in str(error.value)


def shown(answer, terminal):
    console = rich.console.Console(
        file=io.StringIO(), width=60, force_terminal=terminal, color_system=None
    )
    show_answer(answer, console)
    return console.file.getvalue()


def test_show():
    answer = Answer(
        ("name", "[b]"),
        [("[red]\x1b[31m", 1 / 3), ("b", None), ("a long name " * 9, 12.0)],
    )
    long = ("a long name " * 9).strip()
    assert shown(answer, terminal=False).splitlines() == [
        f"{name:{len(long)}}  {number:>18}"
        for name, number in (
            ("name", "[b]"),
            ("[red] [31m", "0.3333333333333333"),
            ("b", "NULL"),
            (long, "12.0"),
        )
    ]
    drawn = shown(answer, terminal=True)
    assert (
        "───" in drawn
        and "[b]" in drawn
        and "[red] [31m" in drawn
        and " 0.333333 " in drawn
        and "\x1b" not in drawn
    )


def test_settings_are_told_apart_without_case(workdirs):
    """SQL's names have no case: of two settings that differ in it alone, one could not
    be asked for."""
    names = list(
        flatten_settings(json.loads((workdirs[1] / "config.json").read_text()))
    )
    assert len({name.lower() for name in names}) == len(names)


def launch(*flags):
    return subprocess.run(
        [sys.executable, "-m", "launch.report", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


def test_launch_answers_for_several_workdirs(workdirs, tmp_path):
    comma = (tmp_path / "h=2,d_k=32").resolve()
    comma.symlink_to(workdirs[1])
    done = launch(
        f"--workdir={workdirs[0]},{comma}",
        "--sql=select name from trials where status = 'finished'",
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "name\nseed=0\n[red]\n",
        "",
    )
    assert not list(workdirs[0].glob("report.*"))


def test_launch_merges_sweeps_only(workdirs):
    """The second is a single run's, of which a query may ask all the same."""
    done = launch(f"--workdir={workdirs[0]},{workdirs[1]}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: {workdirs[1]} is the directory of a single trial; only sweeps can be "
        "merged\n"
    )


def test_a_mean_over_seeds_is_grouped_by_the_row_of_the_table(tmp_path):
    points = [
        ({"label": "base", "seed": 0}, fakes.finished(1.1, 96.0), {}),
        ({"label": "base", "seed": 1}, fakes.finished(1.1, 94.0), {}),
        ({"model.h": 1, "seed": 0}, fakes.finished(1.2, 90.0), {}),
        ({"model.h": 1, "seed": 1}, fakes.finished(1.2, 80.0), {}),
    ]
    sweep = fakes.sweep(tmp_path, points)
    sql = 'select "row", count(bleu), avg(bleu) from trials group by all order by all'
    assert rows([sweep], sql) == [("base", 2, 95.0), ("h=1", 2, 85.0)]
