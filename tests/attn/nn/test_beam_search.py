"""Greedy and beam search against slow searches over the full forward pass: no cache, no
blocks, no early stop.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Transformer, beam_search, config, greedy
from attn.jax_versions import enable_x64
from tests.attn.nn.slow_search import (
    BASE,
    BOS,
    EOS,
    LENGTH,
    MAX_LENGTH,
    PAD,
    SIZES,
    D,
    N,
    begun,
    build,
    check,
    log_prob_of,
    log_probs_of,
    lp,
    rescaled,
    searcher,
    sentences,
    slow,
)
from tests.cases import the_rest_in_ci


@pytest.mark.parametrize(("beam", "n_best"), [(2, 1), (3, 3)])
@pytest.mark.parametrize("alpha", the_rest_in_ci([0.6, -2.0, 0.0, 3.0], first=2))
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
    model, variables = build(BASE, 6)
    source, lengths = sentences(3, 6)
    everything = []
    for n in range(4):
        for tokens in itertools.product([3, 4, 5], repeat=n):
            everything.append((*tokens, EOS))
    targets = np.array(
        [(*tokens, *(PAD,) * (4 - len(tokens))) for tokens in everything]
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
    ones = {"norm": {"scale": jnp.ones(D), "bias": jnp.ones(D)}}
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


@pytest.fixture(scope="module")
def watched_search():
    """A compiled search of two hypotheses, and the numbers of the steps that it makes."""
    reached = []
    decode = Transformer.decode

    def watched(self, tokens, ctx):
        t = ctx.decoding.t
        jax.debug.callback(lambda t: reached.append(int(t) + 1), t)
        return decode(self, tokens, ctx)

    @functools.partial(jax.jit, static_argnums=0)
    def search(model, variables, source, lengths, alpha):
        options = dict(max_length=MAX_LENGTH, bos=BOS, eos=EOS, alpha=alpha)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Transformer, "decode", watched)
            return beam_search(model, variables, source, lengths, beam=2, **options)

    return search, reached


def scripted(first, later):
    """A model whose next token depends on its position only: eos with these
    probabilities, else 3, seldom 4.
    """
    model, variables = build(config.Transformer(**SIZES, embeddings="separate"), 6)
    params = jax.tree.map_with_path(
        lambda path, x: jnp.ones_like(x) if "scale" in str(path) else jnp.zeros_like(x),
        variables["params"],
    )
    places = np.random.default_rng(0).normal(size=(LENGTH, D))
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
        # Nothing longer can be better: log 0.09 / lp(7) < log 0.9.
        (0.9, 0.5, 0.6, 1, 1),
        # A translation of two tokens cannot be better than that of one, one of seven can.
        (0.7, 0.001, 5.0, 7, 7),
        # One of seven cannot be better, one of two can.
        (0.3, 0.98, -3.0, 2, 2),
    ],
)
def test_it_stops_when_nothing_can_change_and_not_before(
    watched_search, first, later, alpha, size, steps
):
    model, variables = scripted(first, later)
    search, reached = watched_search
    reached.clear()
    hypotheses = search(model, variables, *sentences(2, 6), alpha)
    jax.effects_barrier()
    np.testing.assert_array_equal((hypotheses.tokens > 0).sum(-1), size)
    assert max(reached) == steps


def test_bfloat16():
    model, variables = build()
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), variables)
    source, lengths = sentences()
    hypotheses = searcher(model, 2, 2)(rounded, source, lengths)
    assert hypotheses.scores.dtype == hypotheses.log_probs.dtype == jnp.float32
    targets = np.asarray(hypotheses.tokens)
    np.testing.assert_array_equal((targets == EOS).sum(-1), 1)
    exact = jax.tree.map(lambda x: x.astype(jnp.float32), rounded)
    expected = log_prob_of(model, exact, source, lengths, targets)
    assert np.abs(hypotheses.log_probs - expected).mean() < 0.2  # of 5


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
    search = searcher(model, 0, 1)
    arguments = variables, *sentences(), 0.6, np.array([MAX_LENGTH] * 40)
    nothing = jnp.zeros((40, 0), jnp.int32), jnp.zeros(40, jnp.int32)
    actual = search(*arguments, nothing)
    expected = search(*arguments, begun([()] * 40))
    np.testing.assert_array_equal(actual, expected)


def test_the_penalty_is_as_precise_as_the_log_probabilities():
    """Under x64, where also no integer of 64 bits is put among tokens, which would warn."""
    model, variables = build()
    source, lengths = sentences(4)

    @jax.jit
    def both(*arguments):
        options = dict(max_length=MAX_LENGTH, bos=BOS, eos=EOS)
        best = greedy(model, *arguments, **options)
        return beam_search(model, *arguments, beam=2, **options), best

    with enable_x64(True):
        actual, best = both(variables, source, lengths)
        counts = (np.asarray(actual.tokens) != PAD).sum(-1)
        expected = np.asarray(actual.log_probs) / lp(counts, 0.6)
        assert actual.tokens.dtype == best.dtype == jnp.int32
        np.testing.assert_allclose(actual.scores, expected, rtol=1e-14)
