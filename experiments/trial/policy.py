"""TODO."""

import jax
import jax.numpy as jnp

from attn.models.embeddings import output_matrix
from experiments.trial.loss import negative_log_likelihood


def policy_loss(params, hidden, policy, batch, worth):
    """What has the gradient of REINFORCE (Williams 1992): Σ (−log p − b)·log π − worth·H + (−log p − b)²/2, over real
    tokens, where the first factor sends none, for choices of log-probability log π out of entropy H, with −log p of the
    token that came of them and the baseline b that learns to foretell it."""
    if policy is None:
        return 0.0
    tokens, matrix = jax.lax.stop_gradient(
        (hidden.reshape(-1, hidden.shape[-1]), output_matrix(params))
    )
    worse = negative_log_likelihood(
        tokens, matrix, batch.target_out.reshape(-1)
    ).reshape(batch.target_out.shape)
    worse = worse - policy["baseline_value"].astype(jnp.float32)
    each = (
        jax.lax.stop_gradient(worse) * policy["log_prob"]
        - worth * policy["entropy"]
        + worse**2 / 2
    )
    return jnp.where(batch.target_segments > 0, each, 0).sum()
