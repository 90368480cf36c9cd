"""Writes the report of a sweep or of a single run: python -m launch.report --workdir=DIR

Prints the table and the paths of report.md, report.csv and report.html, which stand in DIR.
"""

import sys

from absl import app, flags

from experiments import report
from experiments.ledger import LedgerError


def main(argv: list[str]) -> int:
    """Exit status: 0, or 2 after one line on stderr for what the user got wrong."""
    workdir = flags.FLAGS.workdir
    if len(argv) > 1 or not workdir:
        stray = f", not {argv[1]!r}" if len(argv) > 1 else ""
        return _error(f"name the directory of a sweep or a run with --workdir=DIR{stray}")
    try:
        written = report.write(workdir)
    except (LedgerError, OSError) as error:
        return _error(error)
    report.show(written.table)
    print(written.markdown, written.csv, written.html, sep="\n")
    return 0


def _error(message) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "Directory of a sweep or of a single run.")
    app.run(main)
