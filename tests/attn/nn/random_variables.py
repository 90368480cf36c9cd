"""Variables of a model at random, without compiling what draws its initial ones."""

import jax
import jax.numpy as jnp
import numpy as np


def random_variables(model, *args, size=0.4, seed=2, **kwargs):
    """Returns the variables of `model.init`, all random, biases too, and norms around 1."""
    shapes = jax.eval_shape(
        lambda key: model.init(key, *args, **kwargs), jax.random.key(0)
    )
    draw = np.random.default_rng(seed).normal

    def drawn(path, x):
        around = float("scale" in str(path))
        return jnp.asarray(around + size * draw(size=x.shape), x.dtype)

    return jax.tree.map_with_path(drawn, shapes)
