"""The differences between the versions of JAX that attn runs on, from 0.7.2 on.

Each function says which version ends it: where attn needs that one, the function can go.
"""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.experimental
import jax.nn
import jax.numpy as jnp

VERSION = jax.__version_info__[:2]


def enable_x64(is_on: bool = True) -> AbstractContextManager:
    """Returns a context in which arrays may, or may not, have 64 bits.

    jax 0.8 ends it: `jax.enable_x64`.
    """
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(is_on)
    # pyright sees the newer JAX alone.
    return jax.experimental.enable_x64(is_on)  # pyright: ignore[reportAttributeAccessIssue]


def apply_linear(function: Callable, *arguments: Any) -> Any:
    """Returns `function(*arguments)` of a linear function, such that it can be transposed.

    It lets a rule of `jax.custom_jvp` have a scan over its tangents: JAX transposes only
    scans that it has linearized itself. jax 0.10 ends it: `function(*arguments)`.
    """
    if VERSION >= (0, 10):
        return function(*arguments)
    zeros = jax.tree.map(jnp.zeros_like, arguments)
    _, linear = jax.linearize(function, *zeros)
    return linear(*arguments)


def jax_nn_gives_lse() -> bool:
    """Returns whether `jax.nn.dot_product_attention` can return its log-sum-exp.

    jax 0.8.1 ends it: there it always can, by `return_residual`.
    """
    signature = inspect.signature(jax.nn.dot_product_attention)
    return "return_residual" in signature.parameters


def jax_nn_takes_window() -> bool:
    """Returns whether `jax.nn.dot_product_attention` heeds a window with no other mask.

    jax 0.10 ends it: before, such a window had no effect, without a word.
    """
    return VERSION >= (0, 10)


def has_mosaic_gpu() -> bool:
    """Returns whether Pallas has what `attn.kernels.pallas_gpu` is made of.

    jax 0.11 ends it.
    """
    return VERSION >= (0, 11)


def has_pallas_tpu() -> bool:
    """Returns whether Pallas has what `attn.kernels.pallas_tpu` is made of.

    jax 0.10 ends it.
    """
    return VERSION >= (0, 10)


def mosaic_load(ref: Any, layout: Any) -> Any:
    """Loads an array from a reference of a Mosaic GPU kernel, as numbers lie in `layout`.

    jax 0.11 ends it, for the types' sake: `plgpu.load`, which before took places too.
    """
    from jax.experimental.pallas import mosaic_gpu as plgpu

    load: Any = plgpu.load
    return load(ref, layout=layout, optimized=False)


def mosaic_store(ref: Any, x: Any) -> None:
    """Stores an array to a reference of a Mosaic GPU kernel, in global memory too.

    jax 0.12 ends it: `plgpu.store`.
    """
    from jax.experimental.pallas import mosaic_gpu as plgpu

    store: Any = getattr(plgpu, "store", None)
    if store is None:
        ref[...] = x
    else:
        store(ref, x, optimized=False)


def interpret_mosaic() -> Any:
    """Returns what has a Mosaic GPU kernel interpreted; jax 0.11 is the first that has it.

    It raises where shared memory is read or written before another has done with it.
    """
    from jax.experimental.pallas import mosaic_gpu as plgpu

    return getattr(plgpu, "InterpretGPUParams")(detect_races=True)  # noqa: B009


def cudnn_forward(
    q: Any, k: Any, v: Any, bias: Any, *, causal: bool, left: int | None, lengths: Any
) -> tuple[Any, Any]:
    """Returns cuDNN's softmax(q kᵀ + bias) v (B, N, H, K) and its LSE (B, H, N).

    A query sees no key after its own if `causal`, `left` keys before it unless None, and
    `lengths` (B,) keys of its example. jax.nn.dot_product_attention calls the same, but
    has no gradient of the LSE, and cannot be mapped with a bias that heads share.
    """
    calls, operands, options = _cudnn_call(q, k, v, bias, causal, left, lengths)
    bind = calls._dot_product_attention_fwd_p_wrapper.bind
    return tuple(bind(*operands, **options, is_training=True))


def cudnn_backward(
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    lse: Any,
    out: Any,
    g: Any,
    *,
    causal: bool,
    left: int | None,
    lengths: Any,
) -> tuple[Any, Any, Any]:
    """Returns the gradients of q, k and v of `cudnn_forward`, for the cotangent g.

    The kernel takes w = exp(s − lse) and ds = w (g vᵀ − Σ out · g).
    """
    calls, operands, options = _cudnn_call(q, k, v, bias, causal, left, lengths)
    bind = calls._dot_product_attention_bwd_p_wrapper.bind
    return tuple(bind(*operands, lse, out, g, **options))


def _cudnn_call(q, k, v, bias, causal, left, lengths):
    """Returns the module of cuDNN's calls, their operands and options."""
    # Private, as jax.nn has a part of it alone. Its names are the same from 0.7.2 to 0.12.
    from jax._src.cudnn import fused_attention_stablehlo as calls

    b, n = q.shape[:2]
    none = jnp.zeros(0, q.dtype)
    kinds = calls.MaskType
    mask_type = kinds.CAUSAL if causal else kinds.NO_MASK
    padding = (none, none)
    if lengths is not None:
        mask_type = kinds.PADDING_CAUSAL if causal else kinds.PADDING
        padding = (jnp.full(b, n, jnp.int32), lengths.astype(jnp.int32))
    operands = (q, k, v, none if bias is None else bias, *padding, *[none] * 4)
    options = dict(
        scale=1.0,
        seed=42,
        dropout_rate=0.0,
        # Whether there is a bias, and whether it has a gradient.
        variadic_args=(bias is not None, False),
        mask_type=mask_type,
        layout=calls.AttentionLayout.BTNH.value,
        sliding_window_length=None if left is None else left + 1,
    )
    if VERSION >= (0, 12):
        options["score_mod"] = None
    return calls, operands, options
