"""Attention in float64 numpy, written from the formulas and from nothing of attn."""

import numpy as np


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def scaled_dot(q, k):
    return q.shape[-1] ** -0.5 * q @ k


def attention(q, k, v, visible, score=scaled_dot, bias=None):
    """One head, one example, query by query: loops, so that no masking trick can hide a mistake."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros((len(q), v.shape[-1]))
    weights = np.zeros((len(q), len(k)))
    lse = np.full(len(q), -np.inf)
    for i in range(len(q)):
        seen = [j for j in range(len(k)) if visible[i, j]]
        if seen:
            s = np.array([score(q[i], k[j]) for j in seen])
            s = s if bias is None else s + bias[i, seen]
            weights[i, seen] = softmax(s)
            out[i] = sum(weights[i, j] * v[j] for j in seen)
            lse[i] = np.log(np.exp(s - s.max()).sum()) + s.max()
    return out, lse, weights


def each_head(q, k, v, visible, score=lambda h: scaled_dot, bias=None):
    """Returns the outputs (B, N, H, V), LSEs (B, N, H) and weights (B, H, N, M) of all heads.

    q (B, N, H, K), k (B, M, H, K), v (B, M, H, V), visible and bias (B, H, N, M);
    `score(h)` is the score of head h.
    """
    q, k, v = (np.moveaxis(np.asarray(x, np.float64), 2, 1) for x in (q, k, v))
    weights = np.zeros(visible.shape)
    out = np.zeros((*visible.shape[:3], v.shape[-1]))
    lse = np.zeros(visible.shape[:3])
    for at in np.ndindex(visible.shape[:2]):
        own = None if bias is None else bias[at]
        results = attention(q[at], k[at], v[at], visible[at], score(at[1]), own)
        out[at], lse[at], weights[at] = results
    return np.moveaxis(out, 1, 2), np.moveaxis(lse, 1, 2), weights


def weights(q, k, visible, score):
    """Returns the weights alone."""
    return each_head(q, k, k, visible, score)[2]
