"""Checks of one's own heads."""

import jax
import jax.numpy as jnp
import numpy as np

from attn.contract.common import (
    LAYERS,
    B,
    D,
    H,
    K,
    M,
    N,
    Row,
    V,
    by_arguments_alone,
    close,
    in_layers,
    is_a,
    run,
    steps,
)
from attn.masks import Mask
from attn.models.heads import Heads
from attn.models.multihead import MultiHeadAttention

LENGTHS = (3, M)


def check_heads(heads: Heads) -> list[Row]:
    """Checks that a value meets the contract of `attn.models.heads`.

    Returns:
      Rows on its form, on what a query sees, on its weights, and on a decoder's caches, each
      as `in_layer` makes it for the first layers of a stack.
    """

    def each(check):
        return lambda: in_layers(lambda number: check(heads.in_layer(number)))

    first, last = LAYERS[0], LAYERS[-1]
    where = f"(layers {first} to {last})"
    checks = {
        "it is a Heads": lambda: is_a(heads, Heads),
        "can be a field of Design: it has a hash": lambda: hash(heads),
        "it makes sense": heads.check,
        # First of those that compute, as what it finds spoils the others.
        "outputs depend on arguments and parameters alone": lambda: _alone(heads),
        f"hidden keys change no output {where}": each(_hidden),
        f"its weights are (B, H, N, M) {where}": each(_weights),
        f"attention to a kept memory equals the full pass {where}": each(_memory),
        f"steps over a cache equal the full pass {where}": each(_steps),
    }
    return list(run(checks))


def _alone(heads):
    modules = {number: _module(heads.in_layer(number)) for number in LAYERS}

    def compute(number, shift):
        module, variables, x, memory = modules[number]
        return module.apply(variables, x + shift, memory - shift, Mask())

    return by_arguments_alone(compute)


def _steps(heads):
    return steps(heads=heads)


def _module(heads):
    """Returns a module, its variables, queries' x (B, N, D) and memory (B, M, D)."""
    module = MultiHeadAttention(D, H, K, V, heads=heads)
    draw = np.random.default_rng(3).normal
    x, memory = (jnp.asarray(draw(size=(B, n, D)), jnp.float32) for n in (N, M))
    return module, module.init(jax.random.key(1), x, memory, Mask()), x, memory


def _hidden(heads):
    module, variables, x, memory = _module(heads)
    mask = Mask.padding(jnp.array(LENGTHS))
    other = memory.at[0, LENGTHS[0] :].add(1.0)
    before = module.apply(variables, x, memory, mask)
    return close(module.apply(variables, x, other, mask), before, 1e-6)


def _weights(heads):
    module, variables, x, memory = _module(heads)
    out, kept = module.apply(variables, x, memory, Mask(), mutable=["weights"])
    shape = kept["weights"]["weights"].shape
    if shape != (B, H, N, M):
        raise ValueError(f"weights have shape {shape}, not {(B, H, N, M)}")
    return close(out, module.apply(variables, x, memory, Mask()), 1e-5)


def _memory(heads):
    module, variables, x, memory = _module(heads)
    visible = jnp.arange(M)[None, None] < jnp.array(LENGTHS)[:, None, None]
    kept = module.apply(variables, memory, method="project_memory")
    out = module.apply(variables, x, kept, visible, method="attend_to_memory")
    mask = Mask.padding(jnp.array(LENGTHS))
    return close(out, module.apply(variables, x, memory, mask), 1e-5)
