"""What training minimises: the label-smoothed cross-entropy of a tied vocabulary head.

T target tokens, D = d_model, Y vocabulary.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Logits held at once, in elements: 16 MiB of float32 stays near the caches.
_LOGITS = 2**22


@jax.custom_vjp
def cross_entropy(
    hidden: Float[Array, "T D"],
    embedding: Float[Array, "Y D"],
    labels: Int[Array, "T"],
    weights: Float[Array, "T"],
    eps_ls: Float[Array, ""],
):
    """Σ_t weights_t · H(q_t, p_t), with p = softmax(hidden · embeddingᵀ) and q = (1 − ε)·onehot(label) + ε/Y
    (Szegedy et al. 2016, section 7; the paper's section 5.4), in nats.

    Returns that sum and the same with ε = 0, whose exponential per token is the perplexity; the second has no
    gradient. Walks the tokens in chunks and makes the gradients on the way, so T·Y is never held whole, nor computed
    twice. First-order reverse mode only. hidden and embedding may be bfloat16; all sums are float32 even so.
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
    """−log softmax(hidden · embeddingᵀ)[label] of each token, in nats and float32, in chunks as `cross_entropy`."""
    tokens = len(hidden)
    chunks = _chunks(tokens, embedding.shape[0])
    found = jax.lax.map(
        lambda chunk: _softmax(chunk[0], embedding, chunk[1])[-1],
        (_cut(hidden, chunks), _cut(labels, chunks)),
    )
    return found.reshape(-1)[:tokens]


def _chunks(tokens, vocabulary):
    return min(tokens, -(-tokens * vocabulary // _LOGITS))


def _cut(x, chunks):
    spare = -len(x) % chunks
    return jnp.pad(x, [(0, spare)] + [(0, 0)] * (x.ndim - 1)).reshape(
        chunks, -1, *x.shape[1:]
    )


def _softmax(h, embedding, label):
    """The logits, their largest, the exponentials of the difference, the sum of those, −log p(label)."""
    logits = jnp.einsum("td,yd->ty", h, embedding, preferred_element_type=jnp.float32)
    top = logits.max(-1, keepdims=True)
    e = jnp.exp(logits - top)
    total = e.sum(-1, keepdims=True)
    right = jnp.take_along_axis(logits, label[:, None], axis=-1)
    # log Σe^(z − top) − (z_label − top), both small, in place of the difference of two large numbers.
    return logits, top, e, total, (jnp.log(total) - (right - top))[:, 0]


def _walk(hidden, embedding, labels, weights, eps_ls, with_gradients):
    (tokens, width), vocabulary = hidden.shape, embedding.shape[0]
    chunks = _chunks(tokens, vocabulary)

    def one(carry, chunk):
        losses, d_embedding = carry
        h, label, weight = chunk
        logits, top, e, total, nll = _softmax(h, embedding, label)
        uniform = (jnp.log(total) - (logits.mean(-1, keepdims=True) - top))[:, 0]
        smoothed = (1 - eps_ls) * nll + eps_ls * uniform
        losses = (
            losses[0] + (weight * smoothed).sum(),
            losses[1] + (weight * nll).sum(),
        )
        if not with_gradients:
            return (losses, d_embedding), None
        onehot = jnp.arange(vocabulary)[None] == label[:, None]
        d_logits = weight[:, None] * (
            e / total - eps_ls / vocabulary - jnp.where(onehot, 1 - eps_ls, 0)
        )
        d_logits = d_logits.astype(h.dtype)
        own = jnp.einsum("ty,td->yd", d_logits, h, preferred_element_type=jnp.float32)
        return (losses, d_embedding + own), d_logits @ embedding

    zero = (jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))
    start = (zero, jnp.zeros(embedding.shape, jnp.float32) if with_gradients else None)
    parts = tuple(_cut(x, chunks) for x in (hidden, labels, weights))
    (losses, d_embedding), d_hidden = jax.lax.scan(one, start, parts)
    if not with_gradients:
        return losses, None
    return losses, (
        d_hidden.reshape(-1, width)[:tokens],
        d_embedding.astype(embedding.dtype),
    )
