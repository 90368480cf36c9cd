"""Makes what README.md and experiments/results/quick show of `make sweep`, from one run.

    make readme

trains the quick table anew, into runs/readme, and writes the table and its finding into
README.md, between the lines that name this file, and into the data and the page of
experiments/results/quick, the report's picture beside them. The checkout must be that of a
commit. The picture takes Chromium: one in the path, or that which CHROMIUM names.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import rich.console

from experiments.report.terminal import print_table
from experiments.report.write import Report, write_report
from experiments.system import machine
from launch.notebooks.browser import draw, find_browser

ROOT = Path(__file__).parents[1]
WORKDIR = ROOT / "runs/readme"
STEM = ROOT / "experiments/results/quick/cldr"
PICTURE = ROOT / "experiments/results/quick/report.png"
SWEEP = "--config=experiments/configs/quick.py --sweep=table,seed"


def main() -> None:
    commit = machine.git_commit() or ""
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        sys.exit(
            "the checkout differs from its commit: commit first, as the page names it"
        )
    if not find_browser():
        sys.exit("no browser for the picture: install Chromium, or name it by CHROMIUM")
    print(f"trained in {sweep() / 60:.1f} min")
    report = write_report(WORKDIR)
    replace(ROOT / "README.md", of_terminal(report))
    results("keep", str(WORKDIR), str(STEM), SWEEP)
    results("write")
    draw(report.html, PICTURE)


def sweep() -> float:
    """Trains the table, as if nothing had been compiled before; returns the seconds."""
    shutil.rmtree(WORKDIR, ignore_errors=True)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "launch.sweep",
                *SWEEP.split(),
                f"--workdir={WORKDIR}",
            ],
            cwd=ROOT,
            env=os.environ | {"XDG_CACHE_HOME": cache},
            check=True,
        )
    return time.perf_counter() - begin


def of_terminal(report: Report) -> str:
    """Returns the table and its finding as a terminal shows them, indented as code."""
    shown = io.StringIO()
    # As a pipe: plain columns, which a reader's own terminal may draw otherwise.
    print_table(report.table, rich.console.Console(file=shown, width=120))
    lines = shown.getvalue().splitlines()
    rows = len(report.table.results.rows)
    table = [line.rstrip() for line in lines[: rows + 1]]
    wide = subprocess.run(
        ["fold", "--spaces", "--width=104"],
        input=report.table.finding,
        capture_output=True,
        text=True,
        check=True,
    )
    finding = [line.rstrip() for line in wide.stdout.splitlines()]
    return "\n".join(f"    {line}".rstrip() for line in [*table, "", *finding])


def results(*arguments: str) -> None:
    """Runs .ci/results.py."""
    command = [sys.executable, ".ci/results.py", *arguments]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": "."}, check=True)


def replace(path: Path, text: str) -> None:
    """Puts a text between the two lines of a page that name this file."""
    begin, end = "<!-- .ci/readme.py -->", "<!-- /.ci/readme.py -->"
    before, _, rest = path.read_text().partition(begin)
    _, marked, after = rest.partition(end)
    if not marked:
        sys.exit(f"{path} has no lines {begin} and {end}")
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


if __name__ == "__main__":
    main()
