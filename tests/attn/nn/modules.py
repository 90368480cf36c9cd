"""What tests of modules share: random variables, compiled calls, contexts and steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from attn import Context, Decoding, Mask

CAUSAL = Context(Mask.causal())


def random_variables(model, *args, size=0.4, seed=2, dtype=None):
    """Returns the variables of `model.init`, all random, biases too, and norms around 1."""
    shapes = jax.eval_shape(lambda key: model.init(key, *args), jax.random.key(0))
    draw = np.random.default_rng(seed).normal

    def drawn(path, x):
        around = float("scale" in str(path))
        return jnp.asarray(around + size * draw(size=x.shape), dtype or x.dtype)

    return jax.tree.map_with_path(drawn, shapes)


@functools.partial(jax.jit, static_argnames=("model", "method", "mutable"))
def apply(model, variables, *args, **options):
    """Returns what `model.apply` does, compiled."""
    return model.apply(variables, *args, **options)


def count(variables):
    """Returns the number of parameters."""
    return sum(x.size for x in jax.tree.leaves(variables.get("params", {})))


def assert_slopes(total, params, gradients, step, rtol, atol):
    """Compares gradients with differences of `total(params)`, each in a random direction."""
    draw = np.random.default_rng(7).normal
    leaves, tree = jax.tree.flatten(params)
    for i, own in enumerate(jax.tree.leaves(gradients)):
        way = draw(size=own.shape)
        ends = []
        for size in (step, -step):
            moved = [*leaves[:i], leaves[i] + size * way, *leaves[i + 1 :]]
            ends.append(total(tree.unflatten(moved)))
        slope = (ends[0] - ends[1]) / (2 * step)
        along = (np.asarray(own) * way).sum()
        np.testing.assert_allclose(along, slope, rtol=rtol, atol=atol)


def steps(model, variables, x, cache, mask=None, method=None):
    """Returns the outputs (B, K, N, …) of N steps of K hypotheses x (B, K, N, …).

    Each sees its own entries alone, up to its step's. The cache is filled with rubbish,
    because entries that are not yet written must not count.
    """
    cache = jax.tree.map(lambda room: np.full(room.shape, 1e6, room.dtype), cache)
    b, k, n = x.shape[:3]
    entry = np.arange(k * n)
    own = entry % k == np.arange(k)[:, None]
    outputs = []
    for t in range(n):
        visible = np.broadcast_to(own & (entry // k <= t), (b, k, k * n))
        ctx = Context(decoding=Decoding(np.int32(t), visible), cache=cache)
        y, ctx = apply(model, variables, x[:, :, t], ctx, method=method)
        cache = ctx.cache
        outputs.append(y)
    return np.stack(outputs, 2)


def sentences(source, target, lengths=None):
    """Returns what a Transformer takes of whole sentences beside its variables."""
    seen = Mask() if lengths is None else Mask.padding(lengths)
    of_target = Context(Mask.causal(), memory_mask=seen)
    return jnp.asarray(source), jnp.asarray(target), Context(seen), of_target
