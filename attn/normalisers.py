"""Normalisers: values that turn a query's scores into its weights, in softmax's place.

A normaliser is a pytree of its own parameters, called on the scores s (n, m) of some
queries of one head and all keys that they can see. Hidden keys have s = −inf, and weight
0; a query that sees nothing has weights 0. n_i is the number of keys that query i sees.
A new normaliser is one class:

    @attn.normaliser
    class SquaredReLU:
        '''w = max(0, s)² / n_i'''

        def weights(self, s, n):
            return jnp.maximum(s, 0) ** 2 / n

or, where weights are exponentials over their sum, one that defines `exponents`, as `Softmax`
does: kernels then keep a single number for each query.

`init(key, h)` makes a normaliser for h heads, whose arrays have a leading axis H.
`attn.contract.check_normaliser` holds a new one to the contract.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, dataclass_transform

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.functions.entmax import entmax
from attn.functions.stick_breaking import stick_breaking
from attn.functions.top_k import is_in_top
from attn.pytrees import T, pytree


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def normaliser(cls: type[T]) -> type[T]:
    """Makes a class of parameters a normaliser: a frozen dataclass of pytree leaves.

    The class defines one of these two:

      __call__(s): returns the weights, in the precision of s.
      exponents(s): returns x and r such that the weights are e^x / (e^r + Σ e^x). x is
        −inf for hidden keys; r is one number, or None where there is nothing but Σ e^x.

    It may define, and gets a default where it does not:

      init(key, h): a class method that makes the normaliser of h heads. The default is
        `cls()`, where all fields have defaults.
      sums_to_one: False states that the weights of a query need not sum to 1, and so are
        no probabilities to sample by. The default is True.
      by_score: False states that a greater score need not have the greater weight, so that
        no key is the best by its score. The default is True; of a trained factor it
        holds while the factor is above 0.
      weights(s, n): the same as __call__, which it then gives, number by number: n (n, 1) is
        the number of keys that each query sees, 1 where it sees none. Kernels need no row
        as a whole then.
      fused(n): states that `exponents(s)` is (f · s, r), and returns f and r, None for 1
        and −inf, so that kernels can use a fused softmax. n (B, N, H), or 1 for H, is the
        number of keys that each query sees; parameters are (1, 1, H).
    """
    made: Any = pytree(cls)
    if hasattr(made, "exponents"):
        made.__call__ = lambda self, s: softmax(*self.exponents(s))[0]
    elif hasattr(made, "weights"):
        made.__call__ = lambda self, s: self.weights(s, count(s))
    if not hasattr(made, "init"):
        made.init = classmethod(lambda cls, key, h: cls())
    if not hasattr(made, "sums_to_one"):
        made.sums_to_one = True
    if not hasattr(made, "by_score"):
        made.by_score = True
    return made


def count(s: Float[Array, "n m"]) -> Float[Array, "n 1"]:
    """Returns the number of keys that each query sees, and 1 where it sees none."""
    # A score of NaN is seen too: it makes NaN of what it reaches.
    seen = (s != -jnp.inf).sum(-1, keepdims=True, dtype=s.dtype)
    return jnp.maximum(seen, 1)


def scaled(s: Float[Array, "n m"], factor) -> Float[Array, "n m"]:
    """Returns factor · s, and −inf where s is, which gives the factor no gradient."""
    hidden = s == -jnp.inf
    return jnp.where(hidden, -jnp.inf, factor * jnp.where(hidden, 0, s))


def softmax_parts(
    x: Float[Array, "n m"], rest=None
) -> tuple[Float[Array, "n m"], Float[Array, "n m"], Float[Array, "n 1"]]:
    """Returns x − t, its exponential e, and Σ e + exp(rest − t), t the greatest exponent.

    So the weights are e over the sum. In rows of −inf, without a rest, e is 0 and the sum
    counts as 1.
    """
    top, e, total = exponentials(x, rest)
    return x - top, e, jnp.where(total == 0, 1.0, total)


def softmax(x: Float[Array, "n m"], rest=None):
    """Returns e^x / (e^rest + Σ e^x), and the log of the denominator (n,).

    In rows of −inf, without a rest, the weights are 0, with gradient 0, and the log −inf.
    """
    top, e, total = exponentials(x, rest)
    # 0 / 1 keeps the weights of such a row at 0, with a gradient that is 0 and not NaN.
    empty = total == 0
    total = jnp.where(empty, 1.0, total)
    return e / total, jnp.where(empty, -jnp.inf, top + jnp.log(total))[..., 0]


def exponentials(x: Float[Array, "n m"], rest=None):
    """Returns the greatest exponent t of each row, exp(x − t), and Σ exp(x − t) with the rest.

    t is 0 in a row of −inf. It cancels in the quotient and in the LSE: it has no gradient.
    """
    top = x.max(-1, keepdims=True, initial=-jnp.inf)
    if rest is not None:
        top = jnp.maximum(top, rest)
    # In a row of −inf, subtracting the maximum would be −inf − (−inf) = NaN, in the value
    # and in every gradient.
    top = jax.lax.stop_gradient(jnp.where(top == -jnp.inf, 0.0, top))
    e = jnp.exp(x - top)
    total = e.sum(-1, keepdims=True)
    return top, e, total if rest is None else total + jnp.exp(rest - top)


@normaliser
class Softmax:
    """w = e^s / Σ e^s ("Attention Is All You Need", section 3.2.1)."""

    def exponents(self, s):
        return s, None

    def fused(self, n):
        return None, None


@normaliser
class OffByOne:
    """w = e^s / (1 + Σ e^s): a query may attend to nothing (Miller 2023)."""

    sums_to_one = False

    def exponents(self, s):
        return s, 0.0

    def fused(self, n):
        return None, 0.0


@normaliser
class Sink:
    """w = e^s / (e^logit + Σ e^s), with a learned logit a head (OpenAI 2025, gpt-oss).

    It is a key that all queries see, of that score and of value 0.
    """

    sums_to_one = False
    logit: Any  # a number, or one for each head

    @classmethod
    def init(cls, key: Array, h: int):
        """Begins with logits of 0, as `OffByOne`."""
        return cls(jnp.zeros(h))

    def exponents(self, s):
        return s, jnp.asarray(self.logit, s.dtype)

    def fused(self, n):
        return None, self.logit


@normaliser
class ScalableSoftmax:
    """w = softmax(s · scale · log n_i) (Nakanishi 2025, "Scalable-Softmax").

    Its weights stay as sharp as a query sees more keys.
    """

    scale: Any  # a number, or one for each head

    @classmethod
    def init(cls, key: Array, h: int):
        """Begins with 0.43, of the paper's figure 1."""
        return cls(jnp.full(h, 0.43))

    def exponents(self, s):
        factor = jnp.asarray(self.scale, s.dtype) * jnp.log(count(s))
        return scaled(s, factor), None

    def fused(self, n):
        return self.scale * jnp.log(n), None


