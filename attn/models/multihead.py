"""The Linen shell around `attention()`: h heads with their own projections.

B batch (any leading axes), N queries, M keys, T = the keys a cache has room for,
D = d_model, H = h, J = h_kv, K = d_k, V = d_v, C = the numbers a cache keeps of a latent.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn.arguments import is_never
from attn.attention import attention
from attn.contextual import Contextual
from attn.kernels.cached import as_cached, over_cache
from attn.kernels.latent import over_latents
from attn.masks import Mask
from attn.models.heads import (
    GATES,
    Heads,
    Separate,
    check_counted,
    check_own_keys,
    gated,
)
from attn.models.latents import check_keys, matrices_of_kept
from attn.models.parameters import normaliser_of, with_parameters
from attn.models.selection import SELECTIONS, Baseline, select
from attn.models.visibility import (
    ancestors,
    for_each_example,
    kept_positions,
    kept_visible,
    places_in_texts,
    write_entries,
)
from attn.positions import NoPositions, Positions, bias_of_heads, bias_row
from attn.precision import at_least_float32
from attn.scores import score_init

COMBINATIONS = ("concat", "mean")
"""The ways to make one vector of those of the heads."""


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, …, head_h) W_O.

    head_i = Attention(Q W_Q,i, K W_K,i, V W_V,i), "Attention Is All You Need", section
    3.2.2. d_model, h, d_k and d_v are four independent numbers. The projections have
    Glorot-uniform initial values over (d_model, h·d_k) and, as in the paper, no biases
    unless asked for.

    Parameters: (h + h_kv)·d_model·(d_k + d_v), without h·d_v·d_model of w_o with
    combine="mean" and d_v = d_model, the score's and the normaliser's own, those of
    `positions`, and (h + h_kv)·d_k + h_kv·d_v + d_model of biases, the last where there is
    a w_o. With a d_c, d_model·d_c + d_c·h_kv·(d_k + d_v) stand for W_K and W_V; with a d_r
    there are (h + 1)·d_model·d_r more. Differential heads have 2·d_k in place of d_k in
    these, and 4·d_k + d_v more; talking heads 2·h² more; a gate d_model·h or
    d_model·h·d_v, and as many biases as columns.

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
        "relative", those of forget gates under "forget", the table of positions that
        count under "contextual".
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
      h_kv: heads of keys and values, of which h is a multiple; h unless given. 1 is
        multi-query, others grouped-query attention, see `attn.attention`.
      d_c: the width of latents c = x W_C, of which keys and values are made in place of x:
        multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.2). A
        cache keeps the latents alone. Unless given there are none.
      d_r: with latents, the numbers that `positions` turn (section 2.1.3 there): r = x W_R
        stands at the end of the keys of all heads, and a cache keeps it beside c; queries
        are as much longer. Needed by, and only by, positions that turn and latents.

    Raises:
      ValueError: an unknown name, parameters of another score, positions that do not fit
        or turn keys that are made of latents without a d_r, positions that count keys with
        other heads than separate ones of their own keys, heads that do not divide, a
        P_drop that is not from 0 to 1 or has nothing to drop, selection="sampled" with a
        normaliser whose weights need not sum to 1; heads that are not separate with another
        selection than "soft", an h_kv below h, or a d_c.
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
    h_kv: int | None = None
    d_c: int | None = None
    d_r: int | None = None

    def setup(self):
        """Draws the parameters."""
        check_name("combine", self.combine, COMBINATIONS)
        check_name("selection", self.selection, SELECTIONS)
        check_name("gate", self.gate, GATES)
        if not is_never("P_drop", self.P_drop) and self.selection != "soft":
            raise ValueError(
                f"selection={self.selection!r} takes whole values and has no weights to "
                f"drop: P_drop={self.P_drop} must be 0"
            )
        check_keys(self.h, self.h_kv, self.d_c, self.d_r, self.positions)
        self.positions.check(self.d_model, self.d_r or self.d_k)
        self.heads.check()
        check_own_keys(self.heads, self.h, self.h_kv, self.d_c)
        if self.positions.has_counts:
            check_counted(self.positions, self.heads, self.h, self.h_kv, self.d_c)
            counts = self.param("contextual", self.positions.counts, self.d_k)
            self.together = Contextual(counts)
        else:
            self.together = self.heads.build(self.h, self.d_k, self.d_v)
        if self.together is not None and self.selection != "soft":
            raise ValueError(
                f"selection={self.selection!r} takes the best key of one head's scores, "
                f"without heads={self.heads} and positions={self.positions}"
            )
        if self.selection == "sampled":
            self.baseline = Baseline()
        self._draw_projections()
        d_k = self.d_k + (self.d_r or 0)
        init_score = score_init(self.score)
        self.score_value = with_parameters(
            self, "score", lambda key: init_score(key, self.h, d_k, d_k)
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

    def _draw_projections(self):
        concat = self.combine == "concat"
        zeros = nn.initializers.zeros
        glorot = nn.initializers.glorot_uniform
        into_heads = glorot(0, (1, 2))
        into_values = into_heads if concat else glorot(0, 2, batch_axis=1)
        self.w_q = self.param("w_q", into_heads, (self.d_model, self.h, self._width))
        h_kv = self._h_kv
        source = self.d_model if self.d_c is None else self.d_c
        if self.d_c is not None:
            self.w_c = self.param("w_c", glorot(), (self.d_model, self.d_c))
        self.w_k = self.param("w_k", into_heads, (source, h_kv, self._width))
        self.w_v = self.param("w_v", into_values, (source, h_kv, self.d_v))
        if self.d_r is not None:
            turned = (self.d_model, self.h, self.d_r)
            self.w_q_r = self.param("w_q_r", into_heads, turned)
            self.w_k_r = self.param("w_k_r", glorot(), (self.d_model, self.d_r))
        if self._has_w_o:
            out = glorot((0, 1), 2) if concat else glorot(1, 2, batch_axis=0)
            self.w_o = self.param("w_o", out, (self.h, self.d_v, self.d_model))
        if self.biases:
            self.b_q = self.param("b_q", zeros, (self.h, self._width))
            self.b_k = self.param("b_k", zeros, (h_kv, self._width))
            self.b_v = self.param("b_v", zeros, (h_kv, self.d_v))
            if self._has_w_o:
                self.b_o = self.param("b_o", zeros, (self.d_model,))
        if self.gate != "none":
            self._set_gate(into_heads)

    def _set_gate(self, initial):
        features = self.d_v if self.gate == "element" else 1
        self.w_g = self.param("w_g", initial, (self.d_model, self.h, features))
        self.b_g = None
        if self.biases:
            zeros = nn.initializers.zeros
            self.b_g = self.param("b_g", zeros, (self.h, features))

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
        """Returns the projected keys (*B, M, J, K) and values (*B, M, J, V).

        A decoder keeps them from step to step. `positions` count from 0 unless given.
        """
        source = memory if self.d_c is None else memory @ self.w_c
        k = _project(source, self.w_k)
        v = _project(source, self.w_v)
        if self.biases:
            k = _plus(k, self.b_k)
            v = _plus(v, self.b_v)
        if self.d_r is None:
            return self._rotate(k, positions), v
        r = self._rotary_key(memory, positions)
        return jnp.concatenate(
            [k, jnp.broadcast_to(r, (*k.shape[:-1], self.d_r))], -1
        ), v

    def attend(
        self,
        x: Float[Array, "*B N D"],
        k: Float[Array, "*B M J K"],
        v: Float[Array, "*B M J V"],
        mask: Mask,
        bias=None,
    ) -> Float[Array, "*B N D"]:
        """Computes attention from x to projected keys and values.

        `bias` is added to the scores, in place of the module's own.
        """
        bias = self._bias_of(x, mask) if bias is None else bias
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
        """Returns the keys (*B, J, K, M) and values (*B, J, M, V) of `memory`.

        With a d_c they are its latents (*B, M, C). `attend_to_memory` takes them.
        """
        if self.d_c is not None:
            return self._latents(memory)
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
        has_bias = self.position_bias is not None or self.forget_gates is not None
        if has_bias or self.positions.has_counts:
            raise ValueError(
                f"positions={self.positions} add to the scores of self-attention; a memory "
                "is attended to without positions"
            )
        out = self._over_kept(
            self._queries(x),
            memory,
            visible=visible,
            # Decoding never samples: it takes the best key, as `select` without an rng.
            best=self.selection != "soft",
        )
        return self._output(out, x)

    def empty_cache(self, batch_shape: tuple[int, ...], length: int, dtype):
        """Returns room for the keys (*B, J, K, T) and values (*B, J, T, V), T = length.

        With a d_c it is room for the latents (*B, T, C). With forget gates it is a pair of
        this and room for their sums (*B, T, H).
        """
        if self.positions.has_gates:
            sums = jnp.zeros((*batch_shape, length, self.h), at_least_float32(dtype))
            return self._empty(batch_shape, length, dtype), sums
        return self._empty(batch_shape, length, dtype)

    def _empty(self, batch_shape, length, dtype):
        if self.d_c is not None:
            width = self.d_c + self.biases + (self.d_r or 0)
            return jnp.zeros((*batch_shape, length, width), dtype)
        keys = jnp.zeros((*batch_shape, self._h_kv, self._width, length), dtype)
        values = jnp.zeros((*batch_shape, self._h_kv, length, self.d_v), dtype)
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
        kept, sums = cache if self.positions.has_gates else (cache, None)
        bias = None
        if self.forget_gates is not None:
            sums, bias = self._sums_of_step(x, t, sums, visible)
        # Of values and latents tokens are the last axis but one.
        entries = jax.tree.leaves(kept)[-1].shape[-2]
        if self.positions.has_counts and entries < visible.shape[-1]:
            raise ValueError(
                f"positions={self.positions} count the keys of a text in its order, which "
                f"a ring of {entries} of {visible.shape[-1]} entries does not keep"
            )
        if self.position_bias is not None:
            whole = visible.shape[-1] // n
            bias = self._bias_of_step(t, entries // n, whole)
            # n entries of the cache share each position.
            bias = bias.repeat(n, axis=-1)[..., None, :]
        positions = jnp.expand_dims(t, -1).repeat(n, axis=-1)
        if self.d_c is not None:
            kept = write_entries(kept, self._latents(x, positions), t)
        else:
            # Keys are rotated before they are kept, because their position never changes.
            k, v = as_cached(*self.keys_and_values(x, positions))
            keys = write_entries(kept[0], k, t, axis=-1)
            kept = keys, write_entries(kept[1], v, t)
        visible = kept_visible(visible, t, entries)
        q = self._queries(x, positions)
        out = self._over_kept(q, kept, visible=visible, bias=bias)
        cache = kept if sums is None else (kept, sums)
        return self._output(out, x), cache

    def _bias_of(self, x, mask):
        """Returns the bias of self-attention from x to x, or None."""
        if self.forget_gates is not None:
            return self.forget_gates.bias(x)
        if hasattr(self.position_bias, "at_places"):
            *batch, n, _ = x.shape
            places = places_in_texts(mask, tuple(batch), n)
            return self.position_bias.at_places(places)
        return self.position_bias

    def _sums_of_step(self, x, t, sums, visible):
        """Returns the new sums of forget gates, and the bias of `decode_step`."""
        before = ancestors(sums, visible, t - 1)
        c = before + self.forget_gates.log_gates(x)
        sums = write_entries(sums, c, t)
        # No entry that is seen stands behind x, so the sign is that of ForgetBias.
        bias = c[..., :, None, :] - sums[..., None, :, :]
        return sums, jnp.moveaxis(bias, -1, -3)

    def _bias_of_step(self, t, room, whole):
        """Returns the bias (*b, H, P) of the P = `room` positions that a cache keeps."""

        def row(t):
            if room == whole:
                return bias_row(self.position_bias, self.h, t, room)
            # A bias is asked for a run of neighbours, and a ring begins somewhere in one.
            last = t - room + 1 + jnp.arange(room)
            one = t + jnp.arange(1)
            run = bias_of_heads(self.position_bias, self.h, one, last)[:, 0]
            return run[:, kept_positions(t, room) - last[0]]

        return for_each_example(row, t)(t)

    def _over_kept(self, q, kept, **options):
        """Computes attention over what a cache keeps: keys and values, or latents."""
        options |= dict(score=self.score_value, normaliser=self.normaliser_value)
        if self.together is not None:
            return self.together.over_cache(q, *kept, **options)
        if self.d_c is None:
            return over_cache(q, *kept, **options)
        biases = (self.b_k, self.b_v) if self.biases else None
        matrices = matrices_of_kept(self.w_k, self.w_v, biases, self.d_r or 0)
        return over_latents(q, kept, *matrices, **options)

    def _latents(self, x, positions=None):
        """Returns what a cache keeps: c = x W_C, 1 where there are biases, and r."""
        parts = [x @ self.w_c]
        if self.biases:
            parts.append(jnp.ones_like(x[..., :1]))
        if self.d_r is not None:
            parts.append(self._rotary_key(x, positions)[..., 0, :])
        return jnp.concatenate(parts, -1)

    def _rotary_key(self, x, positions):
        """Returns r = x W_R (*B, N, 1, R), turned by its positions."""
        return self._rotate((x @ self.w_k_r)[..., None, :], positions)

    @property
    def _h_kv(self):
        return self.h if self.h_kv is None else self.h_kv

    def _queries(self, x, positions=None):
        q = _project(x, self.w_q)
        if self.biases:
            q = _plus(q, self.b_q)
        if self.d_r is None:
            return self._rotate(q, positions)
        turned = self._rotate(_project(x, self.w_q_r), positions)
        return jnp.concatenate([q, turned], -1)

    def _rotate(self, x, positions):
        if positions is None:
            # Right in packed rows too: a rotation shows in distances only.
            positions = jnp.arange(x.shape[-3])
        # Each of a head's maps is turned as a head of its own.
        turned = x.reshape(*x.shape[:-2], x.shape[-2] * self.heads.maps, -1)
        return self.positions.rotate(turned, positions).reshape(x.shape)

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
