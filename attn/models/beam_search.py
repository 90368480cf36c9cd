"""Greedy and beam search over a key-value cache, each as one `lax.while_loop` of static shapes.

Both pad with piece 0, which they never choose, and neither do they choose `bos`; log-probabilities are of the softmax
over the whole vocabulary all the same. A sentence without pieces has the empty translation, which is `eos` alone.
B sentences, N source pieces, K = the beam, T = the most target pieces, P pieces of a prefix, Y vocabulary; n = the best
that are asked for.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from attn.layers import output_matrix
from attn.masks import Mask
from attn.recurrent import RNN
from attn.transformer import Transformer

PAD = 0
NEVER = -1e30
"""The log-probability of what does not exist: finite, for a difference of infinities would be NaN."""
BLOCK = 64
"""Pieces of a block: the best are looked for in the blocks of the greatest maxima, for sorting all would take longer
than the model does."""


class Found(NamedTuple):
    """The best translations of each sentence, best first.

    Where a sentence has fewer than n, as with a limit of 1, the rest are 0 with scores and log-probabilities of −inf.
    """

    pieces: Int[Array, "B n T"]
    """Each with its `eos` and zeros after it."""
    scores: Float[Array, "B n"]
    """log_probs / lp(pieces, `eos` included), see `beam_search`."""
    log_probs: Float[Array, "B n"]
    """Natural log of the model's probability of the pieces, `eos` included."""


def greedy(
    model: Transformer | RNN,
    variables,
    source: Int[Array, "B N"],
    lengths: Int[Array, "B"],
    *,
    most: int,
    bos: int,
    eos: int,
    limits: Int[ArrayLike, "B"] | None = None,
    prefix: tuple[Int[Array, "B P"], Int[Array, "B"]] | None = None,
) -> Int[Array, "B T"]:
    """The likeliest piece, one after another, until `eos`; zeros after it. The arguments are those of `beam_search`.

    Equal to taking the argmax of the full forward pass again for every piece; the cache only saves the work. At its
    limit a sentence is given `eos`, as in beam search, to which it is equal for a beam of 1.
    """
    batch = source.shape[0]
    step, caches = _decoder(model, variables, source, lengths, 1, most)
    allowed = _Vocabulary(model.vocabulary, bos).allowed()
    must, _ = _musts(lengths, most, eos, limits, prefix)

    def going(state):
        t, _, _, done = state
        return (t < most) & ~done.all()

    def next_piece(state):
        t, caches, pieces, done = state
        own = jnp.broadcast_to(jnp.arange(most) <= t, (batch, 1, most))
        logits, caches = step(pieces[:, t][:, None], t, caches, own)
        piece = jnp.where(
            must(t) == PAD, _first_best(logits[:, 0] + allowed[None]), must(t)
        )
        pieces = pieces.at[:, t + 1].set(jnp.where(done, PAD, piece))
        return t + 1, caches, pieces, done | (piece == eos)

    start = jnp.int32(0), caches, _begun((batch,), most, bos), jnp.zeros(batch, bool)
    return jax.lax.while_loop(going, next_piece, start)[2][:, 1:]


