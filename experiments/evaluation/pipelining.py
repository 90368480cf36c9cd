"""Overlaps the devices' work with the host's."""

from collections.abc import Callable, Iterable, Iterator


def one_ahead(dispatched: Iterable, check: Callable[[], None]) -> Iterator:
    """Yields results, each when the next is dispatched: the devices work while the host reads.

    Not more than one ahead, for a process that is interrupted waits for all that is
    dispatched. `check()` is called for each result; what it raises ends this.
    """
    before = None
    for result in dispatched:
        check()
        if before is not None:
            yield before
        before = result
    if before is not None:
        yield before
