"""Parts of a user's own, as a file outside of the repository has them.

None says how many products it takes; a setting names them as "tests.experiments.own_parts:Mixer".
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

import attn
from experiments.data.corpora import Pairs

PLACE = "tests.experiments.own_parts"


@dataclasses.dataclass(frozen=True)
class Mixer(attn.Mixer):
    """Mixes as self-attention does, by its very module."""

    inner: str = "attention"

    def build(self, shape, design, causal, P_attention=0.0):
        return attn.SelfAttention().build(shape, design, causal, P_attention)

    def mix(self, module, x, mask):
        return module(x, x, mask)


@dataclasses.dataclass(frozen=True)
class Twice(attn.SelfAttention):
    """Inherits what self-attention says of itself, and takes twice as much."""

    def mix(self, module, x, mask):
        return module(module(x, x, mask), x, mask)


class Gain(nn.Module):
    """Multiplies the outputs by a number, but in the first layer."""

    number: Any

    @nn.compact
    def __call__(self, q, k, v, **arguments):
        out = attn.attention(q, k, v, **arguments)
        if self.number == 1:
            return out
        return out * self.param("gain", nn.initializers.ones, ())


@dataclasses.dataclass(frozen=True)
class Heads(attn.Heads):
    """Has parameters in all layers but the first."""

    layer: Any = dataclasses.field(default=1, init=False, repr=False)

    def build(self, h, d_k, d_v):
        return Gain(self.layer)

    def in_layer(self, number):
        layered = Heads()
        object.__setattr__(layered, "layer", number)
        return layered


@attn.score
class Distance:
    """score(q, k) = −‖q − k‖²."""

    def __call__(self, q, k):
        distance = ((q[:, None] - k[None]) ** 2).sum(-1)
        return -distance.astype(jnp.promote_types(q.dtype, jnp.float32))


@dataclasses.dataclass(frozen=True)
class Gated(attn.Forget):
    """Inherits what forget gates say of themselves."""


class Symbols:
    """Texts of ten symbols."""

    def __init__(self, data):
        self.sizes = dict(train=40, validation=4, test=4)

    def symbols(self):
        return tuple(f"s{i}" for i in range(10))

    def fingerprint(self):
        return "ten symbols"

    def read(self, split):
        texts = [f"s{i % 10} s{i // 10}" for i in range(self.sizes[split])]
        yield Pairs(texts, texts)

    def place(self, split, i):
        return f"{split}:{i}"

    def counts(self):
        return {}


class Labels(Symbols):
    """Has a label in the place of each symbol."""

    labelled = True


class Classes(Symbols):
    """Has the class of each text as its target."""

    answers = True

    def read(self, split):
        texts = [f"s{i % 10} s{i // 10}" for i in range(self.sizes[split])]
        yield Pairs(texts, [f"s{i % 2}" for i in range(len(texts))])


class Sized(Symbols):
    """Has as many pairs as an option says, which its fingerprint says if it is `named`."""

    def __init__(self, data, pairs: int = 40, named: bool = False):
        super().__init__(data)
        self.sizes["train"] = pairs
        self.named = named

    def fingerprint(self):
        return f"sized {self.sizes}" if self.named else "sized"


class Unordered(Symbols):
    """Has texts in the order of a set."""

    def read(self, split):
        texts = list({f"s{i % 10} s{i // 10}" for i in range(self.sizes[split])})
        yield Pairs(texts, texts)