@normaliser
class Sigmoid:
    """w = σ(s + bias), bias = −log n_i unless given (Ramapuram et al. 2024)."""

    sums_to_one = False
    bias: Any = None  # a number, or one for each head

    @classmethod
    def init(cls, key: Array, h: int, *, bias: float | None = None):
        """Returns a normaliser with this bias, which is not trained."""
        return cls(bias)

    def weights(self, s, n):
        bias = -jnp.log(n) if self.bias is None else self.bias
        return jax.nn.sigmoid(s + jnp.asarray(bias, s.dtype))


@normaliser
class ReLU:
    """w = max(0, s) / n_i (Wortsman et al. 2023)."""

    sums_to_one = False

    def weights(self, s, n):
        return jax.nn.relu(s) / n


@normaliser
class TopK:
    """w = softmax over the k greatest scores of a query, 0 for the other keys.

    Of equal scores the first ones count (Gupta et al. 2021, arXiv 2106.06899). With as many
    keys as k, or fewer, it is softmax.
    """

    k: int = dataclasses.field(default=8, metadata=dict(static=True))

    @classmethod
    def init(cls, key: Array, h: int, *, k: int = 8):
        """Returns a normaliser of k keys a query.

        Raises:
          ValueError: a k below 1.
        """
        return cls(k)

    def __post_init__(self):
        if self.k < 1:
            raise ValueError(f"k={self.k} must be at least 1")

    def __call__(self, s):
        # Of no keys there are no greatest.
        kept = is_in_top(s, self.k) if s.shape[-1] else s == 0
        return softmax(jnp.where(kept, s, -jnp.inf))[0]


@normaliser
class Entmax:
    """w = [(α − 1) s − τ]₊^(1/(α − 1)), with the τ for which Σ w = 1 (Peters et al. 2019).

    1 < α ≤ 2; the larger α, the more weights are 0. α = 1 is softmax.
    """

    alpha: float | int = dataclasses.field(default=1.5, metadata=dict(static=True))

    @classmethod
    def init(cls, key: Array, h: int, *, alpha: float = 1.5):
        """Returns a normaliser with this α, which is not trained.

        Raises:
          ValueError: an α outside of 1 to 2.
        """
        return cls(alpha)

    def __post_init__(self):
        check_alpha(self.alpha)

    def __call__(self, s):
        return softmax(s)[0] if self.alpha == 1 else entmax(s, float(self.alpha - 1))


