"""The Linen shell around `attention()`: h heads with their own projections.

B examples, N queries, M keys, T = the entries that a cache has room for, D = d_model,
H = h, J = the heads of keys, K = d_k, V = d_v, C = the numbers a cache keeps of a latent.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attn.arguments import is_never
from attn.attention import attention
from attn.cache import (
    for_each_example,
    kept_positions,
    kept_visible,
    oldest,
    write_entries,
)
from attn.context import Context, in_context
from attn.kernels.cached import as_cached, from_cached, over_cache
from attn.kernels.latent import matrices_of_kept, over_latents
from attn.kernels.reference import all_heads, scores_of_head
from attn.masks import Mask
from attn.nn.layers import ACTIVATIONS
from attn.nn.selection import Baseline, check_nothing_to_drop, select
from attn.normalisers import check_selected, normaliser_init
from attn.positions import bias_of_heads, bias_row
from attn.pytrees import AnyArray, Datum
from attn.scores import Dot, ScoreChoice, score_init

if TYPE_CHECKING:
    from attn.config import Attention


class MultiHeadAttention(nn.Module):
    """MultiHead(X, X, X) = Concat(head_1, …, head_h) W_O: self-attention of x.

    head_i = Attention(X W_Q,i, X W_K,i, X W_V,i), "Attention Is All You Need", section
    3.2.2. d_model, h, d_k and d_v are four independent numbers. The projections have
    Glorot-uniform initial values over (d_model, h·d_k) and, as in the paper, no biases
    unless asked for.

    Parameters: (h + h_kv)·d_model·(d_k + d_v), without h·d_v·d_model of w_o with
    combine="mean" and d_v = d_model, the score's and the normaliser's own, those of
    positions, heads and residual, and (h + h_kv)·d_k + h_kv·d_v + d_model of biases, the
    last where there is a w_o. With a d_c, d_model·d_c + d_c·h_kv·(d_k + d_v) stand for W_K
    and W_V; with a d_r there are (h + 1)·d_model·d_r more. A gate has d_model·h or
    d_model·h·d_v, and as many biases as columns.

    With combine="mean" the output is (head_1 + … + head_h) / h, each head with a W_V of its
    own from d_model to d_model, Glorot-uniform by itself: with d_v = d_model one matrix,
    otherwise a product of two, of rank d_v.

    The arrays of a score are parameters kept under "score", by the name of their field;
    its numbers stay as they are, or are data, see `with_parameters`. Weights drop with the
    context's number P_attention. With the collection "weights" mutable in `apply`, the
    attention weights (B, H, N, M) are kept there; with "max_score" too, the highest score
    of each query (B, H, N). With "losses" mutable, what the heads add to training's loss of
    each token (B, N) is kept there.

    Attributes:
      config: the options.
      causal: whether a query sees no key behind it, which some biases ask; the mask hides
        them, not this.
      reach: the positions that a token sees on each side, None for all.
      selection: "soft"; "argmax", the value of the best key with the gradient of soft
        attention; "sampled", where the context has keys "sample", otherwise the best.
    """

    config: "Attention"
    causal: bool = False
    reach: int | None = None
    selection: str = "soft"

    def setup(self):
        """Draws the parameters."""
        a = self.config
        if self.is_initializing():
            a.check_alone()
        if self.selection == "sampled":
            self.baseline = Baseline()
        self._draw_projections(a)
        # As wide as a head's queries and keys, those that positions turn among them.
        d_k = a.d_k + a.d_r
        init_score = score_init(a.score)
        self.score = with_parameters(
            self, "score", lambda key: init_score(key, a.h, d_k, d_k)
        )
        self.normaliser = normaliser_of(self, a.normaliser, self.selection, a.h)
        self.in_attention = self._own(
            a.positions,
            a.positions.in_layers,
            lambda key: a.positions.in_attention(key, a, self.causal),
        )
        self.of_heads = self._own(
            a.heads, a.heads.acts, lambda key: a.heads.parameters(key, a)
        )
        self.of_residual = self._own(
            a.residual, a.residual.acts, lambda key: a.residual.parameters(key, a)
        )

    def _own(self, variant: Any, acts: bool, make: Callable) -> Any:
        """Returns what `make(key)` makes for a variant that acts here, else None."""
        # Parameters where none belong are refused all the same.
        return with_parameters(self, variant.name, make if acts else lambda key: None)

    def _draw_projections(self, a: "Attention") -> None:
        concat = a.combine == "concat"
        zeros = nn.initializers.zeros
        glorot = nn.initializers.glorot_uniform
        into_heads = glorot(0, (1, 2))
        into_values = into_heads if concat else glorot(0, 2, batch_axis=1)
        h_kv = a.heads_of_keys
        self.w_q = self.param("w_q", into_heads, (a.d_model, a.h, a.width))
        if a.d_c:
            self.w_c = self.param("w_c", glorot(), (a.d_model, a.d_c))
        source = a.d_c or a.d_model
        self.w_k = self.param("w_k", into_heads, (source, h_kv, a.width))
        self.w_v = self.param("w_v", into_values, (source, h_kv, a.d_v))
        if a.d_r:
            self.w_q_r = self.param("w_q_r", into_heads, (a.d_model, a.h, a.d_r))
            self.w_k_r = self.param("w_k_r", glorot(), (a.d_model, a.d_r))
        if a.has_w_o:
            out = glorot((0, 1), 2) if concat else glorot(1, 2, batch_axis=0)
            self.w_o = self.param("w_o", out, (a.h, a.d_v, a.d_model))
        if a.biases:
            self.b_q = self.param("b_q", zeros, (a.h, a.width))
            self.b_k = self.param("b_k", zeros, (h_kv, a.width))
            self.b_v = self.param("b_v", zeros, (h_kv, a.d_v))
            if a.has_w_o:
                self.b_o = self.param("b_o", zeros, (a.d_model,))
        if a.gate != "none":
            features = a.d_v if a.gate == "element" else 1
            self.w_g = self.param("w_g", into_heads, (a.d_model, a.h, features))
            if a.biases:
                self.b_g = self.param("b_g", zeros, (a.h, features))

    def __call__(
        self, x: Float[Array, "B N D"], ctx: Context
    ) -> tuple[Float[Array, "B N D"], Context]:
        """Returns attention from the tokens of x to each other, in a step to the cache."""
        bias = None
        if self.config.positions.in_layers:
            bias, ctx = self.config.positions.bias_of(self.in_attention, x, ctx)
        q = self._queries(x, self._places(x, ctx))
        if ctx.decoding is None:
            k, v, ctx = self._keys_and_values(x, ctx)
            mask = ctx.mask
            if self.reach is not None:
                mask = mask & Mask.window(self.reach, self.reach)
            out, ctx = self._attend(x, q, k, v, mask, bias, ctx)
        else:
            kept, visible, ctx = self._remember(x, ctx)
            bias = self._bias_of_step(bias, ctx, kept)
            first = oldest(ctx, _entries(kept))
            out, ctx = self._over_kept(q, kept, visible, bias, ctx, first)
        return self._output(out, x), ctx

    def empty_cache(self, batch: int, entries: int, dtype: Any):
        """Returns room for keys (B, J, K, T) and values (B, J, T, V), T = entries.

        With a d_c it is room for the latents (B, T, C). It is the first of two; the second
        is what positions keep, or heads, where these keep something.
        """
        a = self.config
        keeper = a.heads if a.heads.keeps else a.positions
        own = keeper.empty_cache(a, (batch, entries), dtype)
        if a.d_c:
            return jnp.zeros((batch, entries, a.d_c + a.biases + a.d_r), dtype), own
        h_kv = a.heads_of_keys
        keys = jnp.zeros((batch, h_kv, a.width, entries), dtype)
        return (keys, jnp.zeros((batch, h_kv, entries, a.d_v), dtype)), own

    def _attend(
        self,
        x: Array,
        q: Array,
        k: Array,
        v: Array,
        mask: Mask,
        bias: Any,
        ctx: Context,
    ) -> tuple[Array, Context]:
        """Returns attention of a full pass, and the context."""
        a = self.config
        score = in_context(self.score, ctx)
        arguments: dict[str, Any] = dict(
            score=score, normaliser=self.normaliser, mask=mask, bias=bias
        )
        if a.residual.takes_scores:
            s = all_heads(scores_of_head, q, k, v, **arguments)
            s = jnp.moveaxis(s, -2, -3)
            s, ctx = a.residual.scores(self.of_residual, s, ctx)
            # Without features all scores are 0, and so the bias is what the softmax is of.
            q, k = q[..., :0], k[..., :0]
            arguments |= dict(score=Dot(), bias=s)
        attend: Callable = functools.partial(attention, is_finite=True)
        if a.positions.attend:
            attend = functools.partial(a.positions.attend, self.in_attention, ctx=ctx)
        elif a.heads.acts:
            attend = functools.partial(a.heads.attend, self.of_heads, ctx=ctx)
            self._sow_loss(q, k, v, arguments, ctx)
        dropout = self._dropout(ctx)
        if self.selection == "soft" and not self.is_mutable_collection("weights"):
            return attend(q, k, v, **arguments, **dropout), ctx
        return select(self, x, q, k, v, arguments, dropout, attend, ctx), ctx

    def _sow_loss(
        self, q: Array, k: Array, v: Array, arguments: dict[str, Any], ctx: Context
    ) -> None:
        heads = self.config.heads
        # At init every collection is mutable, and losses would become variables.
        if self.is_initializing() or not self.is_mutable_collection("losses"):
            return
        if heads.has_loss:
            loss = heads.loss(self.of_heads, q, k, v, ctx, **arguments)
            self.sow("losses", "heads", loss)

    def _dropout(self, ctx: Context) -> dict[str, Any]:
        rate = ctx.rate("P_attention")
        if self.selection != "soft":
            check_nothing_to_drop(self.selection, rate)
        keys = None if is_never("P_attention", rate) else ctx.key(self, "dropout")
        return {} if keys is None else dict(dropout_rate=rate, dropout_key=keys)

    def _keys_and_values(self, x: Array, ctx: Context) -> tuple[Array, Array, Context]:
        """Returns keys (B, M, J, K) and values (B, M, J, V) of x, and the context."""
        a = self.config
        source = x @ self.w_c if a.d_c else x
        k = _project(source, self.w_k)
        v = _project(source, self.w_v)
        if a.biases:
            k = _plus(k, self.b_k)
            v = _plus(v, self.b_v)
        if a.residual.acts:
            v, ctx = a.residual.values(self.of_residual, v, ctx)
        places = self._places(x, ctx)
        if not a.d_r:
            return self._rotate(k, places), v, ctx
        r = self._rotary_key(x, places)
        r = jnp.broadcast_to(r, (*k.shape[:-1], a.d_r))
        return jnp.concatenate([k, r], -1), v, ctx

    def _places(self, x: Array, ctx: Context) -> Array | None:
        return ctx.places_of(x) if self.config.positions.rotates else None

    def _queries(self, x: Array, places: Any) -> Array:
        q = _project(x, self.w_q)
        if self.config.biases:
            q = _plus(q, self.b_q)
        if not self.config.d_r:
            return self._rotate(q, places)
        turned = self._rotate(_project(x, self.w_q_r), places)
        return jnp.concatenate([q, turned], -1)

    def _rotary_key(self, x: Array, places: Any) -> Array:
        """Returns r = x W_R (B, N, 1, R), turned by its positions."""
        return self._rotate((x @ self.w_k_r)[..., None, :], places)

    def _rotate(self, x: Array, places: Any) -> Array:
        if not self.config.positions.rotates:
            return x
        # Each of a head's maps is turned as a head of its own.
        turned = x.reshape(*x.shape[:-2], x.shape[-2] * self.config.heads.maps, -1)
        return self.config.positions.rotate(turned, places).reshape(x.shape)

    def _output(self, out: Array, x: Array) -> Array:
        """Returns one vector a token from those of its heads; x decides what gates pass."""
        a = self.config
        if a.gate != "none":
            logits = jnp.einsum("bnd,dhv->bnhv", x, self.w_g)
            out = nn.sigmoid(_plus(logits, self.b_g) if a.biases else logits) * out
        out = jnp.einsum("bnhv,hvd->bnd", out, self.w_o) if a.has_w_o else out.sum(-2)
        if a.combine == "mean":
            out = out / a.h
        if a.biases and a.has_w_o:
            out = _plus(out, self.b_o)
        activation = ACTIVATIONS[a.head_activation]
        return out if activation is None else activation(out)

    # What follows is of decoding alone.

    def _remember(self, x: Array, ctx: Context) -> tuple[Any, Array, Context]:
        """Returns what the cache keeps with x in it, what x sees of it, and the context."""
        t, visible = ctx.decoding.t, ctx.decoding.visible
        kept, own = ctx.cache
        if self.config.d_c:
            kept = write_entries(kept, self._latents(x, self._places(x, ctx)), t)
        else:
            # Keys are rotated before they are kept, because their position never changes.
            k, v, ctx = self._keys_and_values(x, ctx)
            k, v = as_cached(k, v)
            kept = write_entries(kept[0], k, t, axis=-1), write_entries(kept[1], v, t)
        if self.reach is not None:
            visible = visible & self._is_near(visible, t, x.shape[1])
        visible = kept_visible(visible, t, _entries(kept))
        return kept, visible, ctx.replace(cache=(kept, own))

    def _is_near(self, visible: Array, t: Any, k: int) -> Array:
        """Returns which entries stand within reach; none stand behind the step's."""
        positions = jnp.arange(visible.shape[-1]) // k
        first = jnp.expand_dims(jnp.asarray(t) - jnp.asarray(self.reach), (-2, -1))
        return positions.reshape(1, 1, -1) >= first.reshape(-1, 1, 1)

    def _latents(self, x: Array, places: Any) -> Array:
        """Returns what a cache keeps: c = x W_C, 1 where there are biases, and r."""
        parts = [x @ self.w_c]
        if self.config.biases:
            parts.append(jnp.ones_like(x[..., :1]))
        if self.config.d_r:
            parts.append(self._rotary_key(x, places)[..., 0, :])
        return jnp.concatenate(parts, -1)

    def _bias_of_step(self, bias: Any, ctx: Context, kept: Any) -> Any:
        """Returns a bias (*b, H, m, T) of the entries that a cache keeps, or None."""
        if not hasattr(bias, "tile"):
            return bias
        h, k = self.config.h, ctx.decoding.visible.shape[-2]
        room, whole = _entries(kept) // k, ctx.decoding.visible.shape[-1] // k

        def row(t):
            if room == whole:
                return bias_row(bias, h, t, room)
            # A bias is asked for a run of neighbours, and a ring begins somewhere in one.
            last = t - room + 1 + jnp.arange(room)
            run = bias_of_heads(bias, h, t + jnp.arange(1), last)[:, 0]
            return run[:, kept_positions(t, room) - last[0]]

        t = ctx.decoding.t
        # k entries of the cache share each position.
        return for_each_example(row, t)(t).repeat(k, axis=-1)[..., None, :]

    def _over_kept(
        self,
        q: Array,
        kept: Any,
        visible: Any,
        bias: Any,
        ctx: Context,
        first: Any = None,
    ) -> tuple[Array, Context]:
        """Returns attention over what a cache keeps, keys and values or latents.

        A ring's entries begin at `first`.
        """
        a = self.config
        options: dict[str, Any] = dict(
            score=in_context(self.score, ctx),
            normaliser=self.normaliser,
            visible=visible,
            bias=bias,
            # Decoding never samples: it takes the best key.
            best=self.selection != "soft",
        )
        if first is not None:
            options |= dict(first=first)
        if a.residual.takes_scores:
            return self._over_kept_scores(q, kept, ctx, **options)
        if a.positions.attend:
            attend = a.positions.over_cache
            return attend(self.in_attention, q, *kept, ctx, **options), ctx
        if not a.d_c and a.heads.acts:
            over = a.heads.over_cache
            if not a.heads.keeps:
                return over(self.of_heads, q, *kept, ctx=ctx, **options), ctx
            kept, own = ctx.cache
            out, own = over(self.of_heads, q, *kept, ctx=ctx, own=own, **options)
            return out, ctx.replace(cache=(kept, own))
        if not a.d_c:
            return over_cache(q, *kept, **options), ctx
        biases = (self.b_k, self.b_v) if a.biases else None
        w_k, w_v = matrices_of_kept(self.w_k, self.w_v, biases, a.d_r)
        return over_latents(q, kept, w_k, w_v, **options), ctx

    def _over_kept_scores(
        self,
        q: Array,
        kept: Any,
        ctx: Context,
        visible: Any,
        bias: Any,
        score: Any,
        normaliser: Any,
        best: bool,
        first: Any = None,
    ) -> tuple[Array, Context]:
        k, v = from_cached(*kept)
        mask = Mask.dense(visible[:, None])
        arguments = dict(score=score, normaliser=normaliser, mask=mask, bias=bias)
        s = jnp.moveaxis(all_heads(scores_of_head, q, k, v, **arguments), -2, -3)
        s, ctx = self.config.residual.scores(self.of_residual, s, ctx)
        options: dict[str, Any] = dict(normaliser=normaliser, visible=visible)
        options |= dict(best=best, first=first)
        # Without features all scores are 0, and so the bias is what the softmax is of.
        keys = kept[0][..., :0, :]
        return over_cache(
            q[..., :0], keys, kept[1], score=Dot(), bias=s, **options
        ), ctx


