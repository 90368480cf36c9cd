"""States the translations that are timed: weights, sentences, and what passes."""

import dataclasses

import numpy as np

from experiments.data.vocabulary import BOS, EOS, PAD, UNK
from launch.bench.harness.libraries import Library
from launch.bench.training.case import Sizes

# The paper's, section 6.1.
ALPHA = 0.6
LAYER_NORM_EPSILON = 1e-5
"""The other libraries have this one."""
MARKS = [PAD, BOS, EOS, UNK]

CTRANSLATE2 = Library("launch.bench.decoding.ctranslate2", needs=("ctranslate2",))
LIBRARIES = {
    "attn": Library("launch.bench.decoding.attn"),
    "transformers": Library(
        "launch.bench.decoding.transformers", needs=("torch", "transformers")
    ),
    "ctranslate2": CTRANSLATE2,
    "ctranslate2:one-thread": CTRANSLATE2,
}


@dataclasses.dataclass(frozen=True)
class Case(Sizes):
    """Holds the sizes of a batch of sentences of one length.

    Each is translated into as many tokens, all of which must be searched for.
    """

    batch: int
    beam: int
    """1 is greedy search."""
    tokens: int = 32
    """Tokens of a source, and of a translation, its end mark included."""
    turn: float = 0.2
    only: None = None

    @property
    def group(self) -> str:
        """Returns the name of the table that the case is in."""
        return f"batch-{self.batch}"

    @property
    def name(self) -> str:
        """Returns the name by which --cases picks it."""
        search = f"beam-{self.beam}" if self.beam > 1 else "greedy"
        return f"{self.group}-{search}"

    def check(
        self, samples: dict[str, dict[str, np.ndarray]], name: str
    ) -> tuple[float, str]:
        """Returns the share of tokens that are not those of the first library.

        The end mark does not count. A library's own rounding may settle a close call
        otherwise, and one that scores no end mark may prefer another of the last
        hypotheses; a search of another model has hardly a token in common.
        """
        tokens = samples[name]["tokens"]
        expected = next(iter(samples.values()))["tokens"]
        shape = (self.batch, self.tokens)
        if tokens.shape != shape:
            return 1.0, f"{tokens.shape} tokens, not {shape}"
        different = float((tokens != expected)[:, :-1].mean())
        # Unlike models share no tokens, and rounding changes few of them.
        if different < 0.5:
            return different, ""
        return different, f"{different:.0%} of the tokens differ"


CASES = tuple(Case(batch=batch, beam=beam) for batch in (32, 1) for beam in (4, 1))
_TINY = {"N": 1, "d_model": 12, "d_ff": 10, "h": 3, "vocabulary": 200, "tokens": 7}
TINY = (
    Case(batch=5, beam=3, turn=0.0, **_TINY),
    Case(batch=5, beam=1, turn=0.0, **_TINY),
)


def sources(case: Case) -> np.ndarray:
    """Returns (batch, tokens) ids without marks, the same in every process."""
    generator = np.random.default_rng(0)
    shape = (case.batch, case.tokens)
    # Marks have the first ids.
    return generator.integers(len(MARKS), case.vocabulary, shape, np.int32)


def weights(case: Case) -> dict:
    """Returns parameters of the paper's model, the same in every process.

    They are in the tree of `attn.Transformer`. The embeddings of marks are 0: so is
    their logit, which is never the largest, and no search ends early.
    """
    weights = _Weights(case)
    embedding = weights.normal(case.vocabulary, case.d_model, fan=case.d_model)
    embedding[MARKS] = 0
    tree = {"embedding": embedding}
    for i in range(case.N):
        tree[f"encoder_{i}"] = weights.layer("self")
    for i in range(case.N):
        tree[f"decoder_{i}"] = weights.layer("self", "cross")
    return tree


class _Weights:
    """Draws the parts of a model one after another from one generator."""

    def __init__(self, case):
        self.case = case
        # Other seeds than that of the sentences, so that nothing is drawn twice.
        self.generator = np.random.default_rng(1)

    def normal(self, *shape, fan):
        scale = np.float32(fan**-0.5)
        return self.generator.standard_normal(shape, np.float32) * scale

    def layer(self, *kinds):
        tree = {}
        for kind in kinds:
            tree[f"{kind}_attention"] = self.attention()
            tree[f"{kind}_norm"] = self.norm()
        d = self.case.d_model
        d_ff = self.case.d_ff
        w_1 = self.dense(d, d_ff)
        w_2 = self.dense(d_ff, d)
        tree["feed_forward"] = {"w_1": w_1, "w_2": w_2}
        tree["feed_forward_norm"] = self.norm()
        return tree

    def attention(self):
        d = self.case.d_model
        h = self.case.h
        d_k = d // h
        return {
            # Sharp attention: else a model that has learned nothing repeats one
            # token, and searches agree too easily.
            "w_q": 6 * self.normal(d, h, d_k, fan=d),
            "w_k": self.normal(d, h, d_k, fan=d),
            "w_v": self.normal(d, h, d_k, fan=d),
            "w_o": self.normal(h, d_k, d, fan=d),
        }

    def dense(self, n, m):
        return {"kernel": self.normal(n, m, fan=n), "bias": np.zeros(m, np.float32)}

    def norm(self):
        d = self.case.d_model
        scale = np.ones(d, np.float32)
        return {"norm": {"scale": scale, "bias": np.zeros(d, np.float32)}}


def positions(case: Case) -> np.ndarray:
    """Returns a table (tokens + 1, d_model) as if learned.

    It is large for the same reason as the queries.
    """
    generator = np.random.default_rng(2)
    shape = (case.tokens + 1, case.d_model)
    return 2 * generator.standard_normal(shape, np.float32)


def into_heads(w: np.ndarray) -> np.ndarray:
    """Returns a projection into heads, (D, H, K), as others have it.

    That is a matrix (outputs, inputs).
    """
    return w.reshape(len(w), -1).T


def out_of_heads(w: np.ndarray) -> np.ndarray:
    """Returns a projection out of heads, (H, V, D), as a matrix (outputs, inputs)."""
    return w.reshape(-1, w.shape[-1]).T
