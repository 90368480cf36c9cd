"""α-entmax of the scores of some queries: softmax's relative that can be exactly 0.

With a = α − 1 the weights are w = [1 + a (s − c)]₊^(1/a), and c is the number for which
they sum to 1: in the limit a → 0 w = e^(s − c), softmax with c its LSE.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from attn.kernels.query_blocks import SAVED

STEPS = 50
"""The most steps of Newton's method; 3 to 8 are usual."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Known:
    """A number that no transformation makes a tracer of: its powers can be products."""

    number: float


def entmax(s: Float[Array, "n m"], a) -> Float[Array, "n m"]:
    """Computes the weights of scores, 0 where they are −inf; a = α − 1, above 0 and up to 1.

    Derivatives go by the implicit function: they keep c, and do not solve for it again.
    """
    a = _Known(a) if isinstance(a, float) else a
    return _weights(s, a, _constant(s, a))


def _number(a):
    return a.number if isinstance(a, _Known) else a


def _weights(s, a, c):
    a = _number(a)
    return _power(_base(s, a, c), 1 / a)


def _base(s, a, c):
    hidden = s == -jnp.inf
    # 0 in place of −inf, whose product with a change of a would be NaN.
    far = jnp.where(hidden, 0.0, s) - c
    return jnp.where(hidden, 0.0, jax.nn.relu(1 + a * far))


def _power(u, exponent):
    """Returns u^exponent, 0 with derivative 0 where u is 0."""
    if isinstance(exponent, float) and exponent == int(exponent) > 0:
        # Products, many times faster than a power.
        return u ** int(exponent)
    # 1 in place of 0, where the derivative may be infinite.
    return jnp.where(u == 0, 0.0, jnp.where(u == 0, 1.0, u) ** exponent)


@jax.custom_jvp
def _constant(s, a):
    """Solves Σ w = 1 for c (n, 1), from the left.

    (Σ w)^a is convex in c, as it is a norm, and at c = max s it is 1 at least: so Newton's
    steps go up and never too far. Towards softmax one step is enough.
    """
    a = _number(a)
    start = s.max(-1, keepdims=True, initial=-jnp.inf)
    start = jnp.where(start == -jnp.inf, 0.0, start)

    def go_on(state):
        step, _, moves = state
        return (step < STEPS) & moves

    def newton(state):
        step, c, _ = state
        u = _base(s, a, c)
        total = _power(u, 1 / a).sum(-1, keepdims=True)
        slope = _power(u, 1 / a - 1).sum(-1, keepdims=True)
        # total^−a by expm1 and log: near 1 the difference keeps its digits.
        up = -total * jnp.expm1(-a * jnp.log(total)) / (a * slope)
        # A row that sees nothing has 0/0, and stays where it is.
        new = jnp.where(slope > 0, c + up, c)
        # Rounding ends what exact steps would go on with.
        return step + 1, jnp.maximum(new, c), (new > c).any()

    _, c, _ = jax.lax.while_loop(go_on, newton, (0, start, True))
    return c


@_constant.defjvp
def _constant_jvp(primals, tangents):
    s, a = primals
    c = checkpoint_name(_constant(s, a), SAVED)
    # Σ w(s, a, c) = 1: what s and a add, c takes away.
    at_c = functools.partial(_weights, c=c)
    _, change = jax.jvp(at_c, primals, tangents)
    a = _number(a)
    slope = _power(_base(s, a, c), 1 / a - 1).sum(-1, keepdims=True)
    d_c = change.sum(-1, keepdims=True) / jnp.where(slope == 0, 1.0, slope)
    return c, d_c