class CrossAttention(MultiHeadAttention):
    """MultiHead(X, M, M): attention from x to the context's memory M.

    Neither x nor the memory has positions here: rotation and bias are for self-attention.
    """

    def __call__(
        self, x: Float[Array, "B N D"], ctx: Context
    ) -> tuple[Float[Array, "B N D"], Context]:
        """Returns attention from x to the memory, in a step to what `project` keeps of it."""
        q = self._queries(x, ctx.places_of(x))
        if ctx.decoding is None:
            k, v, ctx = self._keys_and_values(ctx.memory, ctx)
            out, ctx = self._attend(x, q, k, v, ctx.memory_mask, None, ctx)
        else:
            visible = ctx.decoding.memory_visible
            out, ctx = self._over_kept(q, ctx.memory, visible, None, ctx)
        return self._output(out, x), ctx

    def _places(self, x: Array, ctx: Context) -> Array | None:
        # Those of the context are x's, and nothing here asks for the memory's.
        return jnp.arange(x.shape[1])

    def project(self, memory: Float[Array, "B M D"]):
        """Returns the keys (B, J, K, M) and values (B, J, M, V) of a memory.

        With a d_c they are its latents (B, M, C). A decoder's steps read them.
        """
        if self.config.d_c:
            return self._latents(memory, None)
        k, v, _ = self._keys_and_values(memory, Context())
        return as_cached(k, v)


