"""Searches over the full forward pass, with no cache, no blocks and no early stop, and a
random model whose sentences end early, late and not at all.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from attn import RNN, Transformer, beam_search, config, greedy
from tests.attn.nn.modules import random_variables
from tests.attn.nn.modules import sentences as whole

SIZES = dict(N=1, d_model=10, d_ff=17, h=2, d_k=6, d_v=5)
D = SIZES["d_model"]
BASE = config.Transformer(**SIZES)
LENGTH = 13
MAX_LENGTH = 7
N = 5
PAD = 0
BOS = 1
EOS = 2
LIKELY = [PAD, BOS, EOS, 3, 71, 72, 140, 200, 211]
"""Tokens of several blocks, the last of them among them, that are chosen often, or would
be if they might.
"""
VOCABULARY = 211 + 1
ROWS = 120  # hypotheses of one full forward pass, always the same number: it is compiled once


@functools.cache
def build(description=BASE, vocabulary=VOCABULARY):
    """Returns a model of random parameters, biases and norms too."""
    cls = RNN if isinstance(description, config.RNN) else Transformer
    model = cls(description, vocabulary, LENGTH)
    tokens = np.zeros((1, 2), np.int32)
    # With these weights sentences end early, late and not at all.
    drawn = random_variables(model, *whole(tokens, tokens), size=0.7, seed=10)
    variables = {"params": drawn["params"], "positions": {}}
    for name, positions in description.tables().items():
        table = positions.table(jax.random.key(0), LENGTH, D)
        variables["positions"][name] = {"table": table}
    return model, (
        rescaled(variables, LIKELY, 3) if vocabulary == VOCABULARY else variables
    )


def rescaled(variables, tokens, factor):
    """Returns variables with logits of some tokens that are as many times larger."""
    params = variables["params"]
    name = "output" if "output" in params else "embedding"
    return {
        **variables,
        "params": {**params, name: params[name].at[jnp.array(tokens)].multiply(factor)},
    }


def sentences(count=40, vocabulary=VOCABULARY, seed=0):
    draw = np.random.default_rng(seed)
    return jnp.asarray(draw.integers(3, vocabulary, (count, N))), jnp.asarray(
        draw.integers(1, N + 1, count)
    )


@functools.partial(jax.jit, static_argnums=0)
def full(model, variables, source, lengths, target):
    """log P of every token after each of those of `target`, from one pass over all of it."""
    hidden = model.apply(variables, *whole(source, target, lengths))
    logits = model.apply(variables, hidden, method="logits")
    return jax.nn.log_softmax(logits.astype(jnp.float32))


def log_probs_of(model, variables, source, lengths, targets):
    """log P of every token after each place of the targets (B, K, T), bos before them:
    (B, K, T, Y).
    """
    count, k, t = targets.shape
    read = np.concatenate([np.full((count, k, 1), BOS), targets[..., :-1]], -1).reshape(
        count * k, t
    )
    rows = np.resize(np.arange(count * k), ROWS)
    log_probs = full(
        model, variables, source[rows // k], lengths[rows // k], jnp.asarray(read[rows])
    )[: count * k]
    return np.asarray(log_probs, np.float64).reshape(count, k, t, -1)


def log_prob_of(model, variables, source, lengths, targets):
    """log P of the targets (B, K, T) up to their padding."""
    each = log_probs_of(model, variables, source, lengths, targets)
    return np.where(
        targets > 0, np.take_along_axis(each, targets[..., None], -1)[..., 0], 0
    ).sum(-1)


def lp(n, alpha):
    return ((5 + n) / 6) ** alpha


def slow(model, variables, source, lengths, beam, alpha, limits, prefixes):
    """Beam search by its definition: for each sentence all that finished, best first:
    (score, log P, tokens).
    """
    alive = [[(0.0, ())] for _ in source]
    finished = [[] for _ in source]
    for n in range(1, MAX_LENGTH + 1):
        table = np.zeros((len(source), beam, MAX_LENGTH), np.int32)
        for b, k in itertools.product(range(len(source)), range(beam)):
            if k < len(alive[b]):
                table[b, k, : len(alive[b][k][1])] = alive[b][k][1]
        log_probs = log_probs_of(model, variables, source, lengths, table)[:, :, n - 1]
        for b, limit in enumerate(limits):
            if n > limit or len(finished[b]) >= beam:
                continue
            allowed = set(range(model.vocabulary)) - {PAD, BOS}
            if n <= len(prefixes[b]):
                allowed = {prefixes[b][n - 1]}
            if n == limit:
                allowed = {EOS}
            longer = []
            for k, (total, tokens) in enumerate(alive[b]):
                for y in allowed:
                    longer.append((total + log_probs[b, k, y], (*tokens, y)))
            longer = sorted(longer, reverse=True)[: 2 * beam]
            finished[b] += [
                (total / lp(n, alpha), total, tokens)
                for total, tokens in longer[:beam]
                if tokens[-1] == EOS
            ]
            alive[b] = [
                (total, tokens) for total, tokens in longer if tokens[-1] != EOS
            ][:beam]
    return [sorted(of, reverse=True) for of in finished]


def check(actual, expected, n_best):
    assert actual.tokens.shape == (len(expected), n_best, MAX_LENGTH)
    for b, best in enumerate(expected):
        best = best[:n_best]
        for k, (score, log_prob, tokens) in enumerate(best):
            assert tuple(actual.tokens[b, k].tolist()) == tokens + (PAD,) * (
                MAX_LENGTH - len(tokens)
            )
            np.testing.assert_allclose(actual.scores[b, k], score, rtol=2e-5, atol=1e-5)
            np.testing.assert_allclose(
                actual.log_probs[b, k], log_prob, rtol=2e-5, atol=1e-5
            )
        assert (actual.scores[b, len(best) :] == -np.inf).all()
        assert (actual.log_probs[b, len(best) :] == -np.inf).all()
        assert (actual.tokens[b, len(best) :] == PAD).all()


@functools.cache
def searcher(model, beam, n_best):
    """As a function (variables, source, lengths, alpha, limits, prefix); a beam of 0 is
    greedy search.
    """

    def search(
        variables,
        source,
        lengths,
        alpha=0.6,
        limits=np.array([MAX_LENGTH] * 40),
        prefix=begun([()] * 40),
    ):
        told = dict(
            max_length=MAX_LENGTH, bos=BOS, eos=EOS, limits=limits, prefix=prefix
        )
        if not beam:
            return greedy(model, variables, source, lengths, **told)
        return beam_search(
            model,
            variables,
            source,
            lengths,
            beam=beam,
            alpha=alpha,
            n_best=n_best,
            **told,
        )

    return jax.jit(search)


def begun(prefixes):
    return jnp.array([(*ids, 0, 0)[:2] for ids in prefixes]), jnp.array(
        [len(ids) for ids in prefixes]
    )
