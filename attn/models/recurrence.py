"""What else may mix positions: recurrence and convolution, in place of self-attention (the paper's section 4).

Each obeys the mask that self-attention would have: a convolution's taps reach only what a position may see, and a
recurrence begins anew where a position may not see the one before. So packed rows, padding and causality need no word
of their own. For decoding, each keeps a cache of one entry for each position and hypothesis, as self-attention does.
B batch (any leading axes), N positions, D = d_model, K hypotheses of one sentence, T positions of a cache, F features
of a state, O taps.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn.masks import Mask

CELLS = {"gru": nn.GRUCell, "lstm": nn.OptimizedLSTMCell, "tanh": nn.SimpleCell}
"""Linen's own: Cho et al. 2014; Hochreiter and Schmidhuber 1997; Elman 1990."""


def neighbours(
    mask: Mask, batch: tuple[int, ...], n: int, offsets: tuple[int, ...]
) -> Bool[Array, "*B N O"]:
    """Whether position i may see position i + offset; never beyond the ends.

    Raises ValueError for a mask that differs between heads, of which there are none here.
    """
    flat = mask.flat(batch)
    if any(leaf.shape[1] > 1 for leaf in jax.tree.leaves(flat)):
        raise ValueError("a mask with an axis for heads is for attention only")

    def of_one(mask):
        def sees(i, offset):
            j = jnp.clip(i + offset, 0, n - 1)
            return mask.tile(i[None], j[None])[0, 0] & (i + offset == j)

        return jax.vmap(jax.vmap(sees, (None, 0)), (0, None))(
            jnp.arange(n), jnp.array(offsets)
        )

    found = _of_examples(of_one, flat, batch)
    return jnp.broadcast_to(found, (*batch, n, len(offsets)))


def whole(mask: Mask, batch: tuple[int, ...], n: int, m: int) -> Bool[Array, "*B N M"]:
    """Which of m keys each of n queries may see, where all heads see the same."""
    found = _of_examples(
        lambda one: one.tile(jnp.arange(n), jnp.arange(m)), mask.flat(batch), batch
    )
    return jnp.broadcast_to(found, (*batch, n, m))


def _of_examples(function, flat, batch):
    """`function(mask)` of each example; without the batch's axes where all share one mask."""
    flat = jax.tree.map(lambda leaf: leaf[:, 0], flat)
    if all(len(leaf) == 1 for leaf in jax.tree.leaves(flat)):
        found = function(jax.tree.map(lambda leaf: leaf[0], flat))
        return found.reshape((1,) * len(batch) + found.shape)
    own = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (math.prod(batch), *leaf.shape[1:])), flat
    )
    found = jax.vmap(function)(own)
    return found.reshape(*batch, *found.shape[1:])


class Run(nn.Module):
    """The states of a recurrent cell along a sequence, in order, or from its end to its beginning."""

    features: int
    cell: str = "gru"
    backwards: bool = False

    def setup(self):
        self.rnn = CELLS[self.cell](self.features)

    def __call__(
        self, x: Float[Array, "*B N D"], begins: Bool[Array, "*B N"], start=None
    ) -> Float[Array, "*B N F"]:
        """What the cell gives at each position; where it `begins` its state is that of `start` (*B, N, F), or 0."""

        def one(rnn, state, at):
            x, begins, start = at
            fresh = jax.tree.map(jnp.zeros_like, state) if start is None else start
            return rnn(
                jax.tree.map(
                    lambda new, old: jnp.where(begins[..., None], new, old),
                    fresh,
                    state,
                ),
                x,
            )

        along = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -2, 0), (x, start))
        at = along[0], jnp.moveaxis(begins, -1, 0), along[1]
        scan = nn.scan(
            one,
            variable_broadcast="params",
            split_rngs={"params": False},
            reverse=self.backwards,
        )
        return jnp.moveaxis(scan(self.rnn, self.zeros(x[..., 0, :]), at)[1], 0, -2)

    def one(self, state, x: Float[Array, "*B D"]):
        """(the state after x, what the cell gives)."""
        return self.rnn(state, x)

    def zeros(self, x: Float[Array, "*B D"]):
        """The state before anything, one array (*B, F) or, of an LSTM, two."""
        state = self.rnn.initialize_carry(jax.random.key(0), x.shape)
        return jax.tree.map(lambda leaf: leaf.astype(x.dtype), state)


