"""Blocks of few queries, so that small inputs have several."""

import contextlib
import sys

import pytest

WITH_BLOCKS = ("attn.attention", "attn.hard", "attn.inspect")


@contextlib.contextmanager
def blocks_of(n, at_once=None):
    """Has n queries in a block, and `at_once` heads computed together where it is given.

    What is compiled for blocks of another size is forgotten, and nothing else, which tests
    of other files would compile again.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["attn.kernels.query_blocks"], "BLOCK", n)
        if at_once:
            module = sys.modules["attn.map_heads"]
            patch.setattr(module, "heads_at_once", lambda *_: at_once)
        forget()
        yield
    forget()


def forget():
    """Clears the caches of the jitted functions that have the constant compiled in."""
    for name in WITH_BLOCKS:
        for function in vars(sys.modules[name]).values():
            if hasattr(function, "clear_cache"):
                function.clear_cache()
