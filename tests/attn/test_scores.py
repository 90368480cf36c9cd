"""Names, classes and functions that make scores, and what the decorator adds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn import SCORES, Additive, Bilinear, Dot, ScaledDot
from attn.scores import TanhSum, score_init

pytestmark = pytest.mark.quick

KEY = jax.random.key(0)


def test_names_classes_and_functions_make_scores():
    assert score_init("additive") == Additive.init
    assert score_init(Additive) == Additive.init
    assert score_init(Additive.init) == Additive.init


@pytest.mark.parametrize("name", SCORES)
def test_every_name_makes_a_score_of_its_class(name):
    assert isinstance(score_init(name)(KEY, 3, 4, 5), SCORES[name])


def test_an_unknown_name_is_named():
    with pytest.raises(ValueError, match="unknown score 'nope'; known: dot, scaled"):
        score_init("nope")


def test_scores_state_whether_they_are_products():
    assert all(cls.is_product for cls in (Dot, ScaledDot, Bilinear))
    assert not any(cls.is_product for cls in (Additive, TanhSum))


def test_the_decorator_supplies_what_a_class_leaves_out():
    @attn.score
    class Constant:
        height: float = 2.0

        def __call__(self, q, k):
            return jnp.full((q.shape[0], k.shape[0]), self.height)

    value = Constant.init(KEY, 3, 4, 4)
    q = jnp.ones((2, 4))
    assert value == Constant(2.0)
    assert not value.is_product
    assert value.prepare(q, q)[0] is value


def test_a_scale_that_is_given_is_that_of_the_score():
    q = k = jnp.ones((2, 4))
    for scale, factor in ((0.0, 0.5), (0.25, 0.25)):
        made = ScaledDot.init(KEY, 1, 4, 4, scale=scale)
        np.testing.assert_allclose(made(q, k), 4 * factor)
    for scale in (-0.1, float("inf"), float("nan")):
        with pytest.raises(
            ValueError, match=f"scale={scale} must be finite and at least"
        ):
            ScaledDot.init(KEY, 1, 4, 4, scale=scale)


def test_sizes_below_1_are_refused():
    with pytest.raises(ValueError, match="d_a=0 must be at least 1"):
        Additive.init(KEY, 2, 4, 4, d_a=0)
    with pytest.raises(ValueError, match="rank=-1 must be at least 1"):
        Bilinear.init(KEY, 2, 4, 4, rank=-1)


@pytest.mark.parametrize("implementation", ["reference", "blocks"])
def test_a_score_in_bfloat16_has_its_softmax_in_float32(implementation):
    @attn.score
    class Distance:
        temperature: jax.Array

        def __call__(self, q, k):
            return -self.temperature * ((q[:, None] - k[None]) ** 2).sum(-1)

    # Small integers, whose scores bfloat16 holds exactly: XLA may keep more digits of it.
    q, k, v = jax.random.randint(KEY, (3, 1, 5, 2, 4), -2, 3).astype(jnp.bfloat16)
    score = Distance(jnp.full(2, 0.5, jnp.bfloat16))
    out, lse = attn.attention(
        q, k, v, score=score, return_lse=True, implementation=implementation
    )
    assert (out.dtype, lse.dtype) == (jnp.bfloat16, jnp.float32)
    # Exact to float32, where a sum in bfloat16 has 3 digits.
    scores = jax.vmap(Distance.__call__, (0, -2, -2))(score, q[0], k[0])
    expected = jax.nn.logsumexp(scores.astype(jnp.float32), axis=-1).T
    np.testing.assert_allclose(lse[0], expected, rtol=1e-5, atol=1e-5)
