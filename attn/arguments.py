"""Checks the arguments that `attention()` and its relatives share, before any work.

Types, dtypes and shapes are looked at, which traced arrays have too, and never an array's
numbers: so the checks cost nothing where attention is compiled. B batch (any leading
axes), N queries, M keys, H heads of queries, K = L = d_k, V = d_v.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attn.kernels.drop import Drop
from attn.masks import Mask, fits
from attn.normalisers import NORMALISERS, Softmax
from attn.pytrees import AnyArray
from attn.random_bits import keys_of_heads
from attn.scores import SCORES, ScaledDot


def checked(
    q: AnyArray, k: AnyArray, v: AnyArray, score: Any, mask: Any, bias: Any
) -> tuple[AnyArray, AnyArray, AnyArray, Mask]:
    """Returns q, k and v in floating point, and the mask, where all fit together.

    Raises:
      TypeError: complex or boolean q, k or v; a score, mask or bias of another kind.
      ValueError: shapes that do not fit each other.
    """
    check_score(score)
    check_shapes(q, k, v, score)
    if mask is not None and not isinstance(mask, Mask):
        raise TypeError(
            f"mask must be an attn.Mask, not {_kind(mask)}; Mask.dense(array) makes one "
            "of a boolean array (True = may attend)"
        )
    *batch, n, h, _ = q.shape
    sizes = tuple(batch), h, n, k.shape[-3]
    # Without arrays a mask fits everything.
    if mask is not None and jax.tree.leaves(mask):
        mask.check(*sizes)
    if bias is not None:
        check_bias(bias, *sizes)
    mask = Mask() if mask is None else mask
    return floating("q", q), floating("k", k), floating("v", v), mask


def check_score(score: Any) -> None:
    """Raises TypeError for what is no score, or wraps what is none."""
    if isinstance(score, (str, type)) or not hasattr(score, "prepare"):
        raise _no_value("score", score, SCORES, ScaledDot, "key, h, d_q, d_k")
    if hasattr(score, "inner"):
        check_score(score.inner)


def check_shapes(q: AnyArray, k: AnyArray, v: AnyArray, score: Any) -> None:
    """Raises ValueError for queries, keys and values whose shapes do not fit."""
    shapes = f"got q {q.shape}, k {k.shape}, v {v.shape}"
    if not q.ndim == k.ndim == v.ndim >= 3:
        raise ValueError(
            "q, k and v must be (*B, length, H, d), with the same number of axes; "
            f"{shapes}"
        )
    same_batch = q.shape[:-3] == k.shape[:-3] == v.shape[:-3]
    if not (same_batch and k.shape[-3:-1] == v.shape[-3:-1]):
        raise ValueError(
            "q, k and v must share the batch axes, k and v the number of heads, and each "
            f"key needs one value: {k.shape[-3]} keys, {v.shape[-3]} values; {shapes}"
        )
    if q.shape[-2] != k.shape[-2]:
        check_heads(q.shape[-2], k.shape[-2], f"; {shapes}")
    innermost = score
    while hasattr(innermost, "inner"):
        innermost = innermost.inner
    # Other scores may compare vectors of two widths, as a bilinear one does.
    if q.shape[-1] != k.shape[-1] and getattr(innermost, "of_one_width", False):
        raise ValueError(
            f"d_k differs between queries and keys: {q.shape[-1]} and {k.shape[-1]}; "
            f"{shapes}"
        )


def check_heads(h: int, h_kv: int, where: str = "") -> None:
    """Raises ValueError for h heads of queries that h_kv heads of keys cannot serve."""
    if h != h_kv and (h_kv < 1 or h % h_kv):
        raise ValueError(
            f"{h} heads of queries cannot share {h_kv} of keys and values: the first must "
            f"be a multiple of the second{where}"
        )


def check_normaliser(normaliser: Any, return_lse: bool = False) -> None:
    """Raises TypeError for what is no normaliser, ValueError for an LSE that it has not."""
    if isinstance(normaliser, (str, type)) or not hasattr(normaliser, "sums_to_one"):
        raise _no_value("normaliser", normaliser, NORMALISERS, Softmax, "key, h")
    if return_lse and not hasattr(normaliser, "exponents"):
        raise ValueError(
            f"{type(normaliser).__name__} has no exponentials, and so no LSE: "
            "return_lse must be False"
        )


def check_bias(bias: Any, batch: tuple[int, ...], h: int, n: int, m: int) -> None:
    """Raises TypeError for what is no bias, ValueError for one that does not fit."""
    if isinstance(bias, Mask):
        raise TypeError(
            "bias is a Mask, which hides and adds nothing; give it as mask="
        )
    if hasattr(bias, "tile"):
        # With an axis it would be read as one number for each head.
        if np.ndim(getattr(bias, "offset", 0)) > 0:
            raise ValueError(
                f"the bias's offset of shape {np.shape(bias.offset)} must be one number, "
                "the same for all examples and heads"
            )
        if hasattr(bias, "check"):
            bias.check(batch, h, n, m)
        return
    dtype = bias.dtype if hasattr(bias, "dtype") else jnp.result_type(bias)
    if dtype == jnp.bool_:
        raise TypeError(
            "bias is boolean and would be added as 0 and 1; to hide keys give "
            "mask=Mask.dense(bias) (True = may attend)"
        )
    if not any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer)):
        raise TypeError(f"bias must be real numbers, not {dtype}")
    shape = (*batch, h, n, m)
    if not fits(np.shape(bias), shape):
        raise ValueError(
            f"bias of shape {np.shape(bias)} does not fit (*B, H, N, M) = {shape}"
        )


def has_no_pairs(q: AnyArray, k: AnyArray) -> bool:
    """Tells whether there are no queries, no keys or no heads.

    Kernels need one of each; without them every result is known.
    """
    return 0 in (q.shape[-3], q.shape[-2], k.shape[-3])


def floating(name: str, x: AnyArray) -> AnyArray:
    """Returns x in floating point; raises TypeError for what is no real numbers."""
    # The letter first, as it is read faster; that of bfloat16 is another.
    if x.dtype.kind == "f" or jnp.issubdtype(x.dtype, jnp.floating):
        return x
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(f"{name} must be real numbers, not {x.dtype}")
    # In integers 1/√d_k would be 0, and so would every weight but 1.
    return jnp.asarray(x, jnp.float32)


def make_drop(rate: Any, key: Any, shape: tuple[int, ...]) -> Drop | None:
    """Returns one Drop for each example and head (*B, H), or None where nothing is dropped.

    The key is one for all, or one for each example (*B). A traced rate counts as a constant:
    it has no gradient.

    Raises:
      TypeError: a key that is none.
      ValueError: a rate that is no probability, a rate without a key, a key without a rate,
        or keys that are not of the examples.
    """
    if is_never("dropout_rate", rate):
        if key is not None:
            raise ValueError("dropout_key is given but dropout_rate is 0")
        return None
    if key is None:
        raise ValueError(f"dropout_rate={rate} needs a dropout_key")
    # Flax shares one mask among examples and heads by default; here each has its own.
    keys = keys_of_heads("dropout_key", key, shape)
    # A gradient would be of the scale 1/(1 − rate) alone, and not of what is dropped.
    if isinstance(rate, jax.Array):
        rate = jax.lax.stop_gradient(rate)
    # The rate is repeated with the keys, because map_heads maps every leaf of a Drop.
    # `float` is float64 where that is enabled: 1/(1 − rate) is then exact to its digits.
    return Drop(jnp.broadcast_to(jnp.asarray(rate, float), shape), keys)


def is_never(name: str, rate: Any) -> bool:
    """Tells whether a rate of dropout is 0, and known before the numbers of arrays are.

    Raises:
      ValueError: a known rate that is not from 0 to 1, or an array of several.
    """
    if not isinstance(rate, (int, float)) and np.ndim(rate) > 0:
        raise ValueError(f"{name} of shape {np.shape(rate)} must be one number")
    # An array of JAX may be traced, and then cannot be compared: it counts as data.
    if isinstance(rate, jax.Array):
        return False
    # Negated, because no comparison with NaN holds.
    if not 0 <= rate <= 1:
        raise ValueError(f"{name}={rate} must be a probability, from 0 to 1")
    return bool(rate == 0)


def _no_value(
    kind: str, value: Any, names: Mapping[str, type], default: type, arguments: str
) -> TypeError:
    """Returns the error for a name, a class or another thing in place of a value."""
    if not isinstance(value, (str, type)):
        return TypeError(
            f"{kind} must be of a class that attn.{kind} makes, not {_kind(value)}"
        )
    cls = names.get(value, default) if isinstance(value, str) else value
    name = repr(value) if isinstance(value, str) else value.__name__
    return TypeError(
        f"{kind}={name} must be a value with its parameters, which "
        f"{cls.__name__}.init({arguments}) makes"
    )


def _kind(value: Any) -> str:
    """Describes a value of the wrong kind, an array by its dtype and shape."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"an array of {value.dtype} {tuple(value.shape)}"
    return f"a {type(value).__name__}"
