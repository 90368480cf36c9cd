"""The loss of training: the label-smoothed cross-entropy of a tied vocabulary head.

T target tokens, D = d_model, Y vocabulary.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn import platforms


@jax.custom_vjp
def cross_entropy(
    hidden: Float[Array, "T D"],
    embedding: Float[Array, "Y D"],
    labels: Int[Array, "T"],
    weights: Float[Array, "T"],
    eps_ls: Float[Array, ""],
):
    """Computes Σ_t weights_t · H(q_t, p_t) in nats, with

        p = softmax(hidden · embeddingᵀ),  q = (1 − ε)·onehot(label) + ε/Y

    (Szegedy et al. 2016, section 7; the paper's section 5.4).

    Returns that sum and the same with ε = 0, whose exponential per token is the perplexity;
    the second has no gradient. Walks the tokens in chunks and computes the gradients on the
    way, so that T·Y logits never exist at once, nor are computed twice. First-order reverse
    mode only. hidden and embedding may be bfloat16; all sums are float32 even so.
    """
    return _walk(hidden, embedding, labels, weights, eps_ls, with_gradients=False)[0]


def _forward(hidden, embedding, labels, weights, eps_ls):
    return _walk(hidden, embedding, labels, weights, eps_ls, with_gradients=True)


def _backward(gradients, cotangents):
    smoothed, _ = cotangents
    d_hidden, d_embedding = (smoothed.astype(g.dtype) * g for g in gradients)
    return d_hidden, d_embedding, None, None, None


cross_entropy.defvjp(_forward, _backward)


def negative_log_likelihood(
    hidden: Float[Array, "T D"], embedding: Float[Array, "Y D"], labels: Int[Array, "T"]
) -> Float[Array, "T"]:
    """Computes −log softmax(hidden · embeddingᵀ)[label] of each token, in nats and float32.

    Walks the tokens in chunks as `cross_entropy` does.
    """
    tokens = len(hidden)
    chunks = _chunks(tokens, embedding.shape[0])
    nll = jax.lax.map(
        lambda chunk: _softmax(chunk[0], embedding, chunk[1])[-1],
        (_cut(hidden, chunks), _cut(labels, chunks)),
    )
    return nll.reshape(-1)[:tokens]


def _chunks(tokens, vocabulary):
    # No chunk is smaller than a token, however large the vocabulary is.
    return min(tokens, -(-tokens * vocabulary // platforms.logits_at_once()))


def _cut(x, chunks):
    """Splits tokens into chunks of one size, the last filled up with zeros."""
    # What fills the last chunk up has weight 0, or the caller cuts it off again.
    spare = -len(x) % chunks
    padded = jnp.pad(x, [(0, spare)] + [(0, 0)] * (x.ndim - 1))
    return padded.reshape(chunks, -1, *x.shape[1:])


def _softmax(h, embedding, label):
    """Returns the largest logit, exponentials of the difference, their sum, −log p(label)."""
    logits = jnp.einsum("td,yd->ty", h, embedding, preferred_element_type=jnp.float32)
    top = logits.max(-1, keepdims=True)
    e = jnp.exp(logits - top)
    total = e.sum(-1, keepdims=True)
    right = jnp.take_along_axis(logits, label[:, None], axis=-1)
    # log Σe^(z − top) − (z_label − top), both small, not a difference of large numbers.
    return top, e, total, (jnp.log(total) - (right - top))[:, 0]


def _walk(hidden, embedding, labels, weights, eps_ls, with_gradients):
    """Returns the two sums of `cross_entropy`, and the gradients of the first or None."""
    tokens, width = hidden.shape
    vocabulary = embedding.shape[0]
    chunks = _chunks(tokens, vocabulary)
    mean = embedding.astype(jnp.float32).mean(0)

    def add(carry, chunk):
        losses, d_embedding = carry
        h, label, weight = chunk
        top, e, total, nll = _softmax(h, embedding, label)
        # A product with the mean embedding, where the mean of logits would be one more pass.
        mean_logit = jnp.matmul(h.astype(jnp.float32), mean, precision="highest")[
            :, None
        ]
        uniform = (jnp.log(total) - (mean_logit - top))[:, 0]
        smoothed = (1 - eps_ls) * nll + eps_ls * uniform
        sums = ((weight * smoothed).sum(), (weight * nll).sum())
        losses = (losses[0] + sums[0], losses[1] + sums[1])
        if not with_gradients:
            return (losses, d_embedding), None
        onehot = jnp.arange(vocabulary)[None] == label[:, None]
        d_logits = e / total - eps_ls / vocabulary - jnp.where(onehot, 1 - eps_ls, 0)
        # In float32 both products would be so too where training is in bfloat16.
        d_logits = (weight[:, None] * d_logits).astype(h.dtype)
        own = jnp.einsum("ty,td->yd", d_logits, h, preferred_element_type=jnp.float32)
        return (losses, d_embedding + own), d_logits @ embedding

    zero = (jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))
    d_zero = jnp.zeros(embedding.shape, jnp.float32) if with_gradients else None
    parts = tuple(_cut(x, chunks) for x in (hidden, labels, weights))
    (losses, d_embedding), d_hidden = jax.lax.scan(add, (zero, d_zero), parts)
    if not with_gradients:
        return losses, None
    d_hidden = d_hidden.reshape(-1, width)[:tokens]
    return losses, (d_hidden, d_embedding.astype(embedding.dtype))
