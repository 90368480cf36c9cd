"""The Transformer in float64 numpy: the paper's section 3 for one pair of sentences,
without batch, padding or masks.

Written from the paper and from nothing of attn. Each head, query and layer is a turn of a
loop.
"""

import re

import numpy as np

from tests.attn import oracle

EPSILON = 1e-6


def layer_norm(p, x, epsilon=EPSILON):
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * p["scale"] + p["bias"]


def multi_head(p, visible, memory=None, score=lambda head: oracle.scaled_dot):
    """Attention to `memory`, or to what it is called with.

    Heads may share keys and values, and have these of latents; without W_O they are averaged.
    """

    def projected(letter, x):
        y = np.einsum("nd,dhk->hnk", x, p[f"w_{letter}"])
        return y + p[f"b_{letter}"][:, None] if f"b_{letter}" in p else y

    def attend(x):
        source = x if memory is None else memory
        source = source @ p["w_c"] if "w_c" in p else source
        q, k, v = projected("q", x), projected("k", source), projected("v", source)
        heads = []
        for i in range(len(q)):
            j = i * len(k) // len(q)
            heads.append(oracle.attention(q[i], k[j], v[j], visible, score(i))[0])
        if "w_o" not in p:
            return np.mean(heads, 0)
        return np.einsum("hnv,hvd->nd", np.array(heads), p["w_o"]) + p.get("b_o", 0)

    return attend


def feed_forward(p):
    def apply(x):
        hidden = np.maximum(x @ p["w_1"]["kernel"] + p["w_1"]["bias"], 0)
        return hidden @ p["w_2"]["kernel"] + p["w_2"]["bias"]

    return apply


def around(p, x, sublayer, norm):
    """One sub-layer with its sum and its norm."""
    if norm == "pre":
        return x + sublayer(layer_norm(p["norm"], x))
    return layer_norm(p["norm"], x + sublayer(x))


def stack(p, name, x, visible, memory=None, norm="post"):
    """The layers of the encoder or the decoder, with attention to `memory` if there is one."""
    layers = [own for own in p if re.fullmatch(rf"{name}_\d+", own)]
    for i in range(len(layers)):
        layer = p[f"{name}_{i}"]
        sublayers = {"self": multi_head(layer["self_attention"], visible)}
        if memory is not None:
            every = np.ones((len(x), len(memory)))
            sublayers["cross"] = multi_head(layer["cross_attention"], every, memory)
        sublayers["feed_forward"] = feed_forward(layer["feed_forward"])
        for own, sublayer in sublayers.items():
            x = around(layer[f"{own}_norm"], x, sublayer, norm)
    return x if norm == "post" else layer_norm(p[f"{name}_norm"], x)


def language_model(p, table, tokens, *, norm="post"):
    """Logits (M, Y) of a decoder by itself; `table` is that of positions."""
    m = len(tokens)
    x = p["embedding"][tokens] * p["embedding"].shape[1] ** 0.5 + table[:m]
    return stack(p, "decoder", x, np.tri(m), norm=norm) @ p["embedding"].T


def transformer(p, tables, source, target):
    """Logits (M, Y). `tables` are the position tables of source and target; `p` has the
    parameters by attn's names.
    """
    scale = p["embedding"].shape[1] ** 0.5
    n, m = len(source), len(target)
    x = p.get("source_embedding", p["embedding"])[source] * scale + tables[0][:n]
    memory = stack(p, "encoder", x, np.ones((n, n)))
    x = p["embedding"][target] * scale + tables[1][:m]
    x = stack(p, "decoder", x, np.tri(m), memory)
    return x @ p.get("output", p["embedding"]).T
