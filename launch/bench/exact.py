"""Attention and its gradients in float64 numpy, from the formulas alone: what every library is held to.

n queries, M keys, K = d_k, V = d_v, A = an additive score's hidden width. Complex input goes through all of it, and
f(x + i·ε·d).imag / ε is the exact derivative along d (Squire and Trapp 1998): gradients of gradients without finite
differences.
"""

import numpy as np


def head(x: dict[str, np.ndarray], visible: np.ndarray, score: str = "scaled_dot"):
    """(output (n, V), LSE (n,), weights (n, M)) of one head; `visible` is boolean (n, M).

    A query that sees nothing has output 0 and LSE −inf.
    """
    s = _SCORES[score](x)[0] + x.get("bias", 0.0)
    top = np.where(visible, s.real, -np.inf).max(-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    e = np.where(visible, np.exp(np.where(visible, s - top, 0.0)), 0.0)
    total = e.sum(-1, keepdims=True)
    empty = total == 0
    weights = e / np.where(empty, 1.0, total)
    lse = np.where(empty, -np.inf, np.log(np.where(empty, 1.0, total)) + top)[:, 0]
    return weights @ x["v"], lse, weights


def gradient(x: dict[str, np.ndarray], visible: np.ndarray, g: np.ndarray, h: np.ndarray | float = 0.0,
             score: str = "scaled_dot") -> dict[str, np.ndarray]:
    """The gradient of Σ g · output + Σ h · LSE to everything in `x`; g (n, V), h (n,)."""
    out, _, w = head(x, visible, score)
    g_w = g @ x["v"].T
    g_s = w * (g_w - (g * out).sum(-1, keepdims=True) + np.reshape(h, (-1, 1)))
    found = {"v": w.T @ g, **_SCORES[score](x)[1](g_s)}
    return found | ({"bias": g_s} if "bias" in x else {})


def _scaled_dot(x):
    q, k = x["q"], x["k"]
    scale = q.shape[-1] ** -0.5
    return scale * q @ k.T, lambda g: {"q": scale * g @ k, "k": scale * g.T @ q}


def _bilinear(x):
    q, k, w = x["q"], x["k"], x["w"]
    return q @ w @ k.T, lambda g: {"q": g @ k @ w.T, "k": g.T @ q @ w, "w": q.T @ g @ k}


def _additive(x):
    q, k, w_q, w_k, w_v = (x[name] for name in ("q", "k", "w_q", "w_k", "w_v"))
    t = np.tanh((q @ w_q)[:, None] + (k @ w_k)[None])

    def back(g):
        inner = g[..., None] * w_v * (1 - t**2)
        of_q, of_k = inner.sum(1), inner.sum(0)
        return {"q": of_q @ w_q.T, "k": of_k @ w_k.T, "w_q": q.T @ of_q, "w_k": k.T @ of_k,
                "w_v": np.einsum("nm,nma->a", g, t)}

    return t @ w_v, back


_SCORES = {"scaled_dot": _scaled_dot, "bilinear": _bilinear, "additive": _additive}


def attention(x, visible, score="scaled_dot"):
    """`head` over every head of every example: (output (B, N, H, V), LSE (B, N, H)); `visible` (B, H, N, M)."""
    found = [[head(part, visible[b, h], score)[:2] for h, part in enumerate(heads)] for b, heads in enumerate(_each(x))]
    out, lse = ([[pair[i] for pair in heads] for heads in found] for i in (0, 1))
    return np.moveaxis(np.array(out), 1, 2), np.moveaxis(np.array(lse), 1, 2)


def attention_gradient(x, visible, g, h=None, score="scaled_dot"):
    """`gradient` over every head of every example; g (B, N, H, V), h (B, N, H)."""
    h = np.zeros(g.shape[:-1]) if h is None else h
    found = {name: np.zeros(np.shape(array), np.result_type(array, float)) for name, array in x.items()}
    views = _each(found)
    for b, heads in enumerate(_each(x)):
        for i, part in enumerate(heads):
            for name, value in gradient(part, visible[b, i], g[b, :, i], h[b, :, i], score).items():
                views[b][i][name] += value
    return found


def error(found, wanted) -> float:
    """The largest difference, in parts of the largest wanted value where that is not 0; inf for NaN.

    Of two arrays, or of two dicts of arrays, which must have the same names.
    """
    if isinstance(wanted, dict):
        if found.keys() != wanted.keys():
            raise ValueError(f"{', '.join(found)} given, {', '.join(wanted)} wanted")
        return max(error(found[name], value) for name, value in wanted.items())
    worst = np.abs(found - wanted).max() / (np.abs(wanted).max() or 1.0)
    return float(worst) if np.isfinite(worst) else float("inf")


def _each(x):
    """Views of every head of every example: a list (B) of lists (H) of dicts."""
    b, _, h, _ = x["q"].shape
    return [[{name: _part(name, array, i, j) for name, array in x.items()} for j in range(h)] for i in range(b)]


def _part(name, array, example, head):
    if name in ("q", "k", "v"):
        return array[example, :, head]
    return array[example, head] if name == "bias" else array[head]
