"""The translations that are timed: a model whose weights every library gets, its input, and when outputs agree."""

import dataclasses

import numpy as np

from experiments.tokens import BOS, EOS, PAD, UNK
from launch.bench.sizes import Sizes

ALPHA = 0.6
LAYER_NORM_EPSILON = 1e-5
"""What the other libraries have."""
MARKS = [PAD, BOS, EOS, UNK]


@dataclasses.dataclass(frozen=True)
class Case(Sizes):
    """So many sentences of one length, each translated into as many pieces, all of which must be searched for."""

    batch: int
    beam: int
    """1 is greedy search."""
    pieces: int = 32
    """Of a source, and of a translation, its end mark included."""
    only: None = None
    turn: float = 0.2

    @property
    def group(self) -> str:
        return f"batch-{self.batch}"

    @property
    def name(self) -> str:
        return f"{self.group}-{f'beam-{self.beam}' if self.beam > 1 else 'greedy'}"

    def check(self, samples: dict[str, dict[str, np.ndarray]], name: str) -> tuple[float, str]:
        """The share of pieces that are not those of the first library, before the end mark.

        A library's own rounding may settle a close call otherwise, and one that scores no end mark may prefer another
        of the last hypotheses; a search of another model has hardly a piece in common.
        """
        found, wanted = samples[name]["pieces"], next(iter(samples.values()))["pieces"]
        if found.shape != (self.batch, self.pieces):
            return 1.0, f"{found.shape} pieces, not {self.batch, self.pieces}"
        different = float((found != wanted)[:, :-1].mean())
        return different, "" if different < 0.5 else f"{different:.0%} of the pieces differ"


def sources(case: Case) -> np.ndarray:
    """(batch, pieces) ids, no marks among them; the same in every process."""
    return np.random.default_rng(0).integers(len(MARKS), case.vocabulary, (case.batch, case.pieces), np.int32)


def weights(case: Case) -> dict:
    """The parameters of the paper's model, in the tree of `attn.Transformer`; the same in every process.

    The embeddings of marks are 0: so is their logit, which is never the largest, and no search ends early. Queries are
    large, for sharp attention: else a model that has learned nothing repeats one piece, and searches agree too easily.
    """
    draw = np.random.default_rng(1)
    d, h, d_k = case.d_model, case.h, case.d_model // case.h

    def normal(*shape, fan):
        return draw.standard_normal(shape, np.float32) * np.float32(fan**-0.5)

    def attention():
        return {"w_q": 6 * normal(d, h, d_k, fan=d), "w_k": normal(d, h, d_k, fan=d),
                "w_v": normal(d, h, d_k, fan=d), "w_o": normal(h, d_k, d, fan=d)}

    def dense(n, m):
        return {"kernel": normal(n, m, fan=n), "bias": np.zeros(m, np.float32)}

    def norm():
        return {"norm": {"scale": np.ones(d, np.float32), "bias": np.zeros(d, np.float32)}}

    def layer(*kinds):
        own = {f"{kind}_{part}": make() for kind in kinds for part, make in (("attention", attention), ("norm", norm))}
        return {**own, "feed_forward": {"w_1": dense(d, case.d_ff), "w_2": dense(case.d_ff, d)},
                "feed_forward_norm": norm()}

    embedding = normal(case.vocabulary, d, fan=d)
    embedding[MARKS] = 0
    return {"embedding": embedding, **{f"encoder_{i}": layer("self") for i in range(case.N)},
            **{f"decoder_{i}": layer("self", "cross") for i in range(case.N)}}


def positions(case: Case) -> np.ndarray:
    """A table as if learned, (pieces + 1, d_model), and large, for the same reason."""
    return 2 * np.random.default_rng(2).standard_normal((case.pieces + 1, case.d_model), np.float32)


def into(w: np.ndarray) -> np.ndarray:
    """A projection into heads, (D, H, K), as the (outputs, inputs) matrix of other libraries."""
    return w.reshape(len(w), -1).T


def out_of(w: np.ndarray) -> np.ndarray:
    """The same of a projection out of heads, (H, V, D)."""
    return w.reshape(-1, w.shape[-1]).T
