"""Four fake CPU devices for every test; nothing else may use JAX before this."""

import os

# XLA's collectives deadlock on machines of few cores when they think there are few.
os.environ.setdefault("NPROC", "32")
# Most of a test would be LLVM's optimisation of a program that runs once. .ci/run sets
# this to 0, so that what users compile is tested too.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ["JAX_PLATFORMS"] = "cpu"

import jax

# The emitters of fusions take half of the time to compile. Later versions have no others.
if os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1" and jax.__version_info__ < (
    0,
    11,
):
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_collection_modifyitems(items):
    """The longest of .ci/run first, so that no process is left with them alone at the end."""
    long = ("test_multihost.py", "test_sweeps.py")
    items.sort(key=lambda item: item.path.name not in long)
