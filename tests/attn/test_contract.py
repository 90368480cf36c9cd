"""The contract checks: everything of ours passes them, and one's own faults are found."""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import (
    HEADS,
    MIXERS,
    NORMALISERS,
    POSITIONS,
    RESIDUALS,
    SCORES,
    Convolutional,
    Differential,
    Heads,
    Positions,
    Residual,
    Rotary,
    ValueResidual,
)
from attn.contract import (
    check_heads,
    check_mixer,
    check_normaliser,
    check_positions,
    check_residual,
    check_score,
    common,
    mixers,
    normalisers,
)
from attn.contract.kernels import TOLERANCES
from attn.jax_versions import has_pallas_tpu
from attn.nn.blocks import Layer


@attn.score
class Cosine:
    """score(q, k) = temperature · cos(q, k), the temperature learned by each head."""

    is_product = True
    temperature: Any

    @classmethod
    def init(cls, key, h, d_q, d_k):
        return cls(jnp.full(h, 5.0))

    def __call__(self, q, k):
        dot, q, k = self.prepare(q, k)
        return dot(q, k)

    def prepare(self, q, k):
        return attn.Dot(), unit(q) * self.temperature.astype(q.dtype), unit(k)


@attn.score
class OfNumber:
    """score(q, k) = scale · q · k / d_k, whose scale is a number that nobody trains."""

    is_product = True
    scale: Any = 2.0

    def __call__(self, q, k):
        dot, q, k = self.prepare(q, k)
        return dot(q, k)

    def prepare(self, q, k):
        return attn.Dot(), q * jnp.asarray(self.scale / q.shape[-1], q.dtype), k


def unit(x):
    squares = (x.astype(jnp.promote_types(x.dtype, jnp.float32)) ** 2).sum(-1)
    return x / jnp.sqrt(squares)[:, None].astype(x.dtype)


def failures(rows):
    return [f"{row.what}: {row.detail}" for row in rows if not row.ok]


def cases(registry, quick, check, **more):
    """Returns parameters (check, value) of a registry, all but the quick ones marked ci."""
    values = {name: cls() for name, cls in registry.items()} | more
    return [
        pytest.param(
            check, value, marks=() if name in quick else pytest.mark.ci, id=name
        )
        for name, value in values.items()
    ]


# Of each registry what has each hook, a cache of positions or of neighbours; the outputs
# of heads are held to oracles in tests/attn/nn, and states in tests/attn/recurrent.
EVERY_VALUE = [
    *cases(
        POSITIONS,
        ("sinusoidal", "t5"),
        check_positions,
        **{"half rotary": Rotary(fraction=1 / 3)},
    ),
    *cases(MIXERS, ("attention", "convolution"), check_mixer),
    *cases(HEADS, (), check_heads),
    *cases(RESIDUALS, ("values",), check_residual),
]


@pytest.mark.parametrize(("check", "value"), EVERY_VALUE)
def test_values_meet_the_contract(check, value):
    assert not failures(check(value))


# A product; others in bfloat16 too.
def test_a_score_meets_the_contract():
    rows = check_score(Cosine, dtypes=())
    assert len(rows) == 12
    assert not failures(rows)


OF_ALL_KINDS = (Cosine, "additive", "annealed")


@pytest.mark.ci
@pytest.mark.parametrize(
    "score", [OfNumber, *(s for s in SCORES if s not in OF_ALL_KINDS)]
)
def test_every_score_meets_the_contract_in_bfloat16(score):
    rows = check_score(score, dtypes=["bfloat16"])
    assert len(rows) == 13
    assert not failures(rows)


@pytest.mark.ci
@pytest.mark.parametrize("score", OF_ALL_KINDS)
def test_a_score_meets_the_contract_in_every_precision_and_under_every_mask(score):
    rows = check_score(score)
    assert len(rows) == 23
    assert not failures(rows)


@pytest.mark.parametrize(
    "normaliser",
    [
        pytest.param(name, marks=() if name == "sink" else pytest.mark.ci)
        for name in NORMALISERS
        # It is held to the contract in every precision below.
        if name != "entmax"
    ],
)
def test_a_normaliser_meets_the_contract(normaliser):
    assert not failures(check_normaliser(normaliser, ["bfloat16"]))


@pytest.mark.ci
@pytest.mark.parametrize("normaliser", ["sink", "entmax"])
def test_a_normaliser_meets_the_contract_in_every_precision(normaliser):
    assert not failures(check_normaliser(normaliser))


