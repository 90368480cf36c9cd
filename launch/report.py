"""Writes the report of a sweep or of a single run, or answers a question about the
trials of several.

    python -m launch.report --workdir=runs/quick
    python -m launch.report --workdir=runs/quick --interest=bleu:0.5,perplexity:0.01
    python -m launch.report --workdir=runs/quick --differences=bleu --sort
    python -m launch.report --workdir=runs/quick --cost --figures
    python -m launch.report --workdir=runs/a,runs/b --out=runs/both
    python -m launch.report --workdir=runs/quick,runs/mine --sql='select ...'

The first prints the table and the paths of report.md, report.csv, report.tex and
report.html, which stand in the workdir. The second says of each row whether it is equal
to base within what matters to you. The third prints the differences to base in one metric
too, a line a row with its interval drawn, from the lowest to the highest. The fourth has
columns of arithmetic, time and memory, a figure of quality against them, and writes every
figure to the folder figures as SVG and PDF. The fifth is the report of several workdirs as one
sweep, by the rules of launch.collect; without --out its table is printed and no file written.
The last writes nothing; experiments/report/sql.py lists the tables.
"""

import os

from absl import flags

from experiments.errors import hint
from experiments.evaluation.metrics import METRICS
from experiments.report.merge import distinct, read_merged
from experiments.report.sql import QueryError, run_query, show_answer
from experiments.report.terminal import print_differences, print_table
from experiments.report.write import write_results
from launch import command

_WORKDIR = flags.DEFINE_multi_string(
    "workdir",
    None,
    "The directory of a sweep or a run; several, with commas or given again, are one sweep",
)
_OUT = flags.DEFINE_string(
    "out", None, "The directory of the report, where it is not the workdir"
)
command.check_directory("out")
_MIXED_CODE = command.define_mixed_code()
_SQL = flags.DEFINE_string(
    "sql",
    None,
    "A query over the tables trials and metrics, for DuckDB; shown, not written",
)


_METRIC = flags.DEFINE_list(
    "metric",
    [],
    "Metrics from outside that the runs have, as path/to/my_metric.py:TER",
)


_INTEREST = command.define_interest()


_COST = flags.DEFINE_bool(
    "cost", False, "Shows training FLOPs, seconds, tokens per second and peak memory"
)


_FIGURES = flags.DEFINE_bool(
    "figures", False, "Writes every figure to the folder figures, as SVG and as PDF"
)


_DIFFERENCES = flags.DEFINE_string(
    "differences", None, "A metric whose differences to base are printed, as bleu"
)


_SORT = flags.DEFINE_bool(
    "sort", False, "Prints --differences from the lowest to the highest"
)


def main():
    metrics = (*METRICS, *command.load_metrics(_METRIC.value))
    workdirs = distinct(_read_workdirs())
    # An empty query is a question too, and must not write a report.
    if _SQL.value is not None:
        try:
            return show_answer(run_query(workdirs, _SQL.value))
        except QueryError as error:
            command.mistake(f"--sql: {error}")
    out = _OUT.value or (workdirs[0] if len(workdirs) == 1 else None)
    if _FIGURES.value and out is None:
        command.mistake("--figures are files: --out=DIR names a directory for them")
    listed = _differences_metric(metrics)
    interest = command.read_interest(_INTEREST.value, metrics)
    written = write_results(
        read_merged(workdirs, metrics, _MIXED_CODE.value),
        out,
        metrics,
        interest,
        cost=_COST.value,
        figures=_FIGURES.value,
    )
    if listed:
        print_differences(written.table.labels, written.rows, listed, _SORT.value)
    print_table(written.table)
    if written.unwritten:
        print(written.unwritten)
    else:
        print(written.markdown, written.csv, written.latex, written.html, sep="\n")
        if written.figures:
            print(written.figures)


def _read_workdirs():
    """Returns the directories that --workdir names; ends with a usage error for ""."""
    workdirs = []
    for text in _WORKDIR.value:
        names = split(text)
        if not all(map(str.strip, names)):
            command.mistake(
                f"--workdir={text}: an empty name; name a directory, . for this one"
            )
        workdirs += names
    return workdirs


def _differences_metric(metrics):
    """Returns the metric that --differences names, None without it."""
    if _DIFFERENCES.value is None:
        if _SORT.value:
            command.mistake("--sort orders the lines of --differences=METRIC: name one")
        return None
    known = {metric.key: metric for metric in metrics}
    if _DIFFERENCES.value not in known:
        command.mistake(
            f"--differences={_DIFFERENCES.value}: no such metric; there are "
            f"{', '.join(known)}{hint(_DIFFERENCES.value, known)}"
        )
    return known[_DIFFERENCES.value]


def split(text: str) -> list[str]:
    """Splits directories at commas, but not inside a name that exists, such as h=2,d_k=32."""
    parts = text.split(",")
    directories = []
    while parts:
        lengths = range(len(parts), 0, -1)
        # os.path has no error for the joined names, which may be longer than a name can be.
        names = {n: ",".join(parts[:n]) for n in lengths}
        taken = next((n for n in lengths if os.path.exists(names[n])), 1)
        directories.append(names[taken])
        parts = parts[taken:]
    return directories


def cli() -> None:
    """Runs the command `attn-report`."""
    command.start(main, required=("workdir",))


if __name__ == "__main__":
    cli()
