"""What layers take over from those before, against a small stack in float64 numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    CoPE,
    LanguageModel,
    ScoreResidual,
    TalkingHeads,
    ValueResidual,
    config,
    keys_of_rows,
)
from attn.jax_versions import enable_x64
from attn.positions import NoPositions
from tests.attn import numpy_transformer, oracle
from tests.attn.nn.modules import CAUSAL, apply, assert_slopes, random_variables

N = 3
D, F, H, K, V = 6, 7, 2, 5, 3
SIZES = dict(N=N, d_model=D, d_ff=F, h=H, d_k=K, d_v=V, positions=NoPositions())
LENGTH = 9
VOCABULARY = 11
RESIDUALS = {"values": ValueResidual(0.3), "scores": ScoreResidual()}
every_residual = pytest.mark.parametrize("name", RESIDUALS)


def tokens():
    draw = np.random.default_rng(0).integers
    return jnp.asarray(draw(1, VOCABULARY, (2, LENGTH)))


@functools.cache
def build(name, dtype=np.float32, **options):
    """Returns a model and random variables, the shares of values too."""
    of = config.LanguageModel(**SIZES, residual=RESIDUALS[name])
    model = LanguageModel(of, VOCABULARY, LENGTH, **options)
    # Initialised as a loop, whose variables are those of a scan.
    loop = model.clone(scan=False, remat=False)
    variables = random_variables(loop, tokens(), CAUSAL, dtype=dtype)
    table = {"target_positions": {"table": jnp.zeros((LENGTH, D), dtype)}}
    return model, variables | {"positions": table}


def exact(p, text, name):
    """Computes the last hidden states of one text, layer by layer and head by head."""
    n = len(text)
    visible = np.tri(n, dtype=bool)
    x = p["embedding"][text] * D**0.5
    first, sums = None, np.zeros((H, n, n))
    for i in range(N):
        layer = p[f"decoder_{i}"]
        a = layer["self_attention"]
        q, k, v = (np.einsum("nd,dhk->hnk", x, a[f"w_{y}"]) for y in "qkv")
        if name == "values":
            share = 0 if first is None else a["residual"]["share"]
            first = v if first is None else first
            v = (1 - share) * v + share * first
        s = q @ k.swapaxes(1, 2) / K**0.5
        if name == "scores":
            sums = s = s + sums
        weights = oracle.softmax(np.where(visible, s, -np.inf))
        y = np.einsum("hnv,hvd->nd", weights @ v, a["w_o"])
        x = numpy_transformer.layer_norm(layer["self_norm"]["norm"], x + y)
        f = numpy_transformer.feed_forward(layer["feed_forward"])
        own = layer["feed_forward_norm"]["norm"]
        x = numpy_transformer.layer_norm(own, x + f(x))
    return x


@every_residual
def test_outputs_and_gradients_equal_the_oracles(name):
    """Gradients by central differences in a random direction of each parameter."""
    pull = np.random.default_rng(6).normal(size=(2, LENGTH, D))

    def expected(p):
        return np.stack([exact(p, text, name) for text in np.asarray(tokens())])

    with enable_x64(True):
        model, variables = build(name, np.float64)

        @jax.jit
        @functools.partial(jax.grad, has_aux=True)
        def gradients(params):
            out = model.apply({**variables, "params": params}, tokens(), CAUSAL)
            return (out * pull).sum(), out

        gradient, out = gradients(variables["params"])
    params, gradient = jax.tree.map(np.asarray, (variables["params"], gradient))
    np.testing.assert_allclose(out, expected(params), rtol=1e-9, atol=1e-9)

    def total(p):
        return (expected(p) * pull).sum()

    assert_slopes(total, params, gradient, 1e-6, rtol=1e-5, atol=1e-6)


@every_residual
@pytest.mark.parametrize("options", [dict(scan=True), dict(remat=True)])
def test_scan_and_remat_equal_the_oracle(name, options):
    model, variables = build(name, **options)
    p = jax.tree.map(np.float64, variables["params"])
    expected = [exact(p, text, name) for text in np.asarray(tokens())]
    whole = apply(model, variables, tokens(), CAUSAL)
    np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-4)


@every_residual
def test_weights_are_kept_and_dropped(name):
    model, variables = build(name)
    out, kept = apply(model, variables, tokens(), CAUSAL, mutable=("weights",))
    weights = kept["weights"]["decoder_2"]["self_attention"]["weights"]
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    keys = keys_of_rows(jax.random.key(1), jnp.arange(2))
    ctx = CAUSAL.replace(keys=keys, numbers={"P_attention": 0.5})
    assert not np.allclose(apply(model, variables, tokens(), ctx), out)


def test_without_a_share_values_are_the_layers_own():
    plain = LanguageModel(config.LanguageModel(**SIZES), VOCABULARY, LENGTH)
    model, variables = build("values")
    zero = jax.tree.map_with_path(
        lambda path, x: 0 * x if "share" in str(path) else x, variables
    )
    params = {
        name: (
            layer | {"self_attention": dict(layer["self_attention"])}
            if "decoder_" in name
            else layer
        )
        for name, layer in zero["params"].items()
    }
    for i in range(N):
        del params[f"decoder_{i}"]["self_attention"]["residual"]
    expected = apply(plain, zero | {"params": params}, tokens(), CAUSAL)
    actual = apply(model, zero, tokens(), CAUSAL)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(residual=ValueResidual(), d_c=2), "mixes values: d_c=2 must be 0"),
        (dict(residual=ScoreResidual(), d_c=2), "separate heads: not with .*d_c=2"),
        (dict(residual=ScoreResidual(), heads=TalkingHeads()), "heads=TalkingHeads"),
        (dict(residual=ScoreResidual(), positions=CoPE()), "both make scores"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        config.Attention(D, H, K, V, **options).check()
