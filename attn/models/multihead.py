"""The Linen shell around `attention()`: h heads with their own projections.

B batch (any leading axes), N queries, M keys, T = the keys a cache has room for, D = d_model, H = h, K = d_k, V = d_v.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from attn import inside
from attn.attention import attention
from attn.biases import for_query
from attn.hard import argmax_attention, sampled_attention
from attn.kernels.cached import as_cached, over_cache
from attn.masks import Mask
from attn.positions import rotary
from attn.scores import SCORES

HEADS = ("concat", "mean")
CHOICES = ("soft", "argmax", "sampled")


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, …, head_h) W_O, head_i = Attention(Q W_Q,i, K W_K,i, V W_V,i).

    "Attention Is All You Need", section 3.2.2. d_model, h, d_k and d_v are four independent numbers. The projections
    have Glorot-uniform initial values over (d_model, h·d_k) and, as in the paper, no biases unless asked for.

    Parameters: h·d_model·(2·d_k + 2·d_v), or h·d_model·(2·d_k + d_model) with heads="mean" and d_v = d_model, the
    score's own, those of `relative`, and h·(2·d_k + d_v) + d_model of biases, the last where there is a w_o.

    With the collection "weights" mutable in `apply`, the attention weights (*B, H, N, M) are kept there.

    Attributes:
      score: makes what is compared, a function (key, h, d_q, d_k) -> score, see `attn.scores`. The score's arrays are
        parameters, kept under "score" by the name of their field; its numbers stay as they are.
      heads: "concat" as above, or "mean": (head_1 + … + head_h) / h without W_O, each head with a W_V of its own from
        d_model to d_model, Glorot-uniform by itself: with d_v = d_model one matrix, otherwise a product of two, of rank
        d_v. A head sums d_v numbers a key, and the second matrix comes after.
      activation: a function on the output, or None.
      biases: whether the projections add vectors b_q, b_k, b_v and, with heads="concat", b_o, all 0 at first.
      relative: what position adds to the scores, a function (key, h) -> bias, see `attn.biases`; where that is trained,
        its arrays are parameters kept under "relative". For self-attention: places count from 0 on both sides.
      rotary: whether queries and keys are turned by their places, see `attn.rotary`; for self-attention too.
      choice: "soft"; "argmax", the value of the best key with the gradient of soft attention; "sampled", where an rng
        named "sample" is given a random key, otherwise the best, see `choose`. Not for self-attention in steps.
      P_drop: weights are dropped with this probability where an rng named "dropout" is given; may be traced.

    Raises:
      ValueError: heads or a choice that are unknown, parameters of another score.
    """

    d_model: int
    h: int
    d_k: int
    d_v: int
    score: Callable[[Array, int, int, int], Any] = SCORES["scaled_dot"]
    heads: str = "concat"
    activation: Callable[[Array], Array] | None = None
    biases: bool = False
    relative: Callable[[Array, int], Any] | None = None
    rotary: bool = False
    choice: str = "soft"
    P_drop: float | Float[Array, ""] = 0.0

    def setup(self):
        if self.heads not in HEADS:
            raise ValueError(f"unknown heads {self.heads!r}; known: {', '.join(HEADS)}")
        if self.choice not in CHOICES:
            raise ValueError(
                f"unknown choice {self.choice!r}; known: {', '.join(CHOICES)}"
            )
        if self.choice == "sampled":
            self.baseline = Baseline()
        glorot = nn.initializers.glorot_uniform
        into_heads, out_of_heads = glorot(0, (1, 2)), glorot((0, 1), 2)
        self.w_q = self.param("w_q", into_heads, (self.d_model, self.h, self.d_k))
        self.w_k = self.param("w_k", into_heads, (self.d_model, self.h, self.d_k))
        into_values = (
            into_heads if self.heads == "concat" else glorot(0, 2, batch_axis=1)
        )
        self.w_v = self.param("w_v", into_values, (self.d_model, self.h, self.d_v))
        if self._widens:
            out = out_of_heads if self.heads == "concat" else glorot(1, 2, batch_axis=0)
            self.w_o = self.param("w_o", out, (self.h, self.d_v, self.d_model))
        if self.biases:
            zeros = nn.initializers.zeros
            self.b_q, self.b_k = (
                self.param(name, zeros, (self.h, self.d_k)) for name in ("b_q", "b_k")
            )
            self.b_v = self.param("b_v", zeros, (self.h, self.d_v))
            if self._widens:
                self.b_o = self.param("b_o", zeros, (self.d_model,))
        self.compare = with_parameters(
            self, "score", lambda key: self.score(key, self.h, self.d_k, self.d_k)
        )
        self.nearness = self.relative and with_parameters(
            self, "relative", lambda key: self.relative(key, self.h)
        )

    def __call__(
        self,
        x: Float[Array, "*B N D"],
        memory: Float[Array, "*B M D"],
        mask: Mask,
        bias=None,
    ) -> Float[Array, "*B N D"]:
        """Attention from x to memory; self-attention when they are the same. `bias` is added to the scores."""
        return self.attend(x, *self.keys_and_values(memory), mask, bias)

    def keys_and_values(
        self, memory: Float[Array, "*B M D"], places: Int[Array, "M"] | None = None
    ):
        """The projected keys (*B, M, H, K) and values (*B, M, H, V): what a decoder keeps from step to step.

        `places`, from 0 on unless given, matter to rotary attention only.
        """
        k, v = _project(memory, self.w_k), _project(memory, self.w_v)
        if self.biases:
            k, v = _plus(k, self.b_k), _plus(v, self.b_v)
        return self._turned(k, places), v

    def attend(
        self,
        x: Float[Array, "*B N D"],
        k: Float[Array, "*B M H K"],
        v: Float[Array, "*B M H V"],
        mask: Mask,
        bias=None,
    ) -> Float[Array, "*B N D"]:
        """Attention from x to projected keys and values; `bias` in place of the module's own."""
        what = dict(
            score=self.compare, mask=mask, bias=self.nearness if bias is None else bias
        )
        return self._merged(
            attend(self, x, self._queries(x), k, v, what, self._dropout())
        )

    def remember(self, memory: Float[Array, "*B M D"]):
        """The keys (*B, H, K, M) and values (*B, H, M, V) of `memory`, as `recall` wants them."""
        return as_cached(*self.keys_and_values(memory))

    def recall(
        self, x: Float[Array, "*B N D"], memory, visible: Bool[Array, "*B n M"]
    ) -> Float[Array, "*B N D"]:
        """Attention from x to what `remember` gave, `visible` (n = N or 1) saying which keys; without dropout."""
        return self._merged(
            over_cache(
                self._queries(x),
                *memory,
                score=self.compare,
                visible=visible,
                best=self.choice != "soft",
            )
        )

    def empty_cache(self, batch_shape: tuple[int, ...], length: int, dtype):
        """Room for the keys (*B, H, K, T) and values (*B, H, T, V) of T = length places."""
        return (
            jnp.zeros((*batch_shape, self.h, self.d_k, length), dtype),
            jnp.zeros((*batch_shape, self.h, length, self.d_v), dtype),
        )

    def step(self, x: Float[Array, "*B N D"], t: Int[ArrayLike, ""], cache):
        """Causal self-attention of the tokens at places t to t + N − 1 ≤ T − 1, those before them being in `cache`.

        Returns the output and the new cache. A t beyond the room is not noticed: the last places are written again.
        """
        places = t + jnp.arange(x.shape[-2])
        visible = jnp.arange(cache[0].shape[-1])[None] <= places[:, None]
        bias = None
        if self.nearness is not None:
            bias = jnp.stack(
                [self._row_of_bias(place, visible.shape[-1]) for place in places],
                axis=1,
            )
        return self._step(
            x,
            t,
            cache,
            places,
            jnp.broadcast_to(visible, (*x.shape[:-2], *visible.shape)),
            bias,
        )

    def step_side_by_side(
        self,
        x: Float[Array, "*B N D"],
        t: Int[ArrayLike, ""],
        cache,
        visible: Bool[Array, "*B N T"],
    ):
        """Self-attention of N tokens that all stand at place t, each of another hypothesis of one sentence.

        Their keys and values go to entries t·N … t·N + N − 1 of the cache, so that entry e stands at place e // N;
        `visible` says which of the entries each hypothesis sees. Returns the output and the new cache.
        """
        n = x.shape[-2]
        bias = None
        if self.nearness is not None:
            bias = self._row_of_bias(t, visible.shape[-1] // n).repeat(n, axis=-1)[
                :, None
            ]
        return self._step(x, t * n, cache, jnp.full(n, t), visible, bias)

    def _step(self, x, start, cache, places, visible, bias):
        """Attention from x, at `places`, to the cache with its own keys and values from entry `start` on."""
        k, v = as_cached(*self.keys_and_values(x, places))
        cache = (
            jax.lax.dynamic_update_slice_in_dim(cache[0], k, start, axis=-1),
            jax.lax.dynamic_update_slice_in_dim(cache[1], v, start, axis=-2),
        )
        out = over_cache(
            self._queries(x, places),
            *cache,
            score=self.compare,
            visible=visible,
            bias=bias,
        )
        return self._merged(out), cache

    def _row_of_bias(self, place, entries):
        return for_query(self.nearness, self.h, place, entries)

    def _queries(self, x, places=None):
        q = _project(x, self.w_q)
        return self._turned(_plus(q, self.b_q) if self.biases else q, places)

    @property
    def _widens(self):
        """Whether what heads give is brought to d_model by matrices w_o."""
        return self.heads == "concat" or self.d_v != self.d_model

    def _merged(self, out):
        """One vector a token from those of its heads."""
        out = (
            jnp.einsum("...nhv,hvd->...nd", out, self.w_o)
            if self._widens
            else out.sum(-2)
        )
        out = out / self.h if self.heads == "mean" else out
        if self.biases and self._widens:
            out = _plus(out, self.b_o)
        return out if self.activation is None else self.activation(out)

    def _turned(self, x, places):
        if not self.rotary:
            return x
        return rotary(x, jnp.arange(x.shape[-3]) if places is None else places)

    def _dropout(self):
        if not self.has_rng("dropout") or (
            isinstance(self.P_drop, float | int) and self.P_drop == 0
        ):
            return {}
        return dict(dropout_rate=self.P_drop, dropout_key=self.make_rng("dropout"))


