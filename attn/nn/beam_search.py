"""Greedy and beam search over a key-value cache, each one `lax.while_loop`.

Shapes are static. Both pad with token 0, which they never choose, and neither do they
choose `bos`; log-probabilities are of the softmax over the whole vocabulary all the same.
A sentence without tokens has the empty translation, which is `eos` alone. B sentences,
N source tokens, K = the beam, T = max_length, P tokens of a prefix, Y vocabulary; n = the
number of best hypotheses that are returned.
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from attn.context import Context, Decoding
from attn.masks import Mask
from attn.nn.layers import output_matrix

PAD = 0
"""The token that fills up rows."""
NEVER = -1e30
"""The log-probability of a hypothesis that does not exist.

It is finite, because a difference of infinities would be NaN.
"""
BLOCK = 64
"""The number of tokens in a block of the vocabulary.

The best tokens are searched in the blocks of the greatest maxima, because sorting all of
them would take longer than the model does.
"""


class BeamResult(NamedTuple):
    """The best translations of each sentence, best first.

    Where a sentence has fewer than n, as with a limit of 1, the rest are 0 with scores and
    log-probabilities of −inf.
    """

    tokens: Int[Array, "B n T"]
    """Each with its `eos` and zeros after it."""
    scores: Float[Array, "B n"]
    """log_probs / lp(length with `eos`), see `beam_search`."""
    log_probs: Float[Array, "B n"]
    """Natural log of the model's probability of the tokens, `eos` included."""


def greedy(
    model: nn.Module,
    variables,
    source: Int[Array, "B N"],
    lengths: Int[Array, "B"],
    *,
    max_length: int,
    bos: int,
    eos: int,
    limits: Int[ArrayLike, "B"] | None = None,
    prefix: tuple[Int[Array, "B P"], Int[Array, "B"]] | None = None,
    updates: Int[ArrayLike, ""] | None = None,
) -> Int[Array, "B T"]:
    """Returns the likeliest token, one after another, until `eos`; zeros after it.

    The arguments are those of `beam_search`. It is equal to taking the argmax of the full
    forward pass again for every token; the cache only saves the work. At its limit a
    sentence is given `eos`, as in beam search, to which it is equal for a beam of 1.
    """
    batch = source.shape[0]
    step, caches = _decoder(model, variables, source, lengths, 1, max_length, updates)
    penalty = _Vocabulary(model.vocabulary, bos).penalty()
    forced_token, _ = _forced_tokens(lengths, max_length, eos, limits, prefix)

    def unfinished(state):
        t, _, _, done = state
        return (t < max_length) & ~done.all()

    def extend(state):
        t, caches, tokens, done = state
        visible = jnp.broadcast_to(jnp.arange(max_length) <= t, (batch, 1, max_length))
        logits, caches = step(tokens[:, t][:, None], t, caches, visible)
        forced = forced_token(t)
        best = _first_argmax(logits[:, 0] + penalty[None])
        # All tokens are int32, whatever an index is.
        token = jnp.where(forced == PAD, best, forced).astype(jnp.int32)
        tokens = tokens.at[:, t + 1].set(jnp.where(done, PAD, token))
        # A limit needs no case of its own, because it forces eos.
        return t + 1, caches, tokens, done | (token == eos)

    tokens = _only_bos((batch,), max_length, bos)
    start = jnp.int32(0), caches, tokens, jnp.zeros(batch, bool)
    return jax.lax.while_loop(unfinished, extend, start)[2][:, 1:]


