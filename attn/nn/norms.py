"""What surrounds a sub-layer: the sum with what it reads, and norms.

A value says it; a user's own is a frozen dataclass, a subclass of `Norm`, in any file.
B examples, N tokens, D = d_model.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.context import Context
from attn.nn.layers import Dropout
from attn.pytrees import at_least_float32

if TYPE_CHECKING:
    from attn.config import Layer

NORM_KINDS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
"""LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019)."""


@dataclasses.dataclass(frozen=True)
class Norm:
    """Surrounds a sub-layer: x + Dropout(Sublayer(x)) with a norm somewhere.

    `kind` is "layer" for LayerNorm, "rms" for RMSNorm; `epsilon` is added to the variance
    (PyTorch has 1e-5).
    """

    kind: str = "layer"
    epsilon: float = 1e-6

    def __post_init__(self):
        if self.kind not in NORM_KINDS:
            known = ", ".join(NORM_KINDS)
            raise ValueError(f"unknown kind {self.kind!r} of norm; known: {known}")
        if not self.epsilon > 0:
            raise ValueError(f"epsilon={self.epsilon} must be above 0")

    def build(self, name: str | None = None) -> nn.Module:
        """Makes the module of one norm."""
        return NORM_KINDS[self.kind](self.epsilon, name=name)

    before: ClassVar[bool] = False
    """Whether the sub-layer reads a normalised x."""
    inside: ClassVar[bool] = False
    """Whether the sub-layer's output is normalised before it is added."""
    after: ClassVar[bool] = False
    """Whether the sum is normalised."""
    final: ClassVar[bool] = True
    """Whether one more norm follows each stack."""
    remembers: ClassVar[bool] = False
    """Whether `ctx.shared` keeps outputs of all sub-layers before: the layers of a stack then
    have the same value, and are not scanned."""

    def surround(self, layer: "Layer") -> nn.Module:
        """Makes the module around a sub-layer, as `AddAndNorm`.

        A class with its own may have `products(sublayers, d_model)`, which counts the
        products of a token in a stack; without, they are unknown.
        """
        return AddAndNorm(self)


@dataclasses.dataclass(frozen=True)
class Post(Norm):
    """Norm(x + Sublayer(x)), as in "Attention Is All You Need", section 3.1."""

    after: ClassVar[bool] = True
    final: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True)
