"""The Linen shell around `attention()`: h heads with their own projections.

B batch (any leading axes), N queries, M keys, T = the keys a cache has room for, D = d_model, H = h, K = d_k, V = d_v.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from attn.attention import attention
from attn.masks import Mask
from attn.scores import SCORES

HEADS = ("concat", "mean")


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, …, head_h) W_O, head_i = Attention(Q W_Q,i, K W_K,i, V W_V,i).

    "Attention Is All You Need", section 3.2.2. d_model, h, d_k and d_v are four independent numbers. The projections
    have no bias, as in the paper, and Glorot-uniform initial values over (d_model, h·d_k).

    Parameters: h·d_model·(2·d_k + 2·d_v), or h·d_model·(2·d_k + d_model) with heads="mean", and the score's own.

    With the collection "weights" mutable in `apply`, the attention weights (*B, H, N, M) are kept there.

    Attributes:
      score: makes what is compared, a function (key, h, d_q, d_k) -> score, see `attn.scores`. The score's arrays are
        parameters, kept under "score" by the name of their field; its numbers stay as they are.
      heads: "concat" as above, or "mean": (head_1 + … + head_h) / h without W_O, each head with a W_V of its own from
        d_model to d_model, Glorot-uniform by itself, so that d_v = d_model.
      activation: a function on the output, or None.

    Raises:
      ValueError: heads that are unknown, heads="mean" with d_v ≠ d_model, parameters of another score.
    """

    d_model: int
    h: int
    d_k: int
    d_v: int
    score: Callable[[Array, int, int, int], Any] = SCORES["scaled_dot"]
    heads: str = "concat"
    activation: Callable[[Array], Array] | None = None

    def setup(self):
        if self.heads not in HEADS:
            raise ValueError(f"unknown heads {self.heads!r}; known: {', '.join(HEADS)}")
        if self.heads == "mean" and self.d_v != self.d_model:
            raise ValueError(f"heads='mean' needs d_v = d_model, for want of a W_O; got d_v={self.d_v}, "
                             f"d_model={self.d_model}")
        glorot = nn.initializers.glorot_uniform
        into_heads, out_of_heads = glorot(0, (1, 2)), glorot((0, 1), 2)
        self.w_q = self.param("w_q", into_heads, (self.d_model, self.h, self.d_k))
        self.w_k = self.param("w_k", into_heads, (self.d_model, self.h, self.d_k))
        into_values = into_heads if self.heads == "concat" else glorot(0, 2, batch_axis=1)
        self.w_v = self.param("w_v", into_values, (self.d_model, self.h, self.d_v))
        if self.heads == "concat":
            self.w_o = self.param("w_o", out_of_heads, (self.h, self.d_v, self.d_model))
        self.compare = self._score()

    def __call__(self, x: Float[Array, "*B N D"], memory: Float[Array, "*B M D"], mask: Mask,
                 bias=None) -> Float[Array, "*B N D"]:
        """Attention from x to memory; self-attention when they are the same. `bias` is added to the scores."""
        return self.attend(x, *self.keys_and_values(memory), mask, bias)

    def keys_and_values(self, memory: Float[Array, "*B M D"]):
        """The projected keys (*B, M, H, K) and values (*B, M, H, V): what a decoder keeps from step to step."""
        return _project(memory, self.w_k), _project(memory, self.w_v)

    def attend(self, x: Float[Array, "*B N D"], k: Float[Array, "*B M H K"], v: Float[Array, "*B M H V"], mask: Mask,
               bias=None) -> Float[Array, "*B N D"]:
        """Attention from x to projected keys and values."""
        watched = self.is_mutable_collection("weights") and not self.is_initializing()
        out = attention(_project(x, self.w_q), k, v, score=self.compare, mask=mask, bias=bias, return_weights=watched)
        if watched:
            out, weights = out
            self.sow("weights", "weights", weights, reduce_fn=lambda _, new: new, init_fn=lambda: None)
        out = jnp.einsum("...nhv,hvd->...nd", out, self.w_o) if self.heads == "concat" else out.mean(-2)
        return out if self.activation is None else self.activation(out)

    def empty_cache(self, batch_shape: tuple[int, ...], length: int, dtype):
        """Room for the keys (*B, T, H, K) and values (*B, T, H, V) of T = length places."""
        return tuple(jnp.zeros((*batch_shape, length, self.h, d), dtype) for d in (self.d_k, self.d_v))

    def step(self, x: Float[Array, "*B N D"], t: Int[ArrayLike, ""], cache):
        """Causal self-attention of the tokens at places t to t + N − 1 ≤ T − 1, those before them being in `cache`.

        Returns the output and the new cache. A t beyond the room is not noticed: the last places are written again.
        """
        cache = tuple(jax.lax.dynamic_update_slice_in_dim(old, new, t, axis=-3)
                      for old, new in zip(cache, self.keys_and_values(x), strict=True))
        return self.attend(x, *cache, Mask.causal(offset=t)), cache

    def _score(self):
        """The score, its arrays being parameters of this module; none of them, no entry."""
        def make(key):
            return self.score(key, self.h, self.d_k, self.d_k)

        made = make(jax.random.key(0))  # for its form and its numbers
        names, own = list(_arrays(made)), {}
        if names or self.has_variable("params", "score"):
            own = self.param("score", lambda key: _arrays(make(key)))
        if sorted(own) != sorted(names):
            raise ValueError(f"the parameters are of another score: they have {sorted(own)}, it has {sorted(names)}")
        return jax.tree.map_with_path(lambda path, leaf: own.get(_name(path), leaf), made)


def _arrays(score):
    """The arrays of a score, each by the name of its field."""
    leaves = jax.tree.leaves_with_path(score)
    return {_name(path): leaf for path, leaf in leaves if isinstance(leaf, jax.Array | np.ndarray)}


def _name(path):
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _project(x, w):
    return jnp.einsum("...nd,dhk->...nhk", x, w)