def beam_search(
    model: nn.Module,
    variables,
    source: Int[Array, "B N"],
    lengths: Int[Array, "B"],
    *,
    beam: int,
    max_length: int,
    bos: int,
    eos: int,
    alpha: float | Float[Array, ""] = 0.6,
    limits: Int[ArrayLike, "B"] | None = None,
    prefix: tuple[Int[Array, "B P"], Int[Array, "B"]] | None = None,
    n_best: int = 1,
    updates: Int[ArrayLike, ""] | None = None,
) -> BeamResult:
    """Returns the best translations y by log P(y | x) / lp(|y|) that a beam of K finds.

    lp(n) = ((5 + n) / 6)^alpha is the length penalty of Wu et al. 2016, section 7, and |y|
    counts `eos`. In each step all alive hypotheses are extended by every token. Of the 2K
    likeliest extensions, those that end and are among the first K are finished; the K
    likeliest that do not end stay alive. A sentence is done when K have finished, or at
    its limit, where all that are alive are given `eos`: so every translation ends in
    `eos`. It is done earlier where nothing can change any more, because no alive
    hypothesis can beat the n_best-th finished one at any length that it may still reach.

    Args:
      model: a `Transformer` or an `RNN`.
      variables: those that `model.apply` takes.
      source, lengths: tokens, of each row the first `lengths`.
      beam: K.
      max_length: the most tokens of a translation, `eos` included.
      bos: the token that the decoder reads before the first one.
      eos: the token that ends a translation.
      alpha: 0 for no penalty; the paper's is 0.6 (section 6.1).
      limits: the same as `max_length` for each sentence by itself, from 1 to
        `max_length`; beyond, the nearer of these.
      prefix: (tokens, their numbers) that a translation must begin with, `eos` not among
        them; their log-probabilities count. A limit cuts it.
      n_best: the number of translations to return, K at most.
      updates: the steps of training that the model has seen, for what depends on them.

    Raises:
      ValueError: a beam below 1, an n_best that is not 1 to K, more tokens than the model
        has positions.
    """
    _check_beam(beam, n_best)
    step, caches = _decoder(
        model, variables, source, lengths, beam, max_length, updates
    )
    vocabulary = _Vocabulary(model.vocabulary, bos)
    forced_token, limits = _forced_tokens(lengths, max_length, eos, limits, prefix)
    batch = source.shape[0]

    def lp(n):
        # In the precision of the log-probabilities: quotients of int32 are float32.
        n = jnp.asarray(n, jnp.result_type(float))
        return ((5 + n) / 6) ** alpha

    def unfinished(state):
        t, _, _, _, done = state
        return (t < max_length) & ~done.all()

    def extend(state):
        t, caches, alive, finished, done = state
        logits, caches = step(alive.tokens[..., t], t, caches, alive.visible)
        log_probs, parent, token = _best_extensions(
            logits, alive.log_probs, forced_token(t), vocabulary
        )
        token = token.astype(jnp.int32)
        tokens = _take_rows(alive.tokens, parent).at[..., t + 1].set(token)

        ends = token == eos
        # A row goes on while others search, but what ends after it is done is void.
        ended = jnp.where(ends & ~done[:, None], log_probs, NEVER)[:, :beam]
        # NEVER / lp is above NEVER where lp > 1, and would pass for a score.
        scores = jnp.where(ended > NEVER, ended / lp(t + 1), NEVER)
        finished = _best_of(finished, BeamResult(tokens[:, :beam], scores, ended))

        # One extension of each hypothesis ends, so at least K of the 2K do not.
        log_probs, order = jax.lax.top_k(jnp.where(ends, NEVER, log_probs), beam)
        ancestry = _take_rows(alive.visible, _take_rows(parent, order))
        # The entry that the next step writes is seen too: a token attends to itself.
        visible = ancestry | _own_entries(t + 1, beam, max_length)
        alive = _Alive(log_probs, _take_rows(tokens, order), visible)

        # Between here and the limit lp changes one way only, and log-probabilities can
        # only fall.
        hope = jnp.maximum(log_probs[:, 0] / lp(t + 2), log_probs[:, 0] / lp(limits))
        done |= finished.scores[:, -1] > NEVER
        done |= finished.scores[:, n_best - 1] >= hope
        done |= t + 1 >= limits
        return t + 1, caches, alive, finished, done

    alive = _Alive.start(batch, beam, max_length, bos)
    nothing = jnp.full((batch, beam), NEVER)
    finished = BeamResult(alive.tokens, nothing, nothing)
    start = jnp.int32(0), caches, alive, finished, jnp.zeros(batch, bool)
    finished = jax.lax.while_loop(unfinished, extend, start)[3]
    tokens, scores, log_probs = (x[:, :n_best] for x in finished)
    exists = scores > NEVER
    return BeamResult(
        tokens[..., 1:],
        jnp.where(exists, scores, -jnp.inf),
        jnp.where(exists, log_probs, -jnp.inf),
    )


