"""Says how many trials of a group fit a device, by compiling their step for it."""

from collections.abc import Iterator, Sequence

from experiments.sweep.plan import Trial
from experiments.sweep.schedule import layouts
from experiments.system.machine import Machine
from experiments.trial.cost import format_bytes
from launch.bench.compile.compiler import Compiled, Compiler
from launch.bench.compile.targets import TARGETS
from launch.bench.compile.worker import start
from launch.bench.harness.process import Failed


def fits(device: str, groups: Sequence[list[Trial]]) -> Iterator[str]:
    """Says of each group, in a line, what fits; a group are trials of one program.

    The most lanes that the runner would try are compiled first, then fewer, until they
    fit. Raises BenchError where nothing compiles for the device.
    """
    worker = start(device)
    try:
        for group in groups:
            yield f"{device}: {group[0].label or group[0].name}: {_say(worker, device, group)}"
    finally:
        worker.stop()


def _say(worker, device, group):
    target = TARGETS[device]
    why_not = ""
    # One lane comes last: it has the rows of a batch on all devices.
    for lanes in _lanes(target, len(group)):
        compiled = _compile(worker, group[0].settings, lanes)
        needed = (
            f"{format_bytes(compiled.bytes)} of {format_bytes(target.memory)} a device"
        )
        if not compiled.why_not and compiled.bytes <= target.memory:
            count = "1 trial at a time" if lanes == 1 else f"{lanes} lanes"
            return f"fits with {count}: {needed}"
        why_not = compiled.why_not or f"needs {needed}"
    return f"does not fit: {why_not}"


def _lanes(target, trials):
    machine = Machine(target.platform, target.count, cores=1, memory=target.memory)
    counts = {layout.lanes for layout in layouts(machine, trials)}
    return sorted(counts, reverse=True)


def _compile(worker, settings, lanes):
    try:
        return worker.call(Compiler.compile_step, settings, lanes)
    except Failed as error:
        return Compiled(why_not=str(error))
