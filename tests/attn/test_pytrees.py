"""Values of different classes have different structures; keys, children and errors."""

import itertools

import jax
import jax.numpy as jnp
import pytest

import attn
from attn import SCORES, Mask, masks
from attn.kernels.drop import Drop
from attn.pytrees import pytree

pytestmark = pytest.mark.quick


@attn.score
class Constant:
    """A score without fields, as `Dot` is."""

    def __call__(self, q, k):
        return jnp.ones((q.shape[0], k.shape[0]))


def test_structures_of_different_classes_differ():
    """JAX's own dataclasses do not keep this in every version."""
    key = jax.random.key(0)
    values = [
        *(cls.init(key, 2, 3, 3) for cls in SCORES.values()),
        Constant(),
        attn.positions.biases.ALiBiBias(jnp.ones(2)),
        attn.positions.biases.RelativeBias.init(key, 2, 3),
        Drop(0.1, key),
        Mask(),
        *(part for mask in some_masks() for part in mask.parts),
    ]
    named = {type(value).__name__: jax.tree.structure(value) for value in values}
    for (name, one), (other_name, other) in itertools.combinations(named.items(), 2):
        assert one != other, f"{name} and {other_name}"


def some_masks():
    return [
        Mask.causal(),
        Mask.causal(jnp.array([1, 2])),
        Mask.padding(jnp.array([1, 2])),
        Mask.dense(jnp.ones((2, 2), bool)),
        Mask.segments(jnp.zeros(2, int), jnp.zeros(2, int)),
        Mask.first(2),
        Mask.of(lambda i, j: i > j),
        ~Mask.causal(),
        Mask.causal() | Mask.first(2),
    ]


def test_children_and_structure():
    value = masks.Padding(jnp.array([1, 2]))
    [(path, leaf)], structure = jax.tree_util.tree_flatten_with_path(value)
    assert jax.tree_util.keystr(path) == ".lengths"
    again = jax.tree.unflatten(structure, [leaf])
    assert type(again) is masks.Padding
    assert again.lengths is value.lengths
    assert jax.tree.structure(masks.Band(1, 2)) == jax.tree.structure(masks.Band(1, 2))
    assert jax.tree.structure(masks.Band(1, 2)) != jax.tree.structure(masks.Band(1, 3))


def test_an_unknown_child_is_refused():
    class Part:
        length: int

    with pytest.raises(TypeError, match=r"Part has no fields \['lenght'\]; its own: "):
        pytree(Part, children=["lenght"])
