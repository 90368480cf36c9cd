"""Checks of a custom residual."""

import jax
import jax.numpy as jnp
import numpy as np

from attn.config import LanguageModel
from attn.context import Context, Decoding
from attn.contract.common import (
    LAYERS,
    B,
    D,
    H,
    K,
    N,
    Row,
    V,
    close,
    is_a,
    run,
)
from attn.masks import Mask
from attn.nn import language_model
from attn.positions import NoPositions
from attn.residuals import Residual

VOCABULARY = 11


def check_residual(residual: Residual) -> list[Row]:
    """Checks that a value meets the contract of `attn.residuals`, in a stack of layers.

    Returns:
      Rows on its form, on what a token sees, and on a decoder's caches.
    """
    checks = {
        "it is a Residual": lambda: is_a(residual, Residual),
        "can be a part of a description: it has a hash": lambda: hash(residual),
        "it makes sense": lambda: _description(residual).check(),
        "a position sees none behind it": lambda: _causal(residual),
        "a scan of layers gives what a loop gives": lambda: _scan(residual),
        "gradients are finite": lambda: _gradients(residual),
        "a text in a packed row is as alone": lambda: _packed(residual),
        "steps over a cache equal the full pass": lambda: _steps(residual),
    }
    return list(run(checks))


def _description(residual):
    return LanguageModel(
        d_model=D,
        d_ff=D,
        h=H,
        d_k=K,
        d_v=V,
        N=len(LAYERS),
        positions=NoPositions(),
        residual=residual,
    )


def _model(residual, **options):
    """Returns a model of several layers, its variables and tokens (B, N)."""
    description = _description(residual)
    model = language_model.LanguageModel(description, VOCABULARY, 2 * N, **options)
    tokens = jnp.asarray(np.random.default_rng(3).integers(1, VOCABULARY, (B, N)))
    variables = jax.jit(model.init)(jax.random.key(1), tokens, Context(Mask.causal()))
    return model, variables, tokens


def _causal(residual):
    model, variables, tokens = _model(residual)
    apply = jax.jit(model.apply)
    before = apply(variables, tokens, Context(Mask.causal()))
    for i in range(1, N):
        other = tokens.at[:, i:].set(1)
        after = apply(variables, other, Context(Mask.causal()))
        close(after[:, :i], before[:, :i], 1e-6, f"outputs before position {i}")


def _scan(residual):
    model, variables, tokens = _model(residual)
    ctx = Context(Mask.causal())
    looped = jax.jit(model.apply)(variables, tokens, ctx)
    scanned = jax.jit(model.clone(scan=True).apply)(variables, tokens, ctx)
    return close(scanned, looped, 1e-5)


def _gradients(residual):
    model, variables, tokens = _model(residual)

    apply = jax.jit(model.apply)
    ctx = Context(Mask.causal())

    def loss(params):
        out = apply({**variables, "params": params}, tokens, ctx)
        return (out**2).sum()

    gradients = jax.jit(jax.grad(loss))(variables["params"])
    if not all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients)):
        raise ValueError("a gradient is NaN or Inf")


def _packed(residual):
    model, variables, tokens = _model(residual)
    apply = jax.jit(model.apply)
    alone = apply(variables, tokens, Context(Mask.causal()))
    both = jnp.concatenate([tokens[:1], tokens[1:]], axis=1)
    texts = jnp.arange(2 * N)[None] // N
    places = jnp.arange(2 * N)[None] % N
    mask = Mask.causal() & Mask.segments(texts, texts)
    row = apply(variables, both, Context(mask, places))
    return close(row[0, N:], alone[1], 1e-5)


def _steps(residual):
    model, variables, tokens = _model(residual)
    whole = jax.jit(model.apply)(variables, tokens, Context(Mask.causal()))

    @jax.jit
    def step(tokens, ctx):
        return model.apply(variables, tokens, ctx, method="decode")

    caches = model.apply(variables, B, N, jnp.float32, method="empty_caches")
    outputs = []
    for t in range(N):
        visible = jnp.broadcast_to(jnp.arange(N) <= t, (B, 1, N))
        at = Decoding(jnp.int32(t), visible)
        hidden, ctx = step(tokens[:, t : t + 1], Context(decoding=at, cache=caches))
        caches = ctx.cache
        outputs.append(hidden)
    return close(jnp.concatenate(outputs, axis=1), whole, 1e-4)
