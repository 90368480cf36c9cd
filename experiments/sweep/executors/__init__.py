"""Where the trials of a sweep are trained: here, by whoever joins, on SLURM."""

from typing import Protocol

from experiments.sweep.plan import Trial


class Executor(Protocol):
    """Starts processes that train a sweep's trials; these claim what they train.

    A new kind of cluster is one class with these three methods.
    """

    def submit(self, trials: list[Trial]) -> None:
        """Starts what is to train these trials, as far as it does not run already."""

    def poll(self) -> bool:
        """Goes on for a moment; returns whether anything still trains, or waits to."""

    def leave(self) -> None:
        """Is called at the end, also after an error or a stop signal."""
