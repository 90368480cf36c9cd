"""The contract checks: everything of ours passes them, and one's own faults are found."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import attn
from attn import (
    HEADS,
    MIXERS,
    POSITIONS,
    SCORES,
    Convolutional,
    Differential,
    Positions,
    Rotary,
)
from attn.contract import (
    check_heads,
    check_mixer,
    check_positions,
    check_score,
    common,
)
from attn.models.heads import Difference


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
@pytest.mark.parametrize("score", [Cosine, "additive"])
def test_a_score_meets_the_contract(score):
    rows = check_score(score, dtypes=())
    assert len(rows) == 11
    assert not failures(rows)


@pytest.mark.ci
@pytest.mark.parametrize("score", [*SCORES, Cosine])
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


# With a cache of positions, of neighbours, and of a state.
SOME_MIXERS = ("attention", "convolution", "gated_linear_attention")


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
    assert (
        "attention to a kept memory equals the full pass: ValueError: results" in kept
    )
    assert "steps over a cache equal the full pass: ValueError: results differ" in steps


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
