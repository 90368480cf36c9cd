"""The console draws where a person looks, and nowhere else."""

import subprocess
import sys

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
