"""When memory was not enough all the same: what would fit, in one line."""

import contextlib

import jax

from experiments import estimate, machine
from experiments.mistakes import Mistake
from experiments.settings import Settings


class OutOfMemoryError(Mistake):
    """A program needs more memory than there is; the message says how much that may be, and what would fit."""


def exhausted(error: BaseException) -> bool:
    """Whether an error says that memory was not enough."""
    return isinstance(error, MemoryError) or (
        isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error))


@contextlib.contextmanager
def explained(settings: Settings, lanes: int, devices: int):
    """Turns such an error in this `with` block into an OutOfMemoryError."""
    try:
        yield
    except Exception as error:
        if not exhausted(error):
            raise
        raise OutOfMemoryError(f"out of memory: {advice(settings, lanes, devices, machine.memory())}") from error


def advice(settings: Settings, lanes: int, devices: int, have: int | None) -> str:
    """What `lanes` such trials on `devices` devices need, and the least change that should fit into `have` bytes each.

    That is fewer lanes where there are some, else the smallest training.accumulate above the present one. Bytes are
    those of `estimate.memory`. None is for devices that do not say what they have: half of what is needed is taken.
    """
    split, side_by_side = (devices, 1) if lanes == 1 else (1, -(-lanes // devices))
    need = side_by_side * estimate.memory(settings, split)
    text = f"training needs about {_gib(need)} on each device"
    text += f", which has {_gib(have)}; " if have else "; "
    have = have or need // 2
    if lanes > 1:
        fitting = min(have * side_by_side // need, side_by_side - 1) * devices
        return text + f"--lanes={fitting or 1} should fit"
    return text + estimate.remedy(settings, max(1, need - have), split)


def _gib(count):
    return f"{count / 2**30:.3g} GiB"
