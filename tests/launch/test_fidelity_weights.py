"""A Transformer with PyTorch's weights against numpy in float64, and weights out and in again."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import Design, Learned, Mask, Sinusoidal, Transformer
from attn.jax_versions import enable_x64
from launch.bench.fidelity.weights import from_torch, to_torch
from tests.attn import numpy_transformer
from tests.attn.io.random_transformer import SHAPE, D, F, H, L, N, Y, assert_same, build

SOURCE_LENGTHS = (11, 5)
TARGET_LENGTHS = (3, 7)
EMBEDDINGS = ("src_embed.weight", "tgt_embed.weight", "generator.weight")
PADDING = 23
"""The token after the sentences; a real one, so that a model that sees it is found out."""


def state_dict(embeddings=1, final=False, biases=True, N=N):
    """Random weights as nn.Transformer names and shapes them."""
    shapes = dict.fromkeys(EMBEDDINGS[:embeddings], (Y, D))
    for stack, attentions, norms in (
        ("encoder", ["self_attn"], 2),
        ("decoder", ["self_attn", "multihead_attn"], 3),
    ):
        for i in range(N):
            inside = f"{stack}.layers.{i}"
            for name in attentions:
                shapes |= {
                    f"{inside}.{name}.in_proj_weight": (3 * D, D),
                    f"{inside}.{name}.in_proj_bias": (3 * D,),
                    f"{inside}.{name}.out_proj.weight": (D, D),
                    f"{inside}.{name}.out_proj.bias": (D,),
                }
            shapes |= {
                f"{inside}.linear1.weight": (F, D),
                f"{inside}.linear1.bias": (F,),
                f"{inside}.linear2.weight": (D, F),
                f"{inside}.linear2.bias": (D,),
            }
            for number in range(1, norms + 1):
                shapes |= {
                    f"{inside}.norm{number}.weight": (D,),
                    f"{inside}.norm{number}.bias": (D,),
                }
        if final:
            shapes |= {f"{stack}.norm.weight": (D,), f"{stack}.norm.bias": (D,)}
    draw = np.random.default_rng(0).normal
    return {
        name: 0.4 * draw(size=shape) + ("norm" in name and name.endswith("weight"))
        for name, shape in shapes.items()
        if biases or not name.endswith("bias")
    }


@functools.cache
def sentences():
    draw = np.random.default_rng(1).integers
    return [
        (draw(4, PADDING, n), draw(4, PADDING, m))
        for n, m in zip(SOURCE_LENGTHS, TARGET_LENGTHS, strict=True)
    ]


def padded(rows):
    longest = max(map(len, rows))
    return jnp.asarray([[*row, *[PADDING] * (longest - len(row))] for row in rows])


def loss_and_logits(model, pull):
    """Computes of a batch with padding: a weighted sum over the logits of real pieces."""
    source, target = (padded(side) for side in zip(*sentences(), strict=True))
    places = [
        jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape) for x in (source, target)
    ]
    seen = Mask.padding(jnp.asarray(SOURCE_LENGTHS))

    @functools.partial(jax.value_and_grad, has_aux=True)
    def call(params, positions):
        variables = {"params": params, "positions": positions}
        hidden = model.apply(
            variables,
            source,
            target,
            *places,
            source_mask=seen,
            cross_mask=seen,
            target_mask=Mask.causal() & Mask.padding(jnp.asarray(TARGET_LENGTHS)),
        )
        logits = model.apply(variables, hidden, method=Transformer.logits)
        real = [logits[b, :m] for b, m in enumerate(TARGET_LENGTHS)]
        return sum((x * w).sum() for x, w in zip(real, pull, strict=True)), real

    return jax.jit(call)


def test_every_array_goes_where_numpy_puts_it():
    arrays = state_dict(embeddings=3, final=True)
    design = Design("post_final", "separate", biases=True)
    variables = from_torch(Transformer(SHAPE, Y, L, design), arrays)
    assert_same(variables["params"], numpy_transformer.from_torch(arrays, H))


# One layer, to compile less. Float32 stands for both precisions where the design's
# numbers are far enough from any other's.
CASES = {
    "post": (dict(N=1), Design(biases=True, norm_epsilon=1e-5), np.float64),
    "post_final": (
        dict(embeddings=2, final=True, biases=False, N=1),
        Design("post_final", "target", scale_embeddings=False),
        np.float64,
    ),
    "pre": (
        dict(embeddings=3, final=True, N=1),
        Design("pre", "separate", biases=True, activation="gelu", norm_epsilon=3e-3),
        np.float32,
    ),
}
TOLERANCE = {np.float64: (1e-12, 1e-8), np.float32: (2e-6, 2e-6)}


@pytest.mark.parametrize("norm", CASES)
def test_a_model_from_pytorch_gives_the_logits_and_gradients_of_numpy(norm):
    """To the rounding of its precision; gradients by central differences in a random
    direction of each array.
    """
    form, design, dtype = CASES[norm]
    arrays = state_dict(**form)
    draw = np.random.default_rng(2).normal
    halves = norm == "post"
    layout = "halves" if halves else "interleaved"
    tables = [numpy_transformer.sinusoids(L, D, halves)] * 2
    pull = [draw(size=(m, Y)) for m in TARGET_LENGTHS]

    def numpy_logits(arrays):
        p = numpy_transformer.from_torch(arrays, H)
        return [
            numpy_transformer.transformer(
                p,
                tables,
                *pair,
                norm=norm,
                epsilon=design.norm_epsilon,
                activation=design.activation,
                scale_embeddings=design.scale_embeddings,
            )
            for pair in sentences()
        ]

    def loss(arrays):
        return sum(
            (x * w).sum() for x, w in zip(numpy_logits(arrays), pull, strict=True)
        )

    with enable_x64(dtype == np.float64):
        sinusoidal = Sinusoidal(layout=layout)
        own = sinusoidal.table(jax.random.key(0), L, D)
        # attn's own are in float32
        np.testing.assert_allclose(own, tables[0], atol=1e-7)
        model = Transformer(
            SHAPE._replace(N=1), Y, L, design._replace(positions=sinusoidal)
        )
        tied = dict.fromkeys(EMBEDDINGS, arrays["src_embed.weight"])
        tied["generator.weight"] = arrays.get("tgt_embed.weight", tied[EMBEDDINGS[0]])
        given = {name: np.asarray(x, dtype) for name, x in (tied | arrays).items()}
        params = jax.tree.map(jnp.asarray, from_torch(model, given)["params"])
        table = {"table": jnp.asarray(tables[0], dtype)}
        positions = {"source_positions": table, "target_positions": table}
        (_, logits), gradients = loss_and_logits(model, pull)(params, positions)
        gradients = to_torch(model, {"params": gradients})
    assert logits[0].dtype == dtype
    near, near_in_gradients = TOLERANCE[dtype]
    for actual, right in zip(logits, numpy_logits(arrays), strict=True):
        np.testing.assert_allclose(
            actual, right, rtol=0, atol=near * np.abs(right).max()
        )
    h = 1e-6
    for name, x in arrays.items():
        way = draw(size=x.shape)
        gradient = gradients[name]
        ends = [loss({**arrays, name: x + step * way}) for step in (h, -h)]
        off = abs((gradient * way).sum() - (ends[0] - ends[1]) / (2 * h))
        assert off < near_in_gradients * np.linalg.norm(gradient) * np.linalg.norm(
            way
        ), name


@pytest.mark.parametrize(
    ("norm", "embeddings"),
    [("post", "target"), ("post_final", "tied"), ("pre", "separate")],
)
def test_to_pytorch_and_back(norm, embeddings):
    model, variables = build(Design(norm, embeddings, biases=True, positions=Learned()))
    assert_same(from_torch(model, to_torch(model, variables)), variables)


def test_attention_without_biases_gets_biases_of_0():
    model, variables = build(Design(positions=Learned()))
    arrays = to_torch(model, variables)
    assert arrays.keys() == to_torch(*build()).keys()
    zeros = {name for name, x in arrays.items() if not x.any()}
    assert zeros == {n for n in arrays if n.endswith(("in_proj_bias", "out_proj.bias"))}
    own = {name: x for name, x in arrays.items() if name not in zeros}
    assert_same(from_torch(model, own), variables)
