"""Linear attention and its relatives as layers: h heads, each with a matrix as its state.

They obey the mask that self-attention would have, as a recurrence does: a state begins
anew where a position may not see the one before. So packed rows, padding and causality
need no case of their own. A decoder's cache is one state a hypothesis, however long the
text. B examples, N positions, D = d_model, H heads, K = d_k, V = d_v,
E states of a cache, T entries that self-attention's cache would have, F features.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.cache import parents, sees
from attn.context import Context
from attn.masks.near import neighbours
from attn.mixers.base import Mixer
from attn.pytrees import at_least_float32
from attn.recurrent.chunks import both_ways, seen_before
from attn.recurrent.delta import delta_product, delta_product_step
from attn.recurrent.gated import gated_linear, gated_linear_step
from attn.recurrent.linear import divided, feature_map, with_one

if TYPE_CHECKING:
    from attn.config import Block

DECAYS = ("feature", "head")
"""What has a decay of its own in gated linear attention."""
RANK = 16
"""The rank of the matrix that makes a decay for each feature (Yang et al. 2023)."""
TEMPERATURE = 16
"""The root that is taken of decays, which keeps them near 1 (the same)."""


class LinearHeads(nn.Module):
    """Concat(head_1, …, head_h) W_O, each head linear attention (Katharopoulos et al. 2020).

    head_i = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j), φ(x) = elu(x) + 1, over the
    positions up to i in a causal one, otherwise over all. Parameters:
    h·d_model·(2·d_k + 2·d_v), without biases.

    A relative has other `arrays`, `rule`, `step` and `finish`, and may have several keys
    with values a token, `writes`.
    """

    d_model: int
    h: int
    d_k: int
    d_v: int
    causal: bool = False

    def setup(self) -> None:
        """Draws the projections."""
        glorot = nn.initializers.glorot_uniform
        into_heads = glorot(0, (1, 2))
        self.w_q = self.param("w_q", into_heads, (self.d_model, self.h, self.d_k))
        d_k, d_v = self.writes * self.d_k, self.writes * self.d_v
        self.w_k = self.param("w_k", into_heads, (self.d_model, self.h, d_k))
        self.w_v = self.param("w_v", into_heads, (self.d_model, self.h, d_v))
        out_of_heads = glorot((0, 1), 2)
        self.w_o = self.param("w_o", out_of_heads, (self.h, self.d_v, self.d_model))

    def arrays(self, x: Float[Array, "B N D"]) -> tuple[Array, ...]:
        """Returns what the rule takes of each position and head, (B, N, H, F) each."""
        q, k, v = self.projected(x)
        return feature_map(q), feature_map(k), with_one(v)

    @staticmethod
    def rule(*arrays: Array, begins: Array, is_backwards: bool) -> Array:
        """Computes the outputs (N, F) of one head from all positions."""
        # In an encoder both directions together see each position once.
        return gated_linear(*arrays, begins=begins, own=not is_backwards)

    step = staticmethod(gated_linear_step)

    def finish(
        self,
        x: Float[Array, "B N D"],
        out: Float[Array, "B N H F"],
    ) -> Float[Array, "B N H V"]:
        """Returns the heads' vectors from the rule's outputs."""
        return divided(out)

    @property
    def writes(self) -> int:
        """The keys with values of a token and head, side by side in W_K and W_V."""
        return 1

    @property
    def state_shape(self) -> tuple[int, int]:
        """The shape of a head's state."""
        # The last column is the sum of the keys, for the denominator.
        return self.d_k, self.d_v + 1

    def projected(self, x: Float[Array, "B N D"]) -> tuple[Array, ...]:
        """Returns queries, keys and values, in float32 at least."""
        return tuple(to_heads(x, w) for w in (self.w_q, self.w_k, self.w_v))

    def __call__(
        self, x: Float[Array, "B N D"], ctx: Context
    ) -> tuple[Float[Array, "B N D"], Context]:
        """Returns the outputs of all positions, or those of a step."""
        if ctx.decoding is not None:
            return self._step(x, ctx)
        hidden = ~neighbours(ctx.mask, x.shape[:-2], x.shape[-2], (-1, 1))
        begins, ends = jnp.moveaxis(hidden, -1, 0)
        # As 0: in a product a weight of 0 would not keep NaN from other positions.
        bad = ~jnp.isfinite(x).all(-1)
        x = jnp.where(bad[..., None], 0, x)
        one_head = functools.partial(_one_head, self.rule, self.causal)
        out = for_each_head(one_head)(self.arrays(x), begins, ends)
        y = self._output(x, out)
        spoiled = seen_before(bad, begins)
        if not self.causal:
            behind = seen_before(jnp.flip(bad, -1), jnp.flip(ends, -1))
            spoiled |= jnp.flip(behind, -1)
        return jnp.where(spoiled[..., None], jnp.nan, y), ctx

    def empty_cache(self, batch: int, entries: int, dtype: Any) -> Array:
        """Returns room for the states (B, E, H, K, V) of E = `entries` hypotheses."""
        shape = (batch, entries, self.h, *self.state_shape)
        # A state sums over all positions, so it is kept in float32 at least.
        return jnp.zeros(shape, at_least_float32(dtype))

    def _step(self, x: Array, ctx: Context) -> tuple[Array, Context]:
        """Returns the outputs of N hypotheses; the first N states of the cache are in use."""
        t, visible = ctx.decoding.t, ctx.decoding.visible
        step = self.step
        for _ in range(x.ndim):
            step = jax.vmap(step)
        before = parents(ctx.cache, visible, t)
        goes_on = sees(visible, t - 1)
        axes = (1,) * (before.ndim - goes_on.ndim)
        before = jnp.where(goes_on.reshape(*goes_on.shape, *axes), before, 0)
        states, out = step(before, *self.arrays(x))
        write = jax.lax.dynamic_update_slice_in_dim
        cache = write(ctx.cache, states.astype(ctx.cache.dtype), 0, axis=x.ndim - 2)
        return self._output(x, out), ctx.replace(cache=cache)

    def _output(self, x: Array, out: Array) -> Array:
        heads = self.finish(x, out).astype(x.dtype)
        return jnp.einsum("...nhv,hvd->...nd", heads, self.w_o)


