"""Trains one trial on the devices of several processes, which `jax.distributed` joins.

They are on several hosts, or on one. The first process is the trial: it has the directory,
logs, evaluates and saves, as it would alone. The others follow (`follower`): each draws the
same batches by itself, feeds its devices their rows of them (`Lanes.own_rows`), and takes
part in the sums of a step. Before each dispatch all meet: the first says how many steps
come, and any may say that it is asked to stop, or that it failed.

JAX's heartbeats decide which process is lost; what becomes of the others is in `supervisor`.
"""

import contextlib
import os
import re
import signal
import zlib
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.errors import UserError, one_line
from experiments.system.signals import Interrupted, Interruption
from experiments.training.supervisor import HEARTBEAT, LOST, NOISE

END = 0
STOPPED = -1
"""What the first process says in place of a number of steps."""


class HostError(UserError):
    """Raised where processes cannot work together; the message says why, and the remedy."""


def join(how: str | None) -> None:
    """Makes this process one of several; None leaves it alone.

    `how` is "auto" where SLURM, Open MPI, Kubernetes or a TPU pod says which, otherwise
    HOST:PORT,I/N for the I-th of N, counted from 0, which meet at that address of the first.
    Comes before anything that starts JAX's backend. Raises HostError for other texts and
    where JAX cannot begin; JAX aborts this process where others do not come.
    """
    if how is None:
        return
    place = {} if how == "auto" else _place(how)
    # It would take SIGTERM for itself. JAX 0.7 has no such option.
    with contextlib.suppress(AttributeError):
        jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(**place, heartbeat_timeout_seconds=HEARTBEAT)
    except (ValueError, RuntimeError) as error:
        raise HostError(
            f"--hosts={how}: {one_line(error)[:200]}; start as many processes as N says, "
            "all with the address of the first and a port that is free there, or where auto "
            "finds what started them"
        ) from error
    # Where JAX took SIGTERM, Python takes it back.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def _place(how):
    """Returns which process HOST:PORT,I/N says this is, as JAX names it."""
    named = re.fullmatch(r"(.+:\d+),(\d+)/(\d+)", how)
    if not (named and int(named[2]) < int(named[3])):
        raise HostError(
            f"--hosts={how}: give auto, or HOST:PORT,I/N such as node0:4567,0/2 for the "
            "first of two"
        )
    return dict(
        coordinator_address=named[1],
        num_processes=int(named[3]),
        process_id=int(named[2]),
    )


def several() -> bool:
    return jax.process_count() > 1


def first() -> bool:
    return jax.process_index() == 0


def meet(steps: int = END, interruption: Interruption | None = None) -> int:
    """Waits for all processes, and returns the `steps` of the first.

    If one process is asked to stop, the `interruption` of all is. Raises HostError where a
    process failed.
    """
    if not several():
        return steps
    asked = interruption is not None and interruption.asked
    gathered = _gather(steps=steps, asked=asked)
    if interruption and gathered["asked"].any():
        interruption.asked = True
    return int(gathered["steps"][0])


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Brings an error in this `with` block to the others where they next meet.

    They must meet once more. At its end all leave. Where another process is lost, this one
    ends with status LOST.
    """
    try:
        yield
        # Not at this process's own end: others would wait while the first writes a report.
        jax.distributed.shutdown()
    # All have met to find these out, so all know.
    except (HostError, Interrupted):
        raise
    except Exception as error:
        if several():
            if _is_of_another(error):
                os.write(2, f"{NOISE} {one_line(error)[:200]}\n".encode())
                # Without JAX's own end, which would wait for the process that is lost.
                os._exit(LOST)
            _gather(failed=True)
        raise


def _is_of_another(error):
    """Returns whether an error is one that the loss of another process causes.

    On a GPU it has the class of most of JAX's errors; on a CPU it may be a ValueError.
    """
    is_of_jax = isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error)
    return is_of_jax and not isinstance(error, UserError)


@contextlib.contextmanager
def leading() -> Iterator[None]:
    """Ends the others at the end of this `with` block, which is the first process's part."""
    try:
        yield
    # Other errors reach the others through `together`.
    except Interrupted:
        meet(STOPPED)
        raise
    meet(END)


def check_same(name: str, text: str) -> None:
    """Raises HostError unless all processes have the same `text` of what `name` says."""
    if several():
        # A bit less, so that it fits into int32.
        digests = _gather(digest=zlib.crc32(text.encode()) >> 1)["digest"]
        if (others := np.flatnonzero(digests != digests[0])).size:
            raise HostError(
                f"process {others[0]} has another {name} than the first: give all the same "
                "command, data and versions"
            )


def broadcast(tree):
    """Returns the first process's arrays in all; they have the same shapes in each."""
    if not several():
        return tree

    def send(x):
        x = np.asarray(x)
        # As integers: a sum with the others' zeros would make 0 of −0.
        bits = multihost_utils.broadcast_one_to_all(_bits(x))
        return np.asarray(bits).view(x.dtype)

    return jax.tree.map(send, tree)


def _gather(steps=END, asked=False, failed=False, digest=0):
    """Gathers these numbers from all processes, by name."""
    # The same four numbers whatever is asked: a process that fails may then meet one
    # that wants to step.
    own = np.array([steps, asked, failed, digest], np.int32)
    gathered = np.asarray(multihost_utils.process_allgather(own)).T
    all_steps, all_asked, all_failed, digests = gathered
    # The process that failed raises its own error.
    if all_failed.any() and not failed:
        raise HostError(
            f"process {all_failed.argmax()} of this trial failed, and says why; when that "
            "is mended, start all again: they go on from the newest checkpoint"
        )
    return dict(steps=all_steps, asked=all_asked, digest=digests)


def _bits(x):
    return x.view(f"uint{8 * x.dtype.itemsize}")
