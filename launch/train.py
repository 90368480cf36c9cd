"""Trains one trial.

    python -m launch.train --config=quick --config.model.h=2 --workdir=runs/one

The same command again goes on where an interrupted run stopped, and shows the result of
a finished one. SIGTERM and Ctrl-C save and leave within seconds, with exit status 75,
at which a scheduler may start the command again; a second one leaves at once. With
--tracker=tensorboard the numbers of metrics.jsonl go to WORKDIR/tensorboard too.

A trial begins, in this order, from the newest whole checkpoint in WORKDIR; from that of
another trial with --resume=DIR, its optimizer and its place in the data included; from
another trial's weights alone with --init_from=DIR, at step 0; from fresh parameters.
With --resume the data, their order and the shapes must be the same, other settings may
differ, such as --config.training.steps; with --init_from the vocabulary and the shapes.

With a larger --config.training.steps a trial goes on, ended or not, where its schedule does
not decay towards its end: the result that it had is kept in WORKDIR/at-STEPS.

With --budget=8h steps and evaluations are chosen so that everything takes about that long,
and for a config with sizes, as files.py, the largest model that its own steps fit for. What
is chosen is said, and kept: the same command goes on to the same steps. --dry_run says what
a trial will take, and trains nothing.

With --hosts one trial is on the devices of several processes, of one host or many: each
is started with the same command. Only the first, which is numbered 0, needs to see
--workdir. Where one is lost or does not come, the others end with exit status 75 too.
"""

from experiments.system import huge_pages

if __name__ == "__main__":
    # Before the imports that take time, which would otherwise be done twice.
    huge_pages.restart_with_huge_pages()

import functools
import os
import sys
import time
from pathlib import Path

from absl import flags

from launch import budget, command, config_flag

SPLITS = ("validation", "test")

config_flag.define_config()
_WORKDIR = command.define_workdir()
_TRACKER = command.define_tracker()
_RESUME = flags.DEFINE_string(
    "resume", None, "Another trial's directory: its newest checkpoint is gone on from"
)
command.check_directory("resume")
_INIT_FROM = flags.DEFINE_string(
    "init_from", None, "Another trial's directory: its weights are begun with"
)
command.check_directory("init_from")
_BUDGET = budget.define_budget()
_DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "Check the config and estimate what it will take, train nothing"
)
_HOSTS = flags.DEFINE_string(
    "hosts",
    None,
    "auto (SLURM, Open MPI, Kubernetes, TPU pods), or HOST:PORT,I/N for the I-th "
    "of N processes, which meet at that address of the first",
)
flags.register_validator(
    "hosts",
    # A shell leaves it empty of an unset variable, and each host would train alone.
    lambda value: value is None or bool(value.strip()),
    "it is empty; leave it out to train on this host alone",
)


def main():
    begun = time.monotonic()
    if _RESUME.value and _INIT_FROM.value:
        command.mistake(
            "--resume and --init_from are both given: a trial begins from one other, or none"
        )
    asked = _BUDGET.value and budget.Budget(_BUDGET.value, begun)
    if asked:
        check_budget()
    if _DRY_RUN.value:
        return show(asked)
    command.run_as_one_of(_HOSTS.value, functools.partial(run, asked))


def check_budget():
    """Ends with a usage error for what does not go together with --budget."""
    steps = "training.steps"
    if steps in config_flag.experiment().overrides:
        command.mistake(
            f"--budget={_BUDGET.value} chooses {steps}: leave --config.{steps} out, or --budget"
        )
    if _HOSTS.value:
        command.mistake(
            f"--budget={_BUDGET.value} is measured on one host: with --hosts give "
            f"--config.{steps}=N"
        )
    if _RESUME.value:
        command.mistake(
            f"--budget={_BUDGET.value} is for a trial from its beginning: with --resume give "
            f"--config.{steps}=N"
        )


def show(asked):
    """Prints what the trial will take."""
    # A run may be beside it on the same accelerator.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from experiments.data.dataset import prepare
    from experiments.settings import resolve
    from experiments.sweep.plan import Trial
    from experiments.system import machine
    from experiments.system.console import stdout_console
    from launch.dry_run import dry_run

    settings = resolve(config_flag.experiment().config)
    machine.check_platform()
    if asked:
        say = functools.partial(print, flush=True)
        # What it says was measured, where the table below estimates.
        budget.planned(
            asked, settings, prepare(settings.data), None, say, bool(_INIT_FROM.value)
        )
        return
    dry_run([Trial("trial", "", {}, settings, "the trial")], stdout_console())


