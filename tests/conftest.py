"""Four fake CPU devices for every test; nothing else may use JAX before this."""

import os

os.environ.setdefault("NPROC", "32")  # else XLA's collectives deadlock on machines of few cores
os.environ["JAX_PLATFORMS"] = "cpu"

import jax

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