def beam_search(
    model: Transformer | RNN,
    variables,
    source: Int[Array, "B N"],
    lengths: Int[Array, "B"],
    *,
    beam: int,
    most: int,
    bos: int,
    eos: int,
    alpha: float | Float[Array, ""] = 0.6,
    limits: Int[ArrayLike, "B"] | None = None,
    prefix: tuple[Int[Array, "B P"], Int[Array, "B"]] | None = None,
    n_best: int = 1,
) -> Found:
    """The best translations y by log P(y | x) / lp(|y|), lp(n) = ((5 + n) / 6)^alpha, that a beam of K finds.

    The length penalty is that of Wu et al. 2016, section 7, and |y| counts `eos`. In each step all hypotheses are
    extended by every piece. Of the 2K likeliest extensions, those that end and are among the first K are finished; the
    K likeliest that do not end go on. A sentence is done when K have finished, or at its limit, where all that go on
    are given `eos`: so every translation ends in `eos`. It is done earlier where nothing can change any more, because
    no hypothesis can beat the n_best-th finished one at any length that it may still reach.

    Args:
      model, variables: what `model.apply` takes.
      source, lengths: pieces, of each row the first `lengths`.
      beam: K.
      most: pieces of a translation at most, `eos` included.
      bos, eos: what the decoder reads before the first piece, and what ends a translation.
      alpha: 0 for no penalty; the paper's is 0.6 (section 6.1).
      limits: the same as `most` for each sentence by itself, from 1 to `most`; beyond, the nearer of these.
      prefix: (ids, their numbers): pieces that a translation must begin with, `eos` not among them; their
        log-probabilities count. A limit cuts it.
      n_best: how many to return, K at most.

    Raises:
      ValueError: a beam below 1, an n_best that is not 1 to K, more pieces than the model has positions.
    """
    _check_beam(beam, n_best)
    step, caches = _decoder(model, variables, source, lengths, beam, most)
    vocabulary = _Vocabulary(model.vocabulary, bos)
    must, limits = _musts(lengths, most, eos, limits, prefix)

    def lp(n):
        return ((5 + n) / 6) ** alpha

    def unfinished(state):
        t, _, _, _, done = state
        return (t < most) & ~done.all()

    def extend(state):
        t, caches, going, finished, done = state
        logits, caches = step(going.pieces[..., t], t, caches, going.own)
        log_probs, parent, piece = _best_extensions(
            logits, going.log_probs, must(t), vocabulary
        )
        pieces = _rows(going.pieces, parent).at[..., t + 1].set(piece)
        ends = piece == eos
        ended = jnp.where(ends & ~done[:, None], log_probs, NEVER)[:, :beam]
        scores = jnp.where(ended > NEVER, ended / lp(t + 1), NEVER)
        finished = _best_of(finished, Found(pieces[:, :beam], scores, ended))
        log_probs, order = jax.lax.top_k(jnp.where(ends, NEVER, log_probs), beam)
        own = _rows(going.own, _rows(parent, order)) | _entries(t + 1, beam, most)
        # Between here and the limit lp changes one way only, and log-probabilities can only fall.
        hope = jnp.maximum(log_probs[:, 0] / lp(t + 2), log_probs[:, 0] / lp(limits))
        done |= (
            (finished.scores[:, -1] > NEVER)
            | (finished.scores[:, n_best - 1] >= hope)
            | (t + 1 >= limits)
        )
        return (
            t + 1,
            caches,
            _Going(log_probs, _rows(pieces, order), own),
            finished,
            done,
        )

    going, nothing = _Going.start(source.shape[0], beam, most, bos)
    start = jnp.int32(0), caches, going, nothing, jnp.zeros(source.shape[0], bool)
    pieces, scores, log_probs = (
        x[:, :n_best] for x in jax.lax.while_loop(unfinished, extend, start)[3]
    )
    return Found(
        pieces[..., 1:],
        *(jnp.where(scores > NEVER, x, -jnp.inf) for x in (scores, log_probs)),
    )


class _Going(NamedTuple):
    """Hypotheses that have not ended, likeliest first."""

    log_probs: Array  # (B, K)
    pieces: Array  # (B, K, 1 + T), bos before them
    own: Array  # (B, K, T·K): the entries of the cache that are of the pieces of each, its ancestors' and its own

    @classmethod
    def start(cls, batch, beam, most, bos):
        """One that is empty and K − 1 that do not exist; and as many finished ones that do not exist either."""
        never, pieces = jnp.full((batch, beam), NEVER), _begun((batch, beam), most, bos)
        own = jnp.broadcast_to(_entries(0, beam, most), (batch, beam, most * beam))
        return cls(never.at[:, 0].set(0.0), pieces, own), Found(pieces, never, never)


class _Vocabulary(NamedTuple):
    """Y pieces, and after them what fills the last block of logits."""

    y: int
    bos: int

    def barred(self):
        """What is never chosen."""
        return jnp.array([PAD, self.bos])

    def allowed(self):
        """To be added to logits: 0 for what may be chosen, −inf for the others."""
        return (
            jnp.zeros(self.y + -self.y % BLOCK)
            .at[self.barred()]
            .set(-jnp.inf)
            .at[self.y :]
            .set(-jnp.inf)
        )


def _decoder(model, variables, source, lengths, beam, most):
    """`step` and its first caches: step(pieces (B, K), t, caches, own) gives logits, in whole blocks, and caches."""
    if most > model.length:
        raise ValueError(
            f"most={most} is more than the length={model.length} of the model's position table"
        )
    batch, n = source.shape

    def call(method, *args):
        return model.apply(variables, *args, method=method)

    memory = call(
        "encode",
        source,
        jnp.broadcast_to(jnp.arange(n), (batch, n)),
        Mask.padding(lengths),
    )
    cross = call("remember", memory)
    seen = (jnp.arange(n)[None] < lengths[:, None])[:, None]
    matrix = output_matrix(variables["params"])
    matrix = jnp.pad(matrix, ((0, -len(matrix) % BLOCK), (0, 0)))  # in whole blocks
    if many := batch * beam > 1:
        matrix = matrix.T  # here, because XLA would do it in every step

    def step(pieces, t, caches, own):
        hidden, caches = call("step", pieces, t, caches, cross, own, seen)
        exact = jnp.promote_types(hidden.dtype, jnp.float32)
        logits = jnp.einsum(
            "bkd,dy->bky" if many else "bkd,yd->bky",
            hidden,
            matrix,
            preferred_element_type=exact,
        )
        return logits, caches

    return step, call("empty_caches", (batch,), most * beam, memory.dtype)


