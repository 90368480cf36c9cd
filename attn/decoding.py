"""Greedy search over a key-value cache, as one `lax.while_loop` of static shapes.

B sentences, N source pieces, T = the most target pieces.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from attn.masks import Mask
from attn.transformer import Transformer


def greedy(model: Transformer, variables, source: Int[Array, "B N"], lengths: Int[Array, "B"], *, most: int,
           bos: int, eos: int) -> Int[Array, "B T"]:
    """The likeliest piece, one after another, until `eos` or `most` pieces; zeros after the end.

    Equal to taking the argmax of the full forward pass again for every piece; the cache only saves the work.
    """
    batch, n = source.shape

    def call(method, *args):
        return model.apply(variables, *args, method=method)

    seen = Mask.padding(lengths)
    memory = call(Transformer.encode, source, jnp.broadcast_to(jnp.arange(n), (batch, n)), seen)
    cross = call(Transformer.remember, memory)
    real = (jnp.arange(n)[None] < lengths[:, None])[:, None]

    def going(state):
        t, _, _, done, _ = state
        return (t < most) & ~done.all()

    def next_piece(state):
        t, piece, caches, done, out = state
        own = jnp.broadcast_to(jnp.arange(most) <= t, (batch, 1, most))
        hidden, caches = call(Transformer.step, piece[:, None], t, caches, cross, own, real)
        logits = call(Transformer.logits, hidden)
        piece = jnp.where(done, 0, logits[:, 0].argmax(-1).astype(jnp.int32))
        return t + 1, piece, caches, done | (piece == eos), out.at[:, t].set(piece)

    caches = call(Transformer.empty_caches, (batch,), most, memory.dtype)
    start = (jnp.int32(0), jnp.full(batch, bos, jnp.int32), caches, jnp.zeros(batch, bool),
             jnp.zeros((batch, most), jnp.int32))
    return jax.lax.while_loop(going, next_piece, start)[-1]
