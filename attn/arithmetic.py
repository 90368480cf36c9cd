"""Arithmetic that variants state: how many products a forward pass takes.

A product is a multiplication with its addition, 2 FLOPs. Those of matrices and vectors
count; what is done number by number, as norms, activations, normalisers, or what positions
add to scores, does not.
"""

from typing import Any, NamedTuple


class Products(NamedTuple):
    """Counts what a variant takes for one query, for one key and for a pair of both."""

    query: int = 0
    key: int = 0
    pair: int = 0


def stated(variant: Any, *arguments: Any) -> Any:
    """Returns `variant.products(*arguments)`; None where its own class has no such method.

    An inherited one does not count: it cannot know what the class changes.
    """
    products = vars(type(variant)).get("products")
    return None if products is None else products(variant, *arguments)
