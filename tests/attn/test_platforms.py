"""What is chosen by the platform that a program is compiled for."""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import Additive, Context, Entmax, Mask, attention, platforms
from attn.jax_versions import has_mosaic_gpu, has_pallas_tpu
from attn.kernels import cudnn, fused
from tests.cases import the_rest_in_ci

B, N, M, H, K = 2, 6, 8, 3, 8
LENGTHS = np.array([4, 0])


@pytest.fixture
def on_gpu(monkeypatch):
    """Traces for a GPU, and notes what is asked of cuDNN, for which plain JAX computes."""
    asked = []
    shortest = []

    def noted(q, k, v, bias, causal, left, lengths):
        kind = "causal" if causal else "all"
        kind += "" if left is None else " window"
        kind += "" if lengths is None else " lengths"
        asked.append(kind + ("" if bias is None else f" array {bias.shape}"))
        # cuDNN promises nothing of an example without keys.
        if lengths is not None:
            jax.debug.callback(lambda x: shortest.append(x.min()), lengths)
        visible = None if bias is None else bias >= 0
        form = fused.Form(False, causal, left, True)
        return form, q, k, v, fused.Seen(visible, lengths)

    def forward(q, k, v, bias, *, causal, left, lengths):
        return fused._values(*noted(q, k, v, bias, causal, left, lengths))

    def backward(q, k, v, bias, lse, out, g, *, causal, left, lengths):
        given = noted(q, k, v, bias, causal, left, lengths)
        asked.pop()
        return fused._gradients(*given, out, lse, g)

    monkeypatch.setattr(fused, "cudnn_forward", forward)
    monkeypatch.setattr(fused, "cudnn_backward", backward)
    platforms.compile_for("gpu")
    yield asked
    platforms.compile_for(None)
    assert all(length >= 1 for length in shortest)


def inputs(dtype=jnp.bfloat16, width=K):
    draw = np.random.default_rng(0).normal
    return [jnp.asarray(draw(size=(B, n, H, width)), dtype) for n in (N, M, M)]


