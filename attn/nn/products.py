"""Counts the products of attention from what its score, heads and positions state.

n positions of a sentence, D = d_model, h heads; a count may be an array, one for each
sentence, and is None where a variant does not state its own.
"""

import functools
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from attn.arithmetic import Products, stated
from attn.scores import ScoreChoice, score_init

if TYPE_CHECKING:
    from attn.config import Attention


def of_self_attention(n: Any, pairs: Any, a: "Attention") -> Any:
    """Counts those of self-attention over n positions; `pairs` of them see each other."""
    # Of latents, the numbers of a key that positions turn, and of the queries for it.
    attention = of_attention(n, n, pairs, a)
    positions = stated(a.positions, a) if a.positions.reads_tokens else Products()
    residual = stated(a.residual, a)
    if attention is None or positions is None or residual is None:
        return None
    of_token = positions.query + positions.key + residual.query + residual.key
    of_token += (a.h + 1) * a.d_model * a.d_r
    return attention + n * of_token + pairs * (positions.pair + residual.pair)


def of_attention(queries: Any, keys: Any, pairs: Any, a: "Attention") -> Any:
    """Counts those of attention, its matrices W_Q, W_K, W_V, W_O and W_g among them."""
    score = of_score(a.score, a.d_k + a.d_r)
    heads = stated(a.heads, a)
    if score is None or heads is None:
        return None
    scores = a.h * a.heads.maps
    of_query = _matrices_of_query(a) + scores * score.query + heads.query
    of_key = _matrices_of_key(a) + scores * score.key + heads.key
    of_pair = scores * score.pair + a.h * a.d_v + heads.pair
    return queries * of_query + keys * of_key + pairs * of_pair


# The loop asks it for every batch.
@functools.cache
def of_score(score: ScoreChoice, d: int) -> Products | None:
    """Returns what one head's score states for queries and keys of d features."""
    init = score_init(score)
    value = jax.eval_shape(lambda: init(jax.random.key(0), 1, d, d))
    return stated(value, d, d)


def seen(n: Any, left: int, right: int) -> Any:
    """Counts the pairs i − left ≤ j ≤ i + right in a sentence of n."""

    # Σ_i min(i, reach)
    def side(reach):
        reach = np.minimum(reach, np.maximum(n - 1, 0))
        return reach * (reach + 1) // 2 + (n - 1 - reach) * reach

    return n + side(left) + side(right)


def _matrices_of_key(a):
    """Counts the numbers of W_K and W_V, of W_C too where these are of latents."""
    source = a.d_c or a.d_model
    into_latents = a.d_model * a.d_c
    return into_latents + source * a.heads_of_keys * (a.width + a.d_v)


def _matrices_of_query(a):
    """Counts the numbers of W_Q, of the gate's matrix and of W_O."""
    gate = {"none": 0, "head": 1, "element": a.d_v}[a.gate]
    output = a.d_v if a.has_w_o else 0
    return a.d_model * a.h * (a.width + gate + output)
