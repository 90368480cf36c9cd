"""The Transformer in float64 numpy: the paper's section 3 for one pair of sentences,
without batch, padding or masks.

Written from the paper and from PyTorch's documentation of nn.Transformer, and from
nothing of attn. Each head, query and layer is a turn of a loop.
"""

import math
import re

import numpy as np

from tests.attn import oracle

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2,
}


def sinusoids(length, d_model, halves=False):
    table = np.zeros((length, d_model))
    for position in range(length):
        for i in range(d_model // 2):
            angle = position / 10_000 ** (2 * i / d_model)
            sine, cosine = (i, i + d_model // 2) if halves else (2 * i, 2 * i + 1)
            table[position, sine] = math.sin(angle)
            table[position, cosine] = math.cos(angle)
    return table


def layer_norm(p, x, epsilon):
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * p["scale"] + p["bias"]


def multi_head(p, visible, memory=None):
    """Attention to `memory`, or to what it is called with."""

    def attend(x):
        heads = []
        for i in range(p["w_q"].shape[1]):
            q, k, v = (
                of @ p[f"w_{name}"][:, i]
                + (p[f"b_{name}"][i] if f"b_{name}" in p else 0)
                for name, of in zip(
                    "qkv",
                    (x, x, x) if memory is None else (x, memory, memory),
                    strict=True,
                )
            )
            heads.append(oracle.attention(q, k, v, visible)[0])
        return np.concatenate(heads, -1) @ p["w_o"].reshape(
            -1, p["w_o"].shape[-1]
        ) + p.get("b_o", 0)

    return attend


def feed_forward(p, activation):
    return lambda x: (
        ACTIVATIONS[activation](x @ p["w_1"]["kernel"] + p["w_1"]["bias"])
        @ p["w_2"]["kernel"]
        + p["w_2"]["bias"]
    )


def around(p, x, sublayer, norm, epsilon):
    """One sub-layer with its sum and its norm."""
    if norm == "pre":
        return x + sublayer(layer_norm(p["norm"], x, epsilon))
    return layer_norm(p["norm"], x + sublayer(x), epsilon)


def stack(p, name, x, visible, memory=None, *, norm, epsilon, activation):
    """The layers of the encoder or the decoder, with attention to `memory` if there is one."""
    layers = [own for own in p if re.fullmatch(rf"{name}_\d+", own)]
    for i in range(len(layers)):
        layer = p[f"{name}_{i}"]
        sublayers = {"self": multi_head(layer["self_attention"], visible)}
        if memory is not None:
            every = np.ones((len(x), len(memory)))
            sublayers["cross"] = multi_head(layer["cross_attention"], every, memory)
        sublayers["feed_forward"] = feed_forward(layer["feed_forward"], activation)
        for own, sublayer in sublayers.items():
            x = around(layer[f"{own}_norm"], x, sublayer, norm, epsilon)
    return x if norm == "post" else layer_norm(p[f"{name}_norm"], x, epsilon)


def language_model(p, table, tokens, *, norm="post", epsilon=1e-6, activation="relu"):
    """Logits (M, Y) of a decoder by itself; `table` is that of positions."""
    m = len(tokens)
    x = p["embedding"][tokens] * p["embedding"].shape[1] ** 0.5 + table[:m]
    options = dict(norm=norm, epsilon=epsilon, activation=activation)
    return stack(p, "decoder", x, np.tri(m), **options) @ p["embedding"].T


def transformer(
    p,
    tables,
    source,
    target,
    *,
    norm="post",
    epsilon=1e-6,
    activation="relu",
    scale_embeddings=True,
):
    """Logits (M, Y). `tables` are the position tables of source and target; `p` has the
    parameters by attn's names.
    """
    scale = p["embedding"].shape[1] ** 0.5 if scale_embeddings else 1
    n = len(source)
    m = len(target)
    options = dict(norm=norm, epsilon=epsilon, activation=activation)
    x = p.get("source_embedding", p["embedding"])[source] * scale + tables[0][:n]
    memory = stack(p, "encoder", x, np.ones((n, n)), **options)
    x = p["embedding"][target] * scale + tables[1][:m]
    x = stack(p, "decoder", x, np.tri(m), memory, **options)
    return x @ p.get("output", p["embedding"]).T


def from_torch(arrays, h):
    """attn's parameters from a state_dict of nn.Transformer and the embeddings beside
    it.

    A Linear of PyTorch gives x Aᵀ + b; in_proj_weight has the rows of queries, then of
    keys, then of values, and each third has those of the first head, then of the
    second, and so on (torch.nn.MultiheadAttention).
    """
    d_model = arrays["src_embed.weight"].shape[1]
    d = d_model // h
    p = {"source_embedding": arrays["src_embed.weight"]}
    p["embedding"] = arrays.get("tgt_embed.weight", p["source_embedding"])
    p["output"] = arrays.get("generator.weight", p["embedding"])

    def put(path, value):
        at = p
        for name in path[:-1]:
            at = at.setdefault(name, {})
        at[path[-1]] = value

    def attention(at, name):
        weight = arrays[f"{name}.in_proj_weight"]
        for third, letter in enumerate("qkv"):
            starts = [third * d_model + i * d for i in range(h)]
            rows = [list(range(start, start + d)) for start in starts]
            put((*at, f"w_{letter}"), np.stack([weight[own].T for own in rows], 1))
            if f"{name}.in_proj_bias" in arrays:
                put(
                    (*at, f"b_{letter}"),
                    np.stack([arrays[f"{name}.in_proj_bias"][own] for own in rows]),
                )
        columns = [list(range(i * d, (i + 1) * d)) for i in range(h)]
        put(
            (*at, "w_o"),
            np.stack([arrays[f"{name}.out_proj.weight"][:, own].T for own in columns]),
        )
        put((*at, "b_o"), arrays.get(f"{name}.out_proj.bias", np.zeros(d_model)))

    def plain(at, name, weight, bias, turned=False):
        given = arrays[f"{name}.weight"]
        put((*at, weight), given.T if turned else given)
        put((*at, bias), arrays.get(f"{name}.bias", np.zeros(len(given))))

    for stack, around in (
        ("encoder", ("self", "feed_forward")),
        ("decoder", ("self", "cross", "feed_forward")),
    ):
        for i in range(
            max(
                int(name.split(".")[2])
                for name in arrays
                if name.startswith(f"{stack}.layers")
            )
            + 1
        ):
            ours = f"{stack}_{i}"
            theirs = f"{stack}.layers.{i}"
            attention((ours, "self_attention"), f"{theirs}.self_attn")
            if stack == "decoder":
                attention((ours, "cross_attention"), f"{theirs}.multihead_attn")
            for number in (1, 2):
                plain(
                    (ours, "feed_forward", f"w_{number}"),
                    f"{theirs}.linear{number}",
                    "kernel",
                    "bias",
                    turned=True,
                )
            for number, name in enumerate(around, 1):
                plain(
                    (ours, f"{name}_norm", "norm"),
                    f"{theirs}.norm{number}",
                    "scale",
                    "bias",
                )
        if f"{stack}.norm.weight" in arrays:
            plain((f"{stack}_norm",), f"{stack}.norm", "scale", "bias")
    return p
