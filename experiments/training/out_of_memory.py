"""When memory was not enough all the same: what would fit, in one line."""

import contextlib

from experiments.errors import OutOfMemoryError
from experiments.settings import Settings
from experiments.system import machine
from experiments.system.machine import is_out_of_memory
from experiments.trial import cost


@contextlib.contextmanager
def explained(settings: Settings, lanes: int, devices: int):
    """Turns such an error in this `with` block into an OutOfMemoryError."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"out of memory: {advice(settings, lanes, devices, machine.memory())}"
        ) from error


def advice(settings: Settings, lanes: int, devices: int, have: int | None) -> str:
    """What `lanes` such trials on `devices` devices need, and the least change that should fit into `have` bytes each.

    That is fewer lanes where there are some, else the smallest training.accumulate above the present one. Bytes are
    those of `estimate.memory`. None is for devices that do not say what they have: half of what is needed is taken.
    """
    split, side_by_side = (devices, 1) if lanes == 1 else (1, -(-lanes // devices))
    need = side_by_side * cost.memory(settings, split)
    text = f"training needs about {_gib(need)} on each device"
    text += f", which has {_gib(have)}; " if have else "; "
    have = have or need // 2
    if lanes > 1:
        fitting = min(have * side_by_side // need, side_by_side - 1) * devices
        return text + f"--lanes={fitting or 1} should fit"
    return text + cost.remedy(settings, max(1, need - have), split)


def _gib(count):
    return f"{count / 2**30:.3g} GiB"
