"""The loss of models that sample where attention looks."""

import jax
import jax.numpy as jnp

from attn.nn.layers import output_matrix
from experiments.objectives.loss import negative_log_likelihood


def policy_of(kept):
    """Returns the log-probabilities, entropies and baselines of sampled attention, or None."""
    policies = jax.tree.leaves(
        kept.get("policy", {}), is_leaf=lambda tree: "log_prob" in tree
    )
    return policies[0] if policies else None


def policy_loss(params, hidden, policy, batch, entropy_bonus):
    """Computes a loss that has the gradient of REINFORCE (Williams 1992), over real tokens:

        Σ (−log p − b)·log π − entropy_bonus·H + (−log p − b)²/2

    with log π the log-probability of the sampled positions and H their entropy, −log p of
    the token that follows from them, and the baseline b, which learns to predict that. The
    first factor sends no gradient. Without a `policy`, of attention that is not sampled, it
    is 0.
    """
    if policy is None:
        return 0.0
    tokens = hidden.reshape(-1, hidden.shape[-1])
    # Else the baseline's square would train the model too, to be easy to predict.
    tokens, matrix = jax.lax.stop_gradient((tokens, output_matrix(params)))
    labels = batch.target_out
    nll = negative_log_likelihood(tokens, matrix, labels.reshape(-1))
    excess = nll.reshape(labels.shape) - policy["baseline_value"].astype(jnp.float32)
    each = (
        jax.lax.stop_gradient(excess) * policy["log_prob"]
        - entropy_bonus * policy["entropy"]
        + excess**2 / 2
    )
    return jnp.where(batch.target_segments > 0, each, 0).sum()
