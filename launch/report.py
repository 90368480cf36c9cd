"""Writes the report of a sweep or of a single run.

    python -m launch.report --workdir=runs/quick
    python -m launch.report --workdir=runs/quick --interest=bleu:0.5,perplexity:0.01
    python -m launch.report --workdir=runs/quick --differences=bleu --sort
    python -m launch.report --workdir=runs/quick --cost --figures --width=3.3in
    python -m launch.report --workdir=runs/mine --base=score=scaled_dot --within=d_k
    python -m launch.report --workdir=runs/mine --pairs=score

The first prints the table and the paths of report.md, .csv, .tex and .html, and of
comparisons.csv and .json, which stand in the workdir. The second says of each row whether it
is equal to base within what matters to you. The third prints the differences to base in one
metric too, a line a row with its interval drawn, from the lowest to the highest. The fourth
has columns of arithmetic, time and memory, and writes every figure to the folder figures as
SVG and PDF, as wide as a column of print. The fifth compares each row with the one of
scaled dot products at its own d_k, the sixth every two scores that have the rest in common;
both correct for these comparisons alone. --out=DIR writes all of it elsewhere.
"""

import re

from absl import flags

from experiments.errors import hint
from experiments.evaluation.metrics import METRICS
from experiments.report.terminal import print_differences, print_table
from experiments.report.trial_files import read_results
from experiments.report.write import write_results
from launch import command

_WORKDIR = command.define_workdir("The directory of a sweep or a run")
_OUT = flags.DEFINE_string(
    "out", None, "The directory of the report, where it is not the workdir"
)
command.check_directory("out")


_MIXED_CODE = command.define_mixed_code()


_QUESTION = command.define_question()


_METRIC = flags.DEFINE_list(
    "metric",
    [],
    "Custom metrics that the runs have, as path/to/my_metric.py:TER",
)


_INTEREST = command.define_interest()


_COST = flags.DEFINE_bool(
    "cost", False, "Shows training FLOPs, seconds, tokens per second and peak memory"
)


_FIGURES = flags.DEFINE_bool(
    "figures", False, "Writes every figure to the folder figures, as SVG and as PDF"
)


_WIDTH = flags.DEFINE_string(
    "width", None, "How wide written figures are, as 3.3in or 84mm: a column of print"
)


_P_VALUES = flags.DEFINE_bool(
    "p_values", False, "Has p in place of intervals in report.tex"
)


_DIFFERENCES = flags.DEFINE_string(
    "differences", None, "A metric whose differences to base are printed, as bleu"
)


_SORT = flags.DEFINE_bool(
    "sort", False, "Prints --differences from the lowest to the highest"
)


def main():
    metrics = (*METRICS, *command.load_metrics(_METRIC.value))
    listed = _differences_metric(metrics)
    interest = command.read_interest(_INTEREST.value, metrics)
    written = write_results(
        read_results(_WORKDIR.value, metrics),
        _OUT.value or _WORKDIR.value,
        interest=interest,
        cost=_COST.value,
        figures=_FIGURES.value,
        mixed_code=_MIXED_CODE.value,
        question=command.read_question(_QUESTION),
        with_p=_P_VALUES.value,
        width=_width(),
    )
    if listed:
        print_differences(written.rows, listed, _SORT.value)
    print_table(written.table)
    if written.unwritten:
        print(written.unwritten)
    else:
        print(written.markdown, written.csv, written.comparisons, sep="\n")
        print(written.latex, written.html, sep="\n")
        if written.figures:
            print(written.figures)


def _width() -> float | None:
    """Returns --width in inches, None without it."""
    text = _WIDTH.value
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(in|mm|cm)", text)
    inches = (
        float(match[1]) / {"in": 1, "mm": 25.4, "cm": 2.54}[match[2]] if match else 0
    )
    if not 1 <= inches <= 40:
        command.mistake(
            f"--width={text} is no width from 1in to 40in: give 3.3in, or 84mm"
        )
    if not _FIGURES.value:
        command.mistake("--width is for the files that --figures writes: give both")
    return inches


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


def cli() -> None:
    """Runs the command `attn-report`."""
    command.start(main, required=("workdir",))


if __name__ == "__main__":
    cli()
