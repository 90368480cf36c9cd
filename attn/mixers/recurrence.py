"""Recurrence in place of self-attention (the paper's section 4).

It obeys the mask that self-attention would have: it begins anew where a position may not
see the one before. So packed rows, padding and causality need no case of their own. For
decoding it keeps a cache of one entry for each position and hypothesis, as self-attention
does. B examples, N positions, D = d_model, K hypotheses of one sentence,
T entries of a cache, F features of a state.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn.cache import ancestors, sees, write_entries
from attn.context import Context
from attn.masks.near import neighbours
from attn.mixers.base import Mixer
from attn.pytrees import as_narrow_as, widened

if TYPE_CHECKING:
    from attn.config import Block

CELLS = {"gru": nn.GRUCell, "lstm": nn.OptimizedLSTMCell, "tanh": nn.SimpleCell}
"""Linen's own cells: Cho et al. 2014; Hochreiter and Schmidhuber 1997; Elman 1990."""

MATRICES = {"gru": 3, "lstm": 4, "tanh": 1}
"""Pairs of matrices of a cell, from the input and from the state before."""


class CellLoop(nn.Module):
    """Runs a recurrent cell along a sequence, in order or from its end."""

    features: int
    cell: str = "gru"
    backwards: bool = False

    def setup(self) -> None:
        """Makes the cell."""
        self.rnn = CELLS[self.cell](self.features)

    def __call__(
        self,
        x: Float[Array, "B N D"],
        begins: Bool[Array, "B N"],
        start: Any = None,
    ) -> Float[Array, "B N F"]:
        """Returns the cell's output at each position.

        Where a position `begins`, its state is that of `start` (B, N, F), or 0.
        """

        if self.is_initializing():
            # A scan of a pure cell cannot make its parameters.
            self.rnn(self.zeros(x[..., 0, :]), x[..., 0, :])
        params = self.rnn.variables["params"]
        wide = widened(params)
        cell = self.rnn.clone(parent=None)

        def one(state, inputs):
            x, begins, start = inputs
            fresh = jax.tree.map(jnp.zeros_like, state) if start is None else start

            def chosen(new, old):
                return jnp.where(begins[..., None], new, old)

            state = jax.tree.map(chosen, fresh, state)
            return cell.apply({"params": as_narrow_as(params, wide)}, state, x)

        def time_first(leaf):
            return jnp.moveaxis(leaf, -2, 0)

        xs, starts = jax.tree.map(time_first, (x, start))
        inputs = xs, jnp.moveaxis(begins, -1, 0), starts
        zeros = self.zeros(x[..., 0, :])
        _, outputs = jax.lax.scan(one, zeros, inputs, reverse=self.backwards)
        return jnp.moveaxis(outputs, 0, -2)

    def one(self, state: Any, x: Float[Array, "*B D"]) -> tuple[Any, Array]:
        """Returns the state after x, and the cell's output."""
        return self.rnn(state, x)

    def zeros(self, x: Float[Array, "*B D"]) -> Any:
        """Returns the state before anything, one array (B, F) or, of an LSTM, two."""
        # The key is not used: carries begin at 0. Linen makes them in float32, which
        # would widen what follows from a bfloat16 x.
        state = self.rnn.initialize_carry(jax.random.key(0), x.shape)
        return jax.tree.map(lambda leaf: leaf.astype(x.dtype), state)


class Recurrence(nn.Module):
    """h_i = cell(h_i−1, x_i).

    With `both_ways` half of the features are of a cell that reads from the end (Schuster
    and Paliwal 1997). Parameters with GRU cells: 6·D² + 4·D; 4.5·D² + 4·D with both ways.

    Raises:
      ValueError: both ways with an odd d_model.
    """

    d_model: int
    cell: str = "gru"
    both_ways: bool = False

    def setup(self) -> None:
        """Makes the cells of one direction or both."""
        if self.both_ways and self.d_model % 2:
            raise ValueError(
                f"d_model={self.d_model} must be even: each direction has half of it"
            )
        features = self.d_model // (2 if self.both_ways else 1)
        self.forward = CellLoop(features, self.cell)
        if self.both_ways:
            self.backward = CellLoop(features, self.cell, backwards=True)

    def __call__(
        self, x: Float[Array, "B N D"], ctx: Context, start: Any = None
    ) -> tuple[Float[Array, "B N D"], Context]:
        """Returns the states, of all positions or of a step.

        Where a position may not see the one before, `start` (B, N, D) came before, or 0.
        """
        if ctx.decoding is not None:
            return self._step(x, ctx, start)
        hidden = ~neighbours(ctx.mask, x.shape[:-2], x.shape[-2], (-1, 1))
        # A cell that reads from the end begins where a position may not see its next.
        begins, ends = jnp.moveaxis(hidden, -1, 0)
        states = self.forward(x, begins, start)
        if self.both_ways:
            states = jnp.concatenate([states, self.backward(x, ends)], axis=-1)
        return states, ctx

    def empty_cache(self, batch: int, entries: int, dtype: Any) -> Any:
        """Returns room for a state in each entry."""
        # By the cell itself, which knows whether its state is one array or two.
        return self.forward.zeros(jnp.zeros((batch, entries, self.d_model), dtype))

    def _step(self, x: Array, ctx: Context, start: Any) -> tuple[Array, Context]:
        t, visible = ctx.decoding.t, ctx.decoding.visible
        goes_on = sees(visible, t - 1)[..., None]

        def before(leaf, first):
            return jnp.where(goes_on, ancestors(leaf, visible, t - 1), first)

        if start is None:
            start = jax.tree.map(lambda leaf: 0, ctx.cache)
        state = jax.tree.map(before, ctx.cache, start)
        state, y = self.forward.one(state, x)

        def written(leaf, new):
            return write_entries(leaf, new, t)

        return y, ctx.replace(cache=jax.tree.map(written, ctx.cache, state))


@dataclasses.dataclass(frozen=True)
class Recurrent(Mixer):
    """Mixes by a recurrent cell, a name of CELLS; in both directions in an encoder."""

    name: ClassVar[str] = "recurrence"
    cell: str = "gru"

    def build(self, block: "Block", causal: bool) -> Recurrence:
        """Makes the recurrence."""
        return Recurrence(block.d_model, self.cell, both_ways=not causal)

    def products(self, n: Any, causal: bool, block: "Block") -> Any:
        """Counts those of a cell's matrices; two cells of an encoder share the features."""
        halves = 4 if causal else 3
        return n * MATRICES[self.cell] * block.d_model**2 * halves // 2

    def check(self, block: "Block") -> None:
        """Raises ValueError for an unknown cell."""
        if self.cell not in CELLS:
            raise ValueError(f"unknown cell {self.cell!r}; known: {', '.join(CELLS)}")

    def check_direction(self, block: "Block", causal: bool) -> None:
        """Raises ValueError for an encoder whose directions cannot have half each."""
        if not causal and block.d_model % 2:
            raise ValueError(
                f"d_model={block.d_model} must be even: each direction of a recurrence "
                "has half of it"
            )
