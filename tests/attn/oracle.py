"""Attention in float64 numpy, written from the formulas and from nothing of attn."""

import numpy as np


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def scaled_dot(q, k):
    return q.shape[-1] ** -0.5 * q @ k


def attention(q, k, v, visible, score=scaled_dot):
    """One head, one example, query by query: loops, so that no masking trick can hide a mistake."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros((len(q), v.shape[-1]))
    weights = np.zeros((len(q), len(k)))
    lse = np.full(len(q), -np.inf)
    for i in range(len(q)):
        seen = [j for j in range(len(k)) if visible[i, j]]
        if seen:
            s = np.array([score(q[i], k[j]) for j in seen])
            weights[i, seen] = softmax(s)
            out[i] = sum(weights[i, j] * v[j] for j in seen)
            lse[i] = np.log(np.exp(s - s.max()).sum()) + s.max()
    return out, lse, weights


def weights(q, k, visible, score):
    """Returns the weights (B, H, N, M) of q (B, N, H, K) and k (B, M, H, K).

    `score(h)` is the score of head h.
    """
    batch, _, heads, _ = q.shape
    out = np.zeros(visible.shape)
    for b, h in np.ndindex(batch, heads):
        queries = q[b, :, h]
        keys = k[b, :, h]
        out[b, h] = attention(queries, keys, keys, visible[b, h], score(h))[2]
    return out
