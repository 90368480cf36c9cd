"""Validates a custom part, such as a score, an optimizer or a corpus, against its contract.

    python -m launch.check my_score.py:Cosine
    python -m launch.check 'kerple.py:Kerple(reach=8)' my_module:Mixer
    python -m launch.check reversal.py:Reversal my_metric.py:TER my_opt.py:signs

Scores, normalisers, positions, heads, residuals, mixers, optimizers, schedules, corpora and
metrics are each named as a setting names them, with options in brackets. For each a table
says what was tried: every kernel, precision and mask, gradients, a decoder's cache, layers 1
to 3 of heads; of an optimizer a few steps, a saved state and lanes; of a corpus all its
texts, several times; of a metric small texts. The exit status is 1 where anything fails.
"""

import sys
from collections.abc import Callable
from typing import NamedTuple

import rich.markup
import rich.table
from absl import app, flags

from attn import contract
from experiments.data.contract import check_corpus
from experiments.errors import hint
from experiments.evaluation.contract import check_metric
from experiments.optim_contract import check_optimizer, check_schedule
from experiments.settings import SettingsError, user_code
from experiments.settings.choices import (
    HEADS,
    METRICS,
    MIXERS,
    NORMALISERS,
    OPTIMIZERS,
    POSITIONS,
    RESIDUALS,
    SCHEDULES,
    SCORES,
    SOURCES,
    TEXT,
    Choices,
)
from experiments.system import machine
from experiments.system.console import stdout_console
from launch import command

WIDTH = 160
"""Characters of a line where the output is no terminal."""


class Kind(NamedTuple):
    """Holds what may be checked, and how."""

    name: str
    choices: Choices
    check: Callable


KINDS = (
    Kind("score", SCORES, contract.check_score),
    Kind("normaliser", NORMALISERS, contract.check_normaliser),
    Kind("positions", POSITIONS, contract.check_positions),
    Kind("heads", HEADS, contract.check_heads),
    Kind("residual", RESIDUALS, contract.check_residual),
    Kind("mixer", MIXERS, contract.check_mixer),
    Kind("optimizer", OPTIMIZERS, check_optimizer),
    Kind("schedule", SCHEDULES, check_schedule),
    Kind("corpus", SOURCES, lambda choice: check_corpus(choice.text)),
    Kind("metric", METRICS, check_metric),
)


def main(names: list[str]) -> None:
    """Checks each of `names`, prints the tables, and exits with 1 where a row fails."""
    machine.check_platform()
    console = stdout_console(WIDTH, highlight=False)
    failures = 0
    for name in names:
        kind, rows = run(name)
        failed = [row for row in rows if not row.ok]
        failures += len(failed)
        console.print(table(rows))
        passed = len(rows) - len(failed)
        line = f"{name} ({kind}): {passed} of {len(rows)} checks passed\n"
        console.print(line, markup=False, soft_wrap=True)
    sys.exit(1 if failures else 0)


def run(name: str) -> tuple[str, list[contract.Row]]:
    """Returns what `name` stands for, and the rows of its checks.

    Raises:
      SettingsError: it is nothing that can be checked, or cannot be loaded.
    """
    kind = kind_of(name)
    return kind.name, kind.check(kind.choices.value(name, kind.name))


def kind_of(name: str) -> Kind:
    """Returns what `name` is one of. Raises SettingsError for none."""
    match = TEXT.fullmatch(name)
    if match and not match["place"] and not user_code.is_file(name):
        for kind in KINDS:
            if match["name"] in kind.choices.known:
                return kind
        known = [each for kind in KINDS for each in kind.choices.known]
        raise SettingsError(
            f"{name}: nothing of the library has this name"
            f"{hint(match['name'], known, of_methods=True)}; one's own is named as "
            "file.py:Name"
        )
    if not match or not match["place"]:
        raise SettingsError(_names_in(name))
    loaded = user_code.load(match["place"], match["name"], match["digits"] or "")
    for kind in KINDS:
        if kind.choices.accepts(loaded.cls):
            return kind
    needed = ", ".join(kind.choices.needed for kind in KINDS)
    raise SettingsError(f"{name}: {match['name']} is none of these: {needed}")


def _names_in(place):
    """Says what of a file, or of something else without a name, can be checked."""
    if not user_code.is_file(place):
        return f"{place}: name a class, as file.py:Name, with options as (option=value)"
    names = [
        name
        for name, value in user_code.own_names(place).items()
        # Any function may be a schedule.
        if any(kind.choices.accepts(value) for kind in KINDS if kind.name != "schedule")
    ]
    if not names:
        return f"{place}: nothing in it can be checked (--help says what can)"
    listed = ", ".join(f"{place}:{name}" for name in names)
    return f"{place}: name one of {listed}"


def table(rows: list[contract.Row]) -> rich.table.Table:
    """Returns the rows as a person reads them."""
    drawn = rich.table.Table(box=None, pad_edge=False, show_header=False)
    for row in rows:
        mark = "[green]ok[/green]" if row.ok else "[red]fails[/red]"
        # What was tried may have brackets, which rich would read as its markup.
        drawn.add_row(
            mark, rich.markup.escape(row.what), rich.markup.escape(row.detail)
        )
    return drawn


def cli() -> None:
    """Runs the command `attn-check`."""
    # Before app.run, which would print the help of absl.
    if command.HELP & set(sys.argv[1:]):
        print(__doc__.strip())
        return
    if not sys.argv[1:]:
        command.mistake(
            "name a class, such as python -m launch.check my_score.py:Cosine"
        )
    command.open_streams()
    command.escape_output()
    command.quiet_jax()
    app.run(_start, flags_parser=flags.FLAGS)


def _start(arguments):
    command.without_traceback(lambda: main(arguments[1:]))


if __name__ == "__main__":
    cli()
