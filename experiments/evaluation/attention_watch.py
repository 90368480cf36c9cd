"""What attention does while a model trains: is it even, does it rest on the first token, do
its scores grow?

B sentences, H heads, N queries, M keys.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from experiments.evaluation.attention_maps import attentions
from experiments.trial.program import Program, State


def watch_attention(
    program: Program, state: State, source, target, lengths
) -> dict[str, Float[Array, ""]]:
    """Computes statistics of each attention over some sentences, by "KIND/layer_NUMBER/WHAT":

    - entropy, −Σ_j p_ij ln p_ij in nats, p_ij = w_ij / Σ_j w_ij, a mean over queries and heads;
    - first_token, w_i0 / max(1, Σ_j w_ij), what a sink takes, a mean;
    - max_score, the highest score of a query and a key that it sees, over queries and heads;
      it grows without bound where training fails (Dehghani et al. 2023, "Scaling vision
      transformers to 22 billion parameters"), and QK-clip is ruled by it. Attention whose
      variant has scores of its own has none.

    `source` and `target` are rows of ids, `lengths` two of (B,), theirs: what is behind them
    does not count.
    """
    of_sources, of_targets = lengths
    found = {}
    for kind, layers in attentions(program, state, source, target, of_sources).items():
        queries = of_sources if kind == "encoder" else of_targets
        for layer, kept in layers.items():
            for name, value in _statistics(kept, queries).items():
                found[f"{kind}/layer_{layer + 1}/{name}"] = value
    return found


def _statistics(kept, lengths: Int[Array, " B"]) -> dict[str, Array]:
    w = kept["weights"].astype(jnp.float32)
    _, h, n, _ = w.shape
    is_real = (jnp.arange(n)[None] < lengths[:, None])[:, None]
    total = w.sum(-1, keepdims=True)
    shares = w / jnp.where(total == 0, 1, total)
    # 0 · ln 0 is 0.
    entropy = -(shares * jnp.log(jnp.where(shares > 0, shares, 1))).sum(-1)
    first = w[..., 0] / jnp.maximum(total[..., 0], 1)
    count = h * lengths.sum()
    statistics = dict(
        entropy=jnp.where(is_real, entropy, 0).sum() / count,
        first_token=jnp.where(is_real, first, 0).sum() / count,
    )
    if "max_score" in kept:
        highest = jnp.where(is_real, kept["max_score"], -jnp.inf)
        statistics["max_score"] = highest.max().astype(jnp.float32)
    return statistics
