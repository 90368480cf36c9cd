"""What each head does: how widely and how far it looks, at which places, and what is lost without it.

S sentences, B rows of a batch, N layers, H heads, m queries, n keys.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np
import scipy.stats

from experiments.data.batches import padded
from experiments.data.dataset import Heldout
from experiments.report import statistics
from experiments.trial.program import State

PLACES = (
    "the same place",
    "the one before",
    "the one after",
    "the first",
    "the last",
    "elsewhere",
)
"""Where a query's attention may be; of several the first that is true. Between the two languages, places count from the
beginning of each; the last of a source is its end mark, the first of a target its start mark."""


class Head(NamedTuple):
    """One head, by the names in a model's parameters; `kind` is encoder, decoder or cross."""

    kind: str
    layer: int
    number: int

    @property
    def path(self) -> tuple[str, str]:
        side = "encoder" if self.kind == "encoder" else "decoder"
        return (
            f"{side}_{self.layer}",
            "cross_attention" if self.kind == "cross" else "self_attention",
        )


def looks(
    weights: Callable,
    state: State,
    test: Heldout,
    rows: int,
    length: int,
    check: Callable[[], None] = lambda: None,
) -> dict[str, np.ndarray]:
    """Means over all queries of a test set whose references the decoder reads, by "kind/what", each (N, H):

    - entropy, −Σ_j w_ij ln w_ij in nats;
    - distance, Σ_j w_ij·|i − j| in tokens;
    - shares (N, H, places), Σ w_ij over the keys of each of PLACES.

    `weights(state, source, target, lengths)` is a compiled `evaluation.attention_weights`; `check()` is called between
    batches.
    """
    totals, counts = {}, {}
    for indices, batch in padded(test.ids, rows, length):
        check()
        lengths = dict(
            source=(batch.source_segments > 0).sum(-1),
            target=(batch.target_segments > 0).sum(-1),
        )
        kept = jax.device_get(
            weights(state, batch.source, batch.target_in, lengths["source"])
        )
        for kind, found in kept.items():
            queries = lengths["source" if kind == "encoder" else "target"]
            keys = lengths["target" if kind == "decoder" else "source"]
            for row in range(len(indices)):
                own = np.asarray(
                    found[row, :, :, : queries[row], : keys[row]], np.float32
                )
                for name, total in _sums(own).items():
                    totals[f"{kind}/{name}"] = totals.get(f"{kind}/{name}", 0.0) + total
            counts[kind] = counts.get(kind, 0) + int(queries[: len(indices)].sum())
    return {
        name: (total / counts[name.partition("/")[0]]).astype(np.float32)
        for name, total in totals.items()
    }


def _sums(w):
    """Over the queries of one sentence; w (N, H, m, n)."""
    i, j = np.ogrid[: w.shape[2], : w.shape[3]]
    place = np.select(
        [i == j, j == i - 1, j == i + 1, j == 0, j == w.shape[3] - 1], range(5), 5
    )
    shares = np.stack(
        [(w * (place == one)).sum((-2, -1)) for one in range(len(PLACES))], axis=-1
    )
    logs = np.log(np.where(w > 0, w, 1))
    return dict(
        entropy=-(w * logs).sum((-2, -1)),
        distance=(w * np.abs(i - j)).sum((-2, -1)),
        shares=shares,
    )


def all_heads(params: Mapping) -> Iterator[Head]:
    """Those of a Transformer or a language model, which can be switched off."""
    for kind in ("encoder", "decoder", "cross"):
        layer = 0
        while (path := Head(kind, layer, 0).path)[0] in params:
            if path[1] in params[path[0]]:
                yield from (
                    Head(kind, layer, number)
                    for number in range(params[path[0]][path[1]]["w_v"].shape[1])
                )
            layer += 1


def without(state: State, head: Head) -> State:
    """The state with the head's values all 0, so that its output is 0 whatever it looks at."""
    layer, name = head.path
    own = dict(state.params[layer][name])
    own["w_v"] = own["w_v"].at[:, head.number].set(0)
    if "b_v" in own:
        own["b_v"] = own["b_v"].at[head.number].set(0)
    return state._replace(
        params={**state.params, layer: {**state.params[layer], name: own}}
    )


def importance(
    losses: np.ndarray, others: Mapping[Head, np.ndarray], tokens: np.ndarray
) -> dict[str, np.ndarray]:
    """What switching off a head adds to the log of perplexity, by "kind/what", each (N, H).

    `losses` (S,) are −log p of the sentences, `others` the same without each head, `tokens` (S,) their numbers.

    - importance, r = Σ_s d_s / Σ_s p_s with d_s the difference and p_s the tokens of sentence s;
    - error, its standard error over sentences, √(S/(S − 1)·Σ_s (d_s − r·p_s)²) / Σ_s p_s (Cochran 1977, section 2.11);
    - p, two-sided by Student's t with S − 1 degrees of freedom, after Holm's correction over all heads.
    """
    count, found = len(losses), {}
    for head, other in others.items():
        d = other - losses
        r = d.sum() / tokens.sum()
        error = (
            count / max(1, count - 1) * ((d - r * tokens) ** 2).sum()
        ) ** 0.5 / tokens.sum()
        p = (
            2 * scipy.stats.t.sf(abs(r) / error, count - 1)
            if error > 0 and count > 1
            else 1.0
        )
        found[head] = r, error, p
    adjusted = statistics.holm([p for *_, p in found.values()])
    arrays = {}
    for (head, (r, error, _)), p in zip(found.items(), adjusted, strict=True):
        same = [other for other in found if other.kind == head.kind]
        shape = max(one.layer for one in same) + 1, max(one.number for one in same) + 1
        for name, value in (("importance", r), ("error", error), ("p", p)):
            array = arrays.setdefault(
                f"{head.kind}/{name}", np.full(shape, np.nan, np.float32)
            )
            array[head.layer, head.number] = value
    return arrays
