"""What training minimises: the label-smoothed cross-entropy of a tied vocabulary head.

T target pieces, D = d_model, Y vocabulary.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Logits held at once, in elements: 16 MiB of float32 stays near the caches.
_LOGITS = 2**22


@jax.custom_vjp
def cross_entropy(hidden: Float[Array, "T D"], embedding: Float[Array, "Y D"], labels: Int[Array, "T"],
                  weights: Float[Array, "T"], eps_ls: Float[Array, ""]):
    """Σ_t weights_t · H(q_t, p_t), with p = softmax(hidden · embeddingᵀ) and q = (1 − ε)·onehot(label) + ε/Y
    (Szegedy et al. 2016, section 7; the paper's section 5.4), in nats.

    Returns that sum and the same with ε = 0, whose exponential per piece is the perplexity; the second has no
    gradient. Walks the pieces in chunks and makes the gradients on the way, so T·Y is never held whole, nor computed
    twice. First-order reverse mode only.
    """
    return _walk(hidden, embedding, labels, weights, eps_ls, with_gradients=False)[0]


def _forward(hidden, embedding, labels, weights, eps_ls):
    return _walk(hidden, embedding, labels, weights, eps_ls, with_gradients=True)


def _backward(gradients, cotangents):
    smoothed, _ = cotangents
    d_hidden, d_embedding = gradients
    return smoothed * d_hidden, smoothed * d_embedding, None, None, None


cross_entropy.defvjp(_forward, _backward)


def _walk(hidden, embedding, labels, weights, eps_ls, with_gradients):
    (pieces, _), vocabulary = hidden.shape, embedding.shape[0]
    chunks = min(pieces, -(-pieces * vocabulary // _LOGITS))
    spare = -pieces % chunks

    def cut(x):
        return jnp.pad(x, [(0, spare)] + [(0, 0)] * (x.ndim - 1)).reshape(chunks, -1, *x.shape[1:])

    def one(carry, chunk):
        losses, d_embedding = carry
        h, label, weight = chunk
        logits = jnp.einsum("td,yd->ty", h, embedding, preferred_element_type=jnp.float32)
        top = logits.max(-1, keepdims=True)
        e = jnp.exp(logits - top)
        total = e.sum(-1, keepdims=True)
        lse = (top + jnp.log(total))[:, 0]
        right = jnp.take_along_axis(logits, label[:, None], axis=-1)[:, 0]
        nll = lse - right
        smoothed = lse - (1 - eps_ls) * right - eps_ls * logits.mean(-1)
        losses = (losses[0] + (weight * smoothed).sum(), losses[1] + (weight * nll).sum())
        if not with_gradients:
            return (losses, d_embedding), None
        onehot = jnp.arange(vocabulary)[None] == label[:, None]
        d_logits = weight[:, None] * (e / total - eps_ls / vocabulary - jnp.where(onehot, 1 - eps_ls, 0))
        d_logits = d_logits.astype(h.dtype)
        return (losses, d_embedding + jnp.einsum("ty,td->yd", d_logits, h)), d_logits @ embedding

    zero = (jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))
    start = (zero, jnp.zeros_like(embedding) if with_gradients else None)
    (losses, d_embedding), d_hidden = jax.lax.scan(one, start, (cut(hidden), cut(labels), cut(weights)))
    if not with_gradients:
        return losses, None
    return losses, (d_hidden.reshape(-1, hidden.shape[1])[:pieces], d_embedding)