@normaliser
class Sparsemax:
    """w = [s − τ]₊, with the τ for which Σ w = 1 (Martins and Astudillo 2016)."""

    def __call__(self, s):
        return entmax(s, 1.0)


@normaliser
class AdaptiveEntmax:
    """Entmax with a learned α = 1 + σ(a) a head (Correia et al. 2019)."""

    a: Any  # a number, or one for each head

    @classmethod
    def init(cls, key: Array, h: int):
        """Begins with α = 1.5."""
        return cls(jnp.zeros(h))

    def __call__(self, s):
        return entmax(s, jax.nn.sigmoid(jnp.asarray(self.a, s.dtype)))


@normaliser
class ASEntmax:
    """w = entmax(s · (δ + β (log n_i)^γ)) (Vasylenko et al. 2025, "ASEntmax").

    δ, β and γ are learned, one of each a head; in the paper each query makes its β and γ.
    """

    delta: Any
    beta: Any
    gamma: Any
    alpha: float | int = dataclasses.field(default=1.5, metadata=dict(static=True))

    @classmethod
    def init(cls, key: Array, h: int, *, alpha: float = 1.5):
        """Begins as entmax with this α: δ = 1, β = 0, γ = 1.

        Raises:
          ValueError: an α outside of 1 to 2.
        """
        return cls(jnp.ones(h), jnp.zeros(h), jnp.ones(h), alpha)

    def __post_init__(self):
        check_alpha(self.alpha)

    def __call__(self, s):
        delta, beta, gamma = (
            jnp.asarray(x, s.dtype) for x in (self.delta, self.beta, self.gamma)
        )
        # Of one key the weight is 1 whatever its score; log 1 = 0 would give γ no gradient.
        length = jnp.log(jnp.maximum(count(s), 2))
        return Entmax(self.alpha)(scaled(s, delta + beta * length**gamma))


@normaliser
class StickBreaking:
    """w_j = σ(s_j) Π_{l > j} (1 − σ(s_l)), l the keys that are seen (Tan et al. 2024).

    Of a stick of length 1 each key, from the last that the query sees to the first, breaks
    off the share σ(s_j) of what is left: so weights depend on the order of the keys, and
    need no positions. Under a causal mask the nearest key is the first to break. The paper
    hides a query's own key, as `Mask.causal(offset=-1)` does; the mask of a decoder shows
    it.
    """

    sums_to_one = False
    by_score = False

    def __call__(self, s):
        return stick_breaking(s)


def check_alpha(alpha: float | int) -> None:
    """Raises ValueError for an α of entmax outside of 1 to 2."""
    if not 1 <= alpha <= 2:
        raise ValueError(f"alpha={alpha} must be from 1 (softmax) to 2 (sparsemax)")


NORMALISERS: dict[str, Any] = {
    "softmax": Softmax,
    "off_by_one": OffByOne,
    "sink": Sink,
    "scalable_softmax": ScalableSoftmax,
    "sigmoid": Sigmoid,
    "relu": ReLU,
    "top_k": TopK,
    "sparsemax": Sparsemax,
    "entmax": Entmax,
    "adaptive_entmax": AdaptiveEntmax,
    "asentmax": ASEntmax,
    "stick_breaking": StickBreaking,
}
"""The classes that a name stands for, as in `attn.config`."""


def normaliser_init(choice: str | type | Callable) -> Callable:
    """Returns the function (key, h) -> normaliser that a choice stands for.

    Args:
      choice: a name of NORMALISERS, a class of normalisers, or such a function itself.

    Raises:
      ValueError: an unknown name.
    """
    if isinstance(choice, str):
        if choice not in NORMALISERS:
            known = ", ".join(NORMALISERS)
            raise ValueError(
                f"unknown normaliser {choice!r}; known: {known}; or give a class of "
                "normalisers"
            )
        return NORMALISERS[choice].init
    return choice.init if isinstance(choice, type) else choice


def check_selected(normaliser: Any, selection: str) -> None:
    """Raises ValueError for a normaliser by whose weights no key can be selected."""
    name = type(normaliser).__name__
    if selection == "sampled" and not normaliser.sums_to_one:
        raise ValueError(
            f"selection=sampled draws keys by their weights, and those of {name} need not "
            "sum to 1"
        )
    if selection == "argmax" and not normaliser.by_score:
        raise ValueError(
            "selection=argmax takes the key of the best score, which need not have the "
            f"greatest weight of {name}"
        )
