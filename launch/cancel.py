"""Ends a sweep on all machines: what trains saves its state and leaves.

python -m launch.cancel --workdir=runs/quick

Processes that train see it within seconds, SLURM's tasks that wait are cancelled. The same
launch.sweep goes on with the sweep later.
"""

import getpass
import platform
from pathlib import Path

from experiments.errors import UserError
from experiments.sweep import slurm
from experiments.sweep.workdir import cancel
from launch import command

_WORKDIR = command.define_workdir("The directory of the sweep")


def main():
    workdir = Path(_WORKDIR.value)
    if not (workdir / "sweep.json").exists():
        raise UserError(f"{workdir} holds no sweep (no sweep.json)")
    # First, so that no task begins anew.
    cancel(workdir, f"{getpass.getuser()} on {platform.node()}")
    tasks = slurm.cancel(workdir)
    of_slurm = f", {len(tasks)} SLURM tasks among them" if tasks else ""
    print(f"{workdir}: all that trains saves and leaves{of_slurm}")


def cli() -> None:
    """Runs the command `attn-cancel`."""
    command.start(main, required=("workdir",))


if __name__ == "__main__":
    cli()
