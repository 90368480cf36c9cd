"""Talking heads: heads that mix their scores before softmax and their weights after it.

Shazeer et al. 2020, "Talking-heads attention" (arXiv 2003.02436). B batch (any leading
axes), N queries, M keys, H heads, K = d_k, V = d_v; G = H, the heads after a mixture;
T entries of a cache.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn.arguments import checked
from attn.arithmetic import Products
from attn.attention import attention
from attn.cache import begin_at
from attn.context import Context
from attn.heads.base import Heads
from attn.kernels.cached import from_cached
from attn.kernels.reference import all_heads, scores_of_head
from attn.masks import Mask
from attn.normalisers import Softmax
from attn.pytrees import AnyArray, at_least_float32, factors
from attn.scores import Dot, ScaledDot

if TYPE_CHECKING:
    from attn.config import Attention


@dataclasses.dataclass(frozen=True)
class TalkingHeads(Heads):
    """Heads mix their scores before softmax and their weights after it.

    Shazeer et al. 2020, with as many heads everywhere. Memory is H·N·M. Parameters: two
    matrices (H, H), identities at first, so that heads are separate.
    """

    # Scores and weights, each before and after a mixture.
    floats_of_pair: ClassVar[float] = 5.0
    is_quadratic: ClassVar[bool] = True

    def parameters(self, key: Array, a: "Attention") -> dict[str, Array]:
        """Makes the two matrices."""
        return {"w_scores": jnp.eye(a.h), "w_weights": jnp.eye(a.h)}

    def attend(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "*B N H K"],
        k: Float[Array, "*B M H K"],
        v: Float[Array, "*B M H V"],
        ctx: Context,
        **arguments: Any,
    ) -> Any:
        """Computes the outputs (*B, N, H, V) and, asked for, the weights."""
        matrices = params["w_scores"], params["w_weights"]
        return talking_heads(q, k, v, *matrices, **arguments)

    def over_cache(
        self,
        params: Mapping[str, Array],
        q: Float[Array, "*B N H K"],
        k: Float[Array, "*B H K T"],
        v: Float[Array, "*B H T V"],
        ctx: Context,
        *,
        visible: Bool[Array, "*B n T"],
        bias: Any = None,
        best: bool = False,
        first: Int[Array, "*t"] | None = None,
        **arguments: Any,
    ) -> Float[Array, "*B N H V"]:
        """Computes the same over cached keys and values."""
        if first is not None:
            # Normalisers may depend on the order of keys.
            k, visible = begin_at(k, first), begin_at(visible, first)
            v = begin_at(v, first, axis=-2)
            bias = None if bias is None else begin_at(bias, first)
        mask = Mask.dense(visible[..., None, :, :])
        keys = from_cached(k, v)
        arguments |= dict(mask=mask, bias=bias)
        return self.attend(params, q, *keys, ctx, **arguments)

    def products(self, a: "Attention") -> Products:
        """Counts those of a pair with both matrices."""
        return Products(pair=2 * a.h**2)


def talking_heads(
    q: Float[AnyArray, "*B N H K"],
    k: Float[AnyArray, "*B M H L"],
    v: Float[AnyArray, "*B M H V"],
    w_scores: Float[Array, "H G"],
    w_weights: Float[Array, "H G"],
    *,
    score: Any = ScaledDot(),
    normaliser: Any = Softmax(),
    mask: Mask | None = None,
    bias: Any = None,
    dropout_rate: float | Float[Array, ""] = 0.0,
    dropout_key: Array | None = None,
    return_weights: bool = False,
) -> Any:
    """Computes attention whose heads mix their scores and their weights.

    Shazeer et al. 2020: s'_g = Σ_h s_h w_scores[h, g], a_g = normaliser(s'_g)
    over the keys that the mask shows, a'_g = Σ_h a_h w_weights[h, g], and a'_g v_g. With
    identity matrices it is `attention`. All heads' scores stand side by side: memory is
    H·N·M, whatever the kernel, and there is no `implementation` to choose.

    The other arguments are those of `attention`. The bias joins the scores before they are
    mixed; dropout is of a. What is hidden in a head counts as 0 in the mixture of scores.

    Returns:
      The output (*B, N, H, V) in v's dtype; asked for, a tuple of it and the weights a',
      (*B, H, N, M), after dropout.

    Raises:
      ValueError: fewer heads of keys than of queries, and what `attention` raises.
    """
    q, k, v, mask = checked(q, k, v, score, mask, bias)
    if k.shape[-2] != q.shape[-2]:
        raise ValueError(
            f"talking heads have keys and values of their own: {q.shape[-2]} heads of "
            f"queries, {k.shape[-2]} of keys"
        )
    s = all_heads(
        scores_of_head,
        q,
        k,
        v,
        score=score,
        normaliser=normaliser,
        mask=mask,
        bias=bias,
    )
    s = jnp.einsum("...nhm,hg->...gnm", s, w_scores.astype(s.dtype))
    # Without features all scores are 0, and so the bias is what the softmax is of.
    _, weights = attention(
        *(x[..., :0] for x in (q, k, v)),
        score=Dot(),
        normaliser=normaliser,
        mask=mask,
        bias=s,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
        return_weights="after",
    )
    weights = jnp.einsum("...hnm,hg->...gnm", weights, w_weights.astype(weights.dtype))
    out = _weighted(weights, v)
    return (out, weights) if return_weights else out


def _weighted(weights: Array, v: AnyArray) -> Array:
    """Returns the sums (*B, N, H, V) of values by their weights (*B, H, N, M)."""
    # Of a query that sees NaN the weights are NaN already; from others it is kept.
    finite = jnp.where(jnp.isfinite(v), v, 0)
    out = jnp.einsum(
        "...hnm,...mhv->...nhv",
        *factors(weights.astype(v.dtype), finite),
        preferred_element_type=at_least_float32(v.dtype),
    )
    return out.astype(v.dtype)
