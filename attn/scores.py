"""Scores: values that compare the queries and keys of one head.

A score is a pytree of its own parameters, called on q (N, K) and k (M, K). N queries,
M keys, K = d_k, Q = d_q (the width of a query, where it may differ), A = the hidden width
of a score. Whatever it returns, kernels go on with it in float32 at least. A new score is
one class:

    @attn.score
    class Distance:
        '''score(q, k) = −temperature · ‖q − k‖²'''

        temperature: Any

        @classmethod
        def init(cls, key, h, d_q, d_k):
            return cls(jnp.ones(h))

        def __call__(self, q, k):
            return -self.temperature * ((q[:, None] - k[None]) ** 2).sum(-1)

`init(key, h, d_q, d_k)` makes a score for h heads, whose arrays have a leading axis H.
Initial values here are Glorot-uniform, each head for itself. `attn.contract.check_score`
holds a new score to the contract.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.functions.tanh_sum import tanh_sum
from attn.precision import at_least_float32
from attn.pytrees import pytree


def score(cls):
    """Makes a class of parameters a score: a frozen dataclass of pytree leaves.

    The class may define, and gets a default where it does not:

      init(key, h, d_q, d_k): a class method that makes the score of h heads. The default
        is `cls()`, where all fields have defaults.
      prepare(q, k): returns (score', q', k') with score'(q', k') = score(q, k), the work
        that a kernel can do once for all tiles. The default is (self, q, k).
      is_product: True states that prepare returns `Dot()`, so that kernels can use a
        plain matrix product. The default is False.
    """
    cls = pytree(cls)
    if not hasattr(cls, "init"):
        cls.init = classmethod(_default_init)
    if not hasattr(cls, "prepare"):
        cls.prepare = lambda self, q, k: (self, q, k)
    if not hasattr(cls, "is_product"):
        cls.is_product = False
    return cls


def _default_init(cls, key: Array, h: int, d_q: int, d_k: int):
    """Returns the score with the defaults of its fields."""
    missing = dataclasses.MISSING
    for field in dataclasses.fields(cls):
        if field.default is missing and field.default_factory is missing:
            raise TypeError(
                f"{cls.__name__} has no init, and its field {field.name!r} no default; "
                "give it one of both"
            )
    return cls()


@score
class Dot:
    """score(q, k) = q · k (Luong et al. 2015, section 3.1, "dot")."""

    is_product = True

    def __call__(
        self,
        q: Float[Array, "N K"],
        k: Float[Array, "M K"],
    ) -> Float[Array, "N M"]:
        # Asked of the product itself: a cast afterwards would be of rounded sums.
        return jnp.matmul(q, k.T, preferred_element_type=_at_least_float32(q))


@score
class ScaledDot:
    """score(q, k) = scale · (q · k), with scale = 1/√d_k unless given.

    "Attention Is All You Need", section 3.2.1.
    """

    is_product = True
    scale: Any = None  # a number, or one for each head

    def __call__(
        self,
        q: Float[Array, "N K"],
        k: Float[Array, "M K"],
    ) -> Float[Array, "N M"]:
        dot, q, k = self.prepare(q, k)
        return dot(q, k)

    def prepare(self, q, k):
        """Scales q, which costs N·K multiplications; scaling the scores costs N·M."""
        # Vectors without numbers have scores of 0, at any scale.
        d_k = max(1, q.shape[-1])
        scale = d_k**-0.5 if self.scale is None else self.scale
        # In q's dtype, because a float32 scale would widen bfloat16 queries.
        return Dot(), q * jnp.asarray(scale, q.dtype), k


@score
class Bilinear:
    """score(q, k) = qᵀ W k (Luong et al. 2015, "general").

    W is w, or the product of two factors w (Q, R) and w_2 (R, K). It costs one projection
    more than a dot product, because W is folded into the queries.
    """

    is_product = True
    w: Any  # Float[Array, "Q K"], or (Q, R) with
    w_2: Any = None  # Float[Array, "R K"]

    @classmethod
    def init(cls, key: Array, h: int, d_q: int, d_k: int, *, rank: int | None = None):
        """Draws W of h heads, (H, Q, K).

        With a rank R it is two factors, (H, Q, R) and (H, R, K).

        Raises:
          ValueError: a rank below 1.
        """
        if rank is None:
            return cls(_glorot(key, (h, d_q, d_k)))
        if rank < 1:
            raise ValueError(f"rank={rank} must be at least 1")
        left, right = jax.random.split(key)
        return cls(_glorot(left, (h, d_q, rank)), _glorot(right, (h, rank, d_k)))

    def __call__(
        self,
        q: Float[Array, "N Q"],
        k: Float[Array, "M K"],
    ) -> Float[Array, "N M"]:
        dot, q, k = self.prepare(q, k)
        return dot(q, k)

    def prepare(self, q, k):
        """Folds W into the queries."""
        q = q @ self.w.astype(q.dtype)
        if self.w_2 is not None:
            q = q @ self.w_2.astype(q.dtype)
        return Dot(), q, k


@score
class Additive:
    """score(q, k) = vᵀ tanh(W_q q + W_k k + b) (Bahdanau et al. 2015, appendix A.1.2)."""

    w_q: Any  # Float[Array, "Q A"]
    w_k: Any  # Float[Array, "K A"]
    v: Any  # Float[Array, "A"]
    b: Any = None  # Float[Array, "A"]

    @classmethod
    def init(
        cls,
        key: Array,
        h: int,
        d_q: int,
        d_k: int,
        *,
        d_a: int | None = None,
        bias: bool = False,
    ):
        """Draws the parameters of h heads with hidden width A = d_a, d_k unless given.

        A bias starts at 0.

        Raises:
          ValueError: a hidden width below 1.
        """
        d_a = d_k if d_a is None else d_a
        if d_a < 1:
            raise ValueError(f"d_a={d_a} must be at least 1")
        key_q, key_k, key_v = jax.random.split(key, 3)
        return cls(
            _glorot(key_q, (h, d_q, d_a)),
            _glorot(key_k, (h, d_k, d_a)),
            _glorot(key_v, (h, d_a, 1))[..., 0],
            jnp.zeros((h, d_a)) if bias else None,
        )

    def __call__(
        self,
        q: Float[Array, "N Q"],
        k: Float[Array, "M K"],
    ) -> Float[Array, "N M"]:
        hidden, a, b = self.prepare(q, k)
        # The textbook form, to which tests and `attn.contract` hold `prepare`.
        return jnp.einsum("nma,a->nm", jnp.tanh(a[:, None] + b[None]), hidden.v)

    def prepare(self, q, k):
        """Projects queries and keys, each once."""
        dtype = _at_least_float32(q)
        a = jnp.matmul(q, self.w_q, preferred_element_type=dtype)
        b = jnp.matmul(k, self.w_k, preferred_element_type=dtype)
        if self.b is not None:
            # b joins the queries, where it costs nothing for a pair of tokens.
            a = a + self.b.astype(dtype)[None]
        return TanhSum(self.v.astype(dtype)), a, b


@score
class TanhSum:
    """score(q, k) = vᵀ tanh(q + k): additive attention behind its projections.

    It makes no N·M·A tensor, see `attn.functions.tanh_sum`.
    """

    v: Any  # Float[Array, "A"]

    def __call__(
        self,
        q: Float[Array, "N A"],
        k: Float[Array, "M A"],
    ) -> Float[Array, "N M"]:
        return tanh_sum(q.T, k.T, self.v)


SCORES = {
    "dot": Dot,
    "scaled_dot": ScaledDot,
    "bilinear": Bilinear,
    "additive": Additive,
}
"""The classes that a name stands for, as in `Design.score`."""


def score_init(choice: str | type | Callable) -> Callable:
    """Returns the function (key, h, d_q, d_k) -> score that a choice stands for.

    Args:
      choice: a name of SCORES, a class of scores, or such a function itself.

    Raises:
      ValueError: an unknown name.
    """
    if isinstance(choice, str):
        if choice not in SCORES:
            known = ", ".join(SCORES)
            raise ValueError(
                f"unknown score {choice!r}; known: {known}; or give a class of scores"
            )
        choice = SCORES[choice]
    return choice.init if isinstance(choice, type) else choice


# Heads are a batch axis: counted into the fans, they would shrink all values.
_glorot = jax.nn.initializers.glorot_uniform(in_axis=-2, out_axis=-1, batch_axis=0)


def _at_least_float32(x):
    return at_least_float32(x.dtype)
