"""What the commands refuse and how: in this process, because JAX takes seconds to import."""

import errno
import io
import os
import subprocess
import sys

import pytest

from experiments.data.dataset import prepare
from experiments.report import write
from experiments.settings import resolve
from experiments.sweep.plan import plan_trials
from experiments.system import files
from launch import command
from tests.cases import the_rest_in_ci
from tests.experiments import fakes, tiny_config

CONFIG = "tests/experiments/tiny_config.py"
LONG = "/tmp/" + "x" * 300


@pytest.fixture
def config(tmp_path):
    """Writes a config file with the text that it is called with; returns its path."""

    def write(text):
        path = tmp_path / "config.py"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def finished(tmp_path):
    """A sweep of one finished trial."""
    return fakes.sweep(tmp_path / "sweep", [({"seed": 0}, fakes.finished(1.1, 90), {})])


def is_one_line(status, printed, said):
    return (
        status == 2
        and printed == ""
        and said.startswith("error: ")
        and said.count("\n") == 1
        and len(said) < 1000
    )


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("train", (f"--config={CONFIG}", "--workdir=")),
        ("train", (f"--config={CONFIG}", "--workdir", "")),
        ("train", (f"--config={CONFIG}", "--workdir=x", "--hosts=")),
        ("train", (f"--config={CONFIG}", "--workdir=x", "--resume=")),
        ("train", (f"--config={CONFIG}", "--workdir=x", "--init_from=")),
        ("sweep", (f"--config={CONFIG}", "--sweep=seed", "--workdir=")),
        ("sweep", (f"--config={CONFIG}", "--workdir=", "--dry_run")),
        ("report", ("--workdir=",)),
        ("translate", ("--workdir=",)),
        ("sample", ("--workdir= ",)),
    ],
)
def test_a_directory_without_a_name_is_refused(
    run, monkeypatch, tmp_path, name, arguments
):
    """A shell gives an empty name for a variable that is not set."""
    monkeypatch.chdir(tmp_path)
    config = os.path.join(os.path.dirname(__file__), "..", "experiments")
    config = os.path.join(config, "tiny_config.py")
    arguments = [argument.replace(CONFIG, config) for argument in arguments]
    actual = run(name, *arguments)
    assert is_one_line(*actual), actual
    assert "empty" in actual[2]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("train", ("--config=", "--workdir=x")),
        ("sweep", ("--config=", "--dry_run")),
        ("sweep", ("--dry_run", "--config")),
    ],
)
def test_a_config_without_a_name_is_refused(run, name, arguments):
    actual = run(name, *arguments)
    assert is_one_line(*actual), actual
    assert "--config" in actual[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--nodes=2", "--workdir=x"), "--nodes is for --on=slurm"),
        (("--jobs=3", "--on=join", "--workdir=x"), "--jobs is for --on=slurm"),
        (("--slurm.time=5", "--workdir=x"), "--slurm.time is for --on=slurm"),
        (("--join", "--on=slurm", "--workdir=x"), "leave --on=slurm out"),
        (("--join", "--seeds=3", "--workdir=x"), "leave --seeds out"),
        (("--join",), "--workdir=DIR is needed"),
    ],
)
def test_flags_that_would_be_ignored_are_refused(run, arguments, said):
    actual = run("sweep", f"--config={CONFIG}", *arguments)
    assert is_one_line(*actual), actual
    assert said in actual[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--device=v5e", "--workdir=x"), "--device=v5e is for --dry_run"),
        (
            ("--device=v9", "--dry_run", "--sweep="),
            "unknown device 'v9'; known: v5e, v5e-4",
        ),
    ],
)
def test_a_device_that_cannot_be_compiled_for_is_refused(run, arguments, said):
    actual = run("sweep", f"--config={CONFIG}", *arguments)
    assert is_one_line(*actual), actual
    assert said in actual[2]


