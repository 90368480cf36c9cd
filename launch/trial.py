"""Trains one trial of a sweep, as one of several processes of one or many hosts.

launch.sweep --nodes starts it on every node, as

    srun python -m launch.trial --workdir=runs/big --trial=h=4,seed=0-0123abcd --hosts=auto

The trial is one that sweep.json lists, and its name that of its directory.
"""

from experiments.system import huge_pages

if __name__ == "__main__":
    # Before the imports that take time, which would otherwise be done twice.
    huge_pages.restart_with_huge_pages()

from pathlib import Path

from absl import flags

from experiments.errors import UserError
from launch import command

_WORKDIR = command.define_workdir("The directory of the sweep")
_TRIAL = flags.DEFINE_string("trial", None, "The name of the trial's directory")
_HOSTS = flags.DEFINE_string(
    "hosts", "auto", "How the processes find each other, as launch.train says"
)
_TRACKER = command.define_tracker()
_OUTSIDE = command.define_outside()


def main():
    command.run_as_one_of(_HOSTS.value, run)


def run(interruption):
    command.load_outside(_OUTSIDE.value)
    # Not at the top: a mistake in the flags need not wait until JAX is imported.
    from experiments.data.dataset import prepare
    from experiments.sweep.joiner import name_of
    from experiments.sweep.workdir import read_trials, trained_alike
    from experiments.system import machine
    from experiments.training import loop, multihost
    from experiments.training.start_point import StartPoint
    from experiments.trial import cost

    workdir = Path(_WORKDIR.value)
    by_name = {name_of(trial): trial for trial in read_trials(workdir)}
    if _TRIAL.value not in by_name:
        raise UserError(f"--trial={_TRIAL.value}: {workdir} lists no such trial")
    trial = by_name[_TRIAL.value]
    alike = trained_alike(workdir).get(trial.directory, ())
    # First, because the backend that the next lines start knows the devices of all.
    multihost.join(_HOSTS.value)
    machine.check_platform()
    with multihost.together():
        machine.use_compile_cache()
        cost.check_memory(trial.settings, machine.here())
        loop.run(
            trial.settings,
            prepare(trial.settings.data),
            workdir / trial.directory,
            name=trial.name,
            point=trial.point,
            start=StartPoint(alike=tuple(workdir / directory for directory in alike)),
            trackers=_TRACKER.value,
            interruption=interruption,
        )


if __name__ == "__main__":
    command.start(main, required=("workdir", "trial"))
