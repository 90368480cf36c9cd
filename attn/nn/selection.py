"""Taking values by their weights: all of them, the best, or a random one.

B batch (any leading axes), N queries, M keys, D = d_model, H = h, K = d_k, V = d_v.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn import inspect
from attn.arguments import is_never
from attn.attention import attention
from attn.context import Context
from attn.hard import argmax_attention, sampled_attention

SELECTIONS = ("soft", "argmax", "sampled")
"""The ways to take values by their weights."""


def check_nothing_to_drop(selection: str, rate: Any) -> None:
    """Raises ValueError for a P_attention where attention takes whole values."""
    if selection != "soft" and not is_never("P_attention", rate):
        raise ValueError(
            f"selection={selection} takes whole values, so there are no weights to drop: "
            f"P_attention={rate} must be 0"
        )


class Baseline(nn.Module):
    """Predicts the reward that REINFORCE compares with: b(x) = x w + c, both 0 at first."""

    @nn.compact
    def __call__(self, x: Float[Array, "B N D"]) -> Float[Array, "B N"]:
        w = self.param("w", nn.initializers.zeros, (x.shape[-1],))
        return x @ w + self.param("c", nn.initializers.zeros, ())


def select(
    module: nn.Module,
    x: Float[Array, "B N D"],
    q: Float[Array, "B N H K"],
    k: Float[Array, "B M J L"],
    v: Float[Array, "B M J V"],
    arguments: dict[str, Any],
    dropout: dict[str, Any],
    attend: Callable,
    ctx: Context,
) -> Float[Array, "B N H V"]:
    """Computes attention by the `selection` of `module`, with `attend` where it is soft.

    Score, normaliser, mask and bias are in `arguments`; the queries were projected from
    `x`. With the collection "weights" mutable it sows `weights` (B, H, N, M), with "max_score"
    too each query's highest score (B, H, N) where that is known. Sampled attention, with keys
    "sample" in the context and the collection "policy" mutable, sows for REINFORCE, for each
    query (B, N): `log_prob` of its selections, summed over heads, the `entropy` of their
    distributions, and `baseline_value`, which sends x no gradient.
    """
    # At init every collection is mutable, and weights would become variables.
    watched = module.is_mutable_collection("weights") and not module.is_initializing()
    # By default sow gathers a tuple of all calls; only the last one is wanted.
    last: Any = dict(reduce_fn=lambda _, new: new, init_fn=lambda: None)
    sow = functools.partial(module.sow, **last)
    # Hard attention is watched by the soft weights from which it selects.
    if watched or module.selection == "soft":
        out = attend(q, k, v, return_weights=watched, **arguments, **dropout)
        if watched:
            out, weights = out
            sow("weights", "weights", weights)
            # What acts in attention's place has scores of its own.
            if getattr(attend, "func", attend) is attention:
                sow("max_score", "max_score", _max_score(q, k, **arguments))
    # Also without an rng, because init must make the baseline's parameters.
    if module.selection == "sampled":
        baseline_value = module.baseline(jax.lax.stop_gradient(x))
    key = ctx.key(module, "sample")
    if module.selection == "sampled" and key is not None:
        out, _, log_prob = sampled_attention(q, k, v, key=key, **arguments)
        sow("policy", "log_prob", log_prob.sum(-1))
        sow("policy", "entropy", inspect.entropy(q, k, **arguments).sum(-1))
        sow("policy", "baseline_value", baseline_value)
    elif module.selection != "soft":
        # What is sampled in training is trained by REINFORCE, not through the best key.
        straight_through = module.selection == "argmax"
        out, _ = argmax_attention(
            q, k, v, straight_through=straight_through, **arguments
        )
    return out


def _max_score(
    q: Array, k: Array, normaliser: Any, **arguments: Any
) -> Float[Array, "B H N"]:
    """Returns the highest score of each query, for the arguments of attention."""
    return jnp.moveaxis(inspect.max_score(q, k, **arguments), -1, -2)
