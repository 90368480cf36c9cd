"""Checks of custom heads."""

import jax
import jax.numpy as jnp
import numpy as np

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
    run,
    steps,
)
from attn.heads import Heads
from attn.masks import Mask
from attn.nn.attention import CrossAttention

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
        f"its weights are (B, H, N, M) {where}": each(_weights),
        f"attention to a kept memory equals the full pass {where}": each(_memory),
        f"steps over a cache equal the full pass {where}": each(_steps),
    }
    return list(run(checks))


def _alone(heads):
    module, variables, x, memory = _module(heads)

    def compute(number, shift):
        ctx = Context(memory=memory - shift, layer=number)
        return module.apply(variables, x + shift, ctx)[0]

    return by_arguments_alone(compute)


def _steps(heads, number):
    return steps(number, heads=heads)


def _module(heads):
    """Returns a module, its variables, queries' x (B, N, D) and memory (B, M, D)."""
    module = CrossAttention(description(heads=heads))
    draw = np.random.default_rng(3).normal
    x, memory = (jnp.asarray(draw(size=(B, n, D)), jnp.float32) for n in (N, M))
    variables = module.init(jax.random.key(1), x, Context(memory=memory))
    return module, variables, x, memory


def _hidden(heads, number):
    module, variables, x, memory = _module(heads)
    mask = Mask.padding(jnp.array(LENGTHS))
    other = memory.at[0, LENGTHS[0] :].add(1.0)
    before, after = (
        module.apply(variables, x, Context(memory=m, memory_mask=mask, layer=number))[0]
        for m in (memory, other)
    )
    return close(after, before, 1e-6)


def _weights(heads, number):
    module, variables, x, memory = _module(heads)
    ctx = Context(memory=memory, layer=number)
    (out, _), kept = module.apply(variables, x, ctx, mutable=["weights"])
    shape = jnp.shape(kept["weights"]["weights"])
    if shape != (B, H, N, M):
        raise ValueError(f"weights have shape {shape}, not {(B, H, N, M)}")
    return close(out, module.apply(variables, x, ctx)[0], 1e-5)


def _memory(heads, number):
    module, variables, x, memory = _module(heads)
    visible = jnp.arange(M)[None, None] < jnp.array(LENGTHS)[:, None, None]
    kept = module.apply(variables, memory, method="project")
    at = Decoding(jnp.int32(0), None, visible)
    out, _ = module.apply(variables, x, Context(memory=kept, decoding=at, layer=number))
    mask = Mask.padding(jnp.array(LENGTHS))
    ctx = Context(memory=memory, memory_mask=mask, layer=number)
    return close(out, module.apply(variables, x, ctx)[0], 1e-5)
