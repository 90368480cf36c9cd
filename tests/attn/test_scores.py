"""Names, classes and functions that make scores, and what the decorator adds."""

import jax
import jax.numpy as jnp
import pytest

import attn
from attn import SCORES, Additive, Bilinear, Dot, ScaledDot
from attn.scores import TanhSum, score_init

KEY = jax.random.key(0)


def test_names_classes_and_functions_make_scores():
    assert score_init("additive") == Additive.init
    assert score_init(Additive) == Additive.init
    assert score_init(Additive.init) == Additive.init


@pytest.mark.parametrize("name", SCORES)
def test_every_name_makes_a_score_of_its_class(name):
    assert isinstance(score_init(name)(KEY, 3, 4, 5), SCORES[name])


def test_an_unknown_name_is_named():
    with pytest.raises(ValueError, match="unknown score 'cosine'; known: dot, scaled"):
        score_init("cosine")


def test_scores_state_whether_they_are_products():
    products = {cls for cls in (*SCORES.values(), TanhSum) if cls.is_product}
    assert products == {Dot, ScaledDot, Bilinear}


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
