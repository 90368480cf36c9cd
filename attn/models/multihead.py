"""The Linen shell around `attention()`: h heads with their own projections.

B batch (any leading axes), N queries, M keys, T = the keys a cache has room for,
D = d_model, H = h, K = d_k, V = d_v.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn import inspect
from attn.arguments import is_never
from attn.attention import attention
from attn.hard import argmax_attention, sampled_attention
from attn.kernels.cached import as_cached, over_cache
from attn.masks import Mask
from attn.models.heads import GATES, Heads, Separate, gated
from attn.models.parameters import normaliser_of, with_parameters
from attn.models.visibility import (
    ancestors,
    for_each_example,
    kept_positions,
    kept_visible,
    write_entries,
)
from attn.positions import NoPositions, Positions, bias_of_heads, bias_row
from attn.precision import at_least_float32
from attn.scores import score_init

COMBINATIONS = ("concat", "mean")
"""The ways to make one vector of those of the heads."""
SELECTIONS = ("soft", "argmax", "sampled")
"""The ways to take values by their weights."""


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, …, head_h) W_O.

    head_i = Attention(Q W_Q,i, K W_K,i, V W_V,i), "Attention Is All You Need", section
    3.2.2. d_model, h, d_k and d_v are four independent numbers. The projections have
    Glorot-uniform initial values over (d_model, h·d_k) and, as in the paper, no biases
    unless asked for.

    Parameters: h·d_model·(2·d_k + 2·d_v), or h·d_model·(2·d_k + d_model) with
    combine="mean" and d_v = d_model, the score's and the normaliser's own, those of
    `positions`, and h·(2·d_k + d_v) + d_model of biases, the last where there is a w_o.
    Differential heads have 2·d_k in place of d_k in these, and 4·d_k + d_v more; talking
    heads 2·h² more; a gate d_model·h or d_model·h·d_v, and as many biases as columns.

    With the collection "weights" mutable in `apply`, the attention weights (*B, H, N, M)
    are kept there.

    Attributes:
      score: a function (key, h, d_q, d_k) -> score, such as `Additive.init`, a class of
        scores, or a name of SCORES. The score's arrays are parameters, kept under "score"
        by the name of their field; its numbers stay as they are.
      combine: "concat" as above, or "mean": (head_1 + … + head_h) / h without W_O, each
        head with a W_V of its own from d_model to d_model, Glorot-uniform by itself: with
        d_v = d_model one matrix, otherwise a product of two, of rank d_v. A head sums d_v
        numbers a key, and the second matrix comes after.
      activation: a function on the output, or None.
      biases: whether the projections add vectors b_q, b_k, b_v and, with
        combine="concat", b_o, all 0 at first.
      positions: tells self-attention where tokens stand, by rotation or bias; its table
        is the model's. The arrays of a trained bias are parameters kept under
        "relative", those of forget gates under "forget".
      causal: whether a query sees no key behind it, which some biases ask; the mask hides
        them, not this.
      selection: "soft"; "argmax", the value of the best key with the gradient of soft
        attention; "sampled", where an rng named "sample" is given a random key, otherwise
        the best, see `select`. Not for self-attention in steps.
      P_drop: weights are dropped with this probability where an rng named "dropout" is
        given; may be traced. Only for selection="soft": others have no weights to drop.
      normaliser: makes weights of scores: a function (key, h) -> normaliser, a class of
        normalisers, or a name of NORMALISERS. Its arrays are parameters too, kept under
        "normaliser".
      heads: what heads have to do with each other, see `attn.models.heads`. The parameters
        of other than separate ones are kept under "together".
      gate: multiplies the heads' outputs, before W_O, by σ(x W_g), x the module's input
        on the queries' side (Qiu et al. 2025, section 2.2): "none"; "head", by a number a
        head; "element", by d_v numbers a head. With `biases`, by σ(x W_g + b_g).

    Raises:
      ValueError: an unknown name, parameters of another score, positions that do not fit,
        a P_drop that is not from 0 to 1 or has nothing to drop, selection="sampled" with a
        normaliser whose weights need not sum to 1, another selection than "soft" with
        heads that are not separate.
    """

    d_model: int
    h: int
    d_k: int
    d_v: int
    score: str | type | Callable[[Array, int, int, int], Any] = "scaled_dot"
    combine: str = "concat"
    activation: Callable[[Array], Array] | None = None
    biases: bool = False
    positions: Positions = NoPositions()
    causal: bool = False
    selection: str = "soft"
    P_drop: float | Float[Array, ""] = 0.0
    normaliser: str | type | Callable[[Array, int], Any] = "softmax"
    heads: Heads = Separate()
    gate: str = "none"

    def setup(self):
        """Draws the parameters."""
        check_name("combine", self.combine, COMBINATIONS)
        check_name("selection", self.selection, SELECTIONS)
        check_name("gate", self.gate, GATES)
        self.heads.check()
        if not is_never("P_drop", self.P_drop) and self.selection != "soft":
            raise ValueError(
                f"selection={self.selection!r} takes whole values and has no weights to "
                f"drop: P_drop={self.P_drop} must be 0"
            )
        self.positions.check(self.d_model, self.d_k)
        self.together = self.heads.build(self.h, self.d_k, self.d_v)
        if self.together is not None and self.selection != "soft":
            raise ValueError(
                f"selection={self.selection!r} takes the best key of one head's scores: "
                f"heads={self.heads} must be Separate()"
            )
        if self.selection == "sampled":
            self.baseline = Baseline()
        concat = self.combine == "concat"
        glorot = nn.initializers.glorot_uniform
        into_heads = glorot(0, (1, 2))
        into_values = into_heads if concat else glorot(0, 2, batch_axis=1)
        self.w_q = self.param("w_q", into_heads, (self.d_model, self.h, self._width))
        self.w_k = self.param("w_k", into_heads, (self.d_model, self.h, self._width))
        self.w_v = self.param("w_v", into_values, (self.d_model, self.h, self.d_v))
        if self._has_w_o:
            out = glorot((0, 1), 2) if concat else glorot(1, 2, batch_axis=0)
            self.w_o = self.param("w_o", out, (self.h, self.d_v, self.d_model))
        if self.biases:
            zeros = nn.initializers.zeros
            self.b_q = self.param("b_q", zeros, (self.h, self._width))
            self.b_k = self.param("b_k", zeros, (self.h, self._width))
            self.b_v = self.param("b_v", zeros, (self.h, self.d_v))
            if self._has_w_o:
                self.b_o = self.param("b_o", zeros, (self.d_model,))
        if self.gate != "none":
            features = self.d_v if self.gate == "element" else 1
            self.w_g = self.param("w_g", into_heads, (self.d_model, self.h, features))
            self.b_g = None
            if self.biases:
                self.b_g = self.param("b_g", zeros, (self.h, features))
        init_score = score_init(self.score)
        self.score_value = with_parameters(
            self, "score", lambda key: init_score(key, self.h, self.d_k, self.d_k)
        )
        self.normaliser_value = normaliser_of(self, self.h)
        self.position_bias = with_parameters(
            self,
            "relative",
            lambda key: self.positions.bias(key, self.h, self.causal),
        )
        self.forget_gates = with_parameters(
            self,
            "forget",
            lambda key: self.positions.gates(key, self.d_model, self.h),
        )

    def __call__(
        self,
        x: Float[Array, "*B N D"],
        memory: Float[Array, "*B M D"],
        mask: Mask,
        bias=None,
    ) -> Float[Array, "*B N D"]:
        """Computes attention from x to memory; self-attention when they are the same.

        `bias` is added to the scores, in place of the module's own.
        """
        return self.attend(x, *self.keys_and_values(memory), mask, bias)

    def keys_and_values(
        self,
        memory: Float[Array, "*B M D"],
        positions: Int[Array, "*b M"] | None = None,
    ):
        """Returns the projected keys (*B, M, H, K) and values (*B, M, H, V).

        A decoder keeps them from step to step. `positions` count from 0 unless given.
        """
        k = _project(memory, self.w_k)
        v = _project(memory, self.w_v)
        if self.biases:
            k = _plus(k, self.b_k)
            v = _plus(v, self.b_v)
        return self._rotate(k, positions), v

    def attend(
        self,
        x: Float[Array, "*B N D"],
        k: Float[Array, "*B M H K"],
        v: Float[Array, "*B M H V"],
        mask: Mask,
        bias=None,
    ) -> Float[Array, "*B N D"]:
        """Computes attention from x to projected keys and values.

        `bias` is added to the scores, in place of the module's own.
        """
        bias = self._bias_of(x) if bias is None else bias
        arguments = dict(
            score=self.score_value,
            normaliser=self.normaliser_value,
            mask=mask,
            bias=bias,
        )
        q = self._queries(x)
        dropout = self._dropout()
        out = select(self, x, q, k, v, arguments, dropout, self.together or attention)
        return self._output(out, x)

    def project_memory(self, memory: Float[Array, "*B M D"]):
        """Returns the keys (*B, H, K, M) and values (*B, H, M, V) of `memory`.

        `attend_to_memory` takes them.
        """
        return as_cached(*self.keys_and_values(memory))

    def attend_to_memory(
        self,
        x: Float[Array, "*B N D"],
        memory,
        visible: Bool[Array, "*B n M"],
    ) -> Float[Array, "*B N D"]:
        """Computes attention from x to the keys and values of `project_memory`.

        `visible` (n = N or 1) says which keys x sees. There is no dropout.

        Raises:
          ValueError: a bias of positions, as nothing says where x stands.
        """
        if self.position_bias is not None or self.forget_gates is not None:
            raise ValueError(
                f"positions={self.positions} add a bias to self-attention; a memory is "
                "attended to without positions"
            )
        out = self._over_cache(
            self._queries(x),
            *memory,
            score=self.score_value,
            normaliser=self.normaliser_value,
            visible=visible,
            # Decoding never samples: it takes the best key, as `select` without an rng.
            best=self.selection != "soft",
        )
        return self._output(out, x)

    def empty_cache(self, batch_shape: tuple[int, ...], length: int, dtype):
        """Returns room for the keys (*B, H, K, T) and values (*B, H, T, V), T = length.

        With forget gates there is room for their sums (*B, T, H) too.
        """
        keys = jnp.zeros((*batch_shape, self.h, self._width, length), dtype)
        values = jnp.zeros((*batch_shape, self.h, length, self.d_v), dtype)
        if self.positions.has_gates:
            sums = jnp.zeros((*batch_shape, length, self.h), at_least_float32(dtype))
            return keys, values, sums
        return keys, values

    def decode_step(
        self,
        x: Float[Array, "*B N D"],
        t: Int[Array, "*b"],
        cache,
        visible: Bool[Array, "*B N T"],
    ):
        """Computes self-attention of N tokens that all stand at position t.

        Each is of another hypothesis of one sentence. Their keys and values go to entries
        t·N … t·N + N − 1 of the cache, so that entry e stands at position e // N;
        `visible` says which of the entries each hypothesis sees. `t` may be (*B), one for
        each example. A cache with fewer entries than `visible` is a ring, which keeps those
        of the last positions: nothing before them is seen.

        Returns:
          The output and the new cache.
        """
        n = x.shape[-2]
        bias, *sums = self._bias_of_step(x, t, cache, visible)
        positions = jnp.expand_dims(t, -1).repeat(n, axis=-1)
        # Keys are rotated before they are kept, because their position never changes.
        k, v = as_cached(*self.keys_and_values(x, positions))
        keys = write_entries(cache[0], k, t, axis=-1)
        values = write_entries(cache[1], v, t)
        out = self._over_cache(
            self._queries(x, positions),
            keys,
            values,
            score=self.score_value,
            normaliser=self.normaliser_value,
            visible=kept_visible(visible, t, keys.shape[-1]),
            bias=bias,
        )
        return self._output(out, x), (keys, values, *sums)

    def _bias_of(self, x):
        """Returns the bias of self-attention from x to x, or None."""
        if self.forget_gates is None:
            return self.position_bias
        return self.forget_gates.bias(x)

    def _bias_of_step(self, x, t, cache, visible):
        """Returns the bias of `decode_step`, and the new sums of forget gates, if any."""
        n = x.shape[-2]
        if self.forget_gates is not None:
            before = ancestors(cache[2], visible, t - 1)
            c = before + self.forget_gates.log_gates(x)
            sums = write_entries(cache[2], c, t)
            # No entry that is seen stands behind x, so the sign is that of ForgetBias.
            bias = c[..., :, None, :] - sums[..., None, :, :]
            return jnp.moveaxis(bias, -1, -3), sums
        if self.position_bias is None:
            return (None,)
        room = cache[0].shape[-1] // n

        def row(t):
            if room == visible.shape[-1] // n:
                return bias_row(self.position_bias, self.h, t, room)
            # A bias is asked for a run of neighbours, and a ring begins somewhere in one.
            last = t - room + 1 + jnp.arange(room)
            one = t + jnp.arange(1)
            run = bias_of_heads(self.position_bias, self.h, one, last)[:, 0]
            return run[:, kept_positions(t, room) - last[0]]

        rows = for_each_example(row, t)(t)
        # n entries of the cache share each position.
        return (rows.repeat(n, axis=-1)[..., None, :],)

    def _queries(self, x, positions=None):
        q = _project(x, self.w_q)
        if self.biases:
            q = _plus(q, self.b_q)
        return self._rotate(q, positions)

    def _rotate(self, x, positions):
        if positions is None:
            # Right in packed rows too: a rotation shows in distances only.
            positions = jnp.arange(x.shape[-3])
        # Each of a head's maps is turned as a head of its own.
        turned = x.reshape(*x.shape[:-2], -1, self.d_k)
        return self.positions.rotate(turned, positions).reshape(x.shape)

    def _over_cache(self, q, k, v, **arguments):
        function = over_cache if self.together is None else self.together.over_cache
        return function(q, k, v, **arguments)

    @property
    def _width(self):
        """The width of a head's queries and keys, of all its maps together."""
        return self.heads.maps * self.d_k

    @property
    def _has_w_o(self):
        """Tells whether matrices w_o bring the heads' vectors to d_model."""
        return self.combine == "concat" or self.d_v != self.d_model

    def _output(self, out, x):
        """Returns one vector a token from those of its heads; x decides what gates pass."""
        if self.gate != "none":
            out = gated(out, x, self.w_g, self.b_g)
        has_w_o = self._has_w_o
        equation = "...nhv,hvd->...nd"
        out = jnp.einsum(equation, out, self.w_o) if has_w_o else out.sum(-2)
        if self.combine == "mean":
            out = out / self.h
        if self.biases and has_w_o:
            out = _plus(out, self.b_o)
        return out if self.activation is None else self.activation(out)

    def _dropout(self):
        if is_never("P_drop", self.P_drop) or not self.has_rng("dropout"):
            return {}
        return dict(dropout_rate=self.P_drop, dropout_key=self.make_rng("dropout"))


