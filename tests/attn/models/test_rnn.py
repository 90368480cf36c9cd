"""The recurrent encoder-decoder against the float64 oracle, packed, padded, and what it keeps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import RNN, SCORES, Mask
from attn.jax_versions import enable_x64
from attn.models.embeddings import EMBEDDINGS
from attn.models.recurrence import CELLS
from attn.random_bits import cheap_key
from tests.attn import numpy_rnn

D = 6
VOCABULARY = 29
LENGTH = 20
CASES = [
    ("none", "lstm", "tied", 1),
    ("bilinear", "lstm", "separate", 2),
    ("additive", "gru", "target", 1),
    ("dot", "tanh", "tied", 2),
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
    shapes = jax.eval_shape(
        functools.partial(model.init, **masks()), jax.random.key(0), ids, ids, ids, ids
    )
    draw = np.random.default_rng(1)
    return model, jax.tree.map(
        lambda x: jnp.asarray(draw.normal(size=x.shape) * 0.5, jnp.float32), shapes
    )


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


@pytest.mark.parametrize("case", ALL)
def test_logits_equal_the_oracle(case):
    model, variables = build(*case)
    for source, target in pairs():
        actual = logits(
            model, variables, *map(jnp.asarray, (source, target)), **masks()
        )
        np.testing.assert_allclose(
            actual,
            expected_logits(model, variables, source, target),
            rtol=1e-4,
            atol=1e-4,
        )


@pytest.mark.parametrize("case", CASES)
def test_a_packed_row_is_its_sentences(case):
    model, variables = build(*case)
    sides = list(zip(*pairs(), strict=True))
    padding = np.zeros(2, int)
    row = [jnp.asarray(np.concatenate([*side, padding])) for side in sides]
    segments = []
    for side in sides:
        numbers = np.repeat(np.arange(len(side)) + 1, [len(ids) for ids in side])
        segments.append(jnp.asarray(np.concatenate([numbers, padding])))
    source, target = segments
    actual = logits(
        model,
        variables,
        *row,
        source_mask=Mask.segments(source, source),
        target_mask=Mask.causal() & Mask.segments(target, target),
        cross_mask=Mask.segments(target, source),
    )
    start = 0
    for pair in pairs():
        np.testing.assert_allclose(
            actual[start : start + len(pair[1])],
            expected_logits(model, variables, *pair),
            rtol=1e-4,
            atol=1e-4,
        )
        start += len(pair[1])


def test_padding_and_batch_change_nothing():
    for case in CASES:
        model, variables = build(*case)
        source, target = pairs()[0]
        padded = jnp.stack(
            [jnp.pad(jnp.asarray(source), (0, 3), constant_values=9), jnp.arange(8)]
        )
        actual = logits(
            model,
            variables,
            padded,
            jnp.stack([target] * 2),
            **masks(jnp.array([5, 8])),
        )
        np.testing.assert_allclose(
            actual[0],
            expected_logits(model, variables, source, target),
            rtol=1e-4,
            atol=1e-4,
        )


def test_every_choice_has_been_tried():
    for values, known in zip(
        zip(*CASES, *OTHERS, strict=True),
        [{"none", *SCORES}, CELLS, EMBEDDINGS],
        strict=False,
    ):
        assert set(values) == set(known)


def test_weights_are_kept_and_attention_alone_tells_the_pieces_apart():
    model, variables = build("bilinear", "lstm", "separate", 2)
    source, target = map(jnp.asarray, pairs()[0])
    _, kept = model.apply(
        variables, source, target, source, target, **masks(), mutable=["weights"]
    )
    weights = kept["weights"]["cross_attention"]["weights"]
    assert weights.shape == (1, len(target), len(source))
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    model, variables = build("none", "lstm", "tied", 1)
    assert not model.apply(
        variables, source, target, source, target, **masks(), mutable=["weights"]
    )[1]


@pytest.mark.ci
@pytest.mark.parametrize("case", [*CASES, *OTHERS])
def test_gradients_reach_every_parameter(case):
    model, variables = build(*case)
    source, target = map(jnp.asarray, pairs()[0])
    gradients = jax.jit(
        jax.grad(
            lambda v: (
                logits.__wrapped__(model, v, source, target, **masks()) ** 2
            ).sum()
        )
    )(variables)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradients))


def test_dropout_is_drawn_only_with_a_key():
    model, variables = build("bilinear", "lstm", "separate", 2)
    source, target = map(jnp.asarray, pairs()[0])
    call = jax.jit(
        lambda key: model.clone(P_drop=0.5).apply(
            variables,
            source,
            target,
            source,
            target,
            **masks(),
            rngs={} if key is None else {"dropout": cheap_key(key)},
        )
    )
    first, second = (call(jax.random.key(i)) for i in range(2))
    assert (first != second).mean() > 0.5 and (
        first[:, -1] == 1
    ).all()  # what bears the bias is not dropped
    assert 0.3 < (first[:, :-1] == 0).mean() < 0.7
    plain = jax.jit(model.apply)(variables, source, target, source, target, **masks())
    np.testing.assert_allclose(call(None), plain, rtol=1e-6)


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
