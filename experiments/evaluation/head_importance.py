"""Measures heads: how widely and how far each looks, where, and the loss without it.

S sentences, B rows of a batch, N layers, H heads, m queries, n keys.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np

from attn.config import Model
from experiments.data.batches import padded
from experiments.data.dataset import Heldout
from experiments.evaluation.attention_maps import KINDS, below, path_of
from experiments.objectives import Objective, Translate
from experiments.trial.program import State

PLACES = (
    "the same place",
    "the one before",
    "the one after",
    "the first",
    "the last",
    "elsewhere",
)
"""Where a key may be, seen from its query; of several places the first that is true counts.

Between the two languages, places count from the beginning of each; the last of a source is
its end mark, the first of a target its start mark."""


class Head(NamedTuple):
    """Names one head as a model's parameters do; `kind` is encoder, decoder or cross."""

    kind: str
    layer: int
    number: int

    def path(self, params: Mapping) -> tuple[str, ...]:
        """Returns the modules that lead to its attention; () where its layer has none."""
        stack, attention = KINDS[self.kind]
        layer = f"{stack}_{self.layer}"
        path = path_of(params[layer], attention) if layer in params else ()
        return (layer, *path) if path else ()


def attention_statistics(
    weights: Callable,
    state: State,
    test: Heldout,
    batch_size: int,
    length: int,
    check: Callable[[], None] = lambda: None,
    objective: Objective = Translate(),
) -> dict[str, np.ndarray]:
    """Computes means over all queries of a test set, by "kind/what", each (N, H):

    - entropy, −Σ_j p_ij ln p_ij in nats;
    - distance, Σ_j p_ij·|i − j| in tokens;
    - first, w_i0 / max(1, Σ_j w_ij), what a sink takes;
    - shares (N, H, places), Σ p_ij over the keys of each of PLACES.

    NaN where a layer has no such head.

    p_ij = w_ij / Σ_j w_ij are the weights where these sum to 1, and 0 where all weights of a
    query are. The decoder reads the references. `weights(state, source, target, lengths)` is a
    compiled `attention_maps.attention_weights`; `check()` is called between batches.
    """
    totals = {}
    counts = {}
    for indices, batch in padded(test.ids, batch_size, length, objective):
        check()
        source_lengths = (batch.source_segments > 0).sum(-1)
        target_lengths = (batch.target_segments > 0).sum(-1)
        kinds = jax.device_get(
            weights(state, batch.source, batch.target_in, source_lengths)
        )
        for kind, of_batch in kinds.items():
            queries = source_lengths if kind == "encoder" else target_lengths
            keys = target_lengths if kind == "decoder" else source_lengths
            # Rows beyond these only complete the last batch.
            for row in range(len(indices)):
                # Padding is cut off, so that the last key is the sentence's own.
                sentence = of_batch[row, :, :, : queries[row], : keys[row]]
                for name, total in _sums(np.asarray(sentence, np.float32)).items():
                    key = f"{kind}/{name}"
                    totals[key] = totals.get(key, 0.0) + total
            counts[kind] = counts.get(kind, 0) + int(queries[: len(indices)].sum())
    return {
        key: (total / counts[key.partition("/")[0]]).astype(np.float32)
        for key, total in totals.items()
    }


def _sums(w):
    """Sums over the queries of one sentence; w (N, H, m, n)."""
    total = w.sum(-1, keepdims=True)
    first = w[..., 0] / np.maximum(total[..., 0], 1)
    p = w / np.where(total == 0, 1, total)
    i, j = np.ogrid[: w.shape[2], : w.shape[3]]
    # In the order of PLACES, of which the first that is true counts.
    conditions = [i == j, j == i - 1, j == i + 1, j == 0, j == w.shape[3] - 1]
    place = np.select(conditions, range(5), 5)
    shares = [(p * (place == number)).sum((-2, -1)) for number in range(len(PLACES))]
    # 0 · ln 0 is 0.
    logs = np.log(np.where(p > 0, p, 1))
    return dict(
        entropy=-(p * logs).sum((-2, -1)),
        distance=(p * np.abs(i - j)).sum((-2, -1)),
        first=first.sum(-1),
        shares=np.stack(shares, axis=-1),
    )