class Baseline(nn.Module):
    """What REINFORCE compares a reward with: b(x) = x w + c, of each query by itself; both 0 at first."""

    @nn.compact
    def __call__(self, x: Float[Array, "*B N D"]) -> Float[Array, "*B N"]:
        w = self.param("w", nn.initializers.zeros, (x.shape[-1],))
        return x @ w + self.param("c", nn.initializers.zeros, ())


def attend(
    module: nn.Module,
    x: Float[Array, "*B N D"],
    q: Float[Array, "*B N H K"],
    k: Float[Array, "*B M H L"],
    v: Float[Array, "*B M H V"],
    what: dict[str, Any],
    dropout: dict[str, Any],
) -> Float[Array, "*B N H V"]:
    """Attention by the `choice` of `module`, with score, mask and bias in `what`; `x` is what the queries are made of.

    Sampled attention, with an rng named "sample" and the collection "policy" mutable, keeps there what REINFORCE needs
    of each query (*B, N): "log_prob" of its choices in all heads, the "entropy" of what they were drawn from, and what
    the baseline has "foretold", which sends x no gradient.
    """
    watched = module.is_mutable_collection("weights") and not module.is_initializing()
    keep = functools.partial(
        module.sow, reduce_fn=lambda _, new: new, init_fn=lambda: None
    )
    if watched or module.choice == "soft":
        out = attention(q, k, v, return_weights=watched, **what, **dropout)
        if watched:
            out, weights = out
            keep("weights", "weights", weights)
    if module.choice == "sampled":
        baseline = module.baseline(jax.lax.stop_gradient(x))
    if module.choice == "sampled" and module.has_rng("sample"):
        out, _, log_prob = sampled_attention(
            q, k, v, key=module.make_rng("sample"), **what
        )
        keep("policy", "log_prob", log_prob.sum(-1))
        keep("policy", "entropy", inside.entropy(q, k, **what).sum(-1))
        keep("policy", "foretold", baseline)
    elif module.choice != "soft":
        out, _ = argmax_attention(
            q, k, v, straight_through=module.choice == "argmax", **what
        )
    return out


