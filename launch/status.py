"""Reports sweep status, while it runs or later, from any machine that sees its directory.

python -m launch.status --workdir=runs/quick

It prints how many trials have ended, run and wait, where each runs, since when and how far it
is, what failed and why, and the time that is left. --json prints all of it for a program.
"""

from pathlib import Path

from absl import flags

from experiments.sweep import slurm
from experiments.sweep.status import lines_of, read_status, to_json
from launch import command

_WORKDIR = command.define_workdir("The directory of the sweep")
_JSON = flags.DEFINE_bool("json", False, "Print all that is known as JSON")


def main():
    workdir = Path(_WORKDIR.value)
    status = read_status(workdir)
    if _JSON.value:
        print(to_json(status))
        return
    print(*lines_of(status), sep="\n")
    for task, lines in slurm.failures(workdir).items():
        print(f"SLURM task {task} ended without its work:\n{lines}")


def cli() -> None:
    """Runs the command `attn-status`."""
    command.start(main, required=("workdir",))


if __name__ == "__main__":
    cli()