class PostFinal(Norm):
    """Norm(x + Sublayer(x)), and a norm after each stack, as PyTorch's nn.Transformer."""

    after: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Pre(Norm):
    """x + Sublayer(Norm(x)), and a norm after each stack (Xiong et al. 2020)."""

    before: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Both(Norm):
    """x + Norm(Sublayer(Norm(x))), and a norm after each stack (Ding et al. 2021)."""

    before: ClassVar[bool] = True
    inside: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class AttnRes(Pre):
    """Lets sub-layers read a mean of all outputs before (Kimi Team 2026, arXiv 2603.15031).

    h_l = Σ_i α_i v_i, α = softmax_i(w_l · RMSNorm(v_i)), of the embedding v_0 and the outputs
    v_i = Sublayer_i(Norm(h_i)); the model's output is such a mean too. w_l is trained, 0 at
    first, where h_l is the plain mean; the RMSNorm's scale would be one with w_l.

    With `block` above 1, v_i are sums of so many outputs each, the last of those that there
    are: fewer vectors are read and kept. A layer has two sub-layers, with attention to a
    source three. Reads grow with the square of the depth, and so does the time to compile.

    Raises:
      ValueError: a block below 1.
    """

    block: int = 1

    remembers: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        if self.block < 1:
            raise ValueError(f"block={self.block} must be at least 1")

    def surround(self, layer: "Layer") -> nn.Module:
        """Makes the module around a sub-layer."""
        return AttendOverDepth(self, layer.d_model)

    def products(self, sublayers: int, d_model: int) -> int:
        """Counts 2·d_model for each vector that is read."""
        read = sum(1 + -(-i // self.block) for i in range(1, sublayers + 1))
        return 2 * d_model * read


NORMS = {
    "post": Post,
    "post_final": PostFinal,
    "pre": Pre,
    "both": Both,
    "attnres": AttnRes,
}
"""The classes of this file by name."""


class AddAndNorm(nn.Module):
    """Surrounds a sub-layer (sections 3.1 and 5.4): y = Sublayer(before(x)), self(x, y)."""

    value: Norm

    def setup(self):
        """Makes the norms and the dropout."""
        self.norm = self.value.build()
        if self.value.before and self.value.inside:
            self.norm_inside = self.value.build()
        self.drop = Dropout("P_drop")

    def before(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """Returns what the sub-layer reads."""
        return self.norm(x) if self.value.before else x

    def __call__(
        self, x: Float[Array, "B N D"], y: Float[Array, "B N D"], ctx: Context
    ) -> tuple[Float[Array, "B N D"], Context]:
        """Returns x + Dropout(y), normalised where the norm stands after, and the context."""
        if self.value.inside:
            y = self.norm_inside(y) if self.value.before else self.norm(y)
        x = x + self.drop(y, ctx)
        return (self.norm(x) if self.value.after else x), ctx


class AttendOverDepth(nn.Module):
    """Surrounds a sub-layer by attention over all outputs so far; methods as of `AddAndNorm`.

    `ctx.shared["depth"]` has the sums of whole blocks, and of the open one: a None for each
    of its outputs but the last, and the sum so far.
    """

    value: AttnRes
    d_model: int

    def setup(self):
        """Makes the norm, the dropout and w of what follows the sub-layer."""
        self.norm = self.value.build()
        self.drop = Dropout("P_drop")
        self.query = self.param("query", nn.initializers.zeros, (self.d_model,))

    def before(self, x: Float[Array, "B N D"]) -> Float[Array, "B N D"]:
        """Returns what the sub-layer reads."""
        return self.norm(x)

    def __call__(
        self, x: Float[Array, "B N D"], y: Float[Array, "B N D"], ctx: Context
    ) -> tuple[Float[Array, "B N D"], Context]:
        """Returns what the next sub-layer reads, and the context that has y too."""
        # What the first sub-layer reads is the embedding.
        whole, block = ctx.shared.get("depth", ((x,), ()))
        y = self.drop(y, ctx)
        total = block[-1] + y if block else y
        seen = (*whole, total)
        # The count must be known when this is traced, so it is a length.
        block = (*(None for _ in block), total)
        depth = (seen, ()) if len(block) == self.value.block else (whole, block)
        ctx = ctx.replace(shared={**ctx.shared, "depth": depth})
        # Gradients make weights again: kept, they would be of the size of all vectors.
        mean = jax.checkpoint(mean_over_depth, static_argnums=2)
        return mean(self.query, seen, self.value.epsilon), ctx


def mean_over_depth(
    w: Float[Array, "D"], vectors: Sequence[Float[Array, "B N D"]], epsilon: float
) -> Float[Array, "B N D"]:
    """Returns Σ_i α_i v_i, α = softmax_i(w · RMSNorm(v_i)), of each token by itself."""
    # Never side by side in one array: XLA then copies all of them for every sub-layer.
    wide = [v.astype(at_least_float32(v.dtype)) for v in vectors]
    scores = jnp.stack([_score(w, v, epsilon) for v in wide])
    weights = jax.nn.softmax(scores, axis=0)
    weighted = (a[..., None] * v for a, v in zip(weights, wide, strict=True))
    return functools.reduce(jnp.add, weighted).astype(vectors[0].dtype)


def _score(w, v, epsilon):
    """Returns w · RMSNorm(v) of each token."""
    return jax.lax.rsqrt((v**2).mean(-1) + epsilon) * (v @ w.astype(v.dtype))
