"""Commands called in this process, because JAX takes seconds to import."""

import importlib
import sys

import pytest
from absl import flags

from launch.__main__ import COMMANDS


@pytest.fixture
def run(monkeypatch, capsys):
    """Calls a command in this process, as a person types it; returns (status, stdout, stderr)."""
    # The command would start this process again.
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    before = set(flags.FLAGS)

    def call(name, *arguments):
        # Every command defines its flags when it is imported.
        for flag in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, flag)
        sys.modules.pop(f"launch.{name}", None)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        module = importlib.import_module(f"launch.{name}")
        status = 0
        try:
            module.cli()
        except SystemExit as end:
            status = end.code or 0
        return status, *capsys.readouterr()

    yield call
    for flag in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, flag)
    for name in (*COMMANDS, "__main__"):
        sys.modules.pop(f"launch.{name}", None)
