"""The recurrent encoder-decoder against the float64 oracle, packed, padded, and what it keeps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import RNN, SCORES, Context, Mask, config, keys_of_rows
from attn.config import CELLS
from attn.jax_versions import enable_x64
from attn.nn.layers import EMBEDDINGS
from tests.attn import numpy_rnn
from tests.attn.nn.modules import apply, random_variables, sentences

D = 6
VOCABULARY = 29
LENGTH = 20
CASES = [
    ("none", "lstm", "tied", 1),
    ("bilinear", "lstm", "separate", 2),
    ("additive", "gru", "target", 1),
    ("dot", "tanh", "tied", 1),
    ("scaled_dot", "gru", "tied", 1),
]
"""score, cell, embeddings, N; each value of each is in one of them."""
PAPERS = [score for score, *_ in CASES]
# An RNN calls every score alike; those that are not in these papers are for .ci/run.
OTHERS = [(score, "gru", "tied", 1) for score in SCORES if score not in PAPERS]
ALL = [*CASES, *(pytest.param(case, marks=pytest.mark.ci) for case in OTHERS)]


@functools.cache
def build(score, cell, embeddings, N):
    """Random parameters, biases too."""
    of = config.RNN(d_model=D, N=N, cell=cell, score=score, embeddings=embeddings)
    model = RNN(of, VOCABULARY, LENGTH)
    tokens = np.zeros((1, 2), np.int32)
    return model, random_variables(model, *sentences(tokens, tokens), size=0.5)


def pairs():
    draw = np.random.default_rng(0).integers
    return [
        (draw(3, VOCABULARY, n), draw(3, VOCABULARY, m))
        for n, m in ((5, 4), (1, 6), (7, 1))
    ]


def logits(model, variables, *args):
    hidden = apply(model, variables, *args)
    return apply(model, variables, hidden, method="logits")


def expected_logits(model, variables, source, target):
    """By the oracle, with scores as the papers write them, or as their class does."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), variables["params"])
    own = {
        name: x[0] for name, x in p.get("cross_attention", {}).get("score", {}).items()
    }

    def score_by_its_class(u, h):
        with enable_x64(True):
            arrays = SCORES[model.config.score](**own), u[None], h[None]
            score, u, h = jax.tree.map(jnp.asarray, arrays)
            return np.asarray(score(u, h))[0, 0]

    formulas = {
        "none": None,
        "dot": lambda u, h: u @ h,
        "scaled_dot": lambda u, h: u @ h / D**0.5,
        "bilinear": lambda u, h: u @ own["w"] @ h,
        "additive": lambda u, h: own["v"] @ np.tanh(u @ own["w_q"] + h @ own["w_k"]),
    }
    score = formulas.get(model.config.score, score_by_its_class)
    return numpy_rnn.encoder_decoder(
        p, source, target, cell=model.config.cell, score=score
    )


@functools.cache
def packed():
    """Returns a row of all pairs and its contexts, as the model takes them."""
    rows, texts = [], []
    for side in zip(*pairs(), strict=True):
        padding = np.zeros(2, int)
        rows.append(jnp.asarray(np.concatenate([*side, padding])[None]))
        numbers = np.repeat(np.arange(len(side)) + 1, [len(ids) for ids in side])
        texts.append(jnp.asarray(np.concatenate([numbers, padding])[None]))
    source, target = texts
    of_target = Context(
        Mask.causal() & Mask.segments(target, target),
        memory_mask=Mask.segments(target, source),
    )
    return *rows, Context(Mask.segments(source, source)), of_target


@pytest.mark.parametrize("case", ALL)
def test_logits_of_a_packed_row_equal_the_oracles_of_its_sentences(case):
    model, variables = build(*case)
    (actual,) = logits(model, variables, *packed())
    start = 0
    for source, target in pairs():
        np.testing.assert_allclose(
            actual[start : start + len(target)],
            expected_logits(model, variables, source, target),
            rtol=1e-4,
            atol=1e-4,
        )
        start += len(target)


def test_padding_and_batch_change_nothing():
    model, variables = build(*CASES[1])
    source, target = pairs()[0]
    padded = np.stack([np.pad(source, (0, 3), constant_values=9), np.arange(8)])
    batch = sentences(padded, np.stack([target] * 2), jnp.array([5, 8]))
    actual = logits(model, variables, *batch)
    for row, own in zip(actual, (source, padded[1]), strict=True):
        expected = expected_logits(model, variables, own, target)
        np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-4)


def test_every_choice_has_been_tried():
    for values, known in zip(
        zip(*CASES, *OTHERS, strict=True),
        [{"none", *SCORES}, CELLS, EMBEDDINGS],
        strict=False,
    ):
        assert set(values) == set(known)


def test_weights_are_kept_when_asked():
    model, variables = build(*CASES[1])
    source, target = pairs()[0]
    arguments = sentences(source[None], target[None])
    hidden, kept = apply(model, variables, *arguments, mutable=("weights",))
    np.testing.assert_allclose(
        hidden, apply(model, variables, *arguments), rtol=1e-4, atol=1e-5
    )
    weights = kept["weights"]["cross_attention"]["weights"]
    assert weights.shape == (1, 1, len(target), len(source))
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    model, variables = build(*CASES[0])
    _, kept = apply(model, variables, *arguments, mutable=("weights",))
    assert not kept


@pytest.mark.ci
@pytest.mark.parametrize("case", [CASES[0], CASES[2]])
def test_gradients_reach_every_parameter(case):
    """Without attention, by the summary alone, and with it."""
    model, variables = build(*case)

    def total(variables):
        return (logits(model, variables, *packed()) ** 2).sum()

    gradients = jax.jit(jax.grad(total))(variables)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradients))


def test_dropout_is_drawn_with_keys():
    model, variables = build(*CASES[4])
    source, target, *contexts = sentences(*(np.stack([x] * 2) for x in pairs()[0]))
    numbers = {"P_drop": 0.5}

    def call(rows):
        keys = {} if rows is None else keys_of_rows(jax.random.key(0), np.array(rows))
        own = [ctx.replace(keys=keys, numbers=numbers) for ctx in contexts]
        return apply(model, variables, source, target, *own)

    first, other = call([0, 1]), call([2, 1])
    assert (first[0] != other[0]).mean() > 0.5
    np.testing.assert_array_equal(first[1], other[1])
    # What bears the bias is not dropped.
    assert (first[..., -1] == 1).all()
    assert 0.3 < (first[..., :-1] == 0).mean() < 0.7
    plain = apply(model, variables, source, target, *contexts)
    np.testing.assert_allclose(call(None), plain, rtol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(score="nope"), "score='nope' must be one of none, dot"),
        (dict(cell="rnn"), "cell='rnn' must be one of gru, lstm, tanh"),
        (dict(embeddings="shared"), "embeddings='shared' must be one of tied"),
        (dict(d_model=7), "d_model=7 must be even"),
        (dict(score="none", selection="argmax"), "selection=argmax needs a score"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, message):
    tokens = np.zeros((1, 2), np.int32)
    model = RNN(config.RNN(**{"d_model": 6} | wrong), 5, 3)
    with pytest.raises(ValueError, match=message):
        model.init(jax.random.key(0), *sentences(tokens, tokens))