def normaliser_of(module: nn.Module, choice: ScoreChoice, selection: str, h: int):
    """Returns the normaliser of a choice, with its parameters, for h heads of `module`.

    Raises:
      ValueError: one whose weights cannot be sampled by, where the selection samples, or do
        not follow the scores, where it takes the best.
    """
    init = normaliser_init(choice)
    value = with_parameters(module, "normaliser", lambda key: init(key, h))
    if selection != "soft":
        check_selected(value, selection)
    return value


def with_parameters(module: nn.Module, name: str, make: Callable[[Array], Any]):
    """Returns the value that `make(key)` makes, with its arrays as parameters of `module`.

    They are kept under `name`; there is no entry where there are none, and the arrays of a
    value whose `trained` is False stay as they are. A number that is a `Datum` is kept in
    the collection "numbers", which nobody trains.

    Raises:
      ValueError: the parameters are those of another value.
    """
    value = make(jax.random.key(0))  # for its form and its numbers
    if not getattr(value, "trained", True):
        return value
    names = list(_arrays(value))
    params = {}
    # Parameters where none belong are read as well, to be refused below.
    if names or module.has_variable("params", name):
        params = module.param(name, lambda key: _arrays(make(key)))
    if sorted(params) != sorted(names):
        raise ValueError(
            f"the parameters are of another {name}: they have {sorted(params)}, "
            f"it has {sorted(names)}"
        )

    data = {name: jnp.float32(x.value) for name, x in _leaves(value, Datum)}
    if data:
        params = {**params, **module.variable("numbers", name, lambda: data).value}

    def replaced(path, leaf):
        return params.get(_name(path), leaf)

    return jax.tree.map_with_path(replaced, value, is_leaf=_is_datum)


