"""TODO."""

from collections.abc import Callable, Iterable, Iterator


def one_ahead(dispatched: Iterable, check: Callable[[], None]) -> Iterator:
    """Results, each when the next is dispatched: the device works on that while this one is spelled.

    No more than that, for a process that is told to stop must wait for all that is dispatched.
    """
    before = None
    for one in dispatched:
        check()
        if before is not None:
            yield before
        before = one
    if before is not None:
        yield before
