"""The console draws where a person looks, and nowhere else."""

import io
import subprocess
import sys

import rich.console

from experiments.system.console import print_line

SHOW = """
from experiments.system.console import stdout_console
console = stdout_console(width=150)
print(console.is_terminal, console.width)
console.print("[red]text")
"""


def test_a_pipe_is_no_terminal_whatever_the_environment_says():
    """Notebooks and CI set FORCE_COLOR, which rich takes for a terminal."""
    environment = {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "PYTHONPATH": "."}
    shown = subprocess.run(
        [sys.executable, "-c", SHOW], env=environment, capture_output=True, text=True
    )
    assert shown.stdout == "False 150\ntext\n", shown.stderr


def test_a_line_is_printed_as_it_stands():
    file = io.StringIO()
    line = "[red]: a row's name, which is longer than the terminal [/] is wide"
    print_line(rich.console.Console(file=file, force_terminal=True, width=20), line)
    assert file.getvalue() == f"{line}\n"
