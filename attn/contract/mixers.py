"""Checks of one's own mixer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from attn.contract.common import (
    B,
    D,
    H,
    K,
    N,
    Row,
    V,
    all_steps,
    by_arguments_alone,
    close,
    is_a,
    packed,
    run,
)
from attn.masks import Mask
from attn.models.blocks import LanguageLayer
from attn.models.design import Design, Shape
from attn.models.mixers import Mixer

SHAPE = Shape(1, D, D, H, K, V)


def check_mixer(mixer: Mixer) -> list[Row]:
    """Checks that a value meets the contract of `attn.models.mixers`.

    Returns:
      Rows on its form, on what a position sees, and on a decoder's cache.
    """
    checks = {
        "it is a Mixer": lambda: is_a(mixer, Mixer),
        "can be a field of Design: it has a hash": lambda: hash(mixer),
        "it fits the width": lambda: mixer.check(D),
        "it stands in a layer": lambda: in_layer(mixer),
        "outputs depend on arguments and parameters alone": lambda: _alone(mixer),
        "a position sees none behind it in a decoder": lambda: _causal(mixer),
        "padding is not seen": lambda: _padding(mixer),
        "a text in a packed row is as alone": lambda: _packed(mixer),
        "steps over a cache equal the full pass": lambda: _mixer_steps(mixer),
    }
    return list(run(checks))


def in_layer(mixer: Mixer) -> None:
    """Raises ValueError where a layer cannot hold the mixer's module by its name."""
    if hasattr(LanguageLayer, mixer.name):
        raise ValueError(
            f"a layer has a {mixer.name!r} of its own: give the class another name"
        )
    layer = LanguageLayer(SHAPE, Design(decoder_mixing=mixer), 1)
    x = jax.ShapeDtypeStruct((B, N, D), jnp.float32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    jax.eval_shape(lambda key, x: layer.init(key, x, Mask.causal()), key, x)


def _alone(mixer):
    module, variables, x = _mixer_module(mixer, causal=True)

    def mix(module, x):
        return mixer.mix(module, x, Mask.causal())

    # Not compiled, as a program would be kept; all layers of a mixer are alike.
    def compute(number, shift):
        return module.apply(variables, x + shift, method=mix)

    return by_arguments_alone(compute, layers=(1,))


def _mixer_module(mixer, causal):
    """Returns a mixer's module, its variables, and inputs (B, N, D)."""
    module = mixer.build(SHAPE, Design(), causal)
    x = jnp.asarray(np.random.default_rng(3).normal(size=(B, N, D)), jnp.float32)

    def init(module, x):
        return mixer.mix(module, x, Mask.causal() if causal else Mask())

    variables = jax.jit(functools.partial(module.init, method=init))(
        jax.random.key(1), x
    )
    return module, variables, x


def _mixing(mixer, module, mask):
    """Returns the compiled function (variables, x) -> outputs of all positions."""

    def mix(module, x):
        return mixer.mix(module, x, mask)

    return jax.jit(functools.partial(module.apply, method=mix))


def _causal(mixer):
    module, variables, x = _mixer_module(mixer, causal=True)
    mixed = _mixing(mixer, module, Mask.causal())
    before = mixed(variables, x)
    for i in range(1, N):
        after = mixed(variables, x.at[:, i:].add(1.0))
        close(after[:, :i], before[:, :i], 1e-6, f"outputs before position {i}")


def _padding(mixer):
    module, variables, x = _mixer_module(mixer, causal=False)
    mixed = _mixing(mixer, module, Mask.padding(jnp.full(B, 3)))
    before = mixed(variables, x)
    after = mixed(variables, x.at[:, 3:].add(1.0))
    return close(after[:, :3], before[:, :3], 1e-6)


def _packed(mixer):
    for causal in (False, True):
        module, variables, _ = _mixer_module(mixer, causal)

        def mix(x, mask, module=module, variables=variables):
            return _mixing(mixer, module, mask)(variables, x)

        detail = packed(mix, Mask.causal() if causal else Mask())
    return detail


def _mixer_steps(mixer):
    module, variables, x = _mixer_module(mixer, causal=True)
    whole = _mixing(mixer, module, Mask.causal())(variables, x)

    @jax.jit
    def step(x, t, cache, visible):
        def one(module, *args):
            return mixer.decode_step(module, *args)

        return module.apply(variables, x, t, cache, visible, method=one)

    def empty(module):
        return module.empty_cache((B,), N, x.dtype)

    cache = module.apply(variables, method=empty)
    return close(all_steps(step, x, cache), whole, 1e-4)
