"""What trials write, and their interruption."""

import json

import jax

from experiments.trial.lanes import Lanes


class Interrupted(Exception):
    """Ends a trial as if the power went."""


ONE_DEVICE = Lanes(2, devices=tuple(jax.local_devices()[:1]))


def metrics(workdir):
    """Returns the lines of a trial's metrics without what depends on the clock."""
    lines = [
        json.loads(line)
        for line in (workdir / "metrics.jsonl").read_text().splitlines()
    ]
    return [
        {k: v for k, v in line.items() if k not in ("seconds", "tokens_per_second")}
        for line in lines
    ]