@pytest.mark.ci
@pytest.mark.skipif(not has_pallas_tpu(), reason="needs JAX 0.10")
def test_what_tiles_cannot_have_is_no_failure_and_says_why(monkeypatch):
    def of_tiles():
        rows = check_normaliser("off_by_one", dtypes=())
        return next(row for row in rows if "pallas" in row.what)

    assert of_tiles().ok and of_tiles().detail.startswith("error ")
    (row,) = (x for x in check_normaliser("entmax", ()) if "pallas" in x.what)
    assert row.ok and "Entmax makes weights of a whole row" in row.detail
    monkeypatch.setitem(TOLERANCES, "float32", -1.0)
    assert not of_tiles().ok


def test_checks_have_float32_products_on_accelerators_too():
    """Their default rounds factors, and so would differ from kernel to kernel."""

    def precision():
        return str(jax.config.jax_default_matmul_precision)

    (row,) = common.run({"precision": precision})
    assert (row.ok, row.detail) == (True, "float32")


@dataclasses.dataclass(frozen=True)
class Forgetful(Differential):
    """Heads whose cache forgets all values."""

    def over_cache(self, params, q, k, v, ctx, **arguments):
        ones = jnp.ones((*q.shape[:-1], v.shape[-1]))
        return self._normed(params, ones, ctx)


def test_heads_whose_cache_forgets_are_found():
    kept, steps = failures(check_heads(Forgetful()))
    assert "attention to a kept memory equals the full pass" in kept
    assert "steps over a cache equal the full pass" in steps
    for failure in (kept, steps):
        assert "ValueError: results differ" in failure and "in layer 1" in failure


@dataclasses.dataclass(frozen=True)
class Numbered(Heads):
    """Multiplies what a layer of a number has by it, but not over a cache."""

    def attend(self, params, q, k, v, ctx, **arguments):
        out = attn.attention(q, k, v, **arguments)
        return jax.tree.map(lambda x: x * ctx.layer, out)


def test_decoding_that_is_wrong_from_the_second_layer_on_is_found():
    messages = failures(check_heads(Numbered()))
    kept, steps = (line for line in messages if "equal" in line)
    assert kept.endswith("in layer 2") and steps.endswith("in layer 2")


@dataclasses.dataclass(frozen=True)
class Variable(Heads):
    """Adds the first layer's values, which it finds in a variable of the class."""

    kept: ClassVar[list] = []

    def attend(self, params, q, k, v, ctx, **arguments):
        if ctx.layer == 1:
            self.kept[:] = [v]
        elif self.kept:
            v = (v + self.kept[0]) / 2
        return attn.attention(q, k, v, **arguments)


def test_heads_that_get_values_in_a_variable_are_found():
    first, *_ = failures(check_heads(Variable()))
    assert first.startswith("outputs depend on arguments and parameters alone: ")
    assert "layer 3 gave other outputs of the same inputs and parameters" in first


@dataclasses.dataclass(frozen=True)
class WholeMean(Residual):
    """Adds the mean of a row's values, of other texts and of what follows too."""

    def values(self, params, v, ctx):
        return v + v.mean(1, keepdims=True), ctx


@dataclasses.dataclass(frozen=True)
class Unshared(ValueResidual):
    """Writes to the context what it does not declare."""

    def shared(self, a, batch, n, m, dtype):
        return {}


def test_residuals_that_are_wrong_are_found():
    messages = " ".join(failures(check_residual(WholeMean())))
    for what in ("sees none behind it", "packed row", "steps over a cache"):
        assert what in messages
    assert any("KeyError" in line for line in failures(check_residual(Unshared())))


def test_a_mixer_that_keeps_what_it_has_seen_is_found():
    class Module(attn.Convolution):
        seen: ClassVar[list] = []

        def __call__(self, x, ctx):
            self.seen.append(x)
            y, ctx = super().__call__(x, ctx)
            return y + self.seen[0].mean(), ctx

    @dataclasses.dataclass(frozen=True)
    class Keeping(Convolutional):
        def build(self, block, causal):
            return Module(block.d_model, self.radius, causal)

    first, *_ = failures(check_mixer(Keeping()))
    assert first == (
        "outputs depend on arguments and parameters alone: a call finds in a variable what "
        "an earlier one has left there"
    )


def test_a_mixers_name_is_its_own_in_a_layer():
    @dataclasses.dataclass(frozen=True)
    class Taken(Convolutional):
        name: ClassVar[str] = "mixing"

    message = "a layer has a 'mixing' of its own: give the class another name"
    with pytest.raises(ValueError, match=message):
        mixers.in_layer(Taken())
    # Unless a class names itself, a layer takes it.
    assert not hasattr(Layer, attn.Mixer.name)