def with_parameters(module: nn.Module, name: str, make: Callable[[Array], Any]):
    """What `make(key)` makes, its arrays being parameters of `module` under `name`; none of them, no entry.

    Raises ValueError where the parameters are of another thing.
    """
    made = make(jax.random.key(0))  # for its form and its numbers
    names, own = list(_arrays(made)), {}
    if not getattr(made, "trained", True):
        return made
    if names or module.has_variable("params", name):
        own = module.param(name, lambda key: _arrays(make(key)))
    if sorted(own) != sorted(names):
        raise ValueError(
            f"the parameters are of another {name}: they have {sorted(own)}, it has {sorted(names)}"
        )
    return jax.tree.map_with_path(lambda path, leaf: own.get(_name(path), leaf), made)


def _arrays(value):
    """The arrays of a score or bias, each by the name of its field."""
    leaves = jax.tree.leaves_with_path(value)
    return {
        _name(path): leaf
        for path, leaf in leaves
        if isinstance(leaf, jax.Array | np.ndarray)
    }


def _name(path):
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _project(x, w):
    return jnp.einsum("...nd,dhk->...nhk", x, w)


def _plus(x, b):
    """x + b, b for every token alike."""
    return x + b.reshape((1,) * (x.ndim - b.ndim) + b.shape)
