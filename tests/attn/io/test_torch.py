"""Models from PyTorch against numpy in float64, and weights out and in again."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    T5,
    Design,
    Learned,
    Mask,
    NoPositions,
    Sinusoidal,
    TalkingHeads,
    Transformer,
)
from attn.io import Names, from_torch, to_torch
from attn.jax_versions import enable_x64
from tests.attn import numpy_transformer
from tests.attn.io.random_transformer import SHAPE, D, F, H, L, N, Y, assert_same, build

PLAIN = Design(norm_epsilon=1e-5)
ONE_LAYER = SHAPE._replace(N=1)
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
    _, variables = from_torch(
        {name: x.astype(np.float32) for name, x in arrays.items()}, H
    )
    expected = jax.tree.map(np.float32, numpy_transformer.from_torch(arrays, H))
    assert_same(variables["params"], expected)


# One layer, to compile less. Float32 stands for both precisions where the design's
# numbers are far enough from any other's.
CASES = {
    "post": (dict(N=1), Design(norm_epsilon=1e-5), np.float64),
    "post_final": (
        dict(embeddings=2, final=True, biases=False, N=1),
        Design(scale_embeddings=False),
        np.float64,
    ),
    "pre": (
        dict(embeddings=3, final=True, N=1),
        Design("pre", activation="gelu", norm_epsilon=3e-3),
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
        model, variables = from_torch(
            arrays,
            H,
            design._replace(positions=Sinusoidal(layout=layout)),
            length=L,
        )
        for table in variables["positions"].values():  # attn's own are in float32
            np.testing.assert_allclose(table["table"], tables[0], atol=1e-7)
            table["table"] = jnp.asarray(tables[0], dtype)
        (_, logits), gradients = loss_and_logits(model, pull)(
            variables["params"], variables["positions"]
        )
        gradients = to_torch(model, {**variables, "params": gradients})
    assert model.design.norm == norm and logits[0].dtype == dtype
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
    design = Design(
        norm,
        embeddings,
        biases=True,
        activation="silu",
        scale_embeddings=False,
        positions=Learned(),
    )
    model, variables = build(design)
    told = Design(
        "pre" if norm == "pre" else "post", activation="silu", scale_embeddings=False
    )
    again, same = from_torch(to_torch(model, variables), H, told)
    assert again == model
    assert_same(same, variables)


def test_attention_without_biases_gets_biases_of_0():
    model, variables = build(Design(positions=Learned()))
    arrays = to_torch(model, variables)
    assert sorted(arrays) == sorted(to_torch(*build()))
    assert not any(
        arrays[name].any()
        for name in arrays
        if name.endswith(("in_proj_bias", "out_proj.bias"))
    )
    own = {
        name: x
        for name, x in arrays.items()
        if not name.endswith(("in_proj_bias", "out_proj.bias"))
    }
    again, same = from_torch(own, H, Design())
    assert again == model
    assert_same(same, variables)


def test_what_is_written_is_fit_for_torch_from_numpy():
    """It has memory of its own, which may be written, in C order."""
    model, variables = build()
    arrays = to_torch(model, variables)
    assert all(
        x.flags.writeable and x.flags.c_contiguous and x.dtype == np.float32
        for x in arrays.values()
    )
    for x in arrays.values():
        x[:] = np.nan
    assert not any(np.isnan(x).any() for x in jax.tree.leaves(variables))


def test_names_are_the_callers():
    names = Names("model.core.", "pieces", "translated", "head", "places", "places")
    model, variables = build()
    variables["positions"]["target_positions"] = variables["positions"][
        "source_positions"
    ]
    arrays = to_torch(model, variables, names)
    assert {
        name
        for name in arrays
        if not name.startswith(("model.core.encoder.", "model.core.decoder."))
    } == {"pieces", "translated", "head", "places"}
    again, same = from_torch(arrays, H, Design(), names=names)
    assert again == model
    assert_same(same, variables)
    other = {**variables["positions"], "target_positions": {"table": jnp.zeros((L, D))}}
    with pytest.raises(
        ValueError,
        match="tables of source and target differ and cannot both be 'places'",
    ):
        to_torch(model, {**variables, "positions": other}, names)


def test_positions_are_the_callers_where_there_is_no_table():
    arrays = {name: x.astype(np.float16) for name, x in state_dict().items()}
    model, variables = from_torch(
        arrays, H, PLAIN._replace(positions=NoPositions()), length=5
    )
    assert (
        model.design.positions == NoPositions()
        and model.length == 5
        and model.design.norm_epsilon == 1e-5
    )
    assert not variables["positions"]["source_positions"]["table"].any()
    assert {x.dtype for x in jax.tree.leaves(variables)} == {np.dtype(np.float32)}
    with pytest.raises(ValueError, match=r"missing: src_pos.weight, tgt_pos.weight$"):
        from_torch(arrays, H, PLAIN._replace(positions=Learned()))


def test_all_that_is_wrong_is_named():
    arrays = state_dict(embeddings=2) | {"generator.bias": np.zeros(Y)}
    from_torch(arrays, H)
    del (
        arrays["encoder.layers.1.norm2.bias"],
        arrays["decoder.layers.0.self_attn.in_proj_weight"],
    )
    arrays |= {
        "pos_encoder.pe": np.zeros((9, 1, D)),
        "tgt_embed.weight": np.zeros((Y + 2, D)),
        "decoder.layers.0.linear2.bias": np.zeros(D, int),
    }
    with pytest.raises(
        ValueError,
        match=re.escape(
            "not the arrays of an nn.Transformer of N=2, d_model=14, d_ff=17: missing: "
            "decoder.layers.0.self_attn.in_proj_weight, encoder.layers.1.norm2.bias; unknown: "
            "pos_encoder.pe; "
            "decoder.layers.0.linear2.bias is of int64 and not of floating numbers; "
            "tgt_embed.weight has shape (31, 14), not (29, 14)"
        )
        + "$",
    ):
        from_torch(arrays, H)


def test_a_decoder_deeper_than_the_encoder_is_told():
    arrays = state_dict()
    arrays |= {
        name.replace("layers.1", "layers.2"): x
        for name, x in arrays.items()
        if "decoder.layers.1" in name
    }
    with pytest.raises(
        ValueError,
        match=r"N=3.*missing: encoder.layers.2.linear1.bias, .*encoder.layers.2.norm1.bias",
    ):
        from_torch(arrays, H)


@pytest.mark.parametrize(
    ("arrays", "h", "message"),
    [
        (state_dict(), 4, "d_model=14 must be divisible by h=4"),
        (
            {f"net.{name}": x for name, x in state_dict().items()},
            H,
            "no matrix 'encoder.layers.0.linear1.weight'.* begin as net.decoder.*"
            " Names.transformer",
        ),
        (state_dict() | {"generator.bias": np.ones(Y)}, H, "generator.bias is not 0"),
        ({}, H, "no matrix"),
        (dict(list(state_dict().items())[1:]), H, "17: missing: src_embed.weight$"),
    ],
)
def test_what_no_model_of_ours_is(arrays, h, message):
    with pytest.raises(ValueError, match=message):
        from_torch(arrays, h)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (
            dict(shape=ONE_LAYER._replace(d_k=3)),
            "needs h·d_k = h·d_v = d_model, got h=2, d_k=3, d_v=7, d_model=14; to_arrays",
        ),
        (
            dict(shape=ONE_LAYER._replace(h_kv=1)),
            "keys and values for each .* not h_kv=1",
        ),
        (dict(shape=ONE_LAYER._replace(d_c=3)), "h_kv=None, d_c=3 with h=2; to_arrays"),
        (dict(design=Design(score="additive")), "has no score='additive'"),
        (dict(design=Design(gate="head")), "has no gate='head'"),
        (dict(design=Design(heads=TalkingHeads())), r"has no heads=TalkingHeads\(\)"),
        (dict(design=Design(positions=T5())), "has no positions=T5"),
    ],
)
def test_what_pytorch_has_not(form, message):
    with pytest.raises(ValueError, match=message):
        to_torch(*build(**dict(shape=ONE_LAYER) | form))
