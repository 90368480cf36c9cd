"""Says what programs are compiled for, and holds every choice that depends on it.

A choice is made when a function is traced. It follows JAX's default backend, unless a
process compiles for a device that it does not have.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array

from attn.jax_versions import has_mosaic_gpu, has_pallas_tpu

Platform = Literal["cpu", "gpu", "tpu"]

_target: Platform | None = None


def platform() -> str:
    """Returns "cpu", "gpu" or "tpu": what is traced now is compiled for that."""
    return _target or jax.default_backend()


def compile_for(target: Platform | None) -> None:
    """Has this process trace for another platform than JAX's own; None undoes that.

    What was traced before is forgotten, because it was made for the other platform.
    """
    global _target
    jax.clear_caches()
    _target = target


def bytes_of_scores(is_product: bool) -> int:
    """Returns about how many bytes of float32 scores are made at once, of all heads.

    On a CPU so many stay in the caches, with what they are made of; a score that is no
    product makes more. On a TPU they fit its vector memory. On a GPU more parts are more
    kernels, each of which takes microseconds to start: segments of 4 rows of 2,048 tokens
    and 16 heads took an H100 2.1 ms with 2²³ (820 kernels) and about 1.1 with 2²⁷ (72).
    """
    if platform() == "cpu":
        return 2**21 if is_product else 2**19
    if platform() == "gpu":
        return 2**27 if is_product else 2**25
    return 2**23


def logits_at_once() -> int:
    """Returns the most logits of a loss that exist at once.

    On a CPU their 16 MiB of float32 stay near the caches. On a GPU each part reads the
    embedding, and reads and writes its gradient, in whole: the base model's 235 parts of
    2²² took half of its step on an H100, and 4 parts of 2²⁸ take a fifth of that.
    """
    return 2**28 if platform() == "gpu" else 2**22


def features_of_gradient() -> int:
    """Returns how many features of additive attention share a pass of its gradient.

    On a GPU a pass is nine kernels, whatever they add: eight features a pass make the
    gradient of 2,048 tokens 2,400 kernels in place of 22,600. On a CPU one feature's numbers
    stay in the caches.
    """
    return 8 if platform() == "gpu" else 1


def rows_together(x: Array) -> Array:
    """Returns the array with its last axis contiguous in memory, where that saves copies.

    A GPU's compiler would else transpose the whole that x is cut from. A TPU's compiler
    finds the better layout itself.
    """
    if platform() != "gpu":
        return x
    order = tuple(range(x.ndim))
    return with_layout_constraint(x, Layout(major_to_minor=order))


def sums_rows_by_product() -> bool:
    """Tells whether the gradient of a table of few rows is better a product than sums.

    On accelerators the additions of many tokens to one row wait for each other. A CPU adds
    in turn at any rate, and a product took it 3 to 40 times as long.
    """
    return platform() != "cpu"


def has_wide_products() -> bool:
    """Tells whether there is every product of bfloat16 with sums in float32.

    XLA for CPUs lacks it for some orders of axes (JAX 0.7.2 to 0.12), as of examples, heads
    and tokens with a matrix for each head, which shows when the program runs.
    """
    return platform() != "cpu"


def takes_cudnn(dtype, width: int) -> bool:
    """Tells whether cuDNN computes attention of matrix products here, without N·M memory.

    `width` is that of d_k and d_v which is more. cuDNN's kernels are of half precision, with
    heads wider than 128 from Hopper on only.
    """
    is_half = dtype in (jnp.float16, jnp.bfloat16)
    fits = width % 8 == 0 and 0 < width <= (256 if _is_hopper() else 128)
    return platform() == "gpu" and is_half and fits


def _is_hopper() -> bool:
    """Tells whether all GPUs here are of Hopper's generation or a later one."""
    if _target is not None:
        # Of GPUs that are not there this one is compiled for.
        return _target == "gpu"
    if jax.default_backend() != "gpu":
        return False
    return all(float(x.compute_capability) >= 9 for x in jax.local_devices())


class Tiles(NamedTuple):
    """What `attn.kernels.traced` runs by."""

    kernel: str
    """A module of `attn.kernels`."""
    queries: int
    keys: int
    interpreted: bool = False
    """Whether Pallas computes in place of a device what that would, slowly."""
    spread: int = 0
    """The most numbers of queries that are kept spread out over a tile's keys."""
    sums: int = 0
    """The most features of sums that are kept beside a tile, or twice as many beside half of
    one."""
    memory: int = 0
    """The bytes that a program has for factors and for what it writes."""

    @property
    def blocks(self) -> tuple[int, int]:
        """The queries and keys of a tile."""
        return self.queries, self.keys


def tiles(dtype) -> Tiles | str:
    """Returns by what, and in which tiles, kernels that trace their tiles run here.

    Where there is none for this platform, or for inputs of this dtype, it returns why. On
    a CPU the kernel of TPUs is interpreted. A v5e takes 2,700 cycles for a tile of an
    additive score of 64 features, and 1,650 where the queries' are spread over the lanes once
    for all keys, in 4 of 128 MiB of vector memory. On Hopper 64 rows are a warpgroup's
    product, and of larger tiles the gradients do not fit in registers: a thread has 255, of
    which two features of sums take one, and each number of pairs 32, or 16 of half a tile.
    A block may have 227 KiB of shared memory, of which barriers take a few bytes.
    """
    if platform() == "gpu":
        if not _is_hopper():
            return "of GPUs it takes those of Hopper's generation"
        if not has_mosaic_gpu():
            return "on GPUs it needs JAX 0.11"
        if dtype not in (jnp.float16, jnp.bfloat16):
            return f"on GPUs its inputs are float16 or bfloat16, and not {dtype}"
        return Tiles("pallas_gpu", 64, 64, sums=128, memory=222 * 1024)
    if dtype == jnp.float64:
        return "its softmax is float32, the inputs are float64"
    if not has_pallas_tpu():
        return "it needs JAX 0.10"
    return Tiles("pallas_tpu", 128, 128, platform() == "cpu", spread=2**21)


def takes_mask(size: int, seen: float) -> bool:
    """Tells whether a GPU's kernel for products is to read a mask as an array.

    It has so many bytes, and shows at most this share of the keys. The array is written once
    and read by all heads, and no block of hidden keys is skipped: blocks that are cut to the
    keys which are seen have less to do where these are few. Chosen, not measured.
    """
    return size <= 2**30 and seen >= 1 / 8
