"""Checks of a custom score."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attn.contract import kernels
from attn.contract.common import H, K, M, N, Row, cast, close, inputs, run
from attn.jax_versions import enable_x64
from attn.scores import Dot, score_init


def check_score(
    score: str | type | Callable,
    dtypes: Sequence[str] = tuple(kernels.TOLERANCES),
) -> list[Row]:
    """Checks that a score meets the contract of `attn.scores`.

    Args:
      score: as for `MultiHeadAttention`: a name of SCORES, a class of scores, or a
        function (key, h, d_q, d_k) -> score.
      dtypes: the precisions in which the kernels are compared.

    Returns:
      Rows on its form, `prepare`, every kernel in every precision and under every mask,
      its gradients, its heads, and a decoder's cache.
    """

    def make(dtype, h):
        return {"score": _make(score, dtype, h)}

    checks = {
        "can be a part of a description: it has a hash": lambda: hash(score),
        "init gives each parameter a leading axis of heads": lambda: kernels.form(make),
        "scores are (N, M), float32 at least": lambda: _dtypes(score),
        "prepare equals __call__": lambda: _prepare(score),
        "is_product is true only where prepare gives Dot()": lambda: _product(score),
    }
    return list(run(checks | kernels.checks_of(make, dtypes, score=score)))


def _make(score: Any, dtype: Any, h: int) -> Any:
    """Makes a score of h heads whose parameters are of a dtype."""
    return cast(score_init(score)(jax.random.key(0), h, K, K), dtype)


def _one_head(function: Callable, score: Any, q: Array, k: Array) -> Array:
    """Maps `function(score, q, k)` over the heads of q and k (N, H, K)."""

    def for_each_head(leaf):
        return jnp.broadcast_to(leaf, (H, *jnp.shape(leaf)[1:]))

    score = jax.tree.map(for_each_head, score)
    return jax.vmap(function, (0, 1, 1))(score, q, k)


def _dtypes(score: Any) -> None:
    for dtype, wide in (("bfloat16", "float32"), ("float32", "float32")):
        q, k, _ = inputs(dtype)
        s = _one_head(
            lambda score, q, k: score(q, k), _make(score, dtype, H), q[0], k[0]
        )
        if s.shape != (H, N, M) or s.dtype != wide:
            raise ValueError(
                f"of {dtype} inputs the scores are {s.dtype} of shape {s.shape[1:]}, "
                f"not {wide} of shape {(N, M)}; s.astype({wide!r}) widens them"
            )


def _prepare(score: Any) -> str:
    def prepared(score, q, k):
        score, q, k = score.prepare(q, k)
        return score(q, k)

    # In float64 rounding cannot hide a difference between the formulas.
    with enable_x64(True):
        value = _make(score, jnp.float64, H)
        q, k, _ = inputs(jnp.float64)
        direct = _one_head(lambda score, q, k: score(q, k), value, q[0], k[0])
        return close(_one_head(prepared, value, q[0], k[0]), direct, 1e-9)


def _product(score: Any) -> str:
    value = _make(score, jnp.float32, H)
    kinds = []

    def prepared(score, q, k):
        inner, q, k = score.prepare(q, k)
        # vmap returns arrays only, so the type is noted on the side.
        kinds.append(type(inner))
        return inner(q, k)

    q, k, _ = inputs(jnp.float32)
    _one_head(prepared, value, q[0], k[0])
    if value.is_product and kinds[0] is not Dot:
        raise ValueError(f"is_product, but prepare gives {kinds[0].__name__}")
    return "a product" if value.is_product else "no product"
