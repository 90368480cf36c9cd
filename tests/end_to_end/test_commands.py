"""The commands as a person types them, on one tiny config."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.system.files import lock
from tests.calls import call

ROOT = Path(__file__).parents[2]
CONFIG = "tests/experiments/tiny_config.py"
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu"}


# How ml_collections loads a config.
pytestmark = pytest.mark.filterwarnings("ignore:.*load_module:DeprecationWarning")


def sweep(workdir, *flags, names="positions,seed"):
    """Calls launch.sweep in this process; trials have processes of their own."""
    return call("sweep", *words(workdir, *flags, names=names))


def words(workdir, *flags, names="positions,seed"):
    """The flags of launch.sweep."""
    return [f"--config={CONFIG}", f"--sweep={names}", f"--workdir={workdir}", *flags]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep that a process of its own has run."""
    workdir = tmp_path_factory.mktemp("sweep")
    flags = words(workdir, "--workers=1")
    command = [sys.executable, "-m", "launch.sweep", *flags]
    options = dict(cwd=ROOT, env=ENVIRONMENT, capture_output=True, encoding="utf-8")
    done = subprocess.run(command, **options)
    assert (done.returncode, done.stderr) == (0, "")
    return workdir, done.stdout


def read_result(path):
    """Returns what a trial reached."""
    result = json.loads(path.read_text())
    return result["perplexity"], result["parameters"]


def trials(workdir):
    paths = sorted(workdir.glob("trials/*/result.json"))
    return {path.parent.name: path for path in paths}


def test_a_sweep_ends_in_a_report(swept):
    workdir, printed = swept
    assert len(trials(workdir)) == 4
    assert "[4/4] " in printed and "positions=none" in printed
    assert printed.rstrip().endswith("report.html")
    assert (workdir / "report.csv").read_text().count("finished") == 4
    assert "positions=none" in (workdir / "report.md").read_text()
    assert (workdir / "report.html").stat().st_size > 10_000


def test_a_sweep_asks_a_question_and_its_report_answers_it(swept, tmp_path):
    workdir = tmp_path / "swept"
    shutil.copytree(swept[0], workdir)
    asked = "compared: each row with positions=none"
    done = sweep(workdir, "--base=positions=none")
    assert (done.returncode, done.stderr) == (0, "")
    assert asked in done.stdout
    # It is the sweep's from then on, until a report asks another.
    again = call("report", f"--workdir={workdir}")
    assert asked in again.stdout
    assert asked in sweep(workdir).stdout
    other = call("report", f"--workdir={workdir}", "--base=base")
    assert other.returncode == 0 and asked not in other.stdout
    assert "compared: each row with base" in other.stdout


def test_a_config_asks_for_its_sweep(swept, tmp_path):
    workdir = tmp_path / "swept"
    shutil.copytree(swept[0], workdir)
    config = tmp_path / "asking.py"
    question = {"base": "positions=none", "within": ["d_k"]}
    config.write_text(
        "from tests.experiments.tiny_config import *\n"
        f"sweep_positions.question = {question}\n"
    )
    arguments = (f"--workdir={workdir}", f"--config={config}", "--sweep=positions,seed")
    done = call("sweep", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    # d_k does not vary here.
    assert "compared: each row with positions=none" in done.stdout
    assert "of the same" not in done.stdout


def test_a_configs_question_that_does_not_fit_stops_nothing(swept, tmp_path):
    workdir = tmp_path / "swept"
    shutil.copytree(swept[0], workdir)
    config = tmp_path / "asking.py"
    config.write_text(
        "from tests.experiments.tiny_config import *\n"
        "sweep_positions.question = {'base': 'positions=rotary'}\n"
    )
    arguments = (f"--workdir={workdir}", f"--config={config}", "--sweep=positions,seed")
    done = call("sweep", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "What the sweep asks (against positions=rotary) does not fit" in done.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--base=positions=rotary"],
            "no row has it; there are model.positions: none, ",
        ),
        (["--within=h"], "h does not vary in this table; what varies: model.positions"),
        (["--pairs=base:non"], "--pairs=non: no row is called so"),
    ],
)
def test_a_question_without_rows_is_refused_before_training(flags, message, tmp_path):
    done = sweep(tmp_path / "new", *flags)
    assert done.returncode == 2 and message in done.stderr
    assert done.stderr.count("\n") == 1
    assert trials(tmp_path / "new") == {}


@pytest.mark.ci
def test_what_differs_in_its_scores_alone_is_trained_once(swept, tmp_path):
    """In a sweep of its own, and in one that gets more rows when it has ended."""
    one = sweep(tmp_path, "--workers=1", names="scores")
    assert (one.returncode, one.stderr) == (0, "")
    begun = {
        name: json.loads((path.parent / "record.json").read_text())["begun"]
        for name, path in trials(tmp_path).items()
    }
    copied = {name for name, origin in begun.items() if origin}
    assert len(begun) == 3 and len(copied) == 2
    for name in copied:
        other = Path(begun[name]["trained_as"])
        assert other.name not in copied and other.parent == tmp_path / "trials"
    workdir = shutil.copytree(swept[0], tmp_path / "more")
    more = sweep(workdir, "--workers=1", names="scores")
    assert (more.returncode, more.stderr) == (0, "")
    records = [path.parent / "record.json" for path in trials(workdir).values()]
    origins = [json.loads(path.read_text())["begun"] for path in records]
    assert len(origins) == 6 and len([one for one in origins if one]) == 2


