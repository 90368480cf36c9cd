"""Attention and the Transformer's parts in float64 numpy, written from the formulas and from nothing of attn."""

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


def layer_norm(x, scale, bias):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-6) * scale + bias


def multi_head(p, x, memory, visible):
    heads = [attention(x @ p["w_q"][:, i], memory @ p["w_k"][:, i], memory @ p["w_v"][:, i], visible)[0]
             for i in range(p["w_q"].shape[1])]
    w_o = p["w_o"].reshape(-1, p["w_o"].shape[-1])
    return np.concatenate(heads, -1) @ w_o


def feed_forward(p, x):
    return np.maximum(x @ p["w_1"]["kernel"] + p["w_1"]["bias"], 0) @ p["w_2"]["kernel"] + p["w_2"]["bias"]


def norm(p, x):
    return layer_norm(x, p["norm"]["scale"], p["norm"]["bias"])


def transformer(p, layers, source, target, tables):
    """Logits (M, Y) of one pair without padding: the paper's section 3, line by line."""
    d_model = p["embedding"].shape[1]
    n, m = len(source), len(target)
    x = p["embedding"][source] * np.sqrt(d_model) + tables["source_positions"]["table"][:n]
    for i in range(layers):
        layer = p[f"encoder_{i}"]
        x = norm(layer["self_norm"], x + multi_head(layer["self_attention"], x, x, np.ones((n, n))))
        x = norm(layer["feed_forward_norm"], x + feed_forward(layer["feed_forward"], x))
    y = p["embedding"][target] * np.sqrt(d_model) + tables["target_positions"]["table"][:m]
    for i in range(layers):
        layer = p[f"decoder_{i}"]
        y = norm(layer["self_norm"], y + multi_head(layer["self_attention"], y, y, np.tri(m)))
        y = norm(layer["cross_norm"], y + multi_head(layer["cross_attention"], y, x, np.ones((m, n))))
        y = norm(layer["feed_forward_norm"], y + feed_forward(layer["feed_forward"], y))
    return y @ p["embedding"].T
