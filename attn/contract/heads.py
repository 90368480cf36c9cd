"""Checks of custom heads."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attn.context import Context, Decoding
from attn.contract.common import (
    LAYERS,
    B,
    D,
    H,
    M,
    N,
    Row,
    by_arguments_alone,
    close,
    description,
    in_layers,
    is_a,
    packed,
    run,
    steps,
)
from attn.heads import Heads
from attn.masks import Mask
from attn.nn.attention import CrossAttention, MultiHeadAttention

LENGTHS = (3, M)


def check_heads(heads: Heads) -> list[Row]:
    """Checks that a value meets the contract of `attn.heads`.

    Returns:
      Rows on its form, on what a query sees, on its weights, and on a decoder's caches, each
      in the first layers of a stack.
    """

    def each(check):
        return lambda: in_layers(lambda number: check(heads, number))

    first, last = LAYERS[0], LAYERS[-1]
    where = f"(layers {first} to {last})"
    checks = {
        "it is a Heads": lambda: is_a(heads, Heads),
        "can be a part of a description: it has a hash": lambda: hash(heads),
        "it makes sense": lambda: heads.check(description(heads=heads)),
        # First of those that compute, as what it finds spoils the others.
        "outputs depend on arguments and parameters alone": lambda: _alone(heads),
        f"hidden keys change no output {where}": each(_hidden),
        f"a text in a packed row is as alone {where}": each(_packed),
        f"its weights are (B, H, N, N) {where}": each(_weights),
        f"its loss, where it has one, is a number a token {where}": each(_loss),
        f"attention to a kept memory equals the full pass {where}": each(_memory),
        f"steps over a cache equal the full pass {where}": each(_steps),
    }
    return list(run(checks))


def _alone(heads: Heads) -> None:
    module, variables, x = _module(heads)

    def compute(number, shift):
        return module.apply(variables, x + shift, Context(layer=number))[0]

    return by_arguments_alone(compute)


def _steps(heads: Heads, number: int) -> str:
    return steps(number, heads=heads)


def _module(heads: Heads) -> tuple[MultiHeadAttention, Any, Array]:
    """Returns a module, its variables and x (B, N, D)."""
    module = MultiHeadAttention(description(heads=heads))
    x = jnp.asarray(np.random.default_rng(3).normal(size=(B, N, D)), jnp.float32)
    variables = module.init(jax.random.key(1), x, Context())
    return module, variables, x


def _hidden(heads: Heads, number: int) -> str:
    module, variables, x = _module(heads)
    seen = LENGTHS[0]
    ctx = Context(Mask.padding(jnp.array([seen, N])), layer=number)
    other = x.at[0, seen:].add(1.0)
    before, after = (module.apply(variables, y, ctx)[0] for y in (x, other))
    close(after[1], before[1], 1e-6)
    return close(after[0, :seen], before[0, :seen], 1e-6)


def _packed(heads: Heads, number: int) -> str:
    module, variables, _ = _module(heads)

    def mix(x, ctx):
        return module.apply(variables, x, ctx.replace(layer=number))[0]

    return packed(mix, Mask.causal())


def _weights(heads: Heads, number: int) -> str:
    module, variables, x = _module(heads)
    ctx = Context(layer=number)
    (out, _), kept = module.apply(variables, x, ctx, mutable=["weights"])
    (weights,) = jax.tree.leaves(kept["weights"])
    shape = weights.shape
    if shape != (B, H, N, N):
        raise ValueError(f"weights have shape {shape}, not {(B, H, N, N)}")
    return close(out, module.apply(variables, x, ctx)[0], 1e-5)


def _loss(heads: Heads, number: int) -> str:
    if not heads.has_loss:
        return "none"
    module, variables, x = _module(heads)
    _, kept = module.apply(variables, x, Context(layer=number), mutable=["losses"])
    (loss,) = jax.tree.leaves(kept["losses"])
    if loss.shape != (B, N) or not jnp.isfinite(loss).all():
        raise ValueError(f"a finite ({B}, {N}) is due, not {loss}")
    return ""


def _memory(heads: Heads, number: int) -> str:
    module = CrossAttention(description(heads=heads).of_memory())
    draw = np.random.default_rng(3).normal
    x, memory = (jnp.asarray(draw(size=(B, n, D)), jnp.float32) for n in (N, M))
    variables = module.init(jax.random.key(1), x, Context(memory=memory))
    visible = jnp.arange(M)[None, None] < jnp.array(LENGTHS)[:, None, None]
    kept = module.apply(variables, memory, method="project")
    at = Decoding(jnp.int32(0), None, visible)
    out, _ = module.apply(variables, x, Context(memory=kept, decoding=at, layer=number))
    mask = Mask.padding(jnp.array(LENGTHS))
    ctx = Context(memory=memory, memory_mask=mask, layer=number)
    return close(out, module.apply(variables, x, ctx)[0], 1e-5)
