"""The recurrent encoder-decoder against the float64 oracle, packed, padded, and what it keeps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attn.models.recurrence import CELLS

from attn import RNN, SCORES, Mask
from attn.jax_versions import enable_x64
from attn.nn.layers import EMBEDDINGS
from attn.random_bits import cheap_key
from tests.attn import numpy_rnn
from tests.attn.models.random_variables import random_variables

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


def masks(lengths=None):
    seen = Mask() if lengths is None else Mask.padding(lengths)
    return dict(source_mask=seen, target_mask=Mask.causal(), cross_mask=seen)


@functools.cache
def build(score, cell, embeddings, N):
    """Random parameters, biases too."""
    model = RNN(VOCABULARY, LENGTH, D, N, cell, score, embeddings)
    ids = jnp.zeros((1, 2), jnp.int32)
    return model, random_variables(model, ids, ids, ids, ids, size=0.5, **masks())


def pairs():
    draw = np.random.default_rng(0).integers
    return [
        (draw(3, VOCABULARY, n), draw(3, VOCABULARY, m))
        for n, m in ((5, 4), (1, 6), (7, 1))
    ]


@functools.partial(jax.jit, static_argnums=0)
def logits(model, variables, source, target, **seen):
    hidden = model.apply(variables, source, target, source, target, **seen)
    return model.apply(variables, hidden, method="logits")


def expected_logits(model, variables, source, target):
    """By the oracle, with scores as the papers write them, or as their class does."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), variables["params"])
    own = {
        name: x[0] for name, x in p.get("cross_attention", {}).get("score", {}).items()
    }

    def score_by_its_class(u, h):
        with enable_x64(True):
            arrays = SCORES[model.score](**own), u[None], h[None]
            score, u, h = jax.tree.map(jnp.asarray, arrays)
            return np.asarray(score(u, h))[0, 0]

    formulas = {
        "none": None,
        "dot": lambda u, h: u @ h,
        "scaled_dot": lambda u, h: u @ h / D**0.5,
        "bilinear": lambda u, h: u @ own["w"] @ h,
        "additive": lambda u, h: own["v"] @ np.tanh(u @ own["w_q"] + h @ own["w_k"]),
    }
    score = formulas.get(model.score, score_by_its_class)
    return numpy_rnn.encoder_decoder(p, source, target, cell=model.cell, score=score)


@functools.cache
def packed():
    """A row of all pairs, and its masks, as `logits` takes them."""
    sides = list(zip(*pairs(), strict=True))
    padding = np.zeros(2, int)
    row = [jnp.asarray(np.concatenate([*side, padding])) for side in sides]
    segments = []
    for side in sides:
        numbers = np.repeat(np.arange(len(side)) + 1, [len(ids) for ids in side])
        segments.append(jnp.asarray(np.concatenate([numbers, padding])))
    source, target = segments
    seen = dict(
        source_mask=Mask.segments(source, source),
        target_mask=Mask.causal() & Mask.segments(target, target),
        cross_mask=Mask.segments(target, source),
    )
    return row, seen


@pytest.mark.parametrize("case", ALL)
def test_logits_of_a_packed_row_equal_the_oracles_of_its_sentences(case):
    model, variables = build(*case)
    row, seen = packed()
    actual = logits(model, variables, *row, **seen)
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
    batch = jnp.asarray(padded), jnp.stack([target] * 2)
    actual = logits(model, variables, *batch, **masks(jnp.array([5, 8])))
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


def test_weights_are_kept_and_without_a_key_nothing_is_dropped():
    model, variables = build("bilinear", "lstm", "separate", 2)
    source, target = pairs()[0]

    @functools.partial(jax.jit, static_argnums=0)
    def watched(model, variables, source, target):
        model = model.clone(P_drop=0.5)
        options = dict(masks(), mutable=["weights"])
        args = source, target, source, target
        hidden, kept = model.apply(variables, *args, **options)
        return model.apply(variables, hidden, method="logits"), kept

    actual, kept = watched(model, variables, source, target)
    expected = expected_logits(model, variables, source, target)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
    weights = kept["weights"]["cross_attention"]["weights"]
    assert weights.shape == (1, len(target), len(source))
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    without = build("none", "lstm", "tied", 1)
    _, kept = jax.eval_shape(watched, *without, source, target)
    assert not kept


@pytest.mark.ci
@pytest.mark.parametrize("case", [CASES[0], CASES[2]])
def test_gradients_reach_every_parameter(case):
    """Without attention, by the summary alone, and with it."""
    model, variables = build(*case)
    row, seen = packed()

    def total(variables):
        return (logits(model, variables, *row, **seen) ** 2).sum()

    gradients = jax.jit(jax.grad(total))(variables)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradients))


def test_dropout_is_drawn_with_a_key():
    model, variables = build(*CASES[4])
    source, target = map(jnp.asarray, pairs()[0])

    @jax.jit
    def call(key):
        own = model.clone(P_drop=0.5)
        rngs = {"dropout": cheap_key(key)}
        args = source, target, source, target
        return own.apply(variables, *args, **masks(), rngs=rngs)

    first, second = (call(jax.random.key(i)) for i in range(2))
    assert (first != second).mean() > 0.5
    # What bears the bias is not dropped.
    assert (first[:, -1] == 1).all()
    assert 0.3 < (first[:, :-1] == 0).mean() < 0.7


def test_parameters():
    _, variables = build("none", "lstm", "tied", 1)
    assert sum(x.size for x in jax.tree.leaves(variables)) == (
        VOCABULARY * D
        + 6 * D**2
        + 4 * D
        + 8 * D**2
        + 4 * D
        + D**2
        + D
        + 2 * D**2
        + D
        + VOCABULARY
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(score="nope"), "unknown score 'nope'; known: none, dot"),
        (dict(cell="rnn"), "unknown cell 'rnn'"),
        (dict(embeddings="shared"), "unknown embeddings 'shared'"),
        (dict(d_model=7), "d_model=7 must be even"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, message):
    ids = jnp.zeros((1, 2), jnp.int32)
    with pytest.raises(ValueError, match=message):
        RNN(**{**dict(vocabulary=5, length=3, d_model=6), **wrong}).init(
            jax.random.key(0), ids, ids, ids, ids, **masks()
        )