class GatedLinearHeads(LinearHeads):
    """Gated linear attention (Yang et al. 2023, section 4.4).

    S_t = diag(a_t) S_t−1 + k_t v_tᵀ, head_t = r_t ∘ LayerNorm(S_tᵀ q_t), with decays
    a = σ(x W_1 W_2 + b)^(1/16), W_1 of 16 columns, and gates r = swish(x W_r + b_r). With
    decay="head" a head has one decay, σ(x w + b)^(1/16), as RetNet and Mamba-2 do. In an
    encoder the sum over j counts each position once, decayed by what is between.

    Parameters beside those of `LinearHeads`: 16·(d_model + h·d_k) + h·d_k, or
    (d_model + 1)·h, of decays; (d_model + 1)·h·d_v of gates; 2·d_v of the norm.

    Raises:
      ValueError: an unknown decay.
    """

    decay: str = "feature"
    norm_epsilon: float = 1e-6

    def setup(self) -> None:
        """Draws projections, decays and gates."""
        super().setup()
        check_decay(self.decay)
        glorot = nn.initializers.glorot_uniform
        zeros = nn.initializers.zeros
        into_heads = glorot(0, (1, 2))
        rank = self.d_model
        if self.decay == "feature":
            rank = RANK
            self.w_a_1 = self.param("w_a_1", glorot(), (self.d_model, rank))
        width = self.d_k if self.decay == "feature" else 1
        self.w_a_2 = self.param("w_a_2", into_heads, (rank, self.h, width))
        self.b_a = self.param("b_a", zeros, (self.h, width))
        self.w_r = self.param("w_r", into_heads, (self.d_model, self.h, self.d_v))
        self.b_r = self.param("b_r", zeros, (self.h, self.d_v))
        self.norm = nn.LayerNorm(self.norm_epsilon)

    def arrays(self, x: Float[Array, "B N D"]) -> tuple[Array, ...]:
        """Returns queries, keys, values and log a."""
        low = x @ self.w_a_1 if self.decay == "feature" else x
        a = plus(to_heads(low, self.w_a_2), self.b_a)
        return *self.projected(x), jax.nn.log_sigmoid(a) / TEMPERATURE

    def finish(
        self,
        x: Float[Array, "B N D"],
        out: Float[Array, "B N H V"],
    ) -> Float[Array, "B N H V"]:
        """Returns r ∘ LayerNorm(out)."""
        r = nn.swish(plus(to_heads(x, self.w_r), self.b_r))
        return r * self.norm(out)

    @property
    def state_shape(self) -> tuple[int, int]:
        """The shape of a head's state."""
        return self.d_k, self.d_v


