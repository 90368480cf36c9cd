"""Texts from a language model, drawn piece by piece over a key-value cache, as one `lax.while_loop` of static shapes.

B texts, P pieces of a beginning, T = the most pieces, Y vocabulary.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from attn.language_model import LanguageModel
from attn.layers import output_matrix

PAD = 0


class Sampled(NamedTuple):
    """Texts, each with its beginning, its `eos` if it has one, and zeros after that."""

    pieces: Int[Array, "B T"]
    log_probs: Float[Array, "B"]
    """Natural log of the model's own probability, at temperature 1 and without a cut, of what was drawn."""


def sample(
    model: LanguageModel,
    variables,
    key: Array,
    beginning: Int[Array, "B P"],
    numbers: Int[Array, "B"],
    *,
    most: int,
    bos: int,
    eos: int,
    temperature: float | Float[Array, ""] = 1.0,
    top_k: int | Int[Array, ""] = 0,
    top_p: float | Float[Array, ""] = 1.0,
) -> Sampled:
    """Draws each piece from softmax(logits / temperature), cut to its likeliest, until `eos` or `most` pieces.

    Padding and `bos` are never drawn. What a text becomes depends on its own row of `beginning`, its place b and the
    key alone, not on its neighbours.

    Args:
      model, variables: what `model.apply` takes.
      key: random key.
      beginning, numbers: pieces that each text begins with, of each row the first `numbers`, without `bos`.
      most: pieces of a text at most, its beginning and `eos` included.
      bos, eos: what the model reads first, and what ends a text.
      temperature: 0 for the likeliest piece always.
      top_k: only so many of the likeliest pieces, 0 for all (Fan et al. 2018).
      top_p: only the fewest likeliest pieces whose probabilities sum to this at least (Holtzman et al. 2020).

    Raises:
      ValueError: more pieces than the model has positions.
    """
    if most > model.length:
        raise ValueError(
            f"most={most} is more than the length={model.length} of the model's position table"
        )
    batch = beginning.shape[0]
    keys = jax.random.split(key, batch)
    matrix = output_matrix(variables["params"])
    barred = jnp.zeros(model.vocabulary).at[jnp.array([PAD, bos])].set(-jnp.inf)

    def going(state):
        t, _, _, _, done = state
        return (t < most) & ~done.all()

    def next_piece(state):
        t, caches, pieces, log_probs, done = state
        own = jnp.broadcast_to(jnp.arange(most) <= t, (batch, 1, most))
        hidden, caches = model.apply(
            variables, pieces[:, t][:, None], t, caches, own, method="step"
        )
        logits = jnp.einsum(
            "bd,yd->by", hidden[:, 0], matrix, preferred_element_type=jnp.float32
        )
        drawn = jax.vmap(_draw, (0, 0, None, None, None))(
            jax.vmap(jax.random.fold_in, (0, None))(keys, t),
            logits + barred[None],
            temperature,
            top_k,
            top_p,
        )
        given = t < numbers
        piece = jnp.where(
            given, beginning[:, jnp.minimum(t, beginning.shape[1] - 1)], drawn
        )
        own_log_prob = jnp.take_along_axis(
            jax.nn.log_softmax(logits), piece[:, None], axis=-1
        )[:, 0]
        log_probs += jnp.where(done | given, 0, own_log_prob)
        pieces = pieces.at[:, t + 1].set(jnp.where(done, PAD, piece))
        return t + 1, caches, pieces, log_probs, done | (piece == eos)

    caches = model.apply(variables, (batch,), most, matrix.dtype, method="empty_caches")
    pieces = jnp.full((batch, 1 + most), PAD, jnp.int32).at[:, 0].set(bos)
    start = jnp.int32(0), caches, pieces, jnp.zeros(batch), jnp.zeros(batch, bool)
    _, _, pieces, log_probs, _ = jax.lax.while_loop(going, next_piece, start)
    return Sampled(pieces[:, 1:], log_probs)


def kept(
    logits: Float[Array, "Y"],
    temperature: ArrayLike,
    top_k: ArrayLike,
    top_p: ArrayLike,
) -> Bool[Array, "Y"]:
    """Which pieces may be drawn: of equals those of lower number count as likelier."""
    order = jnp.argsort(-logits, stable=True)
    probabilities = jax.nn.softmax(logits[order] / temperature)
    before = jnp.cumsum(probabilities) - probabilities
    place = jnp.arange(logits.size)
    few = jnp.where(jnp.asarray(top_k) > 0, top_k, logits.size)
    may = (place < few) & ((before < top_p) | (jnp.asarray(top_p) >= 1)) | (place == 0)
    return jnp.zeros(logits.size, bool).at[order].set(may) & (logits > -jnp.inf)


def _draw(key, logits, temperature, top_k, top_p):
    cold = jnp.asarray(temperature) == 0
    warm = jnp.where(cold, 1.0, temperature)
    may = kept(logits, warm, top_k, top_p)
    drawn = jax.random.categorical(key, jnp.where(may, logits / warm, -jnp.inf))
    return jnp.where(cold, logits.argmax(-1), drawn).astype(jnp.int32)
