"""Four fake CPU devices for every test; nothing else may use JAX before this."""

import os

os.environ.setdefault(
    "NPROC", "32"
)  # else XLA's collectives deadlock on machines of few cores
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_collection_modifyitems(items):
    """The longest of .ci/run first, so that no process is left with them alone at the end."""
    items.sort(key=lambda item: item.path.name != "test_multihost.py")


@pytest.fixture(scope="module")
def quickly_compiled():
    """For tests of how parts are put together: without LLVM's optimisations, as their
    programs are small and run a few times, so that most of a test would be the time to
    compile them. Kernels and whole commands are tested with them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "JAX_DISABLE_MOST_OPTIMIZATIONS", "1"
        )  # for the processes that tests start
        jax.config.update("jax_disable_most_optimizations", True)
        yield
        jax.config.update("jax_disable_most_optimizations", False)