@pytest.mark.parametrize("name", ["train", "sweep", "report", "translate", "sample"])
def test_a_name_that_is_too_long_is_refused(run, name):
    needs_config = name in ("train", "sweep")
    arguments = [f"--config={CONFIG}"] if needs_config else []
    actual = run(name, f"--workdir={LONG}", *arguments)
    assert is_one_line(*actual), actual
    assert "xxxx" in actual[2]


@pytest.mark.parametrize(
    "code", [errno.ENAMETOOLONG, errno.EISDIR, errno.EROFS, errno.EBUSY]
)
def test_an_error_of_the_file_system_is_one_line(code, capsys):
    def fail():
        raise OSError(code, os.strerror(code), LONG)

    with pytest.raises(SystemExit) as end:
        command.without_traceback(fail)
    actual = (end.value.code, *capsys.readouterr())
    assert is_one_line(*actual), actual
    assert "/tmp/xxx" in actual[2] and os.strerror(code) in actual[2]


def test_a_directory_in_a_files_place_is_one_line(tmp_path, capsys):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(SystemExit) as end:
        command.without_traceback((tmp_path / "config.json").read_text)
    actual = (end.value.code, *capsys.readouterr())
    assert is_one_line(*actual), actual
    assert f"{tmp_path}/config.json: Is a directory; move that" in actual[2]


@pytest.mark.parametrize("words", the_rest_in_ci([[], ["--help"]], first=1))
def test_a_reader_that_wants_no_more_gets_no_traceback(words, finished):
    call = [sys.executable, "-m", "launch.report", f"--workdir={finished}", *words]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(call, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_an_error_without_a_path_keeps_its_traceback():
    with pytest.raises(BrokenPipeError):
        command.without_traceback(lambda: (_ for _ in ()).throw(BrokenPipeError()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_config():\n    return None\n", "must return a ConfigDict"),
        ("import sys\nsys.exit(0)\n", ":2: SystemExit: 0"),
        ("def get_config():\n    raise SystemExit\n", ":2: SystemExit"),
        (
            "from ml_collections import ConfigDict\n"
            "def get_config():\n"
            "    config = ConfigDict()\n"
            "    config.model = config\n"
            "    return config\n",
            "the config holds itself",
        ),
    ],
)
@pytest.mark.parametrize("name", ["train", "sweep"])
def test_a_config_that_is_none_is_one_line(run, config, tmp_path, name, text, message):
    actual = run(name, f"--config={config(text)}", f"--workdir={tmp_path / 'w'}")
    assert is_one_line(*actual), actual
    assert message in actual[2]


BASE = "import sys\nfrom tests.experiments.tiny_config import get_config\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sys.exit(0)", "SystemExit: 0"),
        ("yield {'seed': 10**5000}", "sets seed to a number beyond those of float"),
        ("yield {'seed': (1, 10**5000)}", "sets seed to a value that cannot be"),
        ("yield {'label': '\\udc80'}", r"sets label to '\udc80'"),
        ("yield {'data.source': '\\udc80'}", r"sets data.source to '\udc80'"),
    ],
)
def test_a_sweep_that_no_file_can_hold_is_one_line(
    run, config, tmp_path, line, message
):
    path = config(f"{BASE}def sweep_bad():\n    {line}\n    yield {{}}\n")
    actual = run("sweep", f"--config={path}", "--sweep=bad", f"--workdir={tmp_path}")
    assert is_one_line(*actual), actual
    assert message in actual[2]


@pytest.mark.parametrize(
    ("name", "value", "own"),
    [
        ("JAX_ENABLE_X64", "1", "0"),
        ("JAX_NUMPY_DTYPE_PROMOTION", "strict", "standard"),
    ],
)
def test_dtypes_are_those_of_the_settings(name, value, own, monkeypatch, capsys):
    monkeypatch.setenv(name, value)
    for _ in range(2):
        command.set_dtypes()
        assert os.environ[name] == own
    # Once: the processes that it starts need not say it again.
    said = f"note: without {name}={value}: a trial computes in training.precision\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_the_output_cannot_show_is_escaped(
    run, finished, monkeypatch, encoding, capsys
):
    file = io.BytesIO()
    output = io.TextIOWrapper(file, encoding=encoding)
    with capsys.disabled(), monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", output)
        command.escape_output()
        print("98.0 ± 0.1 …", file=output, flush=True)
    expected = b"98.0 \\xb1 0.1 \\u2026\n"
    if encoding == "latin-1":
        expected = b"98.0 \xb1 0.1 \\u2026\n"
    assert file.getvalue() == expected


