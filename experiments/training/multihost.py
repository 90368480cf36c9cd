"""One trial on the devices of several processes, which `jax.distributed` joins.

They are on several hosts, or on one. The first process is the trial: it has the directory,
logs, evaluates and saves, as it would alone. The others follow (`follower`): each draws the
same batches by itself, feeds its devices their rows of them (`Lanes.own_rows`), and takes
part in the sums of a step. Before each dispatch all meet: the first says how many steps
come, and any may say that it is asked to stop, or that it failed.
"""

import contextlib
import os
import re
import signal
import time
import zlib
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.errors import UserError
from experiments.system.signals import Interrupted, Interruption
from experiments.training.rendezvous import PATIENCE, HostError, Rendezvous, relay

# What the first process says in place of a number of steps.
END = 0
STOPPED = -1


SETTLING = 3.0
"""Seconds in which a lost process is noticed, if that is what an error came from."""

_joined: list[Rendezvous] = []
"""This process's part of the meeting, where it is one of several."""


def join(how: str | None, same: dict[str, str] | None = None) -> None:
    """Makes this process one of several, which have the `same` texts, such as a config's.

    `how` is "auto" where SLURM, Open MPI, Kubernetes or a TPU pod says which, otherwise
    HOST:PORT,I/N for the I-th of N, counted from 0, which meet at that address of the first;
    None leaves it alone. Comes before anything that starts JAX's backend. From then on this
    process ends, with a line and status 75, where another is lost. Raises LostError where
    others do not come, HostError where they do not fit together or `how` is none of these.
    """
    if how is None:
        return
    # It would take SIGTERM for itself. JAX 0.7 has no such option: see `_initialize`.
    with contextlib.suppress(AttributeError):
        jax.config.update("jax_enable_preemption_service", False)
    if not (place := _detected() if how == "auto" else _named(how)):
        _initialize(how)
        return
    address, number, count = place
    rendezvous = Rendezvous(
        address, number, count, {**(same or {}), "JAX": jax.__version__}
    )
    port = rendezvous.meet()
    # Of a process that ends at once, Python would list what its children shared with it.
    warnings = [os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker"]
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, warnings))
    _joined.append(rendezvous)
    _initialize(
        how,
        coordinator_address=f"127.0.0.1:{relay(rendezvous.host, port) if number else port}",
        num_processes=count,
        process_id=number,
        coordinator_bind_address=f"[::]:{port}",
        # Longer than any silence that the rendezvous allows: JAX would abort.
        heartbeat_timeout_seconds=24 * 3600,
    )


def leave() -> None:
    """Ends this process's part, when all others end theirs."""
    if _joined:
        # It waits for the others, which may be lost even now.
        jax.distributed.shutdown()
        _joined.pop().leave()


def _named(how):
    """Returns the address of the first, this process's number, and the count."""
    named = re.fullmatch(r"(.+:\d+),(\d+)/(\d+)", how)
    if not (named and int(named[2]) < int(named[3])):
        raise HostError(
            f"--hosts={how}: give auto, or HOST:PORT,I/N such as node0:4567,0/2 for the "
            "first of two"
        )
    return named[1], int(named[2]), int(named[3])


def _detected():
    """Returns what `_named` does, as JAX detects it, None where it does not say so."""
    try:
        from jax._src.clusters import ClusterEnv

        address, count, number, _ = ClusterEnv.auto_detect_unset_distributed_params(
            os.environ.get("JAX_COORDINATOR_ADDRESS"), None, None, None, None, PATIENCE
        )
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError):
        # It is no public interface. JAX finds out by itself, without a watch.
        return None
    return None if None in (address, number, count) else (address, number, count)


def _initialize(how, **place):
    try:
        jax.distributed.initialize(**place)
    except (ValueError, RuntimeError) as error:
        raise HostError(
            f"--hosts={how}: {' '.join(str(error).split())[:200]}; start as many processes "
            "as N says, all with the address of the first, or where auto finds what "
            "started them"
        ) from error
    # Where JAX took SIGTERM, Python takes it back.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


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

    They must meet once more. At its end all leave.
    """
    try:
        yield
    # All have met to find it out, so all know.
    except HostError:
        leave()
        raise
    except Exception as error:
        if several():
            if not isinstance(error, UserError):
                # It may come of the loss of a process, with which this one soon ends.
                time.sleep(SETTLING)
            _gather(failed=True)
        leave()
        raise
    except Interrupted:
        leave()
        raise
    leave()


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
