"""α-entmax of the scores of some queries: softmax's relative that can be exactly 0.

With a = α − 1 the weights are w = u^(1/a), u = [a (s − max s) − t]₊, and t, from −1 to 0,
is the number for which they sum to 1. Towards a = 0 that is softmax.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from attn.functions import SAVED

STEPS = 50
"""The most steps of Newton's method; 3 to 8 are usual."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Known:
    """A number that no transformation makes a tracer of: its powers can be products."""

    number: float


def entmax(s: Float[Array, "n m"], a) -> Float[Array, "n m"]:
    """Computes the weights of scores, 0 where they are −inf; a = α − 1, above 0 and up to 1.

    Derivatives go by the implicit function: they keep t, and do not solve for it again.
    """
    a = _Known(a) if isinstance(a, float) else a
    return _weights(s, a, _threshold(s, a))


def _number(a):
    return a.number if isinstance(a, _Known) else a


def _weights(s, a, t):
    a = _number(a)
    return _power(_base(s, a, t), 1 / a)


def _base(s, a, t):
    """Returns u."""
    hidden = s == -jnp.inf
    top = s.max(-1, keepdims=True, initial=-jnp.inf)
    # The maximum cancels in u, as t takes it up: it has no gradient.
    top = jax.lax.stop_gradient(jnp.where(top == -jnp.inf, 0.0, top))
    # 0 in place of −inf, whose product with a change of a would be NaN.
    below = jnp.where(hidden, 0.0, s - top)
    return jnp.where(hidden, 0.0, jax.nn.relu(a * below - t))


def _power(u, exponent):
    """Returns u^exponent, 0 with derivative 0 where u is 0."""
    if isinstance(exponent, float) and exponent == int(exponent) > 0:
        # Products, many times faster than a power.
        return u ** int(exponent)
    # 1 in place of 0, where the derivative may be infinite. The compiler has no vectors for
    # powers on a CPU, and takes many times as long as for exp and log.
    log_u = jnp.log(jnp.where(u == 0, 1.0, u))
    return jnp.where(u == 0, 0.0, jnp.exp(exponent * log_u))


@jax.custom_jvp
def _threshold(s, a):
    """Solves Σ w = 1 for t (n, 1), from the left.

    (Σ w)^a is convex in t, as it is a norm, and 1 at least at t = −1: so Newton's steps go
    up and never too far.
    """
    a = _number(a)
    start = jnp.full((*s.shape[:-1], 1), -1, s.dtype)
    # A row that sees NaN has a threshold of NaN.
    start = start + 0 * jnp.where(s == -jnp.inf, 0, s).sum(-1, keepdims=True)

    def go_on(state):
        step, _, moves = state
        return (step < STEPS) & moves

    def newton(state):
        step, t, _ = state
        u = _base(s, a, t)
        w = _power(u, 1 / a)
        total = w.sum(-1, keepdims=True)
        slope = (w / jnp.where(u == 0, 1.0, u)).sum(-1, keepdims=True)
        # total^−a by expm1 and log: near 1 the difference keeps its digits.
        up = -total * jnp.expm1(-a * jnp.log(total)) / slope
        # A row that sees nothing has 0/0, and stays where it is.
        new = jnp.where(slope > 0, t + up, t)
        # Rounding ends what exact steps would go on with.
        return step + 1, jnp.maximum(new, t), (new > t).any()

    _, t, _ = jax.lax.while_loop(go_on, newton, (0, start, True))
    return t


@_threshold.defjvp
def _threshold_jvp(primals, tangents):
    s, a = primals
    t = checkpoint_name(_threshold(s, a), SAVED)
    # Σ w(s, a, t) = 1: what s and a add, t takes away.
    at_t = functools.partial(_weights, t=t)
    _, change = jax.jvp(at_t, primals, tangents)
    a = _number(a)
    slope = _power(_base(s, a, t), 1 / a - 1).sum(-1, keepdims=True)
    d_t = a * change.sum(-1, keepdims=True) / jnp.where(slope == 0, 1.0, slope)
    return t, d_t
