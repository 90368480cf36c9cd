"""Commands called in this process, because JAX takes seconds to import."""

import pytest

from tests import calls


@pytest.fixture
def run():
    """Calls a command in this process; returns (status, stdout, stderr)."""
    yield calls.call
    calls.forget_commands()
