"""What a curve is. A process that measures a size of one imports this, and what that needs."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from experiments.system.process import Process


class Cost(NamedTuple):
    """What one size took."""

    seconds: float
    bytes: int


@dataclasses.dataclass(frozen=True)
class Curve:
    """Holds one thing that is measured at growing sizes."""

    name: str
    axis: str
    """What the sizes count."""
    sizes: tuple[int, ...]
    measure: Callable[[int], Cost]
    """Measures it at one size."""
    note: str = ""
    """What a table says of it."""


def in_process(curve: Curve, size: int) -> Cost:
    """Measures a size where no other has left anything in memory."""
    process = Process(_nothing)
    try:
        return process.submit(curve.measure, size).result()
    finally:
        process.stop()


def _nothing():
    pass