class _Alive(NamedTuple):
    """Hypotheses that have not ended, likeliest first."""

    log_probs: Array  # (B, K)
    tokens: Array  # (B, K, 1 + T), bos before them
    visible: Array  # (B, K, T·K): the cache entries of each one's ancestry

    @classmethod
    def start(cls, batch, beam, max_length, bos):
        """Returns one that is empty and K − 1 that do not exist."""
        # K alike at first would fill the beam with copies of one hypothesis.
        log_probs = jnp.full((batch, beam), NEVER).at[:, 0].set(0.0)
        tokens = _only_bos((batch, beam), max_length, bos)
        visible = _own_entries(0, beam, max_length)
        shape = (batch, beam, max_length * beam)
        return cls(log_probs, tokens, jnp.broadcast_to(visible, shape))


class _Vocabulary(NamedTuple):
    """Y tokens, and after them what fills the last block of logits."""

    y: int
    bos: int

    def forbidden(self):
        """Returns the tokens that are never chosen."""
        return jnp.array([PAD, self.bos])

    def penalty(self):
        """Returns what to add to logits: 0 for tokens that may be chosen, else −inf."""
        zeros = jnp.zeros(self.y + -self.y % BLOCK)
        return zeros.at[self.forbidden()].set(-jnp.inf).at[self.y :].set(-jnp.inf)


def _decoder(model, variables, source, lengths, beam, max_length, updates):
    """Returns a decoder's step and its first caches.

    step(tokens (B, K), t, caches, visible) gives logits, in whole blocks, and caches.
    """
    check_length(max_length, model)
    batch, n = source.shape

    def call(method, *args):
        return model.apply(variables, *args, method=method)

    encoded = call("encode", source, Context(Mask.padding(lengths), step=updates))
    memory = call("project_memory", encoded)
    memory_visible = (jnp.arange(n)[None] < lengths[:, None])[:, None]
    matrix = output_matrix(variables["params"])
    # The matrix is padded once, so that the logits need no padding in any step.
    matrix = jnp.pad(matrix, ((0, -len(matrix) % BLOCK), (0, 0)))
    # One hypothesis needs no transposed copy: a logit is a product with one row.
    many = batch * beam > 1
    if many:
        matrix = matrix.T  # here, because XLA would do it in every step
    product = "bkd,dy->bky" if many else "bkd,yd->bky"

    def step(tokens, t, caches, visible):
        at = Decoding(t, visible, memory_visible)
        ctx = Context(step=updates, memory=memory, decoding=at, cache=caches)
        hidden, ctx = call("decode", tokens, ctx)
        dtype = jnp.promote_types(hidden.dtype, jnp.float32)
        logits = jnp.einsum(product, hidden, matrix, preferred_element_type=dtype)
        return logits, ctx.cache

    caches = call("empty_caches", batch, max_length, encoded.dtype, beam)
    return step, caches


def _forced_tokens(lengths, max_length, eos, limits, prefix):
    """Returns forced_token(t), and the limits of all sentences.

    It gives the token (B,) that each sentence must have at position t, PAD where it may
    choose.
    """
    if limits is None:
        limits = jnp.full(lengths.shape, max_length)
    else:
        limits = jnp.clip(jnp.asarray(limits), 1, max_length)
    # An empty sentence is given eos at once, which is its empty translation.
    limits = jnp.where(lengths > 0, limits, 1)

    def forced_token(t):
        forced = PAD
        # An array of no tokens forces none, and has none to index.
        if prefix is not None and prefix[0].shape[1] > 0:
            tokens, numbers = prefix
            at = jnp.minimum(t, tokens.shape[1] - 1)
            forced = jnp.where(t < numbers, tokens[:, at], PAD)
        return jnp.where(t + 1 >= limits, eos, forced)

    return forced_token, limits


