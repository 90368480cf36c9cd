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
from typing import Any, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attn.arithmetic import Products, stated
from attn.context import Context, in_context
from attn.functions.tanh_sum import tanh_sum
from attn.pytrees import T, at_least_float32, factors, pytree

ScoreChoice = str | type | Callable
"""What `score_init` takes. An option of `init` with this annotation is another score."""


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def score(cls: type[T]) -> type[T]:
    """Makes a class of parameters a score: a frozen dataclass of pytree leaves.

    A field with the metadata {"static": True} is a part of its structure instead.

    The class may define, and gets a default where it does not:

      init(key, h, d_q, d_k): a class method that makes the score of h heads. The default
        is `cls()`, where all fields have defaults.
      prepare(q, k): returns (score', q', k') with score'(q', k') = score(q, k), the work
        that a kernel can do once for all tiles. The default is (self, q, k).
      of_one_width: True states that queries and keys have the same width. The default is
        False.
      is_product: True states that prepare returns `Dot()`, so that kernels can use a
        plain matrix product. The default is False.
      products(d_q, d_k): returns the `attn.Products` of one head. Without it the FLOPs of
        a model with this score are unknown.
      numbers: the names of fields that hold numbers, each an option of `init` too. In
        experiments they are data: trials that differ in these alone share a program.
    """
    made: Any = pytree(cls)
    if not hasattr(made, "init"):
        made.init = classmethod(_default_init)
    if not hasattr(made, "prepare"):
        made.prepare = lambda self, q, k: (self, q, k)
    if not hasattr(made, "is_product"):
        made.is_product = False
    return made


def _default_init(cls, key: Array, h: int, d_q: int, d_k: int) -> Any:
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
    of_one_width = True

    def __call__(
        self,
        q: Float[Array, "N K"],
        k: Float[Array, "M K"],
    ) -> Float[Array, "N M"]:
        # Asked of the product itself: a cast afterwards would be of rounded sums.
        dtype = _at_least_float32(q)
        return jnp.matmul(*factors(q, k.T), preferred_element_type=dtype)

    def products(self, d_q: int, d_k: int) -> Products:
        return Products(pair=d_k)


@score
class ScaledDot:
    """score(q, k) = scale · (q · k), with scale = 1/√d_k unless given, or where it is 0.

    "Attention Is All You Need", section 3.2.1; for widths whose rates carry over it is in
    proportion to 1/d_k (Yang et al. 2022, "Tensor programs V").
    """

    is_product = True
    of_one_width = True
    scale: Any = None  # a number, or one for each head

    @classmethod
    def init(
        cls, key: Array, h: int, d_q: int, d_k: int, *, scale: float = 0.0
    ) -> "ScaledDot":
        """Makes the score, the same for all heads.

        Raises:
          ValueError: a scale that is not finite, or below 0.
        """
        if not 0 <= scale < float("inf"):
            raise ValueError(f"scale={scale} must be finite and at least 0")
        return cls(scale or None)

    def __call__(
        self,
        q: Float[Array, "N K"],
        k: Float[Array, "M K"],
    ) -> Float[Array, "N M"]:
        dot, q, k = self.prepare(q, k)
        return dot(q, k)

    def prepare(self, q: Array, k: Array) -> tuple[Any, Array, Array]:
        """Scales q, which costs N·K multiplications; scaling the scores costs N·M."""
        # Vectors without numbers have scores of 0, at any scale.
        d_k = max(1, q.shape[-1])
        scale = d_k**-0.5 if self.scale is None else self.scale
        # In q's dtype, because a float32 scale would widen bfloat16 queries.
        return Dot(), q * jnp.asarray(scale, q.dtype), k

    def products(self, d_q: int, d_k: int) -> Products:
        return Products(pair=d_k)


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
    def init(
        cls, key: Array, h: int, d_q: int, d_k: int, *, rank: int | None = None
    ) -> "Bilinear":
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

    def prepare(self, q: Array, k: Array) -> tuple[Any, Array, Array]:
        """Folds W into the queries."""
        q = q @ self.w.astype(q.dtype)
        if self.w_2 is not None:
            q = q @ self.w_2.astype(q.dtype)
        return Dot(), q, k

    def products(self, d_q: int, d_k: int) -> Products:
        factors = (self.w,) if self.w_2 is None else (self.w, self.w_2)
        of_query = sum(w.shape[-2] * w.shape[-1] for w in factors)
        return Products(query=of_query, pair=d_k)


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
    ) -> "Additive":
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

    def prepare(self, q: Array, k: Array) -> tuple[Any, Array, Array]:
        """Projects queries and keys, each once."""
        dtype = _at_least_float32(q)
        a = jnp.matmul(*factors(q, self.w_q), preferred_element_type=dtype)
        b = jnp.matmul(*factors(k, self.w_k), preferred_element_type=dtype)
        if self.b is not None:
            # b joins the queries, where it costs nothing for a pair of tokens.
            a = a + self.b.astype(dtype)[None]
        return TanhSum(self.v.astype(dtype)), a, b

    def products(self, d_q: int, d_k: int) -> Products:
        d_a = self.v.shape[-1]
        return Products(query=d_q * d_a, key=d_k * d_a, pair=d_a)


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


