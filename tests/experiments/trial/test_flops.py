"""The arithmetic of a step, counted another way, and the devices whose peak is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import MIXERS, NoPositions, Transformer, config
from experiments.trial import flops
from experiments.trial.program import initial_variables, program_of
from tests.experiments import own_parts, tiny

SIZES = dict(N=2, d_model=10, d_ff=14, h=3, d_k=5, d_v=7)


def by_hand(lengths, vocabulary):
    """2 FLOPs a product, and each forward product has two of the backward pass."""
    N, D, d_ff, h, d_k, d_v = SIZES.values()
    total = 0
    for n, m in lengths:
        project = lambda tokens, width: tokens * D * h * width
        attend = lambda seen: seen * h * (d_k + d_v)
        encoder = (
            2 * project(n, d_k) + 2 * project(n, d_v) + attend(n * n) + 2 * n * D * d_ff
        )
        decoder = (
            2 * project(m, d_k)
            + 2 * project(m, d_v)
            + attend(sum(range(1, m + 1)))
            + 2 * m * D * d_ff
        )
        cross = (
            project(m, d_k)
            + project(n, d_k)
            + project(n, d_v)
            + project(m, d_v)
            + attend(m * n)
        )
        total += N * (encoder + decoder + cross) + m * D * vocabulary
    return 2 * 3 * total


def program(kind="transformer", **options):
    model = config.MODELS[kind](**SIZES | dict(positions=NoPositions()) | options)
    return program_of(tiny.resolve(), 31, 48)._replace(model=model)


def test_flops_by_hand():
    lengths = [(3, 2), (11, 13), (1, 7)]
    assert flops.of_training(program(), *np.array(lengths).T) == by_hand(lengths, 31)


@pytest.mark.parametrize(
    ("kind", "causal", "products"),
    [
        ("restricted", False, lambda i, j: abs(i - j) <= 2),
        ("restricted", True, lambda i, j: 0 <= i - j <= 2),
        ("convolution", False, lambda i, j: abs(i - j) <= 2),
        ("convolution", True, lambda i, j: 0 <= i - j <= 4),
    ],
)
def test_what_mixes_positions_by_counting(kind, causal, products):
    """Pairs of positions that are near, beside what does not depend on them."""
    D = SIZES["d_model"]
    heads = SIZES["h"] * (SIZES["d_k"] + SIZES["d_v"])
    for n in (1, 2, 3, 5, 11):
        near = sum(products(i, j) for i in range(n) for j in range(n))
        expected = (
            near * D**2 if kind == "convolution" else 2 * n * D * heads + near * heads
        )
        mixer = MIXERS[kind](radius=2)
        design = {"decoder_mixing" if causal else "encoder_mixing": mixer}
        full = 2 * n * D * heads + (n * (n + 1) // 2 if causal else n**2) * heads
        others = [
            flops.of_training(program(**mixing), *([1], [n]) if causal else ([n], [1]))
            for mixing in (design, {})
        ]
        assert others[0] - others[1] == 6 * SIZES["N"] * (expected - full)


@pytest.mark.parametrize(
    ("changes", "beside"),
    [
        (dict(), 3 * 2 * 8),
        (dict(model__h_kv=1), 3 * 2 * 8),
        (dict(model__d_c=5), 3 * 2 * 8),
        (
            dict(model__d_c=5, model__d_r=2, model__positions="rotary"),
            2 * 2 * 9 + 2 * 8,
        ),
        (dict(model__combine="mean", model__d_v=16), 3 * 2 * (8 + 4)),
        (dict(model__gate="head"), 3 * 2 * 8),
        (dict(model__score="bilinear"), 3 * 2 * 8),
        (dict(model__score="bilinear(rank=3)"), 3 * 2 * 8),
        # The vectors v are matrices of all heads, and one pair has each number once.
        (dict(model__score="additive(d_a=5)"), 3 * 2 * 4),
        (dict(model__score="softcap(inner=qk_norm(norm=l2))"), 3 * 2 * 8),
        (dict(model__gate="element", model__heads="differential"), 3 * 2 * (8 + 4)),
        # With one pair, the mixtures have a product for each number of their matrices.
        (dict(model__heads="talking"), 3 * 2 * 8),
        # One table of four vectors of width 4 for both heads of the two self-attentions.
        (dict(model__positions="cope(p_max=3)"), 3 * 2 * 8 + 2 * 4 * 4),
        (
            dict(
                model__encoder_mixing="recurrence(cell=gru)",
                model__decoder_mixing="recurrence(cell=gru)",
            ),
            2 * 8,
        ),
        (
            dict(
                model__encoder_mixing="convolution(radius=0)",
                model__decoder_mixing="separable(radius=0)",
            ),
            2 * 8,
        ),
        # A state of 8·8 in two heads is written and read: in an encoder both ways.
        (
            dict(
                model__encoder_mixing="linear_attention",
                model__decoder_mixing="gated_linear_attention",
            ),
            2 * 8 + 4 * 8 * 9 + 2 * 8 * 8,
        ),
        (
            dict(
                model__encoder_mixing="gated_linear_attention(decay=head)",
                model__decoder_mixing="deltanet",
            ),
            2 * 8 + 4 * 8 * 8 + 3 * 8 * 8,
        ),
        (
            dict(
                model__encoder_mixing="gated_deltanet(householders=2)",
                model__decoder_mixing="linear_attention",
            ),
            2 * 8 + 2 * 5 * 8 * 8 + 2 * 8 * 9,
        ),
        (dict(model__kind="rnn", model__N=2), 16),
        (dict(model__kind="rnn", model__cell="tanh", model__score="none"), 0),
    ],
)
def test_matrices_are_the_models(changes, beside):
    """With one token a side, matrices count (the tied one as output) and one pair an attention."""
    settings = tiny.resolve(**changes)
    program = program_of(settings, 500, 48)
    params = jax.eval_shape(
        lambda key: initial_variables(program, key)["params"],
        jax.eval_shape(lambda: jax.random.key(0)),
    )
    matrices = 0
    for path, leaf in jax.tree.leaves_with_path(params):
        # Biases of heads are matrices by their form alone.
        is_bias = path[-1].key.startswith("b_") or path[-1].key == "log_rate"
        if leaf.ndim > 1 and not is_bias:
            matrices += leaf.size
    assert flops.of_training(program, [1], [1]) == 6 * (matrices + 2 * beside)


def test_a_language_model_is_a_decoder_without_a_source():
    lengths = np.array([1, 1, 1]), np.array([2, 13, 7])
    N, D, d_ff, h, d_k, d_v = SIZES.values()
    # What one source token takes, and the queries and outputs of attention to it.
    encoder = 3 * D * h * (d_k + d_v) + h * (d_k + d_v) + 2 * D * d_ff
    cross = 22 * (D * h * (d_k + d_v) + h * (d_k + d_v))
    difference = 6 * N * (3 * encoder + cross)
    language = flops.of_training(program("language"), *lengths)
    assert flops.of_training(program(), *lengths) - language == difference


@pytest.mark.parametrize(
    "design",
    [
        dict(encoder_mixing=own_parts.Mixer()),
        dict(decoder_mixing=own_parts.Mixer()),
        dict(decoder_mixing=own_parts.Twice()),
        dict(heads=own_parts.Heads()),
        dict(score=own_parts.Distance),
        dict(positions=own_parts.Gated()),
    ],
    ids=str,
)
def test_what_states_no_products_is_counted_from_the_program(design):
    """Not 0, and not those of the class that it inherits from."""
    own = program(**design)
    counted = flops.of_training(own, [own.sequence_length], [own.sequence_length])
    assert counted == 6 * flops.of_row(own)
    stated = flops.of_training(program(), [own.sequence_length], [own.sequence_length])
    # A program computes the hidden pairs of a causal mask too; a score that is no product
    # of matrices counts nothing.
    assert 0.5 * stated < counted < 2.5 * stated


def test_nothing_but_the_row_is_counted():
    """Products are a·N + b·N² of a row of N tokens, without a constant of drawing values."""
    own = program(decoder_mixing=own_parts.Mixer())
    a, b, c = (
        flops.of_row(own._replace(sequence_length=n, length=n)) for n in (8, 16, 32)
    )
    assert 8 * a - 6 * b + c == 0


def test_products_of_a_program_by_hand():
    def function(x, w):
        def turn(x, _):
            return jnp.where(x > 0, x @ w, 0), None

        y, _ = jax.lax.scan(turn, x, None, length=5)
        return jax.jit(lambda y: jnp.einsum("nd,md->nm", y, x))(y)

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((7, 3), (3, 3))]
    assert flops.products_of(jax.make_jaxpr(function)(*shapes).jaxpr) == (
        5 * 7 * 3 * 3 + 7 * 3 * 7
    )


def test_a_loop_that_its_data_end_makes_products_unknown():
    def function(x):
        return jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x @ x, x)

    shape = jax.ShapeDtypeStruct((3, 3), jnp.float32)
    assert flops.products_of(jax.make_jaxpr(function)(shape).jaxpr) is None


def test_more_than_64_bits_hold():
    large = dict(N=1000, d_model=2**16, d_ff=2**20, h=2**12, d_k=2**16, d_v=2**16)
    few, many = (flops.of_training(program(**large), [n], [n]) for n in (1, 1000))
    assert many > 1000 * few > 2**63


def test_a_new_kind_of_model_does_not_inherit_the_transformers(monkeypatch):
    class Pooling(Transformer):
        """Has a stack the less."""

    made = Pooling(config.Transformer(**SIZES), 31, 48)
    monkeypatch.setattr(flops, "build_model", lambda program: made)
    monkeypatch.setattr(flops, "of_row", lambda program: None)
    assert flops.of_training(program(), [3], [2]) is None


@pytest.mark.parametrize(
    ("kind", "bfloat16", "float32"),
    [
        ("NVIDIA A100-SXM4-40GB", 312, 156),
        ("NVIDIA H100 80GB HBM3", 989, 495),
        ("NVIDIA H100 PCIe", 756, 378),
        ("NVIDIA H200", 989, 495),
        ("Tesla V100-SXM2-16GB", None, 15.7),
        ("TPU v2", 22.5, 22.5),
        ("TPU v3", 61.5, 61.5),
        ("TPU v4", 275, 275),
        ("TPU v5 lite", 197, 197),
        ("TPU v5", 459, 459),
        ("TPU v6 lite", 918, 918),
        ("cpu", None, None),
    ],
)
def test_peaks(kind, bfloat16, float32):
    for precision, expected in (("bfloat16", bfloat16), ("float32", float32)):
        assert flops.peak(kind, precision) == (
            expected and pytest.approx(expected * 1e12)
        )
