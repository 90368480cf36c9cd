"""Renames and reshapes weights between attn and torch.nn.Transformer.

The names are those of `launch.bench.fidelity.torch.Model`: src_embed, tgt_embed, src_pos,
tgt_pos and generator, and within `encoder.` and `decoder.` nn.Transformer's own.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from attn import Transformer

ATTENTIONS = {
    "encoder": {"self_attn": "self_attention"},
    "decoder": {"self_attn": "self_attention", "multihead_attn": "cross_attention"},
}
"""The attentions of a layer, ours by PyTorch's names."""
NORMS = {
    "encoder": {"norm1": "self_norm", "norm2": "feed_forward_norm"},
    "decoder": {
        "norm1": "self_norm",
        "norm2": "cross_norm",
        "norm3": "feed_forward_norm",
    },
}
LINEARS = {"linear1": "w_1", "linear2": "w_2"}


def to_torch(model: Transformer, variables) -> dict[str, np.ndarray]:
    """Returns the arrays of a model by PyTorch's names.

    Embeddings and the output are written by each of their names, also where they are one
    matrix. An attention without biases has biases of 0.
    """
    return {name: np.array(x, order="C") for name, x in _written(model, variables)}


def from_torch(model: Transformer, arrays: Mapping[str, np.ndarray]) -> dict:
    """Returns a model's variables, from the arrays of `to_torch` or of a state_dict.

    Biases that are missing are 0. Positions are left out unless the model trains them.
    """
    params = {"embedding": arrays["tgt_embed.weight"]}
    if model.design.embeddings != "tied":
        params["source_embedding"] = arrays["src_embed.weight"]
    if model.design.embeddings == "separate":
        params["output"] = arrays["generator.weight"]
    for stack in NORMS:
        for i in range(model.shape.N):
            prefix = f"{stack}.layers.{i}."
            layer = {
                name.removeprefix(prefix): x
                for name, x in arrays.items()
                if name.startswith(prefix)
            }
            params[f"{stack}_{i}"] = _layer_read(stack, layer, model)
        if model.design.norm != "post":
            params[f"{stack}_norm"] = _norm_read(arrays, f"{stack}.norm")
    if not model.design.positions.trained:
        return {"params": params}
    positions = {
        "source_positions": {"table": arrays["src_pos.weight"]},
        "target_positions": {"table": arrays["tgt_pos.weight"]},
    }
    return {"params": params, "positions": positions}


def _written(model, variables) -> Iterator[tuple[str, np.ndarray]]:
    """Yields each array of a model, by PyTorch's name."""
    params = variables["params"]
    embedding = params["embedding"]
    yield "src_embed.weight", params.get("source_embedding", embedding)
    yield "tgt_embed.weight", embedding
    yield "generator.weight", params.get("output", embedding)
    if model.design.positions.trained:
        tables = variables["positions"]
        yield "src_pos.weight", tables["source_positions"]["table"]
        yield "tgt_pos.weight", tables["target_positions"]["table"]
    for stack in NORMS:
        for i in range(model.shape.N):
            for name, x in _layer_written(stack, params[f"{stack}_{i}"]):
                yield f"{stack}.layers.{i}.{name}", x
        if model.design.norm != "post":
            norm = params[f"{stack}_norm"]
            yield f"{stack}.norm.weight", norm["scale"]
            yield f"{stack}.norm.bias", norm["bias"]


def _layer_written(stack, p):
    for theirs, ours in ATTENTIONS[stack].items():
        for name, x in _attention_written(p[ours]):
            yield f"{theirs}.{name}", x
    for theirs, ours in LINEARS.items():
        # nn.Linear keeps its matrix as (out, in), Linen as (in, out).
        yield f"{theirs}.weight", p["feed_forward"][ours]["kernel"].T
        yield f"{theirs}.bias", p["feed_forward"][ours]["bias"]
    for theirs, ours in NORMS[stack].items():
        yield f"{theirs}.weight", p[ours]["norm"]["scale"]
        yield f"{theirs}.bias", p[ours]["norm"]["bias"]


def _attention_written(p):
    """Yields the arrays of one attention.

    PyTorch's Linear has y = x Wᵀ, the rows of W head after head, and here those of
    queries, keys and values.
    """
    d_model = p["w_q"].shape[0]
    weights = []
    biases = []
    for letter in "qkv":
        w = np.asarray(p[f"w_{letter}"])
        weights.append(w.reshape(d_model, -1).T)
        biases.append(np.ravel(p.get(f"b_{letter}", np.zeros(w[0].size, w.dtype))))
    yield "in_proj_weight", np.concatenate(weights)
    yield "in_proj_bias", np.concatenate(biases)
    yield "out_proj.weight", p["w_o"].reshape(-1, d_model).T
    yield "out_proj.bias", p.get("b_o", np.zeros(d_model, p["w_o"].dtype))


def _layer_read(stack, a, model):
    layer = {}
    for theirs, ours in ATTENTIONS[stack].items():
        layer[ours] = _attention_read(a, theirs, model)
    for theirs, ours in NORMS[stack].items():
        layer[ours] = {"norm": _norm_read(a, theirs)}
    layer["feed_forward"] = {}
    for theirs, ours in LINEARS.items():
        weight = a[f"{theirs}.weight"]
        bias = a.get(f"{theirs}.bias", np.zeros(len(weight), weight.dtype))
        layer["feed_forward"][ours] = {"kernel": weight.T, "bias": bias}
    return layer


def _attention_read(a, name, model):
    d_model = model.shape.d_model
    h = model.shape.h
    attention = {}
    weights = np.split(a[f"{name}.in_proj_weight"], 3)
    for letter, w in zip("qkv", weights, strict=True):
        attention[f"w_{letter}"] = w.T.reshape(d_model, h, -1)
    attention["w_o"] = a[f"{name}.out_proj.weight"].T.reshape(h, -1, d_model)
    if model.design.biases:
        biases = np.split(a[f"{name}.in_proj_bias"], 3)
        for letter, b in zip("qkv", biases, strict=True):
            attention[f"b_{letter}"] = b.reshape(h, -1)
        attention["b_o"] = a[f"{name}.out_proj.bias"]
    return attention


def _norm_read(a, name):
    scale = a[f"{name}.weight"]
    return {"scale": scale, "bias": a.get(f"{name}.bias", np.zeros_like(scale))}
