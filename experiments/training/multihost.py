"""One trial on the devices of several processes, which `jax.distributed` joins: on several hosts, or on one.

The first process is the trial. It has the directory, logs, evaluates and saves, as it would alone. The others lend it
their devices: each draws the same batches by itself, feeds its devices their rows of them, see `Lanes.own_rows`, and
takes part in the sums of a step. Before each dispatch all meet: the first says how many steps come, and any may say
that it was told to stop, or that it failed.
"""

import contextlib
import re
import zlib
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.errors import UserError
from experiments.system.signals import Interrupted, Interruption

END, STOPPED = 0, -1
"""What the first process says instead of a number of steps."""


class HostError(UserError):
    """Processes that cannot work together; the message says why, and the remedy."""


def join(how: str) -> None:
    """Makes this process one of several: "auto" where SLURM, Open MPI, Kubernetes or a TPU pod tells which, otherwise
    HOST:PORT,I/N for the I-th of N, counted from 0, which meet at that address of the first. "" leaves it alone.

    Comes before anything that starts JAX's backend. Raises HostError where others are not found or `how` is neither.
    """
    if not how:
        return
    named = re.fullmatch(r"(.+:\d+),(\d+)/(\d+)", how)
    if how != "auto" and not (named and int(named[2]) < int(named[3])):
        raise HostError(
            f"--hosts={how}: give auto, or HOST:PORT,I/N such as node0:4567,0/2 for the first of two"
        )
    # It would take SIGTERM for itself.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            *(named[1], int(named[3]), int(named[2])) if named else ()
        )
    except (ValueError, RuntimeError) as error:
        raise HostError(
            f"--hosts={how}: {' '.join(str(error).split())[:200]}; start as many processes as N says, all "
            "with the address of the first, or where auto finds what started them"
        ) from error


def several() -> bool:
    return jax.process_count() > 1


def first() -> bool:
    return jax.process_index() == 0


def meet(steps: int = END, interruption: Interruption | None = None) -> int:
    """Waits for all processes. Returns the `steps` of the first; `interruption` has word to stop if any's has it.

    Raises HostError where a process failed.
    """
    if not several():
        return steps
    told = _gather(steps=steps, asked=interruption is not None and interruption.asked)
    if interruption and told["asked"].any():
        interruption.asked = True
    return int(told["steps"][0])


@contextlib.contextmanager
def together() -> Iterator[None]:
    """An error in this `with` block reaches the others where they next meet. They must."""
    try:
        yield
    except HostError:
        raise
    except Exception:
        if several():
            _gather(failed=True)
        raise


@contextlib.contextmanager
def leading() -> Iterator[None]:
    """The first process's part, at whose end the others may go."""
    try:
        yield
    except Interrupted:
        meet(STOPPED)
        raise
    meet(END)


def check_same(name: str, text: str) -> None:
    """Raises HostError unless all processes have the same `text`, which is of what `name` says."""
    if several():
        digests = _gather(digest=zlib.crc32(text.encode()) >> 1)["digest"]
        if (others := np.flatnonzero(digests != digests[0])).size:
            raise HostError(
                f"process {others[0]} has another {name} than the first: give all the same command, data "
                "and versions"
            )


def broadcast(tree):
    """The arrays of the first process, for all; of the same shapes in each."""
    if not several():
        return tree
    # As integers: a sum with the others' zeros would make 0 of −0.
    return jax.tree.map(
        lambda x: np.asarray(multihost_utils.broadcast_one_to_all(_bits(x))).view(
            x.dtype
        ),
        jax.tree.map(np.asarray, tree),
    )


def _gather(steps=END, asked=False, failed=False, digest=0):
    """What all processes bring, by name."""
    brought = np.array([steps, asked, failed, digest], np.int32)
    steps, asked, others, digests = np.asarray(
        multihost_utils.process_allgather(brought)
    ).T
    if others.any() and not failed:
        raise HostError(
            f"process {others.argmax()} of this trial failed, and says why; when that is mended, start all "
            "again: they go on from the newest checkpoint"
        )
    return dict(steps=steps, asked=asked, digest=digests)


def _bits(x):
    return x.view(f"uint{8 * x.dtype.itemsize}")
