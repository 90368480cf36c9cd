"""Hard attention: a query takes the value of one key, the best or a random one.

It takes O(N + M) memory. A query that sees nothing has output 0 and index −1, and gives
no gradient. NaN or Inf in a hidden key or value reaches nobody. B batch (any leading
axes), N queries, M keys, H heads of queries, J heads of keys and values, K = L = d_k,
V = d_v; n queries and m keys in a block.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, Real, UInt32

from attn.arguments import check_normaliser, checked, has_no_pairs
from attn.attention import attention
from attn.functions import SAVED
from attn.kernels.query_blocks import over_blocks
from attn.kernels.tile import Tile
from attn.lookup import entries
from attn.map_heads import map_heads_of_keys
from attn.masks import Mask
from attn.normalisers import Softmax, softmax_parts
from attn.pytrees import AnyArray
from attn.random_bits import keys_of_heads, mix
from attn.scores import ScaledDot


def argmax_attention(
    q: Real[AnyArray, "*B N H K"],
    k: Real[AnyArray, "*B M J L"],
    v: Real[AnyArray, "*B M J V"],
    *,
    score: Any = ScaledDot(),
    normaliser: Any = Softmax(),
    mask: Mask | None = None,
    bias: Any = None,
    straight_through: bool = False,
) -> tuple[Float[Array, "*B N H V"], Int[Array, "*B N H"]]:
    """Returns the value of the key with the highest score(q, k) + bias, and its index.

    Of equal scores the first key is the best.

    Args:
      q, k, v, score, mask, bias: as for `attn.attention`.
      normaliser: counts in the gradient alone, as the best key is that of the best score.
      straight_through: the gradient is that of `attn.attention`; without, it reaches the
        selected values alone.

    Raises:
      ValueError: a normaliser whose weights do not follow the scores.
    """
    q, k, v, mask = checked(q, k, v, score, mask, bias)
    check_normaliser(normaliser)
    if not normaliser.by_score:
        raise ValueError(
            f"the key of the best score need not have the greatest weight of "
            f"{type(normaliser).__name__}: no key is the best"
        )
    if has_no_pairs(q, k):
        return _nothing(q, v)
    index, best = _best_keys(q, k, score, normaliser, mask, bias)
    # Negated, because NaN must count as broken and no comparison with it holds.
    out = _values_at(v, index, ~(best < jnp.inf))
    if straight_through:
        out = _with_soft_gradient(out, q, k, v, score, normaliser, mask, bias)
    return out, index


def sampled_attention(
    q: Real[AnyArray, "*B N H K"],
    k: Real[AnyArray, "*B M J L"],
    v: Real[AnyArray, "*B M J V"],
    *,
    key: Array,
    score: Any = ScaledDot(),
    normaliser: Any = Softmax(),
    mask: Mask | None = None,
    bias: Any = None,
    straight_through: bool = False,
) -> tuple[Float[Array, "*B N H V"], Int[Array, "*B N H"], Float[Array, "*B N H"]]:
    """Returns the value of a random key, drawn with probabilities normaliser(score + bias).

    This is the hard attention of "Show, attend and tell" (Xu et al. 2015, section 4.1).

    It draws by the Gumbel-max trick (Gumbel 1954; Maddison et al. 2014), independently for
    each query, head and example. The same key gives the same sample, whatever the kernel's
    blocks. The random numbers have 32 bits: probabilities below 2⁻³² are not met exactly.

    Neither output nor index has a gradient with respect to the probabilities. The
    log-probability has, to q, k, bias and the score's parameters, and so has an expected
    reward (REINFORCE, Williams 1992), here with a baseline:

        out, _, log_prob = sampled_attention(q, k, v, key=key)
        reward = jax.lax.stop_gradient(-loss_of(out))  # (*B), of one example
        policy = (reward - baseline) * log_prob.sum((-1, -2))  # of all its selections
        loss = loss_of(out).mean() - policy.mean() - beta * entropy(q, k).mean()

    Args:
      q, k, v, score, normaliser, mask, bias: as for `attn.attention`.
      key: a random key, or one for each example (*B).
      straight_through: the output's gradient is that of `attn.attention`; without, it
        reaches the selected values alone.

    Returns:
      The output, the index of its key, and the log-probability of the selection in nats,
      0 for a query that sees nothing.

    Raises:
      ValueError: a normaliser whose weights need not sum to 1.
    """
    q, k, v, mask = checked(q, k, v, score, mask, bias)
    check_normaliser(normaliser)
    if not normaliser.sums_to_one:
        raise ValueError(
            f"the weights of {type(normaliser).__name__} need not sum to 1, and are no "
            "probabilities to sample by"
        )
    keys = keys_of_heads("key", key, (*q.shape[:-3], q.shape[-2]))
    if has_no_pairs(q, k):
        wide = jnp.promote_types(jnp.result_type(q), jnp.float32)
        return *_nothing(q, v), jnp.zeros(q.shape[:-1], wide)
    index, log_prob = _random_keys(q, k, score, normaliser, mask, bias, keys)
    out = _values_at(v, index, jnp.isnan(log_prob))
    if straight_through:
        out = _with_soft_gradient(out, q, k, v, score, normaliser, mask, bias)
    return out, index, log_prob


def _nothing(q: AnyArray, v: AnyArray) -> tuple[Array, Array]:
    """Returns outputs of 0 and indices of −1."""
    out = jnp.zeros((*q.shape[:-1], v.shape[-1]), jnp.result_type(v))
    return out, jnp.full(q.shape[:-1], -1, jnp.int32)


@jax.jit
def _best_keys(
    q: AnyArray, k: AnyArray, score: Any, normaliser: Any, mask: Mask, bias: Any
) -> tuple[Array, Array]:
    blocks = functools.partial(over_blocks, _best_of_tile)
    rest = dict(score=score, normaliser=normaliser, mask=mask, bias=bias)
    return map_heads_of_keys(blocks, q, k, **rest)


def _best_of_tile(tile: Tile) -> tuple[Array, Array]:
    s = tile.scores()
    best = s.max(-1)
    return _index(tile, _first_argmax(s), best), best


@jax.jit
def _random_keys(
    q: AnyArray,
    k: AnyArray,
    score: Any,
    normaliser: Any,
    mask: Mask,
    bias: Any,
    keys: Array,
) -> tuple[Array, Array]:
    def one_head(q, k, v, *, drop, **rest):
        # Two secret words a query, for the whole head: the sample must not depend on
        # where blocks begin.
        words = jax.random.bits(drop, (q.shape[0], 2), jnp.uint32)
        # over_blocks hands `drop` to the tile as it is, so it can carry the words.
        return over_blocks(_sample_of_tile, q, k, v, drop=words, **rest)

    rest = dict(score=score, normaliser=normaliser, mask=mask, bias=bias)
    return map_heads_of_keys(one_head, q, k, drop=keys, **rest)


def _sample_of_tile(tile: Tile) -> tuple[Array, Array]:
    """Draws argmax_j w_j / E_j, E_j ~ Exp(1).

    This is the Gumbel-max trick argmax_j log w_j − log E_j, with one logarithm less.
    """
    log_weights, e = _log_weights(tile)
    words = tile.drop[tile.i]
    bits = mix(mix(tile.j.astype(jnp.uint32)[None] ^ words[:, :1]) + words[:, 1:])
    race = e / _exponential(bits)
    # Named, so that derivatives, which make the scores again, know the selection and need
    # no noise.
    at = checkpoint_name(_first_argmax(race), SAVED)
    selected = jnp.take_along_axis(log_weights, at[:, None], axis=-1)[:, 0]
    return _index(tile, at, selected), jnp.where(selected == -jnp.inf, 0.0, selected)


def _log_weights(tile: Tile) -> tuple[Array, Array]:
    """Returns the logarithms of the weights, −inf for 0, and numbers in their proportion."""
    if hasattr(tile.normaliser, "exponents"):
        below, e, total = softmax_parts(*tile.exponents())
        # A query that sees NaN has a total of NaN.
        return below - jnp.log(total), e
    weights = tile.normaliser(tile.scores())
    is_zero = weights == 0
    logs = jnp.log(jnp.where(is_zero, 1.0, weights))
    return jnp.where(is_zero, -jnp.inf, logs), weights


def _exponential(bits: UInt32[Array, "n m"]) -> Float[Array, "n m"]:
    """Turns each 32 random bits into a draw of the exponential distribution."""
    u = (bits.astype(jnp.float32) + 0.5) * 2**-32
    # The small draws win, so they come from small u, which float32 resolves to all of its
    # 32 bits. 1 would be Inf.
    return -jnp.log1p(-jnp.minimum(u, 1 - 2**-24))


def _first_argmax(x: Float[Array, "n m"]) -> Int[Array, "n"]:
    """Returns the place of the first maximum, and 0 where x has a NaN.

    On a CPU this is seven times faster than jnp.argmax.
    """
    # Without the barrier x might be made once for the maximum and again for its place,
    # and differ by a rounding.
    x = jax.lax.optimization_barrier(jax.lax.stop_gradient(x))
    m = x.shape[-1]
    return jnp.where(x < x.max(-1, keepdims=True), m, jnp.arange(m)[None]).min(-1)


def _index(tile: Tile, at: Array, best: Array) -> Array:
    return jnp.where(best == -jnp.inf, -1, tile.j[at]).astype(jnp.int32)


@jax.jit
def _values_at(v: AnyArray, index: Array, broken: Array) -> Array:
    """Returns the values at the indices, and 0 for an index of −1.

    It is NaN where a score that was NaN or Inf decided the index.
    """
    *batch, n, h = index.shape
    h_kv = v.shape[-2]
    # Each head of values has the queries of its group, one after another.
    at = index.reshape(*batch, n, h_kv, h // h_kv).swapaxes(-1, -2)
    at = at.reshape(*batch, n * (h // h_kv), h_kv, 1)
    # An index of −1 takes the last value, which is made 0 below.
    out = entries(v, at, -3)
    out = out.reshape(*batch, n, h // h_kv, h_kv, -1).swapaxes(-2, -3)
    out = out.reshape(*batch, n, h, -1)
    out = jnp.where(index[..., None] < 0, 0, out)
    return jnp.where(broken[..., None], jnp.nan, out)


def _with_soft_gradient(
    out: Array,
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    score: Any,
    normaliser: Any,
    mask: Mask,
    bias: Any,
) -> Array:
    """Returns `out`, exactly, with the gradient of soft attention."""
    rest = dict(score=score, normaliser=normaliser, mask=mask, bias=bias)
    soft = attention(q, k, v, **rest)
    # The difference is summed first: it is 0 exactly, so `out` is not rounded.
    return jax.lax.stop_gradient(out) + (soft - jax.lax.stop_gradient(soft))