class DeltaHeads(LinearHeads):
    """DeltaNet (Yang et al. 2024): a key's old value is replaced by the new one.

    S_t = S_t−1 + β_t k_t (v_t − S_t−1ᵀ k_t)ᵀ, head_t = RMSNorm(S_tᵀ q_t), β = σ(x w_β),
    and queries and keys swish(x W) of length 1. The paper's short convolutions before
    these are left out. An encoder adds both directions, each with the position itself.

    With beta_max, β = beta_max · σ(x w_β). From 1 to 2 a token may turn the sign of what
    its key gives, so that a state can swap two things (Grazzi et al. 2024, arXiv
    2411.12537). A token writes P = `householders` times, each with its key, value and β,
    and is read after the last (Siems et al. 2025, arXiv 2502.10297).

    Parameters beside those of `LinearHeads`: P·d_model·h of β, d_v of the norm,
    (P − 1)·d_model·h·(d_k + d_v) of further keys and values.
    """

    norm_epsilon: float = 1e-6
    beta_max: float = 1.0
    householders: int = 1

    def setup(self) -> None:
        """Draws projections and β's."""
        super().setup()
        into_heads = nn.initializers.glorot_uniform(0, (1, 2))
        self.w_beta = self.param(
            "w_beta", into_heads, (self.d_model, self.h, self.householders)
        )
        self.norm = nn.RMSNorm(self.norm_epsilon)

    def arrays(self, x: Float[Array, "B N D"]) -> tuple[Array, ...]:
        """Returns queries (B, N, H, K), keys (…, P, K), values (…, P, V), β (…, P)."""
        q, k, v = self.projected(x)
        k, v = (y.reshape(*y.shape[:-1], self.writes, -1) for y in (k, v))
        beta = self.beta_max * nn.sigmoid(to_heads(x, self.w_beta))
        return unit(nn.swish(q)), unit(nn.swish(k)), v, beta

    @staticmethod
    def rule(*arrays: Array, begins: Array, is_backwards: bool) -> Array:
        """Computes the outputs (N, V) of one head from all positions."""
        return delta_product(*arrays, begins=begins)

    step = staticmethod(delta_product_step)

    def finish(
        self,
        x: Float[Array, "B N D"],
        out: Float[Array, "B N H V"],
    ) -> Float[Array, "B N H V"]:
        """Returns RMSNorm(out)."""
        return self.norm(out)

    @property
    def writes(self) -> int:
        """The keys with values of a token and head, P."""
        return self.householders

    @property
    def state_shape(self) -> tuple[int, int]:
        """The shape of a head's state."""
        return self.d_k, self.d_v