def run(asked, interruption):
    # Not at the top: a mistake in the flags need not wait until JAX is imported.
    from experiments.settings import resolve
    from experiments.system import machine
    from experiments.training import multihost

    settings = resolve(config_flag.experiment().config)
    # First, because the backend that the next line starts knows the devices of all.
    multihost.join(_HOSTS.value)
    machine.check_platform()
    with multihost.together():
        settings, prepared, result, plan = train(settings, asked, interruption)
    if multihost.first():
        conclude(settings, prepared, result)
        if plan:
            print(budget.ending(plan, result))


def train(settings, asked, interruption):
    """Trains a trial on the devices of all processes.

    Returns its settings, with those that --budget chose, its corpus, its result and the plan
    of a budget.
    """
    from experiments.data.dataset import prepare
    from experiments.evaluation.evaluator import score_notes
    from experiments.system import machine
    from experiments.training import loop, multihost
    from experiments.training.start_point import StartPoint, check_start
    from experiments.trial import cost

    machine.use_compile_cache()
    # Before the corpus is read, which may take minutes.
    cost.check_memory(settings, machine.here())
    prepared = prepare(settings.data)
    say = functools.partial(print, flush=True)
    if not multihost.first():
        say = lambda line: None
    say(prepared.sizes())
    for line in prepared.warnings():
        say(line)
    for note in score_notes(settings, prepared).values():
        say(f"note: {note}")
    workdir = Path(_WORKDIR.value)
    start = StartPoint(_RESUME.value or "", _INIT_FROM.value or "")
    if multihost.first():
        check_start(workdir, start, prepared)
    settings, plan = budget.planned(
        asked, settings, prepared, workdir, say, bool(_INIT_FROM.value)
    )
    result = loop.run(
        settings,
        prepared,
        _WORKDIR.value,
        start=start,
        say=say,
        trackers=_TRACKER.value,
        interruption=interruption,
    )
    return settings, prepared, result, plan


def conclude(settings, prepared, result):
    """Prints the scores and writes the report; ends with status 1 where training diverged."""
    from experiments.evaluation.metrics import METRICS
    from experiments.training import early_stopping

    if result["status"] == "diverged":
        print(
            f"\n{result['error']}; a lower training.learning_rate, a longer warmup in "
            "training.schedule or training.clip=1 may help"
        )
        sys.exit(1)
    if settings.training.until == "flat":
        print(f"\n{early_stopping.ending(result['steps'], settings.training)}")
    metrics = (*METRICS, *settings.evaluation.own_metrics)
    for line in ending(settings, prepared, result, metrics):
        print(line)
    # Pictures and statistics, which a trial's first step need not wait for.
    from experiments.report.write import write_report

    written = write_report(_WORKDIR.value, metrics)
    print("report:", written.unwritten or written.html)


def ending(settings, prepared, result, metrics):
    """Yields the lines on the scores of a finished trial, which say how they were made."""
    from experiments.evaluation.decode import search_text
    from experiments.evaluation.metrics import summary

    of = {split: [m for m in metrics if m.split == split] for split in SPLITS}
    validation = summary(result, of["validation"])
    test = summary(result, of["test"])
    ways = {}
    for split in SPLITS:
        count = len(getattr(prepared, split).text.target)
        # A language model writes no texts that could be searched for.
        ways[split] = f"on {count} sentences"
        if test:
            ways[split] = search_text(settings, settings.evaluation.beam, count, count)
    of_test = {m.key: result.get(f"test_{m.key}") for m in of["validation"]}
    test = test or summary(of_test, of["validation"])
    yield (
        f"\ntest, {ways['test']}: {test}; validation {validation}; "
        f"{result['parameters']:,} parameters"
    )
    for name, scores in result.get("beside", {}).items():
        listed = [
            f"{split}, {ways[split]}: {_listed(scores[split], metrics)}"
            for split in SPLITS
        ]
        yield "  ".join([f"{name:8}", *listed])


def _listed(scores, metrics):
    from experiments.evaluation.metrics import summary

    # Those of a language model's test set are named so.
    own = {name.removeprefix("test_"): value for name, value in scores.items()}
    return summary(own, metrics)


def cli() -> None:
    """Runs the command `attn-train`."""
    # attn-train imports this module, and so skips the call above.
    huge_pages.restart_with_huge_pages()
    command.start(main, required=("config", "workdir"), unless={"workdir": "dry_run"})


if __name__ == "__main__":
    cli()
