"""Functions of the scores of one head, with gradients of their own where that pays."""

SAVED = "results of a block"
"""The name, for jax.checkpoint, of the results of a block that derivatives keep."""
