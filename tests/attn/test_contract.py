"""The contract checks: everything of ours passes them, and one's own faults are found."""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from attn.models.blocks import LanguageLayer
from attn.models.heads import Difference

import attn
from attn import (
    HEADS,
    MIXERS,
    POSITIONS,
    SCORES,
    Convolutional,
    Differential,
    Heads,
    Positions,
    Rotary,
)
from attn.contract import (
    check_heads,
    check_mixer,
    check_positions,
    check_score,
    common,
    mixers,
    normalisers,
)
from attn.kernels.cached import over_cache
from tests.cases import the_rest_in_ci


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


def unit(x):
    squares = (x.astype(jnp.promote_types(x.dtype, jnp.float32)) ** 2).sum(-1)
    return x / jnp.sqrt(squares)[:, None].astype(x.dtype)


def failures(rows):
    return [f"{row.what}: {row.detail}" for row in rows if not row.ok]


# A product and a score that is none; others go the way of one of them.
@pytest.mark.parametrize("score", the_rest_in_ci([Cosine, "additive"], first=1))
def test_a_score_meets_the_contract(score):
    rows = check_score(score, dtypes=())
    assert len(rows) == 11
    assert not failures(rows)


@pytest.mark.ci
@pytest.mark.parametrize("score", SCORES)
def test_every_score_meets_the_contract_in_bfloat16(score):
    rows = check_score(score, dtypes=["bfloat16"])
    assert len(rows) == 12
    assert not failures(rows)


@pytest.mark.ci
@pytest.mark.parametrize("score", [Cosine, "additive"])
def test_a_score_meets_the_contract_in_every_precision_and_under_every_mask(score):
    rows = check_score(score)
    assert len(rows) == 22
    assert not failures(rows)


# One of each hook.
SOME_POSITIONS = ("sinusoidal", "t5", "forget", "randomised", "half rotary")


@pytest.mark.parametrize(
    "positions",
    [
        pytest.param(name, marks=() if name in SOME_POSITIONS else pytest.mark.ci)
        for name in [*POSITIONS, "half rotary"]
    ],
)
def test_positions_meet_the_contract(positions):
    half = Rotary(fraction=1 / 3)
    value = half if positions == "half rotary" else POSITIONS[positions]()
    assert not failures(check_positions(value))


# With a cache of positions, and of neighbours; tests/attn/recurrent is harder on states.
SOME_MIXERS = ("attention", "convolution")


@pytest.mark.parametrize(
    "mixer",
    [
        pytest.param(mixer, marks=() if mixer in SOME_MIXERS else pytest.mark.ci)
        for mixer in MIXERS
    ],
)
def test_a_mixer_meets_the_contract(mixer):
    assert not failures(check_mixer(MIXERS[mixer]()))


# Outputs and decoding of each are held to oracles in tests/attn/models.
@pytest.mark.ci
@pytest.mark.parametrize("heads", HEADS)
def test_heads_meet_the_contract(heads):
    assert not failures(check_heads(HEADS[heads]()))


def test_checks_have_float32_products_on_accelerators_too():
    """Their default rounds factors, and so would differ from kernel to kernel."""

    def precision():
        return str(jax.config.jax_default_matmul_precision)

    (row,) = common.run({"precision": precision})
    assert (row.ok, row.detail) == (True, "float32")


def test_heads_whose_cache_forgets_are_found():
    class Forgetful(Difference):
        def over_cache(self, q, k, v, **arguments):
            return self._normed(jnp.ones((*q.shape[:-1], v.shape[-1])))

    @dataclasses.dataclass(frozen=True)
    class Wrong(Differential):
        def build(self, h, d_k, d_v):
            return Forgetful(d_k, d_v, self.initial_lambda())

    kept, steps = failures(check_heads(Wrong()))
    assert "attention to a kept memory equals the full pass" in kept
    assert "steps over a cache equal the full pass" in steps
    for failure in (kept, steps):
        assert "ValueError: results differ" in failure and "in layer 1" in failure


class Numbered(nn.Module):
    """Multiplies what a layer of a number has by it, but not over a cache."""

    number: Any

    def __call__(self, q, k, v, **arguments):
        return self.number * attn.attention(q, k, v, **arguments)

    def over_cache(self, q, k, v, **arguments):
        return over_cache(q, k, v, **arguments)


class Residual(nn.Module):
    """Adds the first layer's values, which it finds in a variable of the module."""

    number: Any
    kept: ClassVar[list] = []

    def __call__(self, q, k, v, **arguments):
        if self.number == 1:
            self.kept[:] = [v]
        elif self.kept:
            v = (v + self.kept[0]) / 2
        return attn.attention(q, k, v, **arguments)

    def over_cache(self, q, k, v, **arguments):
        return over_cache(q, k, v, **arguments)


@dataclasses.dataclass(frozen=True)
class InLayers(Heads):
    """Heads whose module gets the number of its layer."""

    module: type
    layer: Any = 1

    def build(self, h, d_k, d_v):
        return self.module(self.layer)

    def in_layer(self, number):
        return dataclasses.replace(self, layer=number)


def test_decoding_that_is_wrong_from_the_second_layer_on_is_found():
    messages = failures(check_heads(InLayers(Numbered)))
    kept, steps = (line for line in messages if "equal" in line)
    assert kept.endswith("in layer 2") and steps.endswith("in layer 2")


def test_heads_that_get_values_in_a_variable_are_found():
    first, *_ = failures(check_heads(InLayers(Residual)))
    assert first.startswith("outputs depend on arguments and parameters alone: ")
    assert "layer 3 gave other outputs of the same inputs and parameters" in first


def test_a_mixer_that_keeps_what_it_has_seen_is_found():
    @dataclasses.dataclass(frozen=True)
    class Keeping(Convolutional):
        seen: ClassVar[list] = []

        def mix(self, module, x, mask):
            self.seen.append(x)
            return module(x, mask) + self.seen[0].mean()

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
    assert not hasattr(LanguageLayer, attn.Mixer.name)


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
    @dataclasses.dataclass(frozen=True)
    class Ahead(Convolutional):
        def build(self, shape, design, causal, P_attention=0.0):
            return attn.Convolution(shape.d_model, self.radius, causal=False)

        def mix(self, module, x, mask):
            return module(x, attn.Mask())

    messages = failures(check_mixer(Ahead()))
    assert any("sees none behind it" in failure for failure in messages)