@pytest.fixture
def read_only(monkeypatch):
    """Makes a directory one of a read-only file system, as this process sees it."""

    def make(directory):
        access = os.access
        open_file = os.open
        mkdir = os.mkdir

        def is_inside(path):
            return str(path).startswith(str(directory))

        def refuse(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

        def open_reading(path, flags, *rest, **options):
            if is_inside(path) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                refuse(path)
            return open_file(path, flags, *rest, **options)

        monkeypatch.setattr(os, "open", open_reading)
        monkeypatch.setattr(
            os,
            "access",
            lambda path, mode, **options: (
                not (is_inside(path) and mode & os.W_OK) and access(path, mode)
            ),
        )
        monkeypatch.setattr(
            os,
            "mkdir",
            lambda path, *rest: (
                refuse(path)
                if is_inside(path) and not os.path.exists(path)
                else mkdir(path, *rest)
            ),
        )
        # open() of Python does not call os.open.
        for module in (files, write):
            monkeypatch.setattr(
                module, "write_bytes", lambda path, content: refuse(path), raising=True
            )

    return make


def test_a_report_is_shown_where_nothing_can_be_written(run, finished, read_only):
    read_only(finished)
    status, printed, said = run("report", f"--workdir={finished}")
    assert (status, said) == (0, "")
    assert printed.splitlines()[-1] == f"not written to {finished}: " + os.strerror(
        errno.EROFS
    )
    assert "perplexity" in printed
    assert not list(finished.glob("report.*"))


def test_a_finished_sweep_is_shown_where_nothing_can_be_written(
    run, tmp_path, read_only
):
    points = [{"seed": 0}, {"seed": 1}]
    # Into the cache, which is made before anything is trained.
    prepare(resolve(tiny_config.get_config()).data)
    for trial in plan_trials(tiny_config.get_config(), points):
        directory = tmp_path / trial.directory
        files.write_json(directory / "config.json", trial.settings.to_dict())
        files.write_json(directory / "result.json", fakes.finished(1.1, 90))
    arguments = (f"--config={CONFIG}", "--sweep=seed", f"--workdir={tmp_path}")
    status, shown, said = run("sweep", *arguments)
    assert (status, said) == (0, "")
    assert shown.endswith("report.html\n")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    read_only(tmp_path)
    status, shown, said = run("sweep", *arguments)
    assert (status, said) == (0, "")
    assert "2 of 2 trials were finished before" in shown
    assert shown.endswith(f"not written to {tmp_path}: {os.strerror(errno.EROFS)}\n")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before
    # One that has something left to train cannot go on.
    actual = run("sweep", *arguments, "--seeds=3", "--sweep=positions")
    assert actual[0] == 2 and "sweep.json: Read-only file system" in actual[2]


def test_a_read_only_directory_needs_no_lock(tmp_path, read_only):
    read_only(tmp_path)
    with files.lock(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_a_directory_that_can_be_written_to_is_locked_or_refused(tmp_path, monkeypatch):
    """A .lock of someone else, that this process may not open, counts."""

    def refuse(path, *rest, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError), files.lock(tmp_path):
        pass


def test_a_cache_of_fonts_that_cannot_be_written_is_not_reported(tmp_path):
    """It is no directory here, as root may write to any."""
    (tmp_path / "file").touch()
    environment = {**os.environ, "MPLCONFIGDIR": str(tmp_path / "file")}
    program = "import launch, matplotlib; print(matplotlib.get_cachedir())"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")
