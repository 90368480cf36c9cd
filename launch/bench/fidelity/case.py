"""States the models and the batch that attn and PyTorch are compared on."""

from typing import NamedTuple

import numpy as np

# nn.Transformer has no other d_k and d_v than d_model / h.
SIZES = dict(N=2, d_model=96, d_ff=160, h=4, d_k=24, d_v=24)
VOCABULARY = 211
LENGTH = 29
"""Entries of the position tables."""
# The longest source and target differ, so that no mask fits the wrong side.
SOURCE_LENGTHS = (29, 7, 1, 19)
TARGET_LENGTHS = (5, 23, 11, 1)


class Case(NamedTuple):
    """Names a form of nn.Transformer.

    "post" is without the final LayerNorms, which the paper does not have.
    """

    norm: str
    biases: bool
    tied: bool
    activation: str

    @property
    def name(self) -> str:
        """Returns the form in words."""
        words = (
            f"{self.norm.replace('_', ' and ')} norm",
            "biases" if self.biases else "no biases",
            "tied" if self.tied else "untied",
            self.activation,
        )
        return ", ".join(words)


# As few as have each value of each field.
CASES = (
    Case("post", biases=True, tied=True, activation="relu"),
    Case("post_final", biases=False, tied=False, activation="relu"),
    Case("pre", biases=True, tied=False, activation="gelu"),
)


class Batch(NamedTuple):
    """Holds sentences, and the weights of the logits in the loss."""

    source: np.ndarray
    """Tokens (B, N)."""
    target: np.ndarray
    """Tokens (B, M)."""
    source_real: np.ndarray
    target_real: np.ndarray
    logit_weights: np.ndarray
    """(B, M, Y)."""


def batch() -> Batch:
    """Returns the batch.

    Padding has real tokens, so that a model that looks at it gives other numbers.
    """
    rng = np.random.default_rng(0)
    source_real = _real(SOURCE_LENGTHS)
    target_real = _real(TARGET_LENGTHS)
    source = rng.integers(VOCABULARY, size=source_real.shape)
    target = rng.integers(VOCABULARY, size=target_real.shape)
    normal = rng.normal(size=(*target.shape, VOCABULARY))
    # Padding has no weight in the loss, so it may give no gradient either.
    logit_weights = normal * target_real[..., None]
    return Batch(source, target, source_real, target_real, logit_weights)


def _real(lengths):
    return np.arange(max(lengths))[None] < np.array(lengths)[:, None]
