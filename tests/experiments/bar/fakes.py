"""Logs of entries that nobody has trained."""

from pathlib import Path

import numpy as np

from experiments.bar import rules
from experiments.bar.logs import Log, Run


def runs(better=0.0, seeds=8, seed=0, deviation=0.05):
    """Runs of every task; a mean that is `better` by so many standard deviations."""
    rng = np.random.default_rng(seed)
    found = []
    for task in rules.tasks_of("small"):
        for i in range(seeds):
            value = 0.5 + deviation * (rng.standard_normal() + better)
            if task.better < 0:
                value = 1 - value
            # The second rate is the best on validation, and the others are worse.
            for validation, rate in zip((2.0, 1.0, 3.0), rules.RATES, strict=True):
                shown = value if validation == 1.0 else -9.0
                found.append(Run(task.name, i, rate, validation, shown, 12.0))
    return found


def about(name, changes, date="2026-11-29T10:00:00+00:00"):
    return dict(
        name=name,
        size="small",
        rules=rules.VERSION,
        changes=changes,
        date=date,
        parameters={},
        device="cpu",
    )


def log(name, better=0.0, seeds=8, seed=0, date="2026-11-29T10:00:00+00:00"):
    changes = {} if name == "base" else {"positions": name}
    made = runs(better, seeds, seed)
    return Log(about(name, changes, date), tuple(made), Path(name))
