"""Holds a score, normaliser, position, heads or mixer of one's own to the contract.

    python -m launch.check my_score.py:Cosine
    python -m launch.check 'kerple.py:Kerple(reach=8)' my_module:Mixer

Each is named as a setting names it, with options in brackets. For each a table says what
was tried: every kernel, precision and mask, gradients, and a decoder's cache. The exit
status is 1 where anything fails.
"""

import sys

import rich.markup
import rich.table
from absl import app, flags

from attn import contract
from experiments.settings import OutsideError, SettingsError
from experiments.settings.choices import HEADS, MIXERS, NORMALISERS, POSITIONS, SCORES
from experiments.system import machine
from experiments.system.console import stdout_console
from launch import command

CHECKS = (
    ("score", SCORES, contract.check_score),
    ("normaliser", NORMALISERS, contract.check_normaliser),
    ("positions", POSITIONS, contract.check_positions),
    ("heads", HEADS, contract.check_heads),
    ("mixer", MIXERS, contract.check_mixer),
)


def main(names: list[str]) -> None:
    """Checks each of `names`, prints the tables, and exits with 1 where a row fails."""
    machine.check_platform()
    console = stdout_console(highlight=False)
    failures = 0
    for name in names:
        kind, rows = run(name)
        failed = [row for row in rows if not row.ok]
        failures += len(failed)
        console.print(table(rows))
        passed = len(rows) - len(failed)
        console.print(f"{name} ({kind}): {passed} of {len(rows)} checks passed\n")
    sys.exit(1 if failures else 0)


def run(name: str) -> tuple[str, list[contract.Row]]:
    """Returns what `name` stands for, and the rows of its checks.

    Raises:
      SettingsError: it is neither a score, a normaliser, positions, heads nor a mixer, or
        cannot be loaded.
    """
    refusals = []
    for kind, choices, function in CHECKS:
        try:
            value = choices.value(name, kind)
        # The class itself is at fault, and would be as any other kind too.
        except OutsideError:
            raise
        except SettingsError as error:
            refusals.append(str(error))
            continue
        return kind, function(value)
    raise SettingsError("; ".join(refusals))


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
