"""The cluster that the tests of this folder share."""

import pytest

from tests.slurm.cluster import INSTALL, Cluster, missing_programs


@pytest.fixture(scope="session")
def cluster():
    """A real SLURM of two nodes; each process of pytest-xdist has its own."""
    if missing := missing_programs():
        pytest.skip(f"no SLURM here ({', '.join(missing)} missing): {INSTALL}")
    with Cluster() as running:
        yield running


@pytest.fixture(autouse=True)
def _nodes_are_back(cluster):
    """Leaves no job, and both nodes up, whatever a test has done to them."""
    yield
    cluster.restore()