def _arrays(value: Any) -> dict[str, Any]:
    """Returns the arrays of a score or bias, each by the name of its field."""
    return dict(_leaves(value, jax.Array | np.ndarray))


def _leaves(value: Any, kind: Any) -> list[tuple[str, Any]]:
    """Returns the leaves of a kind, each with the name of its field."""
    leaves = jax.tree.leaves_with_path(value, is_leaf=_is_datum)
    return [(_name(path), leaf) for path, leaf in leaves if isinstance(leaf, kind)]


def _is_datum(x: Any) -> bool:
    return isinstance(x, Datum)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def entries_of(cache: Any) -> int:
    """Returns the number of entries that a cache of `empty_cache` has room for."""
    kept, _ = cache
    return _entries(kept)


def _entries(kept: Any) -> int:
    # Of values and latents tokens are the last axis but one.
    return jax.tree.leaves(kept)[-1].shape[-2]


def _project(x: AnyArray, w: AnyArray) -> Array:
    return jnp.einsum("bnd,dhk->bnhk", x, w)


def _plus(x: Array, b: AnyArray) -> Array:
    """Returns x + b, the same b for every token."""
    # Axes are written out: the tests make JAX raise where it would add them.
    return x + b.reshape((1,) * (x.ndim - b.ndim) + b.shape)