def test_an_error_says_at_which_line_of_ones_own_it_was():
    def fault():
        return 1 / 0

    def in_layer(number):
        return fault() if number == 2 else None

    checks = {"one": fault, "two": lambda: common.in_layers(in_layer)}
    one, two = common.run(checks)
    line = fault.__code__.co_firstlineno + 1
    place = f" (test_contract.py:{line})"
    assert one.detail == f"ZeroDivisionError: division by zero{place}"
    assert two.detail == f"ZeroDivisionError: division by zero in layer 2{place}"


def test_a_query_that_sees_nothing_is_told_from_others():
    @attn.normaliser
    class Shares:
        def __call__(self, s):
            return jnp.exp(s) / jnp.exp(s).sum(-1, keepdims=True)

    message = r"of a query that sees no key \(all its scores are −inf\)"
    with pytest.raises(ValueError, match=message):
        normalisers.hidden(Shares())


def test_a_prepare_that_is_another_score_is_found():
    @attn.score
    class Doubled:
        def __call__(self, q, k):
            return attn.Dot()(q, k)

        def prepare(self, q, k):
            return attn.Dot(), 2 * q, k

    messages = " ".join(failures(check_score(Doubled, dtypes=())))
    assert "prepare equals __call__" in messages
    assert "long inputs in blocks equal the reference" in messages


def test_a_product_that_is_none_is_found():
    @attn.score
    class NoProduct:
        is_product = True

        def __call__(self, q, k):
            distance = ((q[:, None] - k[None]) ** 2).sum(-1)
            return -distance.astype(jnp.promote_types(q.dtype, jnp.float32))

    (failure,) = failures(check_score(NoProduct, dtypes=()))
    assert "is_product, but prepare gives NoProduct" in failure


@attn.score
class Doubled:
    """A dot product, to whose queries twice the gradient goes."""

    def __call__(self, q, k):
        q, k = (x.astype(jnp.promote_types(x.dtype, jnp.float32)) for x in (q, k))
        return doubled(q, k)


@jax.custom_jvp
def doubled(q, k):
    return q @ k.T


@doubled.defjvp
def _doubled_jvp(primals, tangents):
    (q, k), (d_q, d_k) = primals, tangents
    return doubled(q, k), 2 * d_q @ k.T + q @ d_k.T


@attn.score
class Stopped:
    """A dot product without a gradient to queries."""

    def __call__(self, q, k):
        q, k = (x.astype(jnp.promote_types(x.dtype, jnp.float32)) for x in (q, k))
        return jax.lax.stop_gradient(q) @ k.T


@pytest.mark.parametrize("score", [Doubled, Stopped])
def test_a_gradient_that_is_not_the_formulas_is_found(score):
    (failure,) = failures(check_score(score, dtypes=[]))
    assert "the formula's" in failure and "in a random direction" in failure


@jax.custom_vjp
def pulled(q, k):
    return q @ k.T


pulled.defvjp(lambda q, k: (q @ k.T, (q, k)), lambda qk, g: (g @ qk[1], g.T @ qk[0]))


@attn.score
class Pulled:
    """A dot product whose gradient is of reverse mode alone."""

    def __call__(self, q, k):
        return pulled(
            *(x.astype(jnp.promote_types(x.dtype, jnp.float32)) for x in (q, k))
        )


def test_a_gradient_of_reverse_mode_alone_says_what_to_do():
    found = failures(check_score(Pulled, dtypes=[]))
    assert any("by jax.custom_jvp, not jax.custom_vjp" in failure for failure in found)


@attn.normaliser
class Overflowing:
    """e^s / Σ e^s, whose terms may be Inf."""

    def __call__(self, s):
        total = jnp.exp(s).sum(-1, keepdims=True)
        return jnp.exp(s) / jnp.where(total > 0, total, 1.0)


def test_weights_that_overflow_are_found():
    (failure,) = failures(check_normaliser(Overflowing, dtypes=[]))
    assert "±1,000" in failure


class Neighbouring(Heads):
    """Each value takes half of the one before it in its row, of whichever text that is."""

    def attend(self, params, q, k, v, ctx, **arguments):
        before = jnp.roll(v, 1, axis=-3).at[..., 0, :, :].set(0.0)
        return attn.attention(q, k, v + before / 2, **arguments)


