"""Writes the files of a benchmark: its tables, and its numbers with their origin."""

import datetime
import functools
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.system import machine
from experiments.system.files import write_json, write_text
from launch.bench.harness import device, libraries
from launch.bench.harness.table import Table, markdown

_QUESTION = "from experiments.system import machine; print(machine.device())"


def write(
    directory: Path,
    command: str,
    *,
    title: str,
    tables: Sequence[Table],
    results: dict,
    remark: str = "",
    packages: tuple[str, ...] = (),
    stems: tuple[str, str] = ("table", "results"),
) -> list[Path]:
    """Writes the tables as Markdown and `results` as JSON, and returns both paths.

    Args:
      directory: where the files go.
      command: the name of the benchmark.
      title: the heading of the Markdown file.
      tables: the tables, in their order.
      results: every number, to stand beside `circumstances`.
      remark: a sentence after the one that names the machine, which follows command, date
        and commit.
      packages: packages whose versions are given beside those of `PACKAGES`.
      stems: the names of the files, without their endings.
    """
    paths = [directory / f"{stems[0]}.md", directory / f"{stems[1]}.json"]
    ran = circumstances(command, *packages)
    origin = f"`{ran['command']}`, {ran['date'][:10]}, commit {ran['git_commit']}."
    sentence = f"{where(*packages)} {remark}".strip()
    lines = [f"# {title}", "", origin, "", sentence, "", *map(markdown, tables)]
    write_text(paths[0], "\n".join(lines))
    write_json(paths[1], {**ran, **results})
    return paths


def where(*packages: str) -> str:
    """Returns the machine and the versions of the packages in one sentence."""
    versions = _versions(packages)
    installed = [f"{name} {version}" for name, version in versions.items() if version]
    return f"{_device()}, threads: {machine.threads()}; {', '.join(installed)}."


def circumstances(command: str, *packages: str) -> dict:
    """Returns when, where and with what a benchmark ran, for its record."""
    now = datetime.datetime.now(datetime.UTC)
    # The name was taken off sys.argv before the flags were parsed.
    words = ["python", "-m", "launch.bench", command, *sys.argv[1:]]
    return {
        "command": shlex.join(words),
        "date": now.isoformat(timespec="seconds"),
        "git_commit": machine.git_commit(),
        "device": _device(),
        "threads": machine.threads(),
        # Whether there were huge pages, without which large arrays take much longer.
        "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES"),
        "versions": _versions(packages),
    }


@functools.cache
def _device():
    """Returns the kind of the device that was measured, with a CPU's model."""
    if device.platform() == device.CPU:
        return machine.device()
    # Of another process: this one leaves accelerators to those that are measured.
    asked = subprocess.run(
        [sys.executable, "-c", _QUESTION],
        env={**os.environ, **device.environment()},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return asked.stdout.strip()


def _versions(packages):
    return libraries.versions(libraries.PACKAGES + packages)
