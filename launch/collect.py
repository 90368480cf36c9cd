"""Brings the finished trials of several workdirs together into one.

python -m launch.collect runs/quick-1 runs/quick-2 runs/quick-3 --workdir=runs/quick

Each workdir is of a part of one sweep (launch.sweep --part=1/3), or of a sweep of the same
config. Equal trials are taken once; trials that contradict each other are named and nothing
is written. A trial that is not what it wrote, by its checksums, is named and refused.
Unfinished trials are listed, not copied. The same call again goes on where one was killed,
and a later one may add another workdir to what is there. launch.report --workdir=runs/quick
then reports on all, and launch.sweep with the same config trains there what is missing.
Checkpoints are copied too; --nocheckpoints leaves them out.
"""

import functools
import sys

from absl import flags

from experiments.report.collect import collect
from experiments.system.console import print_line, stdout_console
from launch import command

_WORKDIR = command.define_workdir("The directory that all trials are brought to")
_CHECKPOINTS = flags.DEFINE_bool(
    "checkpoints", True, "Copies checkpoints too, which launch.translate needs"
)
_MIXED_CODE = command.define_mixed_code()


def main(workdirs: list[str]) -> None:
    """Collects `workdirs`, and prints what came of it."""
    if not workdirs:
        command.mistake(
            "name the workdirs to collect, as python -m launch.collect runs/a runs/b "
            "--workdir=runs/all"
        )
    collected = collect(workdirs, _WORKDIR.value, _CHECKPOINTS.value, _MIXED_CODE.value)
    lines = [f"{collected.copied} trials copied, {collected.kept} were there already"]
    if collected.unfinished:
        lines.append(f"{collected.unfinished} have no result yet and were left out")
    if collected.missing:
        lines.append(f"{collected.missing} of the plan are in none of these workdirs")
    lines.append(f"python -m launch.report --workdir={_WORKDIR.value}")
    console = stdout_console()
    for line in lines:
        print_line(console, line)


def cli() -> None:
    """Runs the command `attn-collect`."""
    # absl parses flags only, so the directories leave the command line first.
    directories, sys.argv[1:] = command.split_words(sys.argv[1:])
    command.start(functools.partial(main, directories), required=("workdir",))


if __name__ == "__main__":
    cli()