def _musts(lengths, most, eos, limits, prefix):
    """must(t): the piece (B,) that each sentence has to have at position t, PAD where it may choose; and the limits."""
    limits = (
        jnp.full(lengths.shape, most)
        if limits is None
        else jnp.clip(jnp.asarray(limits), 1, most)
    )
    limits = jnp.where(lengths > 0, limits, 1)

    def must(t):
        begin = PAD
        if prefix is not None:
            ids, numbers = prefix
            begin = jnp.where(
                t < numbers, ids[:, jnp.minimum(t, ids.shape[1] - 1)], PAD
            )
        return jnp.where(t + 1 >= limits, eos, begin)

    return must, limits


def _best_extensions(logits, log_probs, must, vocabulary):
    """The 2K likeliest extensions of a sentence's K hypotheses, or the K that it must have: log P, parent and piece.

    Pieces are compared by logits, relative to those of the likeliest hypothesis: with one alone rounding cannot make
    equals of two logits.
    """
    (batch, beam, width), allowed = logits.shape, vocabulary.allowed()
    maxima = (logits + allowed[None, None]).reshape(batch, beam, -1, BLOCK).max(-1)
    offset = log_probs - _log_sum_exp(logits, maxima, vocabulary)
    base = offset.max(-1, keepdims=True)
    relative = offset - base
    blocks = (maxima + relative[..., None]).reshape(batch, -1)
    _, best = jax.lax.top_k(blocks, min(2 * beam, blocks.shape[1]))
    parent, block = jnp.divmod(best, width // BLOCK)
    near = (
        _rows(logits.reshape(batch, -1, BLOCK), best)
        + allowed.reshape(-1, BLOCK)[block]
    )
    top, at = jax.lax.top_k(
        (near + _rows(relative, parent)[..., None]).reshape(batch, -1), 2 * beam
    )
    parent, piece = (
        _rows(parent, at // BLOCK),
        _rows(block, at // BLOCK) * BLOCK + at % BLOCK,
    )
    # Not above the parent's, by rounding: the early stop counts on that.
    found = jnp.clip(top + base, NEVER, _rows(log_probs, parent))
    only = jnp.take_along_axis(logits, must[:, None, None], axis=-1)[..., 0] + offset
    only = jnp.pad(
        jnp.clip(only, NEVER, log_probs), ((0, 0), (0, beam)), constant_values=NEVER
    )
    free = (must == PAD)[:, None]
    itself = jnp.minimum(jnp.arange(2 * beam), beam - 1)[None]
    return tuple(
        jnp.where(free, a, b)
        for a, b in ((found, only), (parent, itself), (piece, must[:, None]))
    )


def _log_sum_exp(logits, maxima, vocabulary):
    """Over all pieces, those too that may not be chosen; `maxima` are of the blocks of those that may."""
    top = jnp.maximum(maxima.max(-1), logits[..., vocabulary.barred()].max(-1))[
        ..., None
    ]
    inside = (jnp.arange(logits.shape[-1]) < vocabulary.y)[None, None]
    return (
        top
        + jnp.log(jnp.where(inside, jnp.exp(logits - top), 0).sum(-1, keepdims=True))
    )[..., 0]


def _first_best(x):
    """argmax over the last axis, for which XLA's own takes half as long as the model on a CPU."""
    width = x.shape[-1]
    found = jnp.where(
        x == x.max(-1, keepdims=True),
        jnp.arange(width).reshape((1,) * (x.ndim - 1) + (-1,)),
        width,
    )
    return found.min(-1) % width  # 0 if all is NaN


def _best_of(finished, new):
    """The K best of two times K, in order; of equals those that finished first."""
    both = Found(
        *(jnp.concatenate(pair, axis=1) for pair in zip(finished, new, strict=True))
    )
    scores, order = jax.lax.top_k(both.scores, finished.scores.shape[1])
    return Found(_rows(both.pieces, order), scores, _rows(both.log_probs, order))


def _entries(t, beam, most):
    """The entry (1, K, T·K) of the cache that each of K hypotheses writes to at position t."""
    return (jnp.arange(most * beam)[None] == (t * beam + jnp.arange(beam))[:, None])[
        None
    ]


def _rows(x, index):
    """x[b, index[b]] for every sentence b."""
    index = index.reshape(*index.shape, *(1,) * (x.ndim - 2))
    return jnp.take_along_axis(x, index, axis=1, mode="promise_in_bounds")


def _begun(shape, most, bos):
    """Pieces of translations of which only the `bos` before them is there."""
    return jnp.full((*shape, 1 + most), PAD, jnp.int32).at[..., 0].set(bos)


def _check_beam(beam, n_best):
    if beam < 1:
        raise ValueError(f"beam={beam} must be at least 1")
    if not 1 <= n_best <= beam:
        raise ValueError(
            f"n_best={n_best} must be from 1 to beam={beam}: no more hypotheses are kept"
        )