@score
class QKNorm:
    """score(q, k) = inner(g_q ⊙ q / ‖q‖, g_k ⊙ k / ‖k‖): normed queries and keys.

    With norm="rms" ‖x‖ = √(Σ x² / K + ε) and a head learns a gain for each feature of its
    queries and its keys: Dehghani et al. 2023 and Wortsman et al. 2023, section 3.1, have
    it with LayerNorm, which also takes the mean away; the models since have RMSNorm. With
    norm="l2" ‖x‖ = √(Σ x² + ε) and a head learns one number: with a dot product inside,
    score(q, k) = g · cos(q, k) (Henry et al. 2020). ε = 1e-6.
    """

    inner: Any = ScaledDot()  # another score
    g_q: Any = None  # Float[Array, "Q"], or one number; 1 unless given
    g_k: Any = None  # Float[Array, "K"], or one number; 1 unless given
    norm: str = dataclasses.field(default="rms", metadata={"static": True})

    def __post_init__(self):
        """Raises ValueError for an unknown norm."""
        _check_norm(self.norm)

    @classmethod
    def init(
        cls,
        key: Array,
        h: int,
        d_q: int,
        d_k: int,
        *,
        inner: ScoreChoice = "scaled_dot",
        norm: str = "rms",
    ) -> "QKNorm":
        """Makes the score of h heads around the one that `score_init(inner)` makes.

        Gains start at 1. The one number of norm="l2" starts at √d_k, where Henry et al.
        have log₂(L² − L) for sentences of L tokens.

        Raises:
          ValueError: an unknown norm or inner score.
        """
        inner = score_init(inner)(key, h, d_q, d_k)
        _check_norm(norm)
        if norm == "l2":
            return cls(inner, jnp.full(h, float(d_k) ** 0.5), None, norm)
        return cls(inner, jnp.ones((h, d_q)), jnp.ones((h, d_k)), norm)

    @property
    def is_product(self) -> bool:
        """Tells whether `prepare` gives `Dot()`: where it does inside."""
        return self.inner.is_product

    def __call__(
        self,
        q: Float[Array, "N Q"],
        k: Float[Array, "M K"],
    ) -> Float[Array, "N M"]:
        return self.inner(self._normed(q, self.g_q), self._normed(k, self.g_k))

    def prepare(self, q: Array, k: Array) -> tuple[Any, Array, Array]:
        """Norms queries and keys, then does what the inner score prepares."""
        return self.inner.prepare(self._normed(q, self.g_q), self._normed(k, self.g_k))

    def products(self, d_q: int, d_k: int) -> Products | None:
        return stated(self.inner, d_q, d_k)

    def _normed(self, x: Array, gain: Any) -> Array:
        # The squares of bfloat16 are summed in float32; the inner score gets x's dtype.
        wide = x.astype(_at_least_float32(x))
        total = (wide**2).sum(-1, keepdims=True)
        if self.norm == "rms":
            total = total / max(1, x.shape[-1])
        # ε also makes the gradient at 0 finite, where masked tokens stand.
        wide = wide * jax.lax.rsqrt(total + 1e-6)
        if gain is not None:
            gain = jnp.asarray(gain, wide.dtype)
            # x may have axes of a batch here, as the kernel "cudnn" prepares all at once.
            wide = wide * gain.reshape((1,) * (x.ndim - gain.ndim) + gain.shape)
        return wide.astype(x.dtype)


