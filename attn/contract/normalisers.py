"""Checks of a custom normaliser."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attn.contract import kernels
from attn.contract.common import H, M, N, Row, cast, close, inputs, on_cudnn, run
from attn.jax_versions import enable_x64
from attn.normalisers import normaliser_init


def check_normaliser(
    normaliser: str | type | Callable,
    dtypes: Sequence[str] = tuple(kernels.TOLERANCES),
) -> list[Row]:
    """Checks that a normaliser meets the contract of `attn.normalisers`.

    Args:
      normaliser: as for `MultiHeadAttention`: a name of NORMALISERS, a class of
        normalisers, or a function (key, h) -> normaliser.
      dtypes: the precisions in which the kernels are compared.

    Returns:
      Rows on its form, what hidden keys get and change, what its weights sum to, every
      kernel in every precision and under every mask, its gradients, its heads, and a
      decoder's cache.
    """

    def make(dtype, h):
        init = normaliser_init(normaliser)
        return {"normaliser": cast(init(jax.random.key(0), h), dtype)}

    def of_head():
        """Returns the normaliser of one head, which is called with float64 enabled."""
        return _one_head(make(jnp.float32, H)["normaliser"])

    checks = {
        "can be a part of a description: it has a hash": lambda: hash(normaliser),
        "init gives each parameter a leading axis of heads": lambda: kernels.form(make),
        "weights are (n, m), in the precision of the scores": lambda: _dtypes(make),
        "hidden keys have weight 0": lambda: hidden(of_head()),
        "hidden keys change no other's weight": lambda: _unchanged(of_head()),
        "weights sum to 1 where sums_to_one says so": lambda: _sums(of_head()),
        "fused, where it is there, says what exponents does": lambda: _fused(make),
    }
    more = kernels.checks_of(make, dtypes, normaliser=normaliser)
    return list(run(checks | more))


def _one_head(value: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0] if jnp.ndim(leaf) else leaf, value)


def _scores(dtype: Any = jnp.float64) -> Array:
    """Returns scores of which some are hidden, and all of the last query's."""
    s = np.random.default_rng(4).normal(size=(N, M)) * 2
    s[:, 1] = s[-1] = -np.inf
    return jnp.asarray(s, dtype)


def _dtypes(make: kernels.Make) -> None:
    value = _one_head(make(jnp.float32, H)["normaliser"])
    weights = value(_scores(jnp.float32))
    if weights.shape != (N, M) or weights.dtype != jnp.float32:
        raise ValueError(
            f"of float32 scores of shape {(N, M)} the weights are {weights.dtype} of shape "
            f"{weights.shape}"
        )


def hidden(value: Any) -> None:
    """Raises ValueError where a hidden key has a weight, or a weight is no finite number."""
    with enable_x64(True):
        s = _scores()
        weights = value(s)
        finite = jnp.isfinite(weights).all(-1)
        if not finite[:-1].all():
            raise ValueError("a weight is NaN or Inf, of a query that sees some keys")
        if not finite[-1]:
            raise ValueError(
                "a weight is NaN or Inf, of a query that sees no key (all its scores are "
                "−inf): its weights must be 0, so guard the division by their sum"
            )
        if not jnp.isfinite(value(1000 * s)).all():
            raise ValueError(
                "a weight is NaN or Inf where scores are ±1,000: of e^s take the greatest "
                "score off first"
            )
        if jnp.where(s == -jnp.inf, weights, 0).any():
            raise ValueError("a key whose score is −inf has a weight that is not 0")


def _unchanged(value: Any) -> str:
    with enable_x64(True):
        s = _scores()
        seen = jnp.delete(s, 1, axis=1)
        return close(jnp.delete(value(s), 1, axis=1), value(seen), 1e-9)


def _fused(make: kernels.Make) -> str:
    values = make(jnp.float32, H)
    if not hasattr(values["normaliser"], "fused"):
        return "it is not"
    return on_cudnn(inputs("float32"), **values)


def _sums(value: Any) -> str:
    if not value.sums_to_one:
        return "it does not"
    with enable_x64(True):
        total = value(_scores())[:-1].sum(-1)
        return close(total, jnp.ones(N - 1), 1e-9, "sums")