class Recurrence(nn.Module):
    """h_i = cell(h_i−1, x_i); with `both_ways` half of the features are of a cell that reads from the end (Schuster and
    Paliwal 1997).

    Parameters with GRU cells: 6·D² + 4·D; 4.5·D² + 4·D with both ways.
    """

    d_model: int
    cell: str = "gru"
    both_ways: bool = False

    def setup(self):
        if self.both_ways and self.d_model % 2:
            raise ValueError(
                f"d_model={self.d_model} must be even: each direction has half of it"
            )
        self.forward = Run(self.d_model // (2 if self.both_ways else 1), self.cell)
        if self.both_ways:
            self.backward = Run(self.d_model // 2, self.cell, backwards=True)

    def __call__(
        self, x: Float[Array, "*B N D"], mask: Mask, start=None
    ) -> Float[Array, "*B N D"]:
        """The states; where a position may not see the one before, `start` (*B, N, D) is what came before, or 0."""
        before, after = jnp.moveaxis(
            ~neighbours(mask, x.shape[:-2], x.shape[-2], (-1, 1)), -1, 0
        )
        found = self.forward(x, before, start)
        return (
            jnp.concatenate([found, self.backward(x, after)], axis=-1)
            if self.both_ways
            else found
        )

    def empty_cache(self, batch_shape: tuple[int, ...], entries: int, dtype):
        """Room for a state an entry."""
        return self.forward.zeros(
            jnp.zeros((*batch_shape, entries, self.d_model), dtype)
        )

    def step_side_by_side(
        self,
        x: Float[Array, "*B K D"],
        t: Int[Array, ""],
        cache,
        visible: Bool[Array, "*B K T"],
        start=None,
    ):
        """As `MultiHeadAttention.step_side_by_side`; before position 0 the state is `start` (*B, K, D), or 0."""
        state = jax.tree.map(lambda leaf: ancestors(leaf, visible, t - 1), cache)
        if start is not None:
            state = jax.tree.map(
                lambda new, old: jnp.where(t == 0, new, old), start, state
            )
        state, y = self.forward.one(state, x)
        return y, jax.tree.map(lambda leaf, new: _written(leaf, new, t), cache, state)


class Convolution(nn.Module):
    """y_i = Σ_o x_i+o W_o + b over 2·radius + 1 taps o, those that position i may see; a causal one has all of them at
    o ≤ 0, the others as many on both sides.

    With `separable`, y_i = (Σ_o x_i+o ∘ w_o) W + b (Chollet 2017): the taps of each feature by itself, then one matrix.
    Parameters: (2·radius + 1)·D² + D, or (2·radius + 1)·D + D² + D.
    """

    d_model: int
    radius: int
    causal: bool = False
    separable: bool = False

    def setup(self):
        first = -2 * self.radius if self.causal else -self.radius
        self.offsets = tuple(range(first, first + 2 * self.radius + 1))
        taps, d_model, glorot = (
            len(self.offsets),
            self.d_model,
            nn.initializers.glorot_uniform,
        )
        if self.separable:
            self.taps = self.param(
                "taps", nn.initializers.normal(taps**-0.5), (taps, d_model)
            )
            self.kernel = self.param("kernel", glorot(), (d_model, d_model))
        else:
            self.kernel = self.param(
                "kernel", glorot((0, 1), 2), (taps, d_model, d_model)
            )
        self.bias = self.param("bias", nn.initializers.zeros, (d_model,))

    def __call__(self, x: Float[Array, "*B N D"], mask: Mask) -> Float[Array, "*B N D"]:
        n = x.shape[-2]
        seen = neighbours(mask, x.shape[:-2], n, self.offsets)
        return self._mixed(
            [
                jnp.where(seen[..., i, None], jnp.roll(x, -offset, axis=-2), 0)
                for i, offset in enumerate(self.offsets)
            ]
        )

    def empty_cache(self, batch_shape: tuple[int, ...], entries: int, dtype):
        """Room for what the convolution read, an entry for each."""
        return jnp.zeros((*batch_shape, entries, self.d_model), dtype)

    def step_side_by_side(
        self,
        x: Float[Array, "*B K D"],
        t: Int[Array, ""],
        cache,
        visible: Bool[Array, "*B K T"],
    ):
        """As `MultiHeadAttention.step_side_by_side`, for one that is causal."""
        cache = _written(cache, x, t)
        return self._mixed(
            [ancestors(cache, visible, t + offset) for offset in self.offsets]
        ), cache

    def _mixed(self, taps):
        """Of what each tap sees."""
        bias = self.bias.reshape((1,) * (taps[0].ndim - 1) + (-1,))
        if self.separable:
            weights = self.taps.reshape(len(taps), *(1,) * (taps[0].ndim - 1), -1)
            return (
                sum(x * w for x, w in zip(taps, weights, strict=True)) @ self.kernel
                + bias
            )
        return jnp.einsum("o...d,ode->...e", jnp.stack(taps), self.kernel) + bias


def ancestors(
    entries: Float[Array, "*B T F"],
    visible: Bool[Array, "*B K T"],
    place: Int[Array, ""],
) -> Float[Array, "*B K F"]:
    """What each of K hypotheses, or the one that it grew from, wrote at `place`; 0 before the first."""
    k = visible.shape[-2]
    start = jnp.maximum(place, 0) * k
    chosen = jax.lax.dynamic_slice_in_dim(visible, start, k, axis=-1).argmax(-1)
    there = jnp.take_along_axis(
        jax.lax.dynamic_slice_in_dim(entries, start, k, axis=-2),
        chosen[..., None],
        axis=-2,
    )
    return jnp.where(place >= 0, there, 0)


def _written(entries, new, t):
    return jax.lax.dynamic_update_slice_in_dim(entries, new, t * new.shape[-2], axis=-2)