def test_the_same_sweep_again_trains_nothing(swept):
    workdir, _ = swept
    files = [path for path in workdir.glob("trials/**/*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in files}
    again = sweep(workdir)
    assert again.returncode == 0
    assert "4 of 4 trials were finished before" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_translate(swept):
    workdir, _ = swept
    trial = next(iter(trials(workdir).values())).parent
    text = "3 days ago\n\nMay 4\n"
    done = call("translate", f"--workdir={trial}", text=text)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(lines := done.stdout.split("\n")) == 4 and lines[1] == ""
    search = ("--beam=2", "--n_best=2", "--prefix=am 4")
    done = call("translate", f"--workdir={trial}", *search, text="May 4\n\n")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert rows[2:] == [["0.0000", ""], ["-inf", ""]]
    assert 0 > float(rows[0][0]) > float(rows[1][0])
    (_, first), (_, second) = rows[:2]
    assert first != second
    assert first.startswith("am 4") and second.startswith("am 4")
    refused = call("translate", f"--workdir={workdir}", text="x\n")
    assert refused.returncode == 2 and "name one of its trials" in refused.stderr


def test_evaluate(swept, tmp_path):
    one, two = [path.parent for path in trials(swept[0]).values()][:2]
    files = f"--source={one}/sources.txt", f"--reference={one}/references.txt"
    places = f"--workdir={one}", f"--against={two}", f"--to={tmp_path}/scored"
    done = call("evaluate", *places, *files)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads((one / "result.json").read_text())
    assert f"{'BLEU':20} {result['bleu']:10.2f}  [" in done.stdout
    assert f"\n{one} minus {two}\n  perplexity" in done.stdout
    written = (tmp_path / "scored/translations.txt").read_text("utf-8")
    assert written == (one / "translations.txt").read_text("utf-8")
    refused = call("evaluate", places[0], f"--source={tmp_path}/none")
    assert refused.returncode == 2 and "cannot be read (No such file" in refused.stderr


@pytest.mark.ci
def test_dtypes_of_the_environment_change_nothing(swept, tmp_path):
    """JAX's double precision and strict dtypes: what was trained with them is the same."""
    asked = {"JAX_ENABLE_X64": "1", "JAX_NUMPY_DTYPE_PROMOTION": "strict"}
    environment = {**ENVIRONMENT, **asked}
    options = dict(cwd=ROOT, env=environment, capture_output=True, encoding="utf-8")

    def command(name, *flags, **more):
        line = [sys.executable, "-m", f"launch.{name}", *flags]
        return subprocess.run(line, **options, **more)

    done = command("train", f"--config={CONFIG}", f"--workdir={tmp_path}")
    assert done.returncode == 0 and done.stderr.count("note: without JAX_") == 2
    of_sweep = [read_result(path) for path in trials(swept[0]).values()]
    assert read_result(tmp_path / "result.json") in of_sweep
    words = f"--workdir={tmp_path}"
    done = command("translate", words, input="3 days ago\n")
    assert done.returncode == 0 and done.stdout.count("\n") == 1


UNTIL_FLAT = (
    "--config.training.until=flat",
    "--config.training.evaluate_every=4",
    "--config.training.steps=60",
    # It learns nothing, so its perplexity is flat from the beginning.
    "--config.training.learning_rate=1e-20",
)


@pytest.mark.ci
def test_train_and_sweep_until_flat(tmp_path):
    workdir = f"--workdir={tmp_path / 'one'}"
    done = call("train", f"--config={CONFIG}", workdir, *UNTIL_FLAT)
    assert (done.returncode, done.stderr) == (0, "")
    line = "ended at step 24: validation perplexity has stopped falling"
    assert line in done.stdout.splitlines()
    done = sweep(tmp_path / "two", *UNTIL_FLAT, "--workers=1", names="seed")
    assert (done.returncode, done.stderr) == (0, "")
    for path in trials(tmp_path / "two").values():
        assert json.loads(path.read_text())["steps"] == 24
    done = sweep(tmp_path / "two", *UNTIL_FLAT, "--dry_run", names="seed")
    assert done.stdout.endswith(
        "2 of these trials end when their validation perplexity has stopped falling "
        "(training.until=flat): FLOPs and time are the most they may take\n"
    )


def test_dry_run_shows_the_points_and_what_all_will_take(tmp_path):
    config = tmp_path / "config.py"
    config.write_text(
        "from tests.experiments.tiny_config import get_config\n"
        "def sweep_h(config):\n"
        "    yield from ({'model.h': config.model.h}, {'model.h': 1}, {})\n"
    )
    points = ("--sweep=h", "--seeds=30", "--only=h=|seed=.$")
    sizes = ("--config.evaluation.batch_size=1000000", "--config.evaluation.beam=100")
    done = call("sweep", f"--config={config}", "--dry_run", *points, *sizes)
    assert (done.returncode, done.stderr) == (0, "")
    doubles = "10 of 70 points have the settings of another and run once with it\n"
    assert done.stdout.startswith(doubles)
    points, groups = done.stdout.split(" group ")
    assert points.count("h=2 seed=") == 30 and points.count("h=1 seed=") == 20
    assert "… and 10 more points" in points
    row = r" h=2 +30 +12,848 +19 M +6.83 G +2 MiB +[\d.]+ (s|min) *\n h=1 +30 +11,312 "
    assert re.search(row, groups)
    large = r"not here: (h=.) seed=0: translating evaluation.batch_size=.* machine has"
    assert re.findall(large, groups) == ["h=2", "h=1"]
    assert "60 trials in 2 groups, each builds; about " in groups


def test_two_sweeps_at_once_into_one_workdir(tmp_path):
    with lock(tmp_path):
        done = sweep(tmp_path, names="seed")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert f"in use by process {os.getpid()} on {platform.node()}" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


MISTAKES = [
    ("train", "--config.model.hh=2", "did you mean model.h? (known: model.kind"),
    ("train", "--config.model.h=two", "--config.model.h=two"),
    ("train", "--config.model.positions=sinusoidle", "one of sinusoidal"),
    ("train", "--config=nowhere.py", "no such file (the project's own, by name: "),
    ("train", "--config.data.corpus=files --config.data.directory=/no", "/no"),
    (
        "train",
        "--config.model.d_ff=1000000 --config.model.N=1000",
        "of memory and this",
    ),
    ("train", "--resume=a --init_from=b", "are both given"),
    ("sweep", "--sweep=heads,d_k", "both set model.d_k"),
    ("sweep", "--sweep=heads --config.model.h=2", "the sweep sets it too"),
    ("report", "runs/quick", "'runs/quick' is no flag"),
]


@pytest.mark.parametrize(("name", "flags", "message"), MISTAKES)
def test_a_mistake_is_one_line(name, flags, message):
    config = [] if name == "report" else [f"--config={CONFIG}"]
    done = call(name, *config, "--workdir=x", *flags.split())
    assert_refused(done, message)


def test_a_workdir_is_needed_and_has_to_be_there():
    assert_refused(call("train", f"--config={CONFIG}"), "--workdir")
    assert_refused(call("report", "--workdir=/nowhere"), "/nowhere")


def assert_refused(done, message):
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert message in done.stderr


@pytest.mark.ci
def test_a_first_step_waits_for_no_pictures_and_statistics(tmp_path):
    """Each takes as long to import as the whole of the loop."""
    late = ("matplotlib", "scipy.stats", "sacremoses", "experiments.report.write")
    code = f"""
import sys
from experiments.training import loop
loop.run = lambda *arguments, **rest: sys.exit(
    str([name for name in {late} if name in sys.modules])
)
sys.argv = ["train", "--config={CONFIG}", "--workdir={tmp_path}"]
from launch import train
train.cli()
"""
    # As a command that has restarted with it.
    env = {**ENVIRONMENT, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1:] == ["[]"]


@pytest.mark.parametrize("name", ["train", "translate", "evaluate", "sample"])
def test_flags_are_read_before_jax_is_imported(name):
    """So that a mistake is told at once, and the restart with huge pages imports nothing twice."""
    program = f"import sys, launch.{name}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


@pytest.mark.parametrize(
    "flag", ["temperature=nan", "top_k=99999999999", f"seed={2**63}"]
)
def test_numbers_that_nothing_is_drawn_by_are_refused(flag):
    done = call("sample", "--workdir=/nowhere", f"--{flag}")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert (
        flag.partition("=")[0] in done.stderr and flag.partition("=")[2] in done.stderr
    )


def test_scores_are_not_made_where_they_cannot_be_written(tmp_path):
    (tmp_path / "lines").write_text("one\n")
    flags = f"--source={tmp_path}/lines", f"--to={tmp_path}/lines", "--workdir=/nowhere"
    done = call("evaluate", *flags)
    assert done.returncode == 2 and "lines: File exists" in done.stderr


def test_what_cannot_be_written_is_one_line():
    done = call("train", f"--config={CONFIG}", "--workdir=/sys/nowhere")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: /sys/nowhere: ")
    assert done.stderr.endswith("and give the command again\n")


@pytest.mark.ci
def test_lanes_and_processes_give_the_same_table(swept, tmp_path):
    """The same points as lanes of one program; a seed that is added changes no other."""
    workdir, _ = swept
    done = sweep(tmp_path, "--lanes=3", "--seeds=3", names="positions")
    assert (done.returncode, done.stderr) == (0, "")
    results = trials(tmp_path)
    assert len(results) == 6
    for name, path in trials(workdir).items():
        perplexity, parameters = read_result(results[name])
        assert read_result(path) == (pytest.approx(perplexity, rel=1e-4), parameters)
    (schedule,) = json.loads((tmp_path / "schedule.json").read_text())
    assert len(schedule["trials"]) == 6
    assert (schedule["layout"]["lanes"], schedule["why"]) == (3, "as asked")
