"""Counts the products of attention from what its score, heads and positions state.

n positions of a sentence, D = d_model, h heads; a count may be an array, one for each
sentence, and is None where a variant does not state its own.
"""

import functools

import jax
import numpy as np

from attn.arithmetic import Products, stated
from attn.positions import Positions
from attn.scores import ScoreChoice, score_init


def of_self_attention(n, pairs, shape, design):
    """Counts those of self-attention over n positions; `pairs` of them see each other."""
    # Of latents, the numbers of a key that positions turn, and of the queries for it.
    turned = shape.d_r or 0
    attention = of_attention(n, n, pairs, shape, design, turned)
    positions = of_positions(design.positions, shape)
    if attention is None or positions is None:
        return None
    of_token = positions.query + positions.key + (shape.h + 1) * shape.d_model * turned
    return attention + n * of_token + pairs * positions.pair


def of_attention(queries, keys, pairs, shape, design, turned=0):
    """Counts those of attention, its matrices W_Q, W_K, W_V, W_O and W_g among them."""
    score = of_score(design.score, shape.d_k + turned)
    heads = stated(design.heads, shape.h, shape.d_k, shape.d_v)
    if score is None or heads is None:
        return None
    scores = shape.h * design.heads.maps
    of_query = _matrices_of_query(shape, design) + scores * score.query + heads.query
    of_key = _matrices_of_key(shape, design) + scores * score.key + heads.key
    of_pair = scores * score.pair + shape.h * shape.d_v + heads.pair
    return queries * of_query + keys * of_key + pairs * of_pair


# The loop asks it for every batch.
@functools.cache
def of_score(score: ScoreChoice, d: int) -> Products | None:
    """Returns what one head's score states for queries and keys of d features."""
    init = score_init(score)
    value = jax.eval_shape(lambda: init(jax.random.key(0), 1, d, d))
    return stated(value, d, d)


def of_positions(positions: Positions, shape) -> Products | None:
    """Returns what positions state; without a word, that tables and biases take none."""
    products = stated(positions, shape.d_model, shape.h, shape.d_k)
    reads_tokens = positions.has_gates or positions.has_counts
    return Products() if products is None and not reads_tokens else products


def seen(n, left: int, right: int):
    """Counts the pairs i − left ≤ j ≤ i + right in a sentence of n."""

    # Σ_i min(i, reach)
    def side(reach):
        reach = np.minimum(reach, np.maximum(n - 1, 0))
        return reach * (reach + 1) // 2 + (n - 1 - reach) * reach

    return n + side(left) + side(right)


def _matrices_of_key(shape, design):
    """Counts the numbers of W_K and W_V, of W_C too where these are of latents."""
    source = shape.d_model if shape.d_c is None else shape.d_c
    into_latents = 0 if shape.d_c is None else shape.d_model * shape.d_c
    of_head = shape.d_k * design.heads.maps + shape.d_v
    return into_latents + source * shape.heads_of_keys * of_head


def _matrices_of_query(shape, design):
    """Counts the numbers of W_Q, of the gate's matrix and of W_O."""
    d_k = shape.d_k * design.heads.maps
    gate = {"none": 0, "head": 1, "element": shape.d_v}[design.gate]
    # The mean of heads as wide as the model has no W_O.
    is_whole = design.combine == "mean" and shape.d_v == shape.d_model
    output = 0 if is_whole else shape.d_v
    return shape.d_model * shape.h * (d_k + gate + output)
