"""What every kernel starts from: the scores of some queries and keys, with what is hidden at −inf."""

import jax
import jax.numpy as jnp


def masked_scores(score, q, k, v, bias, mask, i, j):
    """Scores (n, m) of queries i and keys j, plus bias, −inf where the mask hides the key.

    A NaN or Inf in a key or value makes the scores NaN that see it and touches no other: it must not enter a product,
    where a weight of 0 would make it NaN for everybody. So it leaves here (and leaves v in `finite`), and comes back
    as a term of the visible scores.
    """
    s = score(q, finite(k))
    if bias is not None:
        s = s + bias.astype(s.dtype)
    of_key, of_value = (0 * jax.lax.stop_gradient(x).sum(-1).astype(s.dtype) for x in (k, v))
    return jnp.where(mask.tile(i, j), s + (of_key + of_value)[None], -jnp.inf)


def finite(x):
    """x with 0 for every NaN and Inf, which then have no gradient."""
    return jnp.where(jnp.isfinite(x), x, 0)
