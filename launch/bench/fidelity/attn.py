"""Computes logits and gradients with attn, and writes them by PyTorch's names."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from attn import Context, Learned, Mask, Transformer, config
from attn.jax_versions import enable_x64
from attn.nn.layers import FEED_FORWARDS
from attn.nn.norms import NORMS as NORMS_BY_NAME
from launch.bench.fidelity.case import LENGTH, SIZES, VOCABULARY, Batch, Case

ATTENTIONS = {"self_attn": "self_attention", "multihead_attn": "cross_attention"}
"""The attentions of a layer, ours by PyTorch's names."""
NORMS = {
    "encoder": ("self_norm", "feed_forward_norm"),
    "decoder": ("self_norm", "cross_norm", "feed_forward_norm"),
}
"""Ours of PyTorch's norm1, norm2 and norm3."""
LINEARS = {"linear1": "w_1", "linear2": "w_2"}


def model(case: Case) -> Transformer:
    """Returns the Transformer of this form."""
    description = config.Transformer(
        **SIZES,
        # PyTorch's epsilon.
        norm=NORMS_BY_NAME[case.norm](epsilon=1e-5),
        biases=case.biases,
        embeddings="tied" if case.tied else "separate",
        feed_forward=FEED_FORWARDS[case.activation](),
        positions=Learned(),
    )
    return Transformer(description, VOCABULARY, LENGTH)


def draw(case: Case, seed: int) -> dict:
    """Returns random variables: initial biases of 0 and scales of 1 would hide mistakes."""
    ids = jnp.zeros((1, 1), jnp.int32)
    key = jax.random.key(0)
    init = model(case).init
    shapes = jax.eval_shape(lambda: init(key, ids, ids, Context(), Context()))
    generator = np.random.default_rng(seed)

    def normal(path, leaf):
        if path[-1].key == "bias" and not case.biases:
            # nn.Transformer(bias=False) has none anywhere.
            return np.zeros(leaf.shape, np.float32)
        mean = 1.0 if leaf.ndim == 1 else 0.0
        return generator.normal(mean, 0.1, leaf.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(normal, shapes)


def run(case: Case, variables: dict, batch: Batch, dtype: type) -> dict:
    """Returns the logits of real tokens, and the gradients by PyTorch's names."""
    # JAX makes float32 of float64 otherwise, without a word.
    with enable_x64(dtype == np.float64):
        cast = jax.tree.map(lambda x: jnp.asarray(x, dtype), variables)
        function = jax.jit(_logits_and_gradients, static_argnums=0)
        logits, gradients = function(model(case), cast, *map(jnp.asarray, batch))
        # A library may give anything for padding.
        real = np.asarray(logits)[batch.target_real]
        return {"logits": real, **to_torch(case, jax.tree.map(np.asarray, gradients))}


def _logits_and_gradients(
    model, variables, source, target, source_real, target_real, logit_weights
):
    source_mask = Mask.dense(source_real[:, None, None])
    target_mask = Mask.dense(target_real[:, None, None]) & Mask.causal()

    contexts = Context(source_mask), Context(target_mask, memory_mask=source_mask)

    def loss(variables):
        hidden = model.apply(variables, source, target, *contexts)
        logits = model.apply(variables, hidden, method=Transformer.logits)
        return (logits * logit_weights.astype(logits.dtype)).sum(), logits

    gradients, logits = jax.grad(loss, has_aux=True)(variables)
    return logits, gradients


def to_torch(case: Case, variables: dict) -> dict[str, np.ndarray]:
    """Returns the arrays of variables, or of their gradients, by PyTorch's names."""
    params = variables["params"]
    embedding = params["embedding"]
    arrays = {
        "src_embed.weight": params.get("source_embedding", embedding),
        "tgt_embed.weight": embedding,
        "generator.weight": params.get("output", embedding),
        "src_pos.weight": variables["positions"]["source_positions"]["table"],
        "tgt_pos.weight": variables["positions"]["target_positions"]["table"],
    }
    for stack, norms in NORMS.items():
        prefix = f"transformer.{stack}"
        for i in range(SIZES["N"]):
            for name, x in _layer(params[f"{stack}_{i}"], norms):
                arrays[f"{prefix}.layers.{i}.{name}"] = x
        if case.norm != "post":
            arrays[f"{prefix}.norm.weight"] = params[f"{stack}_norm"]["scale"]
            arrays[f"{prefix}.norm.bias"] = params[f"{stack}_norm"]["bias"]
    if case.biases:
        return arrays
    return {name: x for name, x in arrays.items() if not name.endswith("bias")}


def _layer(p, norms) -> Iterator[tuple[str, np.ndarray]]:
    for theirs, ours in ATTENTIONS.items():
        for name, x in _attention(p[ours]) if ours in p else ():
            yield f"{theirs}.{name}", x
    for theirs, ours in LINEARS.items():
        # nn.Linear keeps its matrix as (out, in), Linen as (in, out).
        yield f"{theirs}.weight", p["feed_forward"][ours]["kernel"].T
        yield f"{theirs}.bias", p["feed_forward"][ours]["bias"]
    for number, ours in enumerate(norms, 1):
        yield f"norm{number}.weight", p[ours]["norm"]["scale"]
        yield f"norm{number}.bias", p[ours]["norm"]["bias"]


def _attention(p):
    # PyTorch has y = x Wᵀ, the rows of W head after head, and in one matrix those of
    # queries, keys and values.
    d_model = SIZES["d_model"]
    weights = [p[f"w_{letter}"].reshape(d_model, -1).T for letter in "qkv"]
    yield "in_proj_weight", np.concatenate(weights)
    yield "out_proj.weight", p["w_o"].reshape(-1, d_model).T
    if "b_o" in p:
        biases = [p[f"b_{letter}"].ravel() for letter in "qkv"]
        yield "in_proj_bias", np.concatenate(biases)
        yield "out_proj.bias", p["b_o"]
