"""Linear attention and its relatives in float64 numpy, token by token, for one run of them.

Parameters are those of the modules; x (N, D) is one sentence alone.
"""

import numpy as np


def recurrence(q, k, v, decay=None, beta=None):
    """S_t = a_t ∘ S_t−1 + k_t (v_t or β_t (v_t − a_t S_t−1ᵀ k_t))ᵀ, o_t = S_tᵀ q_t.

    With an axis more a token has several k, v and β, which are written in their order.
    """
    state = np.zeros((k.shape[-1], v.shape[-1]))
    outputs = []
    for t in range(len(q)):
        if decay is not None:
            state = decay[t][:, None] * state
        keys, values = np.atleast_2d(k[t]), np.atleast_2d(v[t])
        for number, (key, value) in enumerate(zip(keys, values, strict=True)):
            if beta is not None:
                value = beta[t][number] * (value - state.T @ key)
            state = state + np.outer(key, value)
        outputs.append(state.T @ q[t])
    return np.array(outputs).reshape(len(q), v.shape[-1])


def pairs(q, k, v, decay):
    """Σ_j (Σ_d q_id k_jd Π a_d) v_j over all j, the product from i to j without j."""
    out = np.zeros((len(q), v.shape[1]))
    for i in range(len(q)):
        for j in range(len(q)):
            between = decay[j + 1 : i + 1] if j <= i else decay[i:j]
            out[i] += (q[i] * k[j] * between.prod(0)).sum() * v[j]
    return out


def spans(t, levels):
    """The spans of a Fenwick tree before token t, and its own: level, from where and to where."""
    yield 0, t, t + 1
    while t > 0:
        size = t & -t
        yield min(size.bit_length(), levels - 1), t - size, t
        t -= size


def log_linear(q, k, v, decay, scales, own=True):
    """Σ_l λ_t^(l) q_t Σ_{s in the span of l} (Π a) k_s v_s."""
    out = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        for level, start, end in spans(t, scales.shape[1]):
            state = np.zeros((k.shape[1], v.shape[1]))
            for s in range(start, end):
                state += decay[s + 1 : t + 1].prod() * np.outer(k[s], v[s])
            if own or level > 0:
                out[t] += scales[t, level] * (q[t] @ state)
    return out


def linear(p, x, causal):
    q, k, v = projected(p, x)
    q, k = (np.where(y > 0, y + 1, np.exp(y)) for y in (q, k))
    heads = []
    for h in range(q.shape[1]):
        weights = q[:, h] @ k[:, h].T
        weights = np.tril(weights) if causal else weights
        heads.append(weights @ v[:, h] / weights.sum(-1, keepdims=True))
    return output(p, heads)


def gated(p, x, causal):
    q, k, v = projected(p, x)
    low = x @ p["w_a_1"] if "w_a_1" in p else x
    decay = sigmoid(np.einsum("nd,dhk->nhk", low, p["w_a_2"]) + p["b_a"]) ** (1 / 16)
    r = np.einsum("nd,dhv->nhv", x, p["w_r"]) + p["b_r"]
    rule = recurrence if causal else pairs
    heads = []
    for h in range(q.shape[1]):
        out = rule(q[:, h], k[:, h], v[:, h], decay[:, h])
        out = out - out.mean(-1, keepdims=True)
        out = out / np.sqrt((out**2).mean(-1, keepdims=True) + 1e-6)
        out = out * p["norm"]["scale"] + p["norm"]["bias"]
        heads.append(out * r[:, h] * sigmoid(r[:, h]))
    return output(p, heads)


