"""What commands that train print before they do."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
import rich.console

from launch import training


@pytest.mark.parametrize("prints", [True, False])
def test_corpora_are_warned_of_unless_the_command_chose_them(monkeypatch, prints):
    prepared = SimpleNamespace(warnings=lambda: ["7 texts of training are in the test"])
    monkeypatch.setattr(training, "prepare", lambda data: prepared)
    console = rich.console.Console(file=io.StringIO())
    sweep = training.Sweep(Path(), console, "", None, prints_warnings=prints)
    # Two trials of one corpus: it is read, and warned of, once.
    trial = SimpleNamespace(settings=SimpleNamespace(data="corpus"))
    assert training._prepare_all(sweep, [trial, trial]) == {"corpus": prepared}
    assert console.file.getvalue().count("7 texts of training") == int(prints)
