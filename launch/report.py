"""Writes the report of a sweep or of a single run.

python -m launch.report --workdir=runs/quick

Prints the table and the paths of report.md, report.csv and report.html, which stand in the workdir.
"""

from experiments import report
from launch import command

_WORKDIR = command.define_workdir()


def main():
    written = report.write(_WORKDIR.value)
    report.show(written.table)
    print(written.markdown, written.csv, written.html, sep="\n")


if __name__ == "__main__":
    command.start(main)
