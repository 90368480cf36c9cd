"""A config file as a user would write one, of trials that take a second."""

from tests.experiments import tiny


def get_config():
    return tiny.config()


def sweep_heads():
    for h in (1, 2):
        yield {"model.h": h, "model.d_k": 16 // h}


def sweep_d_k():
    yield {"model.d_k": 3}


def sweep_positions():
    for positions in ("sinusoidal", "none"):
        yield {"model.positions": positions}


def sweep_scores():
    """What counts at the end of a trial alone."""
    yield {}
    yield {"evaluation.beam": 2}
    yield {"evaluation.alpha": 0.0}


def sweep_seed():
    for seed in (0, 1):
        yield {"seed": seed}


def sweep_typo():
    yield {"model.hh": 2}


def sweep_nothing():
    yield from ()
