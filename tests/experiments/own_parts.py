"""Parts of a user's own, as a file outside of the repository has them.

None says how many products it takes; a setting names them as "tests.experiments.own_parts:Mixer".
"""

import dataclasses

import jax.numpy as jnp

import attn
from experiments.data.corpora import Pairs

PLACE = "tests.experiments.own_parts"


@dataclasses.dataclass(frozen=True)
class Mixer(attn.Mixer):
    """Mixes as self-attention does, by its very module."""

    inner: str = "attention"

    def build(self, block, causal):
        return attn.SelfAttention().build(block, causal)


class TwoTimes(attn.MultiHeadAttention):
    """Attends to what it has attended to."""

    def __call__(self, x, ctx):
        y, ctx = super().__call__(x, ctx)
        return super().__call__(y, ctx)


@dataclasses.dataclass(frozen=True)
class Twice(attn.SelfAttention):
    """Inherits what self-attention says of itself, and takes twice as much."""

    def build(self, block, causal):
        return TwoTimes(block, causal)


@dataclasses.dataclass(frozen=True)
class Heads(attn.Heads):
    """Multiplies the outputs by a trained number."""

    def parameters(self, key, a):
        return {"gain": jnp.ones(())}

    def attend(self, params, q, k, v, ctx, **arguments):
        return attn.attention(q, k, v, **arguments) * params["gain"]


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

    objective = "answer"


class Classes(Symbols):
    """Has the class of each text as its target."""

    objective = "write"

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