SEGMENTS = Mask.segments(np.arange(N)[None] // 2, np.arange(M)[None] // 3)
SERVED = {
    "causal window": Mask.window(2, 0),
    "all lengths": Mask.padding(LENGTHS),
    "all": None,
    "causal": Mask.causal(),
    "causal lengths": Mask.causal() & Mask.padding(LENGTHS),
    f"causal array (1, 1, {N}, {M})": SEGMENTS & Mask.causal(),
    f"all array (2, 1, {N}, {M})": Mask.window(3, 3) & Mask.padding(LENGTHS),
    f"all array (1, 3, {N}, {M})": Mask.dense(np.ones((H, 1, M), bool)),
}


@pytest.mark.parametrize("kind", the_rest_in_ci([*SERVED], first=4))
def test_a_gpu_takes_cudnn_for_products(on_gpu, kind):
    qkv = inputs()

    def total(implementation):
        loss = lambda *qkv: (
            attention(*qkv, mask=SERVED[kind], implementation=implementation)
            .astype(jnp.float32)
            .sum()
        )
        return jax.value_and_grad(loss, (0, 1, 2))(*qkv)

    ours = total(None)
    assert {*on_gpu} == {kind}
    # bfloat16 has 8 bits; sums of some 200 numbers of size 1.
    for one, other in zip(
        *map(jax.tree.leaves, (ours, total("reference"))), strict=True
    ):
        np.testing.assert_allclose(
            np.float32(one), np.float32(other), rtol=2**-5, atol=2**-4
        )


@pytest.mark.parametrize(
    "options",
    [
        dict(bias=np.zeros((H, N, M), np.float32)),
        dict(return_weights=True),
        dict(normaliser=Entmax(1.5)),
        dict(score=Additive(*[jnp.ones((H, K, 4))] * 2, jnp.ones((H, 4)), None)),
    ],
    ids=["bias", "weights", "entmax", "additive"],
)
def test_what_cudnn_lacks_goes_elsewhere(on_gpu, options):
    attention(*inputs(), **options)
    assert on_gpu == []


def test_masks_that_are_large_narrow_or_odd_go_elsewhere(on_gpu, monkeypatch):
    q, k, v = inputs()
    attention(q[:, 1:], k, v, mask=SEGMENTS_OF_ODD)
    attention(q[:, 1:], k, v, mask=SEGMENTS_OF_ODD, implementation="cudnn")
    wide = [jnp.tile(x, (1, 40, 1, 1)) for x in (q, k, v)]
    attention(*wide, mask=Mask.window(5, 5))
    limit = 2 * B * N * M
    monkeypatch.setattr(cudnn, "takes_mask", lambda size, seen: size < limit)
    own = SEGMENTS & Mask.prefix(np.array([1, 2]))
    attention(q, k, v, mask=own)
    assert on_gpu == []
    attention(q, k, v, mask=SEGMENTS)
    assert {*on_gpu} == {f"all array (1, 1, {N}, {M})"}


SEGMENTS_OF_ODD = Mask.segments(np.arange(N - 1)[None] // 2, np.arange(M)[None] // 3)


def test_heads_one_after_another_keep_their_derivatives(on_gpu, monkeypatch):
    """A GPU's slices have a layout of their own, which must pass through every derivative."""
    monkeypatch.setattr(
        sys.modules["attn.map_heads"], "heads_at_once", lambda n, m, score: 1
    )
    qkv = inputs(jnp.float32)

    def derivatives(implementation):
        function = lambda *qkv: attention(
            *qkv, mask=Mask.padding(LENGTHS), implementation=implementation
        )
        loss = lambda *qkv: (function(*qkv) ** 2).sum()
        gradient = jax.grad(loss, (0, 1, 2))
        several = [jnp.stack([x, 2 * x]) for x in qkv]
        return (
            jax.jvp(function, qkv, qkv),
            jax.vmap(gradient)(*several),
            jax.jvp(gradient, qkv, qkv),
        )

    actual, expected = map(derivatives, ("blocks", "reference"))
    for one, other in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("dtype", "width"), [(jnp.float32, K), (jnp.bfloat16, 264)])
def test_numbers_that_cudnn_lacks_go_elsewhere(on_gpu, dtype, width):
    attention(*inputs(dtype, width))
    assert on_gpu == []


def test_wide_heads_go_elsewhere_before_hopper(on_gpu, monkeypatch):
    monkeypatch.setattr(platforms, "_is_hopper", lambda: False)
    attention(*inputs(jnp.bfloat16, 136))
    assert on_gpu == []
    assert "Hopper" in platforms.tiles(jnp.bfloat16)


def test_kernels_of_traced_tiles_are_of_the_platform(on_gpu):
    here = platforms.tiles(jnp.dtype(jnp.bfloat16))
    if has_mosaic_gpu():
        assert here.kernel == "pallas_gpu" and not here.interpreted
        assert "float32" in platforms.tiles(jnp.dtype(jnp.float32))
    else:
        assert "JAX 0.11" in here
    platforms.compile_for("tpu")
    try:
        here = platforms.tiles(jnp.dtype(jnp.float32))
    finally:
        platforms.compile_for(None)
    assert "JAX 0.10" in here if not has_pallas_tpu() else here.kernel == "pallas_tpu"


def test_a_process_forgets_what_it_traced_for_another_platform(on_gpu):
    qkv = inputs()
    traced = jax.jit(attention)
    traced(*qkv)
    platforms.compile_for(None)
    traced(*qkv)
    assert {*on_gpu} == {"all"} and platforms.platform() == jax.default_backend()


@pytest.mark.parametrize(
    ("mask", "calls"),
    [
        (SERVED["causal window"], ["fmhaSoftmax", "fmhaSoftmaxBackward"]),
        (SEGMENTS, ["fmhaScaleBiasSoftmax", "fmhaScaleBiasSoftmaxBackward"]),
    ],
    ids=["window", "segments"],
)
def test_lanes_are_lowered_to_one_call_of_cudnn(mask, calls):
    """By JAX's own rules for CUDA, which need no GPU; each call is of all lanes at once."""

    def loss(*qkv):
        out, lse = attention(*qkv, mask=mask, return_lse=True)
        return out.astype(jnp.float32).sum() + lse.sum()

    shapes = [jax.ShapeDtypeStruct((4, *x.shape), x.dtype) for x in inputs()]
    platforms.compile_for("gpu")
    try:
        traced = jax.jit(jax.vmap(jax.grad(loss, (0, 1, 2)))).trace(*shapes)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    finally:
        platforms.compile_for(None)
    assert sorted(re.findall(r"__cudnn\$(\w+)", text)) == calls
    assert f"tensor<{4 * B}x{N}x{H}x{K}xbf16>" in text


def test_texts_of_a_row_see_nothing_of_each_other_on_cudnn(on_gpu):
    """Packed as if alone, also as lanes; of the other text's tokens gradients are exactly 0."""
    sizes = dict(d_model=16, d_ff=16, h=2, d_k=8, d_v=8, N=2)
    model = attn.LanguageModel(attn.config.LanguageModel(**sizes), 11, 12)
    tokens = np.random.default_rng(0).integers(11, size=(1, 12))
    lengths = (8, 4)
    first, second = tokens[:, :8], tokens[:, 8:]
    mask = Mask.causal()
    variables = jax.tree.map(
        lambda x: x.astype(jnp.bfloat16),
        model.init(jax.random.key(1), tokens, Context(mask)),
    )
    ids = np.repeat([1, 2], lengths)[None]
    places = np.concatenate([np.arange(n) for n in lengths])[None]
    row = Context(mask & Mask.segments(ids, ids), places)

    def hidden(variables, tokens, ctx):
        return model.apply(variables, tokens, ctx).astype(jnp.float32)

    lanes = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), variables)
    packed = jax.jit(jax.vmap(hidden, (0, None, None)))(lanes, tokens, row)[0]
    assert {*on_gpu} == {"causal array (1, 1, 12, 12)"}
    for text, part in ((first, packed[:, :8]), (second, packed[:, 8:])):
        alone = hidden(variables, text, Context(mask))
        # Hidden states are of size 1 behind a norm, in bfloat16 all the way.
        np.testing.assert_allclose(part, alone, rtol=0, atol=2**-5)

    def loss(table, text):
        own = {**variables, "params": {**variables["params"], "embedding": table}}
        # Of a norm's features the sum is the same whatever they are.
        return (hidden(own, tokens, row)[..., 0] * text[None]).sum()

    table = variables["params"]["embedding"]
    gradient = jax.jit(jax.grad(loss))(table, jnp.asarray(ids[0] == 2, jnp.float32))
    only_first = sorted({*first.flat} - {*second.flat})
    assert only_first and not np.asarray(gradient, np.float32)[only_first].any()
    assert np.asarray(gradient, np.float32)[second].any()
