"""Computes attention and its gradients in float64 numpy, from the formulas alone.

Every library is held to these values. n queries, M keys, K = d_k, V = d_v, A = the
hidden width of an additive score.

Complex input goes through all of it, and f(x + i·ε·d).imag / ε is the exact derivative
along d (Squire and Trapp 1998): gradients of gradients without finite differences.
"""

from collections.abc import Iterator

import numpy as np

from launch.bench.attention.normalisers import NORMALISERS


def head(
    x: dict[str, np.ndarray],
    visible: np.ndarray,
    score: str = "scaled_dot",
    normaliser: str = "softmax",
):
    """Returns (output (n, V), LSE (n,) or None, weights (n, M)) of one head.

    `visible` is boolean (n, M). A query that sees nothing has output 0, and with softmax
    LSE −inf.
    """
    weights, _, lse = _weigh(x, visible, score, normaliser)
    return weights @ x["v"], None if lse is None else lse[:, 0], weights


def gradient(
    x: dict[str, np.ndarray],
    visible: np.ndarray,
    g: np.ndarray,
    h: np.ndarray | float = 0.0,
    score: str = "scaled_dot",
    normaliser: str = "softmax",
) -> dict[str, np.ndarray]:
    """Returns the gradient of Σ g · output + Σ h · LSE to everything in `x`.

    g (n, V) and h (n,) are constants.
    """
    weights, back, _ = _weigh(x, visible, score, normaliser)
    g_s = back(g @ x["v"].T, np.reshape(h, (-1, 1)))
    gradients = {"v": weights.T @ g, **SCORES[score](x)[1](g_s)}
    if "bias" in x:
        gradients["bias"] = g_s
    return gradients


def _weigh(x, visible, score, normaliser):
    s = SCORES[score](x)[0] + x.get("bias", 0.0)
    return NORMALISERS[normaliser](np.where(visible, s, -np.inf))


def _scaled_dot(x):
    q = x["q"]
    k = x["k"]
    scale = q.shape[-1] ** -0.5

    def back(g):
        return {"q": scale * g @ k, "k": scale * g.T @ q}

    return scale * q @ k.T, back


def _bilinear(x):
    q = x["q"]
    k = x["k"]
    w = x["w"]

    def back(g):
        return {"q": g @ k @ w.T, "k": g.T @ q @ w, "w": q.T @ g @ k}

    return q @ w @ k.T, back


def _additive(x):
    q, k, w_q, w_k, w_v = (x[name] for name in ("q", "k", "w_q", "w_k", "w_v"))
    t = np.tanh((q @ w_q)[:, None] + (k @ w_k)[None])

    def back(g):
        inner = g[..., None] * w_v * (1 - t**2)
        g_q = inner.sum(1)
        g_k = inner.sum(0)
        return {
            "q": g_q @ w_q.T,
            "k": g_k @ w_k.T,
            "w_q": q.T @ g_q,
            "w_k": k.T @ g_k,
            "w_v": np.einsum("nm,nma->a", g, t),
        }

    return t @ w_v, back


# Each returns the scores (n, M), and a function from their gradient to those of x.
SCORES = {"scaled_dot": _scaled_dot, "bilinear": _bilinear, "additive": _additive}


def attention(x, visible, score="scaled_dot", normaliser="softmax"):
    """Returns (output (B, N, H, V), LSE (B, N, H)): `head` over all heads and examples.

    `visible` is (B, H, N, M). The LSE is NaN where the normaliser has none.
    """
    b, n, h, _ = x["q"].shape
    # Complex where any input is, as in a derivative along d.
    kind = np.result_type(*x.values(), float)
    out = np.zeros((b, n, h, x["v"].shape[-1]), kind)
    lse = np.zeros((b, n, h), kind)
    for example, i, views in _heads(x):
        result = head(views, visible[example, i], score, normaliser)
        out[example, :, i] = result[0]
        lse[example, :, i] = np.nan if result[1] is None else result[1]
    return out, lse


def attention_gradient(x, visible, g, h=None, score="scaled_dot", normaliser="softmax"):
    """Returns `gradient` over all heads and examples; g (B, N, H, V), h (B, N, H)."""
    if h is None:
        h = np.zeros(g.shape[:-1])
    total = {
        name: np.zeros(np.shape(array), np.result_type(array, float))
        for name, array in x.items()
    }
    for (example, i, views), (_, _, sums) in zip(_heads(x), _heads(total), strict=True):
        g_head = g[example, :, i]
        h_head = h[example, :, i]
        seen = visible[example, i]
        parts = gradient(views, seen, g_head, h_head, score, normaliser)
        for name, value in parts.items():
            sums[name] += value
    return total


def error(actual, expected) -> float:
    """Returns the largest difference, in parts of the largest expected value.

    Where all expected values are 0, it is the difference itself; it is inf for NaN.
    Takes two arrays, or two dictionaries of arrays with the same names; raises
    ValueError where the names differ.
    """
    if isinstance(expected, dict):
        if actual.keys() != expected.keys():
            names = f"{', '.join(actual)} given, {', '.join(expected)} expected"
            raise ValueError(names)
        return max(error(actual[name], value) for name, value in expected.items())
    largest = np.abs(expected).max() or 1.0
    # NaN goes through max, and is caught in the next line.
    worst = np.abs(actual - expected).max() / largest
    return float(worst) if np.isfinite(worst) else float("inf")


def _heads(x) -> Iterator[tuple[int, int, dict[str, np.ndarray]]]:
    """Yields (example, head, views of its arrays) for every head of every example."""
    b, _, h, _ = x["q"].shape
    for example in range(b):
        for i in range(h):
            parts = {name: _part(name, array, example, i) for name, array in x.items()}
            yield example, i, parts


def _part(name, array, example, i):
    if name in ("q", "k", "v"):
        return array[example, :, i]
    return array[example, i] if name == "bias" else array[i]