class Baseline(nn.Module):
    """Predicts the reward that REINFORCE compares with: b(x) = x w + c, both 0 at first."""

    @nn.compact
    def __call__(self, x: Float[Array, "*B N D"]) -> Float[Array, "*B N"]:
        w = self.param("w", nn.initializers.zeros, (x.shape[-1],))
        return x @ w + self.param("c", nn.initializers.zeros, ())


def select(
    module: nn.Module,
    x: Float[Array, "*B N D"],
    q: Float[Array, "*B N H K"],
    k: Float[Array, "*B M H L"],
    v: Float[Array, "*B M H V"],
    arguments: dict[str, Any],
    dropout: dict[str, Any],
    attend: Callable = attention,
) -> Float[Array, "*B N H V"]:
    """Computes attention by the `selection` of `module`, with `attend` where it is soft.

    Score, normaliser, mask and bias are in `arguments`; the queries were projected from
    `x`. Sampled attention, with an rng named "sample" and the collection "policy" mutable,
    sows for REINFORCE, for each query (*B, N): `log_prob` of its selections, summed over
    heads, the `entropy` of their distributions, and `baseline_value`, which sends x no
    gradient.
    """
    # At init every collection is mutable, and weights would become variables.
    watched = module.is_mutable_collection("weights") and not module.is_initializing()
    # By default sow gathers a tuple of all calls; only the last one is wanted.
    sow = functools.partial(
        module.sow, reduce_fn=lambda _, new: new, init_fn=lambda: None
    )
    # Hard attention is watched by the soft weights from which it selects.
    if watched or module.selection == "soft":
        out = attend(q, k, v, return_weights=watched, **arguments, **dropout)
        if watched:
            out, weights = out
            sow("weights", "weights", weights)
    # Also without an rng, because init must make the baseline's parameters.
    if module.selection == "sampled":
        baseline_value = module.baseline(jax.lax.stop_gradient(x))
    if module.selection == "sampled" and module.has_rng("sample"):
        key = module.make_rng("sample")
        out, _, log_prob = sampled_attention(q, k, v, key=key, **arguments)
        sow("policy", "log_prob", log_prob.sum(-1))
        sow("policy", "entropy", inspect.entropy(q, k, **arguments).sum(-1))
        sow("policy", "baseline_value", baseline_value)
    elif module.selection != "soft":
        # What is sampled in training is trained by REINFORCE, not through the best key.
        straight_through = module.selection == "argmax"
        out, _ = argmax_attention(
            q, k, v, straight_through=straight_through, **arguments
        )
    return out


def check_name(field: str, value: Any, known) -> None:
    """Raises ValueError where `value` is none of the known names."""
    if value not in known:
        raise ValueError(f"unknown {field} {value!r}; known: {', '.join(known)}")


def _project(x, w):
    return jnp.einsum("...nd,dhk->...nhk", x, w)


def _plus(x, b):
    """Returns x + b, the same b for every token."""
    # Axes are written out: the tests make JAX raise where it would add them.
    return x + b.reshape((1,) * (x.ndim - b.ndim) + b.shape)