def all_heads(params: Mapping, model: Model) -> Iterator[Head]:
    """Yields the heads of a Transformer or a language model, which can be switched off."""
    for kind, (stack, _) in KINDS.items():
        if stack not in getattr(model, "parts", ()):
            continue
        for layer, block in enumerate(model.stack(stack)):
            path = Head(kind, layer, 0).path(params)
            if path and (kind == "cross" or block.mixing.attends):
                # Values of other layers are added to a head's own.
                takes_over = kind != "cross" and block.residual.acts
                for number in range(_switchable(below(params, path), takes_over)):
                    yield Head(kind, layer, number)


def _switchable(attention, takes_over):
    """Returns the number of its heads, 0 where nothing that is one head's own is its output."""
    heads = attention["w_q"].shape[1]
    shared = attention["w_v"].shape[1] < heads
    return 0 if (shared or takes_over) and "w_o" not in attention else heads


def without(state: State, head: Head) -> State:
    """Returns the state with the head's output 0 wherever it looks, by W_O or its values."""
    path = head.path(state.params)
    attention = dict(below(state.params, path))
    if "w_o" in attention:
        attention["w_o"] = attention["w_o"].at[head.number].set(0)
    else:
        attention["w_v"] = attention["w_v"].at[:, head.number].set(0)
        if "b_v" in attention:
            attention["b_v"] = attention["b_v"].at[head.number].set(0)
    return state._replace(params=_replaced(state.params, path, attention))


def _replaced(modules, path, module):
    """Returns modules with another at the end of a path."""
    if not path:
        return module
    first, *rest = path
    return {**modules, first: _replaced(modules[first], rest, module)}


def importance(
    losses: np.ndarray, others: Mapping[Head, np.ndarray], tokens: np.ndarray
) -> dict[str, np.ndarray]:
    """Computes what switching off a head adds to log perplexity, by "kind/what", (N, H).

    `losses` (S,) are −log p of the sentences, `others` the same without each head, `tokens`
    (S,) their numbers. NaN where a layer has no such head.

    - importance, r = Σ_s d_s / Σ_s p_s with d_s the difference and p_s the tokens of s;
    - error, its standard error over sentences,
      √(S/(S − 1)·Σ_s (d_s − r·p_s)²) / Σ_s p_s (Cochran 1977, section 2.11);
    - p_value, two-sided by Student's t with S − 1 degrees of freedom, of one head alone:
      who looks at several heads corrects for their number.
    """
    values = {
        head: _importance(other - losses, tokens) for head, other in others.items()
    }
    arrays = {}
    for head, by_name in values.items():
        same = [other for other in values if other.kind == head.kind]
        layers = max(other.layer for other in same) + 1
        heads = max(other.number for other in same) + 1
        for name, value in by_name.items():
            empty = np.full((layers, heads), np.nan, np.float32)
            array = arrays.setdefault(f"{head.kind}/{name}", empty)
            array[head.layer, head.number] = value
    return arrays


def _importance(d, tokens):
    count = len(d)
    total = tokens.sum()
    r = d.sum() / total
    # r is a ratio of two sums, so sentences vary about r·p_s and not about a mean.
    squares = ((d - r * tokens) ** 2).sum()
    error = (count / max(1, count - 1) * squares) ** 0.5 / total
    # One sentence has no variance to test against.
    p_value = 1.0
    if error > 0 and count > 1:
        # Here, as few runs ask for it.
        from scipy import special

        p_value = 2 * special.stdtr(count - 1, -abs(r) / error)
    return dict(importance=r, error=error, p_value=p_value)
