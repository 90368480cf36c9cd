"""Four fake CPU devices for every test; nothing else may use JAX before this."""

import gc
import os

# XLA's collectives deadlock on machines of few cores when they think there are few.
os.environ.setdefault("NPROC", "32")
# Most of a test would be LLVM's optimisation of a program that runs once. .ci/run sets
# this to 0, so that what users compile is tested too.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# A program's operations need not say which lines they are from.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
os.environ["JAX_PLATFORMS"] = "cpu"
# There is a process of pytest-xdist for each core: threads of numpy's would wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import pytest

# The emitters of fusions take half of the time to compile, and later versions have no others;
# to compile in 32 parts takes a twentieth.
unoptimised = os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1"
if unoptimised and jax.__version_info__ < (0, 11):
    parts = "--xla_cpu_parallel_codegen_split_count=1"
    os.environ.setdefault("XLA_FLAGS", f"--xla_cpu_use_fusion_emitters=false {parts}")

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")

# What JAX keeps of its programs makes a collection long, and there is little to collect.
gc.set_threshold(50_000, 20, 50)


def pytest_addoption(parser):
    parser.addoption(
        "--first-cases",
        action="store_true",
        help="Run each test with the first of its cases alone, as on a further version of JAX",
    )


def pytest_collection_finish():
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    # What is frozen at the end is told as leaked.
    gc.unfreeze()


# Last, so that the first case is one that is not left out for its mark.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """The longest of .ci/run first, so that no process is left with them alone at the end."""
    long = ("test_multihost.py", "test_sweeps.py")
    items.sort(key=lambda item: item.path.name not in long)
    if config.getoption("--first-cases"):
        # Of equal keys a dictionary keeps the last.
        firsts = {_test_of(item): item for item in reversed(items)}
        left_out = [item for item in items if firsts[_test_of(item)] is not item]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if firsts[_test_of(item)] is item]


def _test_of(item):
    return item.path, getattr(item, "originalname", item.name)
