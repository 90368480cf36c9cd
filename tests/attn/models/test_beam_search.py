"""Greedy and beam search against slow searches over the full forward pass: no cache, no
blocks, no early stop.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    MIXERS,
    POSITIONS,
    RNN,
    SCORES,
    T5,
    ALiBi,
    Convolutional,
    Design,
    Learned,
    Mask,
    NoPositions,
    Recurrent,
    Relative,
    Restricted,
    Rotary,
    SeparableConvolutional,
    Shape,
    Sinusoidal,
    Transformer,
)
from attn.models.beam_search import beam_search, greedy
from attn.models.design import NORMS

SHAPE = Shape(N=1, d_model=10, d_ff=17, h=2, d_k=6, d_v=5)
LENGTH = 13
MAX_LENGTH = 7
N = 5
PAD = 0
BOS = 1
EOS = 2
LIKELY = [PAD, BOS, EOS, 3, 71, 72, 140, 200, 211]
"""Pieces of several blocks, the last of them among them, that are chosen often, or
would be if they might.
"""
VOCABULARY = 211 + 1
ROWS = 120  # hypotheses of one full forward pass, always the same number: it is compiled once


@functools.cache
def build(vocabulary=VOCABULARY, design=Design(), model=None):
    """Returns a model of random parameters, biases and norms too."""
    model = model or Transformer(SHAPE, vocabulary, LENGTH, design, 0.0)
    ids = jnp.zeros((1, 2), jnp.int32)
    shapes = jax.eval_shape(
        functools.partial(
            model.init, source_mask=Mask(), target_mask=Mask(), cross_mask=Mask()
        ),
        jax.random.key(0),
        ids,
        ids,
        ids,
        ids,
    )["params"]
    draw = np.random.default_rng(
        10
    )  # with these weights sentences end early, late and not at all
    params = jax.tree.map_with_path(
        lambda path, x: jnp.asarray(
            0.7 * draw.normal(size=x.shape) + ("scale" in str(path)), jnp.float32
        ),
        shapes,
    )
    table = design.positions.table(jax.random.key(0), LENGTH, SHAPE.d_model)
    variables = dict(
        params=params,
        positions=dict(
            source_positions={"table": table}, target_positions={"table": table}
        ),
    )
    return model, (
        rescaled(variables, LIKELY, 3) if vocabulary == VOCABULARY else variables
    )


def rescaled(variables, pieces, factor):
    """With logits of some pieces that are as many times larger."""
    params = variables["params"]
    name = "output" if "output" in params else "embedding"
    return {
        **variables,
        "params": {**params, name: params[name].at[jnp.array(pieces)].multiply(factor)},
    }


def sentences(count=40, vocabulary=VOCABULARY, seed=0):
    draw = np.random.default_rng(seed)
    return jnp.asarray(draw.integers(3, vocabulary, (count, N))), jnp.asarray(
        draw.integers(1, N + 1, count)
    )


@functools.partial(jax.jit, static_argnums=0)
def full(model, variables, source, lengths, target):
    """log P of every piece after each of the pieces of `target`, from one pass over all of it."""
    at = [
        jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        for ids in (source, target)
    ]
    seen = Mask.padding(lengths)
    hidden = model.apply(
        variables,
        source,
        target,
        *at,
        source_mask=seen,
        target_mask=Mask.causal(),
        cross_mask=seen,
    )
    return jax.nn.log_softmax(
        model.apply(variables, hidden, method="logits").astype(jnp.float32)
    )


def log_probs_of(model, variables, source, lengths, targets):
    """log P of every piece after each place of the targets (B, K, T), bos before them:
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
    (score, log P, pieces).
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
        for k, (score, log_prob, pieces) in enumerate(best):
            assert tuple(actual.tokens[b, k].tolist()) == pieces + (PAD,) * (
                MAX_LENGTH - len(pieces)
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


@pytest.mark.parametrize(("beam", "n_best"), [(2, 1), (3, 3)])
@pytest.mark.parametrize("alpha", [0.6, 0.0, 3.0, -2.0])
def test_beam_search_equals_the_slow_one(beam, n_best, alpha):
    model, variables = build()
    source, lengths = sentences()
    limits = np.array(
        [MAX_LENGTH, 3, 1, MAX_LENGTH + 2, 5, 2, MAX_LENGTH, MAX_LENGTH] * 5
    )
    prefixes = [(), (), (), (71,), (72, 9), (3, 4), (), ()] * 5
    hypotheses = searcher(model, beam, n_best)(
        variables, source, lengths, alpha, limits, begun(prefixes)
    )
    expected = slow(
        model,
        variables,
        source,
        lengths,
        beam,
        alpha,
        np.minimum(limits, MAX_LENGTH),
        prefixes,
    )
    assert len({len(best[0][2]) for best in expected}) > 3
    check(hypotheses, expected, n_best)


def test_a_wide_beam_finds_everything():
    model, variables = build(6)
    source, lengths = sentences(3, 6)
    everything = []
    for n in range(4):
        for tokens in itertools.product([3, 4, 5], repeat=n):
            everything.append((*tokens, EOS))
    targets = np.array(
        [(*pieces, *(PAD,) * (4 - len(pieces))) for pieces in everything]
    )
    targets = np.broadcast_to(targets, (3, *targets.shape))
    totals = log_prob_of(model, variables, source, lengths, targets)
    scores = totals / lp((targets > 0).sum(-1), 0.6)
    order = np.argsort(-scores, axis=1)
    hypotheses = jax.jit(
        functools.partial(
            beam_search,
            model,
            beam=len(everything),
            max_length=4,
            bos=BOS,
            eos=EOS,
            n_best=len(everything),
        )
    )(variables, source, lengths)
    np.testing.assert_allclose(
        hypotheses.scores, np.take_along_axis(scores, order, 1), rtol=2e-5
    )
    np.testing.assert_allclose(
        hypotheses.log_probs, np.take_along_axis(totals, order, 1), rtol=2e-5
    )
    np.testing.assert_array_equal(
        hypotheses.tokens, np.take_along_axis(targets, order[..., None], 1)
    )


def test_a_beam_of_one_is_greedy():
    model, variables = build()
    args = (
        variables,
        *sentences(seed=1),
        0.6,
        np.arange(40) % MAX_LENGTH + 1,
        begun([(), (71,), (72, 9), ()] * 10),
    )
    np.testing.assert_array_equal(
        searcher(model, 1, 1)(*args).tokens[:, 0], searcher(model, 0, 1)(*args)
    )


def test_greedy_equals_the_search_without_a_cache():
    model, variables = build()
    source, lengths = sentences(seed=2)
    actual = searcher(model, 0, 1)(variables, source, lengths)
    target = np.zeros((40, 1, MAX_LENGTH), np.int32)
    for t in range(MAX_LENGTH):
        log_probs = log_probs_of(model, variables, source, lengths, target)[:, :, t]
        log_probs[..., [PAD, BOS]] = -np.inf
        ended = (target == EOS).any(-1)
        target[:, :, t] = np.where(
            ended, PAD, EOS if t == MAX_LENGTH - 1 else log_probs.argmax(-1)
        )
    np.testing.assert_array_equal(actual, target[:, 0])
    assert len(set((target > 0).sum(-1)[:, 0].tolist())) > 3


@pytest.mark.parametrize(("factor", "surprise"), [(2.0, -4), (300.0, -1000)])
def test_what_is_barred_counts_in_the_softmax(factor, surprise):
    """Pad and bos are likely, to where the exponential of their logits overflows, and
    never chosen.
    """
    model, variables = build()
    variables = rescaled(variables, [PAD, BOS], factor)
    source, lengths = sentences()
    expected = slow(
        model, variables, source, lengths, 3, 0.6, [MAX_LENGTH] * 40, [()] * 40
    )
    assert min(best[0][1] for best in expected) < surprise
    check(searcher(model, 3, 3)(variables, source, lengths), expected, 3)


def test_logits_may_all_be_negative():
    """The fill of the last block has logits of 0, and so have pad and bos here, each in
    a block of every hypothesis.
    """
    model, variables = build()
    table = (variables["params"]["embedding"] - 5).at[:2].set(0)
    ones = {"norm": {"scale": jnp.ones(SHAPE.d_model), "bias": jnp.ones(SHAPE.d_model)}}
    layer = {**variables["params"]["decoder_0"], "feed_forward_norm": ones}
    variables = {
        **variables,
        "params": {**variables["params"], "embedding": table, "decoder_0": layer},
    }
    source, lengths = sentences()
    expected = slow(
        model, variables, source, lengths, 3, 0.6, [MAX_LENGTH] * 40, [()] * 40
    )
    assert max(best[0][1] for best in expected) < -20
    check(searcher(model, 3, 3)(variables, source, lengths), expected, 3)


def test_an_empty_sentence_has_the_empty_translation():
    model, variables = build()
    source, lengths = sentences()
    hypotheses = searcher(model, 3, 3)(variables, source, lengths.at[1].set(0))
    np.testing.assert_array_equal(hypotheses.tokens[1, :, 0], [EOS, PAD, PAD])
    assert (hypotheses.tokens[1, :, 1:] == PAD).all()
    np.testing.assert_array_equal(
        np.isfinite(hypotheses.scores[:2]), [[True] * 3, [True, False, False]]
    )


def test_a_sentence_is_translated_as_if_alone():
    """Neither its neighbours nor what stands in its padding matter."""
    model, variables = build()
    source, lengths = sentences()
    search = searcher(model, 3, 3)
    expected = search(variables, source, lengths)
    order = np.random.default_rng(5).permutation(40)
    other = jnp.where(jnp.arange(N)[None] < lengths[:, None], source, 17)
    actual = search(variables, other[order], lengths[order])
    np.testing.assert_array_equal(actual.tokens, expected.tokens[order])
    np.testing.assert_allclose(actual.log_probs, expected.log_probs[order], rtol=1e-5)


def scripted(first, later):
    """A model whose next piece depends on its position only: eos with these
    probabilities, else 3, seldom 4.
    """
    model, variables = build(6, design=Design(embeddings="separate"))
    params = jax.tree.map_with_path(
        lambda path, x: jnp.ones_like(x) if "scale" in str(path) else jnp.zeros_like(x),
        variables["params"],
    )
    places = np.random.default_rng(0).normal(size=(LENGTH, SHAPE.d_model))
    hidden = (places - places.mean(-1, keepdims=True)) / places.std(-1, keepdims=True)
    eos = np.array([first] + [later] * (MAX_LENGTH - 1))
    never = np.full(MAX_LENGTH, 1e-6)
    seldom = np.full(MAX_LENGTH, 0.01)
    target_log_probs = np.log(
        np.stack([never, never, eos, 1 - eos - seldom, seldom, never], axis=1)
    )
    params["output"] = jnp.asarray(
        (np.linalg.pinv(hidden[:MAX_LENGTH]) @ target_log_probs).T, jnp.float32
    )
    table = {"table": jnp.asarray(places, jnp.float32)}
    return model, dict(
        params=params, positions=dict(source_positions=table, target_positions=table)
    )


@pytest.mark.parametrize(
    ("first", "later", "alpha", "size", "steps"),
    [
        (
            0.9,
            0.5,
            0.6,
            1,
            1,
        ),  # nothing longer can be better: log 0.09 / lp(7) < log 0.9
        (
            0.7,
            0.001,
            5.0,
            7,
            7,
        ),  # a translation of two pieces cannot be better than that of one, one of seven can
        (0.3, 0.98, -3.0, 2, 2),  # one of seven cannot be better, one of two can
    ],
)
def test_it_stops_when_nothing_can_change_and_not_before(
    monkeypatch, first, later, alpha, size, steps
):
    model, variables = scripted(first, later)
    reached = []
    step = Transformer.decode_step

    def watched(self, pieces, t, *rest):
        jax.debug.callback(lambda t: reached.append(int(t) + 1), t)
        return step(self, pieces, t, *rest)

    monkeypatch.setattr(Transformer, "decode_step", watched)
    hypotheses = jax.jit(
        functools.partial(
            beam_search,
            model,
            beam=2,
            max_length=MAX_LENGTH,
            bos=BOS,
            eos=EOS,
            alpha=alpha,
        )
    )(variables, *sentences(2, 6))
    jax.effects_barrier()
    np.testing.assert_array_equal((hypotheses.tokens > 0).sum(-1), size)
    assert max(reached) == steps


# Each value of each choice is in one of them.
DESIGNS = [
    Design(score="dot", norm="pre"),
    Design(positions=Rotary(), norm="post_final", biases=True),
    Design(positions=ALiBi(), score="additive", embeddings="target"),
    Design(
        positions=Relative(),
        score="bilinear",
        embeddings="separate",
        scale_embeddings=False,
    ),
    Design(positions=T5(), activation="gelu"),
    Design(
        positions=Learned(),
        encoder_mixing=Recurrent("lstm"),
        decoder_mixing=Recurrent("lstm"),
    ),
    Design(
        positions=Sinusoidal(layout="halves"),
        encoder_mixing=Restricted(1),
        decoder_mixing=Convolutional(1),
    ),
    Design(
        positions=NoPositions(),
        encoder_mixing=Convolutional(1),
        decoder_mixing=SeparableConvolutional(1),
    ),
    Design(
        positions=ALiBi(),
        encoder_mixing=SeparableConvolutional(1),
        decoder_mixing=Restricted(1),
    ),
]
RECURRENT = [
    RNN(VOCABULARY, LENGTH, 10, 2, "lstm", "additive"),
    RNN(VOCABULARY, LENGTH, 10, 1, "gru", "none"),
]
BUILT = [(design, None) for design in DESIGNS]
BUILT += [(Design(), model) for model in RECURRENT]


@pytest.mark.parametrize("how", BUILT)
def test_incremental_equals_full(how):
    """log P of the translations from the cache is that of the full forward pass."""
    model, variables = build(VOCABULARY, *how)
    source, lengths = sentences()
    variables = rescaled(variables, [EOS], 0)  # so that translations are long
    result = searcher(model, 2, 2)(variables, source, lengths)
    targets = np.asarray(result.tokens)
    assert ((targets > 0).sum(-1) == MAX_LENGTH).mean() > 0.5
    expected = log_prob_of(model, variables, source, lengths, targets)
    np.testing.assert_allclose(result.log_probs, expected, rtol=3e-5, atol=1e-5)


def test_every_choice_has_been_tried():
    positions = {type(design.positions) for design in DESIGNS}
    assert positions == set(POSITIONS.values())
    assert {design.score for design in DESIGNS} == set(SCORES)
    assert {design.norm for design in DESIGNS} == set(NORMS)
    for side in ("encoder_mixing", "decoder_mixing"):
        mixers = {type(getattr(design, side)) for design in DESIGNS}
        assert mixers == set(MIXERS.values())


def test_bfloat16():
    model, variables = build()
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), variables)
    source, lengths = sentences()
    hypotheses = searcher(model, 2, 2)(rounded, source, lengths)
    assert hypotheses.scores.dtype == hypotheses.log_probs.dtype == jnp.float32
    targets = np.asarray(hypotheses.tokens)
    np.testing.assert_array_equal((targets == EOS).sum(-1), 1)
    exact = jax.tree.map(lambda x: x.astype(jnp.float32), rounded)
    assert (
        np.abs(
            hypotheses.log_probs - log_prob_of(model, exact, source, lengths, targets)
        ).mean()
        < 0.2
    )  # of 5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(beam=0), "beam=0 must be at least 1"),
        (dict(beam=2, n_best=3), "n_best=3 must be from 1 to beam=2"),
        (dict(beam=2, n_best=0), "n_best=0 must be from 1 to beam=2"),
        (
            dict(beam=2, max_length=LENGTH + 1),
            "max_length=14 is more than the length=13",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, message):
    model, variables = build()
    source, lengths = sentences(2)
    with pytest.raises(ValueError, match=message):
        beam_search(
            model,
            variables,
            source,
            lengths,
            **{**dict(max_length=MAX_LENGTH, bos=BOS, eos=EOS), **wrong},
        )


def test_an_array_without_tokens_is_no_prefix():
    model, variables = build()
    source, lengths = sentences(4)
    options = dict(max_length=MAX_LENGTH, bos=BOS, eos=EOS)
    nothing = jnp.zeros((4, 0), jnp.int32), jnp.zeros(4, jnp.int32)
    expected = greedy(model, variables, source, lengths, **options)
    actual = greedy(model, variables, source, lengths, prefix=nothing, **options)
    np.testing.assert_array_equal(actual, expected)


def test_the_penalty_is_as_precise_as_the_log_probabilities():
    """Under x64, where also no integer of 64 bits is put among tokens, which would warn."""
    model, variables = build()
    options = dict(max_length=MAX_LENGTH, bos=BOS, eos=EOS)
    source, lengths = sentences(4)
    with jax.enable_x64(True):
        actual = beam_search(model, variables, source, lengths, beam=2, **options)
        best = greedy(model, variables, source, lengths, **options)
        counts = (np.asarray(actual.tokens) != PAD).sum(-1)
        expected = np.asarray(actual.log_probs) / lp(counts, 0.6)
        assert actual.tokens.dtype == best.dtype == jnp.int32
        np.testing.assert_allclose(actual.scores, expected, rtol=1e-14)
