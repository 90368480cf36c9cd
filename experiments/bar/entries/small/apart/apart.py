from typing import Any

import jax.numpy as jnp

import attn


@attn.score
class Apart:
    """score(q, k) = exp(t) · cos(q, k) + b · log ‖k‖: where a key points and how loud it is, apart; t and b learned for each head."""

    t: Any
    b: Any

    @classmethod
    def init(cls, key, h, d_q, d_k):
        return cls(jnp.full(h, jnp.log(8.0)), jnp.full(h, 0.5))

    def __call__(self, q, k):
        loud = jnp.log(norm(k))[:, 0]
        return jnp.exp(self.t) * (unit(q) @ unit(k).T) + self.b * loud

    def products(self, d_q, d_k):
        return attn.Products(pair=d_k, key=2 * d_k)


def norm(x):
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return jnp.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)


def unit(x):
    return x.astype(jnp.promote_types(x.dtype, jnp.float32)) / norm(x)
