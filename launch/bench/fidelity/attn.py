"""Computes logits and gradients with attn, from weights by PyTorch's names."""

import jax
import jax.numpy as jnp
import numpy as np

from attn import Design, Learned, Mask, Transformer
from attn.jax_versions import enable_x64
from launch.bench.fidelity.case import LENGTH, SHAPE, VOCABULARY, Batch, Case
from launch.bench.fidelity.weights import from_torch, to_torch

PREFIX = "transformer."
"""What stands before nn.Transformer's own names."""
NORM_EPSILON = 1e-5
"""PyTorch's."""


def run(
    case: Case, weights: dict[str, np.ndarray], batch: Batch, dtype: type
) -> dict[str, np.ndarray]:
    """Returns the logits of real tokens, and the gradients by PyTorch's names."""
    # JAX makes float32 of float64 otherwise, without a word.
    with enable_x64(dtype == np.float64):
        arrays = {
            name.removeprefix(PREFIX): x.astype(dtype) for name, x in weights.items()
        }
        model = _model(case)
        variables = jax.tree.map(jnp.asarray, from_torch(model, arrays))
        function = jax.jit(_logits_and_gradients, static_argnums=0)
        inputs = map(jnp.asarray, batch)
        logits, gradients = function(model, variables, *inputs)
        # A library may give anything for padding.
        real = np.asarray(logits)[batch.target_real]
        return {"logits": real, **_named(model, gradients)}


def _logits_and_gradients(
    model, variables, source, target, source_real, target_real, logit_weights
):
    source_mask = Mask.dense(source_real[:, None, None])
    target_mask = Mask.dense(target_real[:, None, None]) & Mask.causal()

    def loss(variables):
        hidden = model.apply(
            variables,
            source,
            target,
            _places(source),
            _places(target),
            source_mask=source_mask,
            cross_mask=source_mask,
            target_mask=target_mask,
        )
        logits = model.apply(variables, hidden, method=Transformer.logits)
        return (logits * logit_weights.astype(logits.dtype)).sum(), logits

    gradients, logits = jax.grad(loss, has_aux=True)(variables)
    return logits, gradients


def _places(ids):
    return jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)


def draw(case: Case, seed: int) -> dict[str, np.ndarray]:
    """Returns random weights by PyTorch's names, where PyTorch is not there to draw.

    As those of `torch.draw`, they are normal with deviation 0.1, around 1 for vectors.
    """
    model = _model(case)
    ids = jnp.zeros((1, 1), jnp.int32)
    masks = {f"{name}_mask": Mask() for name in ("source", "target", "cross")}
    key = jax.random.key(0)
    shapes = jax.eval_shape(lambda: model.init(key, ids, ids, ids, ids, **masks))
    # Drawn leaf by leaf: initial biases of 0 and scales of 1 would hide mistakes.
    generator = np.random.default_rng(seed)

    def normal(leaf):
        mean = 1.0 if leaf.ndim == 1 else 0.0
        return generator.normal(mean, 0.1, leaf.shape).astype(np.float32)

    return _named(model, jax.tree.map(normal, shapes))


def _model(case):
    design = Design(
        norm=case.norm,
        biases=case.biases,
        embeddings="tied" if case.tied else "separate",
        activation=case.activation,
        positions=Learned(),
        norm_epsilon=NORM_EPSILON,
    )
    return Transformer(shape=SHAPE, vocabulary=VOCABULARY, length=LENGTH, design=design)


def _named(model, variables):
    """Returns the arrays by the names of `launch.bench.fidelity.torch.Model`."""
    arrays = to_torch(model, variables)
    inside = ("encoder.", "decoder.")
    return {
        f"{PREFIX}{name}" if name.startswith(inside) else name: x
        for name, x in arrays.items()
    }
