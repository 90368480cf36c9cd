"""Checks of a custom mixer."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attn.config import Block
from attn.context import Context
from attn.contract.common import (
    B,
    D,
    H,
    K,
    N,
    Row,
    V,
    by_arguments_alone,
    close,
    in_steps,
    is_a,
    packed,
    run,
)
from attn.masks import Mask
from attn.mixers import Mixer
from attn.nn.blocks import Layer
from attn.positions import NoPositions


def check_mixer(mixer: Mixer) -> list[Row]:
    """Checks that a value meets the contract of `attn.mixers`.

    Returns:
      Rows on its form, on what a position sees, and on a decoder's cache.
    """
    checks = {
        "it is a Mixer": lambda: is_a(mixer, Mixer),
        "can be a part of a description: it has a hash": lambda: hash(mixer),
        "it fits the width": lambda: mixer.check(_block(mixer)),
        "it stands in a layer": lambda: in_layer(mixer),
        "outputs depend on arguments and parameters alone": lambda: _alone(mixer),
        "a position sees none behind it in a decoder": lambda: _causal(mixer),
        "padding is not seen": lambda: _padding(mixer),
        "a text in a packed row is as alone": lambda: _packed(mixer),
        "steps over a cache equal the full pass": lambda: _steps(mixer),
    }
    return list(run(checks))


def in_layer(mixer: Mixer) -> None:
    """Raises ValueError where a layer cannot hold the mixer's module by its name."""
    if hasattr(Layer, mixer.name):
        raise ValueError(
            f"a layer has a {mixer.name!r} of its own: give the class another name"
        )
    layer = Layer(_block(mixer), causal=True)
    x = jax.ShapeDtypeStruct((B, N, D), jnp.float32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    ctx = Context(Mask.causal())
    jax.eval_shape(lambda key, x: layer.init(key, x, ctx), key, x)


def _block(mixer: Mixer) -> Block:
    return Block(D, H, K, V, d_ff=D, positions=NoPositions(), mixing=mixer)


def _alone(mixer: Mixer) -> None:
    module, variables, x = _module(mixer, causal=True)
    ctx = Context(Mask.causal())

    # Not compiled, as a program would be kept; all layers of a mixer are alike.
    def compute(number, shift):
        return module.apply(variables, x + shift, ctx)[0]

    return by_arguments_alone(compute, layers=(1,))


def _module(mixer: Mixer, causal: bool) -> tuple[nn.Module, Any, Array]:
    """Returns a mixer's module, its variables, and inputs (B, N, D)."""
    module = mixer.build(_block(mixer), causal)
    x = jnp.asarray(np.random.default_rng(3).normal(size=(B, N, D)), jnp.float32)
    ctx = Context(Mask.causal() if causal else Mask())
    return module, jax.jit(module.init)(jax.random.key(1), x, ctx), x


def _mixing(module: nn.Module, mask: Mask) -> Callable:
    """Returns the compiled function (variables, x) -> outputs of all positions."""
    return jax.jit(lambda variables, x: module.apply(variables, x, Context(mask))[0])


def _causal(mixer: Mixer) -> None:
    module, variables, x = _module(mixer, causal=True)
    mixed = _mixing(module, Mask.causal())
    before = mixed(variables, x)
    for i in range(1, N):
        after = mixed(variables, x.at[:, i:].add(1.0))
        close(after[:, :i], before[:, :i], 1e-6, f"outputs before position {i}")


def _padding(mixer: Mixer) -> str:
    module, variables, x = _module(mixer, causal=False)
    mixed = _mixing(module, Mask.padding(jnp.full(B, 3)))
    before = mixed(variables, x)
    after = mixed(variables, x.at[:, 3:].add(1.0))
    return close(after[:, :3], before[:, :3], 1e-6)


def _packed(mixer: Mixer) -> str:
    for causal in (False, True):
        module, variables, _ = _module(mixer, causal)

        def mix(x, ctx, module=module, variables=variables):
            return jax.jit(module.apply)(variables, x, ctx)[0]

        detail = packed(mix, Mask.causal() if causal else Mask())
    return detail


def _steps(mixer: Mixer) -> str:
    module, variables, x = _module(mixer, causal=True)
    whole = _mixing(module, Mask.causal())(variables, x)

    @jax.jit
    def step(x, ctx):
        return module.apply(variables, x, ctx)

    def empty(entries):
        def of(module):
            return module.empty_cache(B, entries, x.dtype)

        return module.apply(variables, method=of)

    return in_steps(step, empty, x, whole)
