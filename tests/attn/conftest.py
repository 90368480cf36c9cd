"""Fixtures that tests of attention share."""

import pytest

from attn.jax_versions import enable_x64
from tests.attn.blocks import blocks_of
from tests.attn.cases import draw_qkv


@pytest.fixture
def float64():
    with enable_x64(True):
        yield


@pytest.fixture
def qkv():
    return draw_qkv()


@pytest.fixture
def qk():
    return draw_qkv()[:2]


@pytest.fixture
def small_blocks():
    """Blocks of 3 queries, so that N = 5 makes two of unequal size, and 4 heads of 6 at once."""
    with blocks_of(3, at_once=4):
        yield