def _best_extensions(logits, log_probs, forced, vocabulary):
    """Returns log P, parent and token of a sentence's 2K likeliest extensions.

    Where a token is forced, they are the K extensions by that one. Tokens are compared by
    logits, relative to those of the likeliest hypothesis: with one alone rounding cannot
    make equals of two logits.
    """
    batch, beam, width = logits.shape
    penalty = vocabulary.penalty()
    blocks = (logits + penalty[None, None]).reshape(batch, beam, -1, BLOCK)
    maxima = blocks.max(-1)
    offset = log_probs - _log_sum_exp(logits, maxima, vocabulary)
    base = offset.max(-1, keepdims=True)
    relative = offset - base
    candidates = (maxima + relative[..., None]).reshape(batch, -1)
    # The 2K best tokens lie in the 2K blocks with the greatest maxima: each block
    # passed over has 2K tokens above it.
    _, best = jax.lax.top_k(candidates, min(2 * beam, candidates.shape[1]))
    parent, block = jnp.divmod(best, width // BLOCK)
    near = _take_rows(logits.reshape(batch, -1, BLOCK), best)
    near = near + penalty.reshape(-1, BLOCK)[block]
    totals = (near + _take_rows(relative, parent)[..., None]).reshape(batch, -1)
    top, at = jax.lax.top_k(totals, 2 * beam)
    parent = _take_rows(parent, at // BLOCK)
    token = _take_rows(block, at // BLOCK) * BLOCK + at % BLOCK
    # Not above the parent's, by rounding: the early stop counts on that.
    free_log_probs = jnp.clip(top + base, NEVER, _take_rows(log_probs, parent))

    forced_logits = jnp.take_along_axis(logits, forced[:, None, None], axis=-1)[..., 0]
    forced_log_probs = jnp.clip(forced_logits + offset, NEVER, log_probs)
    fill = ((0, 0), (0, beam))
    forced_log_probs = jnp.pad(forced_log_probs, fill, constant_values=NEVER)
    itself = jnp.minimum(jnp.arange(2 * beam), beam - 1)[None]
    free = (forced == PAD)[:, None]
    return (
        jnp.where(free, free_log_probs, forced_log_probs),
        jnp.where(free, parent, itself),
        jnp.where(free, token, forced[:, None]),
    )


def _log_sum_exp(logits, maxima, vocabulary):
    """Computes log Σ exp over all tokens, those too that may not be chosen.

    `maxima` are those of the blocks of tokens that may.
    """
    # They count in the softmax, and their exponentials must not overflow either.
    forbidden = logits[..., vocabulary.forbidden()].max(-1)
    top = jnp.maximum(maxima.max(-1), forbidden)[..., None]
    # The fill of the last block has logits of 0, which are no token's.
    is_token = (jnp.arange(logits.shape[-1]) < vocabulary.y)[None, None]
    total = jnp.where(is_token, jnp.exp(logits - top), 0).sum(-1, keepdims=True)
    return (top + jnp.log(total))[..., 0]


def _first_argmax(x):
    """Computes argmax over the last axis, and 0 if all is NaN.

    XLA's own argmax takes half as long as the model on a CPU.
    """
    width = x.shape[-1]
    places = jnp.arange(width).reshape((1,) * (x.ndim - 1) + (-1,))
    is_best = x == x.max(-1, keepdims=True)
    return jnp.where(is_best, places, width).min(-1) % width


def _best_of(finished, new):
    """Returns the K best of two times K, in order; of equals those that finished first."""
    pairs = zip(finished, new, strict=True)
    both = BeamResult(*(jnp.concatenate(pair, axis=1) for pair in pairs))
    scores, order = jax.lax.top_k(both.scores, finished.scores.shape[1])
    tokens = _take_rows(both.tokens, order)
    return BeamResult(tokens, scores, _take_rows(both.log_probs, order))


def _own_entries(t, beam, max_length):
    """Returns the cache entry (1, K, T·K) that each of K hypotheses writes at position t."""
    written = t * beam + jnp.arange(beam)
    entries = jnp.arange(max_length * beam)
    return (entries[None] == written[:, None])[None]


def _take_rows(x, index):
    """Returns x[b, index[b]] for every sentence b."""
    index = index.reshape(*index.shape, *(1,) * (x.ndim - 2))
    # Indices come from top_k, so a check of bounds would be for nothing.
    return jnp.take_along_axis(x, index, axis=1, mode="promise_in_bounds")


def _only_bos(shape, max_length, bos):
    """Returns the tokens of translations that only have the `bos` before them."""
    return jnp.full((*shape, 1 + max_length), PAD, jnp.int32).at[..., 0].set(bos)


def check_length(max_length: int, model: nn.Module) -> None:
    """Raises ValueError for more tokens than the model has positions."""
    if max_length > model.length:
        raise ValueError(
            f"max_length={max_length} is more than the length={model.length} "
            "of the model's position table"
        )


def _check_beam(beam, n_best):
    if beam < 1:
        raise ValueError(f"beam={beam} must be at least 1")
    if not 1 <= n_best <= beam:
        raise ValueError(
            f"n_best={n_best} must be from 1 to beam={beam}: no more hypotheses are kept"
        )