def delta(p, x, causal, beta_max=1):
    q, k, v = projected(p, x)
    beta = beta_max * sigmoid(np.einsum("nd,dhp->nhp", x, p["w_beta"]))
    k, v = (y.reshape(*beta.shape, -1) for y in (k, v))
    q, k = (y * sigmoid(y) for y in (q, k))
    q, k = (y / np.sqrt((y**2).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
    decay = np.ones_like(beta[..., :1])
    gate = np.ones_like(v[..., 0, :])
    if "w_a" in p:
        time = np.log1p(np.exp(np.einsum("nd,dhk->nhk", x, p["w_a"]) + p["b_a"]))
        decay = np.exp(-np.exp(p["log_rate"]) * time)
        r = np.einsum("nd,dhv->nhv", x, p["w_r"])
        gate = r * sigmoid(r)
    heads = []
    for h in range(q.shape[1]):
        arrays = q[:, h], k[:, h], v[:, h], decay[:, h], beta[:, h]
        out = recurrence(*arrays)
        if not causal:
            out = out + recurrence(*(y[::-1] for y in arrays))[::-1]
        out = out / np.sqrt((out**2).mean(-1, keepdims=True) + 1e-6)
        heads.append(out * p["norm"]["scale"] * gate[:, h])
    return output(p, heads)


def kimi(p, x, causal, beta_max=1):
    q, k, v = (y * sigmoid(y) for y in projected(p, x))
    q, k = (y / np.sqrt((y**2).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
    beta = beta_max * sigmoid(np.einsum("nd,dhp->nhp", x, p["w_beta"]))
    low = x @ p["w_a_1"]
    time = np.log1p(np.exp(np.einsum("nr,rhk->nhk", low, p["w_a_2"]) + p["b_a"]))
    decay = np.exp(-np.exp(p["log_rate"]) * time)
    gate = sigmoid(np.einsum("nr,rhv->nhv", x @ p["w_r_1"], p["w_r_2"]) + p["b_r"])
    heads = []
    for h in range(q.shape[1]):
        arrays = q[:, h], k[:, h], v[:, h], decay[:, h], beta[:, h]
        out = recurrence(*arrays)
        if not causal:
            out = out + recurrence(*(y[::-1] for y in arrays))[::-1]
        out = out / np.sqrt((out**2).mean(-1, keepdims=True) + 1e-6)
        heads.append(out * p["norm"]["scale"] * gate[:, h])
    return output(p, heads)


def mamba2(p, x, causal, rule=None):
    q, k, v = (y * sigmoid(y) for y in projected(p, x))
    time = np.log1p(np.exp(np.einsum("nd,dhk->nhk", x, p["w_a"]) + p["b_a"]))
    decay = np.exp(-np.exp(p["log_rate"]) * time)
    r = np.einsum("nd,dhv->nhv", x, p["w_r"])
    heads = []
    for h in range(v.shape[1]):
        arrays = q[:, 0], k[:, 0], time[:, h] * v[:, h], decay[:, h]
        y = rule(arrays, h) if rule else (recurrence if causal else pairs)(*arrays)
        y = y + p["skip"][h] * v[:, h]
        heads.append(y * r[:, h] * sigmoid(r[:, h]))
    y = np.concatenate(heads, -1)
    y = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-6) * p["norm"]["scale"]
    return output(p, np.split(y, len(heads), -1))


def log_linear_mamba2(p, x, causal):
    scales = np.log1p(np.exp(np.einsum("nd,dhl->nhl", x, p["w_levels"])))

    def rule(arrays, h):
        arrays = [*arrays, scales[:, h]]
        y = log_linear(*arrays)
        if causal:
            return y
        return y + log_linear(*(z[::-1] for z in arrays), own=False)[::-1]

    return mamba2(p, x, causal, rule)


def mamba3(p, x, causal):
    """The recurrence of the paper, with the sums of angles in queries and keys."""
    q, k, v = projected(p, x)
    q, k = (
        y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-5) * p[norm]["scale"] + p[bias]
        for y, norm, bias in ((q, "norm_q", "b_q"), (k, "norm_k", "b_k"))
    )
    softplus = lambda y: np.log1p(np.exp(y))
    of_head = lambda name: np.einsum("nd,dhk->nhk", x, p[name])
    time = softplus(of_head("w_a") + p["b_a"])
    decay = np.exp(-time * np.maximum(softplus(of_head("w_rate")), 1e-4))
    share = sigmoid(of_head("w_share"))
    angles = np.pi * time * np.tanh(of_head("w_angle"))
    r = of_head("w_r")
    heads = []
    for h in range(v.shape[1]):
        arrays = [y[:, h] for y in (q, k, v, decay, share, time, angles)]
        y = turning(*arrays)
        if not causal:
            y = y + turning(*(z[::-1] for z in arrays), own=False)[::-1]
        y = y + p["skip"][h] * v[:, h]
        heads.append(y * r[:, h] * sigmoid(r[:, h]))
    return output(p, heads)


def turning(q, k, v, decay, share, time, angles, own=True):
    state = np.zeros((q.shape[1], v.shape[1]))
    total = np.zeros(angles.shape[1])
    before = np.zeros_like(state)
    out = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        total = total + angles[t]
        turn = np.eye(q.shape[1])
        for a, angle in enumerate(total):
            c, s = np.cos(angle), np.sin(angle)
            turn[2 * a : 2 * a + 2, 2 * a : 2 * a + 2] = [[c, -s], [s, c]]
        fed = np.outer(turn @ k[t], v[t])
        seen = decay[t] * (state + (1 - share[t]) * time[t] * before)
        state = seen + share[t] * time[t] * fed
        out[t] = (turn @ q[t]) @ (state if own else seen)
        before = fed
    return out


def projected(p, x):
    return (np.einsum("nd,dhf->nhf", x, p[name]) for name in ("w_q", "w_k", "w_v"))


def output(p, heads):
    return np.einsum("hnv,hvd->nd", np.array(heads), p["w_o"])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))