def test_heads_that_reach_into_another_text_are_found():
    found = failures(check_heads(Neighbouring()))
    (packed,) = [row for row in found if row.startswith("a text in a packed row")]
    assert "differ" in packed


def test_a_gradient_that_is_nan_is_found():
    @attn.score
    class Root:
        scale: Any

        @classmethod
        def init(cls, key, h, d_q, d_k):
            return cls(jnp.zeros(h))

        def __call__(self, q, k):
            return jnp.sqrt(self.scale) * attn.Dot()(q, k)

    messages = failures(check_score(Root, dtypes=()))
    assert any("a gradient is NaN or Inf" in failure for failure in messages)


def test_a_score_without_init_says_what_to_do():
    @attn.score
    class Bare:
        scale: Any

        def __call__(self, q, k):
            return self.scale * attn.Dot()(q, k)

    with pytest.raises(TypeError, match="Bare has no init, and its field 'scale' no"):
        Bare.init(jax.random.key(0), 1, 2, 2)


def test_positions_that_see_the_start_of_a_tile_are_found():
    @attn.bias
    class FromTheTile:
        slope: Any

        def tile(self, i, j):
            start = (j - j[0])[None] + 0 * i[:, None]
            return self.slope * start.astype(jnp.float32)

    @dataclasses.dataclass(frozen=True)
    class Wrong(Positions):
        def bias(self, key, h, causal):
            return FromTheTile(jnp.ones(h))

    messages = failures(check_positions(Wrong()))
    assert any("any tile of the bias" in failure for failure in messages)


def test_sides_that_are_not_those_of_the_tile_are_found():
    @attn.bias
    class Distance:
        slope: Any

        def tile(self, i, j):
            return -self.slope * jnp.abs(j[None] - i[:, None])

        def sides(self, n, m):
            return jnp.zeros((1, n, 1)), jnp.arange(m)[:, None] * self.slope[None]

    @dataclasses.dataclass(frozen=True)
    class Wrong(Positions):
        def bias(self, key, h, causal):
            return Distance(jnp.ones(h))

    (message,) = failures(check_positions(Wrong()))
    # Outputs are the same; LSEs lack what the query has.
    assert "sides" in message and "LSEs" in message


def test_positions_that_count_from_the_start_of_a_row_are_found():
    @attn.bias
    class ShareOfTheRow:
        slope: Any

        def tile(self, i, j):
            distance = jnp.abs(j[None] - i[:, None])
            return -self.slope * distance / (i[:, None] + 1.0)

    @dataclasses.dataclass(frozen=True)
    class Wrong(Positions):
        def bias(self, key, h, causal):
            return ShareOfTheRow(jnp.ones(h))

    (message,) = failures(check_positions(Wrong()))
    assert "a text in a packed row is as alone" in message


def test_a_mixer_that_looks_ahead_is_found():
    class Module(attn.Convolution):
        def __call__(self, x, ctx):
            return super().__call__(x, ctx.replace(mask=attn.Mask()))

    @dataclasses.dataclass(frozen=True)
    class Ahead(Convolutional):
        def build(self, block, causal):
            return Module(block.d_model, self.radius, causal=False)

    messages = failures(check_mixer(Ahead()))
    assert any("sees none behind it" in failure for failure in messages)


class Averaged(nn.Module):
    """y_t = (x_t + y_t−1) / 2, which in a step reads the state in the hypothesis's own place."""

    def __call__(self, x, ctx):
        if ctx.decoding is None:
            back = np.subtract.outer(*[np.arange(x.shape[1])] * 2)
            weights = np.where(back < 0, 0.0, 0.5 ** np.maximum(back + 1.0, 0))
            return jnp.einsum("nm,bmd->bnd", jnp.asarray(weights, x.dtype), x), ctx
        y = (x + ctx.cache[:, : x.shape[1]]) / 2
        return y, ctx.replace(cache=y)

    def empty_cache(self, batch, entries, dtype):
        return jnp.zeros((batch, entries, common.D), dtype)


@dataclasses.dataclass(frozen=True)
class OfPlaces(attn.Mixer):
    name: ClassVar[str] = "averaged"

    def build(self, block, causal):
        return Averaged()


def test_a_mixer_that_does_not_follow_its_hypotheses_is_found():
    """Whose parent in beam search stood in another place; alone it steps as it should."""
    (failed,) = [x for x in failures(check_mixer(OfPlaces())) if "steps" in x]
    assert "outputs of two hypotheses" in failed