class GatedDeltaHeads(DeltaHeads):
    """Gated DeltaNet (Yang et al. 2025, "Gated delta networks").

    S_t = a_t S_t−1 + β_t k_t (v_t − a_t S_t−1ᵀ k_t)ᵀ, head_t = RMSNorm(S_tᵀ q_t) ∘ r_t,
    with the rest of `DeltaHeads`, a decay a head, a = exp(−e^A softplus(x w_a + b)) as of
    Mamba-2, whose initial values it has, and gates r = swish(x W_r).

    Parameters beside those of `DeltaHeads`: (d_model + 2)·h of decays, d_model·h·d_v of
    gates.
    """

    def setup(self) -> None:
        """Draws projections, β's, decays and gates."""
        super().setup()
        into_heads = nn.initializers.glorot_uniform(0, (1, 2))
        self.w_a = self.param("w_a", into_heads, (self.d_model, self.h, 1))
        self.log_rate = self.param("log_rate", log_rates, (self.h, 1))
        self.b_a = self.param("b_a", inverse_softplus_of_times, (self.h, 1))
        self.w_r = self.param("w_r", into_heads, (self.d_model, self.h, self.d_v))

    def arrays(self, x: Float[Array, "B N D"]) -> tuple[Array, ...]:
        """Returns queries, keys, values, β and log a."""
        time = nn.softplus(plus(to_heads(x, self.w_a), self.b_a))
        rate = jnp.exp(self.log_rate)
        log_decay = -time * rate.reshape((1,) * (time.ndim - 2) + rate.shape)
        return *super().arrays(x), log_decay

    def finish(
        self,
        x: Float[Array, "B N D"],
        out: Float[Array, "B N H V"],
    ) -> Float[Array, "B N H V"]:
        """Returns RMSNorm(out) ∘ r."""
        return self.norm(out) * nn.swish(to_heads(x, self.w_r))


