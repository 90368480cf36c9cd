"""Recurrent cells and the encoder-decoder made of them in float64 numpy, for one pair
of sentences, piece by piece.

Written from the papers' formulas; `p` has the parameters by Linen's and attn's names.
"""

import numpy as np

from tests.attn import oracle


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def dense(p, x):
    return x @ p["kernel"] + p.get("bias", 0)


def gru(p, state, x):
    """Cho et al. 2014, the reset gate behind the matrix."""
    (h,) = state
    r, z = (sigmoid(dense(p[f"i{gate}"], x) + dense(p[f"h{gate}"], h)) for gate in "rz")
    n = np.tanh(dense(p["in"], x) + r * dense(p["hn"], h))
    return ((1 - z) * n + z * h,)


def lstm(p, state, x):
    """Hochreiter and Schmidhuber 1997, with forget gates: (h, c)."""
    h, c = state
    i, f, g, o = (dense(p[f"i{gate}"], x) + dense(p[f"h{gate}"], h) for gate in "ifgo")
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def elman(p, state, x):
    (h,) = state
    return (np.tanh(dense(p["i"], x) + dense(p["h"], h)),)


CELLS = {"gru": (gru, 1), "lstm": (lstm, 2), "tanh": (elman, 1)}


def run(p, cell, xs, start=None, backwards=False):
    """All states, (N, F)."""
    one, arrays = CELLS[cell]
    features = next(
        v["kernel"].shape[1] for k, v in p["rnn"].items() if k.startswith("h")
    )
    state = (np.zeros(features) if start is None else start,) * arrays
    states = []
    for x in xs[::-1] if backwards else xs:
        state = one(p["rnn"], state, x)
        states.append(state[0])
    return np.array(states[::-1] if backwards else states)


def both_ways(p, cell, xs):
    return np.concatenate(
        [run(p["forward"], cell, xs), run(p["backward"], cell, xs, backwards=True)], -1
    )


def encoder_decoder(p, source, target, *, cell, score):
    """Logits (M, Y); `score(u, h)` of two vectors, or None for no attention."""
    scale = p["embedding"].shape[1] ** 0.5
    h = p.get("source_embedding", p["embedding"])[source] * scale
    layers = sum("encoder" in name for name in p)
    for i in range(layers):
        h = both_ways(p[f"encoder_{i}"], cell, h)
    half = h.shape[1] // 2
    summary = np.concatenate([h[-1, :half], h[0, half:]])
    u = p["embedding"][target] * scale
    for i in range(layers):
        u = run(
            p[f"decoder_{i}"]["forward"],
            cell,
            u,
            np.tanh(dense(p[f"start_{i}"], summary)),
        )
    everything = np.ones((len(target), len(source)), bool)
    context = (
        np.tile(summary, (len(target), 1))
        if score is None
        else oracle.attention(u, h, h, everything, score)[0]
    )
    z = np.tanh(dense(p["combine"], np.concatenate([context, u], -1)))
    return z @ p.get("output", p["embedding"]).T + p["output_bias"]