@score
class Softcap:
    """score(q, k) = cap · tanh(inner(q, k) / cap), from −cap to cap (Gemma 2, 2024).

    The larger the cap, the nearer to the inner score.
    """

    inner: Any = ScaledDot()  # another score
    cap: Any = 50.0  # a number, or one for each head

    @classmethod
    def init(
        cls,
        key: Array,
        h: int,
        d_q: int,
        d_k: int,
        *,
        inner: ScoreChoice = "scaled_dot",
        cap: float = 50.0,
    ) -> "Softcap":
        """Makes the score of h heads around the one that `score_init(inner)` makes.

        Raises:
          ValueError: a cap that is not finite and above 0, an unknown inner score.
        """
        if not 0 < cap < float("inf"):
            raise ValueError(f"cap={cap} must be finite and above 0")
        return cls(score_init(inner)(key, h, d_q, d_k), cap)

    def __call__(
        self,
        q: Float[Array, "N Q"],
        k: Float[Array, "M K"],
    ) -> Float[Array, "N M"]:
        s = self.inner(q, k)
        s = s.astype(_at_least_float32(s))
        cap = jnp.asarray(self.cap, s.dtype)
        return cap * jnp.tanh(s / cap)

    def prepare(self, q: Array, k: Array) -> tuple[Any, Array, Array]:
        """Does what the inner score prepares."""
        inner, q, k = self.inner.prepare(q, k)
        return Softcap(inner, self.cap), q, k

    def products(self, d_q: int, d_k: int) -> Products | None:
        return stated(self.inner, d_q, d_k)


@score
class Annealed:
    """score(q, k) = inner(q, k) / T, T = end + (start − end) · max(0, 1 − step / steps).

    The temperature T goes from `start` to `end` over the first `steps` updates of training;
    where there is no step, as outside training, it is `end`.
    """

    numbers = ("start", "end", "steps")

    inner: Any = ScaledDot()  # another score
    start: Any = 2.0
    end: Any = 1.0
    steps: Any = 1000.0
    step: Any = None  # Int[Array, ""], the updates of training so far

    @classmethod
    def init(
        cls,
        key: Array,
        h: int,
        d_q: int,
        d_k: int,
        *,
        inner: ScoreChoice = "scaled_dot",
        start: float = 2.0,
        end: float = 1.0,
        steps: int = 1000,
    ) -> "Annealed":
        """Makes the score of h heads around the one that `score_init(inner)` makes.

        Raises:
          ValueError: a temperature that is not finite and above 0, steps below 1, an
            unknown inner score.
        """
        for name, value in (("start", start), ("end", end)):
            if not 0 < value < float("inf"):
                raise ValueError(f"{name}={value} must be finite and above 0")
        if steps < 1:
            raise ValueError(f"steps={steps} must be at least 1")
        # A float, as derivatives are asked of every number.
        return cls(score_init(inner)(key, h, d_q, d_k), start, end, float(steps))

    @property
    def is_product(self) -> bool:
        """Tells whether `prepare` gives `Dot()`: where it does inside."""
        return self.inner.is_product

    def in_context(self, ctx: Context) -> "Annealed":
        """Returns the score at the context's step of training."""
        inner = in_context(self.inner, ctx)
        return dataclasses.replace(self, inner=inner, step=ctx.step)

    def __call__(
        self,
        q: Float[Array, "N Q"],
        k: Float[Array, "M K"],
    ) -> Float[Array, "N M"]:
        s = self.inner(q, k)
        s = s.astype(_at_least_float32(s))
        return s / jnp.asarray(self._temperature(), s.dtype)

    def prepare(self, q: Array, k: Array) -> tuple[Any, Array, Array]:
        """Does what the inner score prepares; of a product the queries are divided."""
        inner, q, k = self.inner.prepare(q, k)
        if not self.is_product:
            return dataclasses.replace(self, inner=inner), q, k
        # Wide, as the temperature's derivative is a sum over all queries.
        wide = q.astype(_at_least_float32(q))
        divided = wide / jnp.asarray(self._temperature(), wide.dtype)
        return inner, divided.astype(q.dtype), k

    def products(self, d_q: int, d_k: int) -> Products | None:
        return stated(self.inner, d_q, d_k)

    def _temperature(self) -> Any:
        if self.step is None:
            return self.end
        left = jnp.maximum(0, 1 - self.step / self.steps)
        return self.end + (self.start - self.end) * left


SCORES: dict[str, Any] = {
    "dot": Dot,
    "scaled_dot": ScaledDot,
    "bilinear": Bilinear,
    "additive": Additive,
    "qk_norm": QKNorm,
    "softcap": Softcap,
    "annealed": Annealed,
}
"""The classes that a name stands for, as in `attn.config`."""


def score_init(choice: ScoreChoice) -> Callable:
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
        return SCORES[choice].init
    return choice.init if isinstance(choice, type) else choice


# Heads are a batch axis: counted into the fans, they would shrink all values.
_glorot = jax.nn.initializers.glorot_uniform(in_axis=-2, out_axis=-1, batch_axis=0)


def _check_norm(norm: str) -> None:
    if norm not in ("rms", "l2"):
        raise ValueError(f"unknown norm {norm!r} of queries and keys; known: rms, l2")


def _at_least_float32(x: Array) -> np.dtype:
    return at_least_float32(x.dtype)
