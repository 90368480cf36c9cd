"""What commands say where a device, or a standard stream, is not there."""

import os
import subprocess
import sys

import jax
import pytest

from experiments.sweep.workers import Worker
from experiments.system import machine
from experiments.system.machine import PlatformError
from launch import command

CONFIG = "--config=tests/experiments/tiny_config.py"


@pytest.fixture(params=["a message", ""])
def no_device(request, monkeypatch):
    """JAX without the device that JAX_PLATFORMS names, as a plugin says it, or as CUDA's."""
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")

    def fail():
        if request.param:
            raise RuntimeError(
                "Unable to initialize backend 'cuda': a message (set JAX_PLATFORMS='' to "
                "automatically choose an available backend)"
            )
        raise AssertionError

    monkeypatch.setattr(jax, "local_devices", fail)


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", CONFIG),
        ("sweep", CONFIG, "--sweep=seed", "--dry_run"),
        ("translate",),
        ("sample",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_device_that_is_not_there_is_one_line(run, tmp_path, no_device, arguments):
    workdir = tmp_path / "run"
    status, printed, said = run(*arguments, f"--workdir={workdir}")
    assert (status, printed) == (2, "")
    assert said.startswith("error: JAX_PLATFORMS=cuda: JAX finds no such device here")
    assert said.endswith("or set JAX_PLATFORMS=cpu\n") and said.count("\n") == 1
    assert not workdir.exists()


def test_a_check_needs_a_device_too(run, no_device):
    status, printed, said = run("check", "dot")
    assert (status, printed) == (2, "") and "JAX_PLATFORMS=cuda" in said


def test_a_worker_without_a_device_says_so(monkeypatch):
    """A sweep ends with the worker's answer: the process that plans opens no device."""
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    worker = Worker(1, {})
    try:
        with pytest.raises(
            PlatformError, match=r"^JAX_PLATFORMS=nonsense: JAX finds no"
        ):
            worker.machine()
    finally:
        worker.stop()


def test_where_there_is_a_device_nothing_is_said():
    machine.check_platform()


def test_a_closed_standard_input_is_one_line(run, monkeypatch):
    """As under cron, systemd and Kubernetes."""
    monkeypatch.setattr(sys, "stdin", None)
    status, printed, said = run("translate", "--workdir=x")
    assert (status, printed) == (2, "")
    assert said.startswith("error: standard input is closed") and said.count("\n") == 1


def test_closed_outputs_are_read_by_nobody(monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    command.open_streams()
    print("to nobody", flush=True)
    for stream in (sys.stdout, sys.stderr):
        assert os.fstat(stream.fileno()).st_rdev == os.stat(os.devnull).st_rdev
        stream.close()


def test_a_closed_streams_number_is_not_given_to_a_file(tmp_path):
    """What is printed there, as by XLA's own code, would be written into the file."""
    path = tmp_path / "file"
    program = (
        "import os\nfrom launch import command\ncommand.open_streams()\n"
        f"file = os.open({str(path)!r}, os.O_WRONLY | os.O_CREAT)\n"
        "[os.write(number, b'printed') for number in (1, 2)]\n"
        "os.write(file, b'written')\n"
    )
    call = '"$0" -c "$1" <&- >&- 2>&-'
    done = subprocess.run(["sh", "-c", call, sys.executable, program])
    assert done.returncode == 0 and path.read_text() == "written"
