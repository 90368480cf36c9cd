"""Explains an error of memory in one line, and what would fit."""

import contextlib

from experiments.errors import OutOfMemoryError
from experiments.settings import Settings
from experiments.system import machine
from experiments.system.machine import is_out_of_memory
from experiments.trial import cost


@contextlib.contextmanager
def explained(settings: Settings, lanes: int, devices: int):
    """Turns an error of memory in this `with` block into an OutOfMemoryError."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"out of memory: {advice(settings, lanes, devices, machine.memory())}"
        ) from error


def advice(settings: Settings, lanes: int, devices: int, have: int | None) -> str:
    """Says what `lanes` such trials on `devices` devices need, and the least change that fits.

    It should fit into `have` bytes a device: fewer lanes where there are some, else the
    smallest training.accumulate above the present one. Bytes are those of `cost.memory`, and
    left out where that is unknown.
    Devices that do not say what they have (None) count as having half of what is needed.
    """
    if lanes == 1:
        split = devices
        # A single trial's rows are split over all devices.
        side_by_side = 1
    else:
        # A lane is on one device with all its rows.
        split = 1
        side_by_side = -(-lanes // devices)
    need = side_by_side * cost.assumed_memory(settings, split)
    if cost.is_known(settings):
        text = f"training needs about {_gib(need)} on each device"
        text += f", which has {_gib(have)}; " if have else "; "
    else:
        text = "how much training needs is not known; "
    have = have or need // 2
    if lanes > 1:
        # One fewer at least: so many did not fit, whatever the estimate says.
        fitting = min(have * side_by_side // need, side_by_side - 1) * devices
        return text + f"--lanes={fitting or 1} should fit"
    return text + cost.remedy(settings, max(1, need - have), split)


def _gib(count):
    return f"{count / 2**30:.3g} GiB"