def log_rates(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Draws A: e^A is uniform from 1 to 16."""
    return jnp.log(jax.random.uniform(key, shape, dtype, 1, 16))


def inverse_softplus_of_times(
    key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32
) -> Array:
    """Draws b: log softplus(b) is uniform from log 0.001 to log 0.1."""
    low, high = jnp.log(0.001), jnp.log(0.1)
    time = jnp.exp(jax.random.uniform(key, shape, dtype, low, high))
    return time + jnp.log(-jnp.expm1(-time))


def to_heads(
    x: Float[Array, "B N D"], w: Float[Array, "D H F"]
) -> Float[Array, "B N H F"]:
    """Returns x W for each head, in float32 at least."""
    y = jnp.einsum("...nd,dhf->...nhf", x, w)
    return y.astype(at_least_float32(y.dtype))


def plus(x: Float[Array, "B N H F"], b: Float[Array, "H F"]) -> Float[Array, "B N H F"]:
    """Returns x + b, the same b for every token."""
    return x + b.reshape((1,) * (x.ndim - 2) + b.shape)


def unit(x: Float[Array, "*B F"]) -> Float[Array, "*B F"]:
    """Returns x / |x|, and 0 with a finite derivative for 0."""
    return x * jax.lax.rsqrt((x**2).sum(-1, keepdims=True) + 1e-6)


def for_each_head(function: Callable) -> Callable:
    """Maps function(arrays, begins, ends) of one head over heads and batch axes.

    It takes arrays (N, …, F) and the same begins and ends (N,) for all heads of an example.
    """

    def mapped(arrays, begins, ends):
        *batch, n, h, _ = arrays[0].shape
        # One axis for all: a vmap in a vmap compiles to the same, and reads worse.
        flat = [x.reshape(-1, *x.shape[len(batch) :]) for x in arrays]
        edges = [x.reshape(-1, n) for x in (begins, ends)]
        of_heads = jax.vmap(function, in_axes=(1, None, None), out_axes=1)
        out = jax.vmap(of_heads)(flat, *edges)
        return out.reshape(*batch, n, h, out.shape[-1])

    return mapped


def _one_head(
    rule: Callable, causal: bool, arrays: Sequence[Array], begins: Array, ends: Array
) -> Array:
    if causal:
        return rule(*arrays, begins=begins, is_backwards=False)
    return both_ways(rule, arrays, begins, ends)


def check_decay(decay: str) -> None:
    """Raises ValueError for an unknown decay."""
    if decay not in DECAYS:
        raise ValueError(f"unknown decay {decay!r}; known: {', '.join(DECAYS)}")


@dataclasses.dataclass(frozen=True)
class LinearAttention(Mixer):
    """Mixes by linear attention: see `LinearHeads`, with the shape's h, d_k and d_v."""

    name: ClassVar[str] = "linear_attention"

    def entries(self, entries: int, hypotheses: int, last: int | None) -> int:
        """Returns a state for each hypothesis."""
        return hypotheses

    def build(self, block: "Block", causal: bool) -> LinearHeads:
        """Makes the heads."""
        return LinearHeads(block.d_model, block.h, block.d_k, block.d_v, causal)

    def products(self, n: Any, causal: bool, block: "Block") -> Any:
        """Counts those of the matrices, and of a state that is written and read.

        The state of d_k·d_v a head has one column more, the denominator's. An encoder has two
        directions. Chunks trade some products for others, which do not count.
        """
        numbers = block.h * block.d_k * (block.d_v + 1)
        return n * (_matrices(block) + _directions(causal) * 2 * numbers)


@dataclasses.dataclass(frozen=True)
class GatedLinearAttention(LinearAttention):
    """Mixes by gated linear attention: see `GatedLinearHeads`.

    `decay` is a name of DECAYS: what has a decay of its own, each feature of a key or each
    head.
    """

    name: ClassVar[str] = "gated_linear_attention"
    decay: str = "feature"

    def build(self, block: "Block", causal: bool) -> GatedLinearHeads:
        """Makes the heads."""
        return GatedLinearHeads(
            block.d_model,
            block.h,
            block.d_k,
            block.d_v,
            causal,
            self.decay,
            block.norm.epsilon,
        )

    def products(self, n: Any, causal: bool, block: "Block") -> Any:
        """Counts those of the matrices, the output gate and the decays, and of the state."""
        d_model = block.d_model
        of_heads = block.h * block.d_k
        ways = {"feature": RANK * (d_model + of_heads), "head": d_model * block.h}
        gates = d_model * block.h * block.d_v + ways[self.decay]
        state = _directions(causal) * 2 * of_heads * block.d_v
        return n * (_matrices(block) + gates + state)

    def check(self, block: "Block") -> None:
        """Raises ValueError for an unknown decay."""
        check_decay(self.decay)


@dataclasses.dataclass(frozen=True)
class DeltaNet(LinearAttention):
    """Mixes by the delta rule: see `DeltaHeads`.

    With beta_max=2 a token may turn the sign of what its key gives; it writes `householders`
    times.
    """

    name: ClassVar[str] = "deltanet"
    heads: ClassVar[type] = DeltaHeads
    beta_max: float = 1.0
    householders: int = 1

    def build(self, block: "Block", causal: bool) -> DeltaHeads:
        """Makes the heads."""
        return self.heads(
            block.d_model,
            block.h,
            block.d_k,
            block.d_v,
            causal,
            norm_epsilon=block.norm.epsilon,
            beta_max=self.beta_max,
            householders=self.householders,
        )

    def products(self, n: Any, causal: bool, block: "Block") -> Any:
        """Counts those of the matrices, of β, and of the state.

        A write has a key, a value and a β of its own, and reads what its key gives, which it
        replaces.
        """
        writes = self.householders
        of_write = _matrices(block) // 2
        beta = block.d_model * block.h
        matrices = _matrices(block) + (writes - 1) * of_write + writes * beta
        numbers = block.h * block.d_k * block.d_v
        return n * (matrices + _directions(causal) * (2 * writes + 1) * numbers)

    def check(self, block: "Block") -> None:
        """Raises ValueError for a β of 0 or beyond 2, or no write."""
        # Beyond 2 what a key gives would grow with every write.
        if not 0 < self.beta_max <= 2:
            raise ValueError(f"beta_max={self.beta_max} must be above 0 and at most 2")
        if self.householders < 1:
            raise ValueError(f"householders={self.householders} must be at least 1")


@dataclasses.dataclass(frozen=True)
class GatedDeltaNet(DeltaNet):
    """Mixes by the delta rule with decays and gates: see `GatedDeltaHeads`."""

    name: ClassVar[str] = "gated_deltanet"
    heads: ClassVar[type] = GatedDeltaHeads

    def products(self, n: Any, causal: bool, block: "Block") -> Any:
        """Counts those of DeltaNet, of the output gate and of the decays."""
        gates = block.d_model * block.h * (block.d_v + 1)
        return super().products(n, causal, block) + n * gates


def _matrices(block: "Block") -> int:
    """Counts the numbers of W_Q, W_K, W_V and W_O of linear attention."""
    return 2 * block.d_model * block.h * (block.d_k + block.d_v)


def _directions(causal: bool) -> int:
    """Counts the directions in which a state is carried along a sentence."""
    return 1 if causal else 2
