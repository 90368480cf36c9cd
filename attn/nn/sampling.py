"""Texts from a language model, drawn token by token over a key-value cache.

It is one `lax.while_loop` of static shapes. B texts, P tokens of a prefix,
T = max_length, Y vocabulary.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from attn.context import Context, Decoding
from attn.masks import Mask
from attn.masks.near import visible_at
from attn.nn.beam_search import PAD, check_length
from attn.nn.layers import output_matrix


class SampleResult(NamedTuple):
    """Texts, each with its prefix, its `eos` if it has one, and zeros after that."""

    tokens: Int[Array, "B T"]
    log_probs: Float[Array, "B"]
    """Natural log of the model's own probability, at temperature 1 and without a cut, of
    the tokens that were drawn."""


def sample(
    model: nn.Module,
    variables,
    key: Array,
    prefix: Int[Array, "B P"],
    prefix_lengths: Int[Array, "B"],
    *,
    max_length: int,
    bos: int,
    eos: int,
    temperature: float | Float[Array, ""] = 1.0,
    top_k: int | Int[Array, ""] = 0,
    top_p: float | Float[Array, ""] = 1.0,
    mask: Mask = Mask.causal(),
    updates: Int[ArrayLike, ""] | None = None,
) -> SampleResult:
    """Draws each token from softmax(logits / temperature), cut to its likeliest.

    A text ends with `eos` or `max_length` tokens. Padding and `bos` are never drawn. A
    text depends on its own row of `prefix`, its place b and the key alone, not on its
    neighbours.

    Args:
      model: a `LanguageModel`.
      variables: those that `model.apply` takes.
      key: a random key.
      prefix: the tokens that each text begins with, without `bos`; P may be 0.
      prefix_lengths: the number of tokens of each row of `prefix`.
      max_length: the most tokens of a text, its prefix and `eos` included.
      bos: the token that the model reads first.
      eos: the token that ends a text.
      temperature: 0 for the likeliest token always.
      top_k: only so many of the likeliest tokens, 0 for all (Fan et al. 2018).
      top_p: only the fewest likeliest tokens whose probabilities sum to this at least
        (Holtzman et al. 2020).
      mask: that of the model's full pass, for `max_length` queries and keys, where it shows
        no key behind its query. Of a window's keys alone there are caches.
      updates: the steps of training that the model has seen, for what depends on them.

    Raises:
      ValueError: more tokens than the model has positions.
    """
    check_length(max_length, model)
    batch = prefix.shape[0]
    keys = jax.random.split(key, batch)
    if prefix.shape[1] == 0:
        # A token to index; with lengths of 0 none is read.
        prefix = jnp.full((batch, 1), PAD, prefix.dtype)
    matrix = output_matrix(variables["params"])
    forbidden = jnp.array([PAD, bos])
    penalty = jnp.zeros(model.vocabulary).at[forbidden].set(-jnp.inf)

    def unfinished(state):
        t, _, _, _, done = state
        return (t < max_length) & ~done.all()

    def draw_tokens(keys, logits):
        draw = jax.vmap(_draw, (0, 0, None, None, None))
        return draw(keys, logits + penalty[None], temperature, top_k, top_p)

    def extend(state):
        t, caches, tokens, log_probs, done = state
        visible = visible_at(mask, (batch,), t, max_length)
        ctx = Context(step=updates, decoding=Decoding(t, visible), cache=caches)
        # Linen's `apply` promises less than the method gives.
        results: Any = model.apply(
            variables, tokens[:, t][:, None], ctx, method="decode"
        )
        hidden, ctx = results
        logits = jnp.einsum(
            "bd,yd->by", hidden[:, 0], matrix, preferred_element_type=jnp.float32
        )
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
        drawn_tokens = draw_tokens(step_keys, logits)
        in_prefix = t < prefix_lengths
        at = jnp.minimum(t, prefix.shape[1] - 1)
        token = jnp.where(in_prefix, prefix[:, at], drawn_tokens).astype(jnp.int32)
        all_log_probs = jax.nn.log_softmax(logits)
        log_prob = jnp.take_along_axis(all_log_probs, token[:, None], axis=-1)[:, 0]
        log_probs += jnp.where(done | in_prefix, 0, log_prob)
        tokens = tokens.at[:, t + 1].set(jnp.where(done, PAD, token))
        return t + 1, ctx.cache, tokens, log_probs, done | (token == eos)

    left, _ = mask.reach()
    last = None if left is None else max(left, 0) + 1
    caches = model.apply(
        variables, batch, max_length, matrix.dtype, 1, last, method="empty_caches"
    )
    tokens = jnp.full((batch, 1 + max_length), PAD, jnp.int32).at[:, 0].set(bos)
    start = jnp.int32(0), caches, tokens, jnp.zeros(batch), jnp.zeros(batch, bool)
    _, _, tokens, log_probs, _ = jax.lax.while_loop(unfinished, extend, start)
    return SampleResult(tokens[:, 1:], log_probs)


def allowed_tokens(
    logits: Float[Array, "Y"],
    temperature: ArrayLike,
    top_k: ArrayLike,
    top_p: ArrayLike,
) -> Bool[Array, "Y"]:
    """Returns which tokens may be drawn.

    Of equally likely ones that of lower number counts as likelier.
    """
    order = jnp.argsort(-logits, stable=True)
    probabilities = jax.nn.softmax(logits[order] / temperature)
    # Without itself, so that the token that brings the sum to top_p is kept.
    before = jnp.cumsum(probabilities) - probabilities
    rank = jnp.arange(logits.size)
    most = jnp.where(jnp.asarray(top_k) > 0, top_k, logits.size)
    # Rounding may bring the sum to 1 too early, and top_p=1 must keep every token.
    in_top_p = (before < top_p) | (jnp.asarray(top_p) >= 1)
    # The likeliest token stays even at top_p=0, or nothing could be drawn.
    allowed = (rank < most) & in_top_p | (rank == 0)
    unordered = jnp.zeros(logits.size, bool).at[order].set(allowed)
    return unordered & (logits > -jnp.inf)


def _draw(key: Any, logits: Array, temperature: Any, top_k: Any, top_p: Any) -> Array:
    cold = jnp.asarray(temperature) == 0
    # A cold draw is made too and thrown away: it must not divide by 0.
    warm = jnp.where(cold, 1.0, temperature)
    allowed = allowed_tokens(logits, warm, top_k, top_p)
    scores = jnp.where(allowed, logits / warm, -jnp.inf)
    token = jax.random.categorical(key, scores)
    return jnp.where(cold, logits.argmax(-1), token).astype(jnp.int32)
