"""A linear layer whose gradient is fast on a CPU."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float


class Linear(nn.Module):
    """Computes x W + b, W Glorot-uniform and b 0 at first."""

    features: int

    @nn.compact
    def __call__(self, x: Float[Array, "*B N D"]) -> Float[Array, "*B N F"]:
        glorot = nn.initializers.glorot_uniform()
        kernel = self.param("kernel", glorot, (x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        # As if for one head: XLA on a CPU then takes half as long for the gradient to the
        # kernel as with x @ kernel.
        y = jnp.einsum("...nd,dhf->...nhf", x, kernel[:, None])[..., 0, :]
        # Axes are written out: the tests make JAX raise where it would add them.
        return y + bias.reshape((1,) * (y.ndim - 1) + (-1,))
