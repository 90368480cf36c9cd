"""All tests of experiments compile quickly."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _all_quickly(quickly_compiled):
    pass
