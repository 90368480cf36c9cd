"""States the translations that are timed: weights, sentences, and what passes."""

import dataclasses
import importlib

import jax
import numpy as np

from attn import Context
from experiments.data.vocabulary import BOS, EOS, PAD, UNK
from launch.bench.harness.libraries import Library
from launch.bench.harness.run import timing
from launch.bench.training.case import Sizes

# The paper's, section 6.1.
ALPHA = 0.6
LAYER_NORM_EPSILON = 1e-5
"""The other libraries have this one."""
MARKS = [PAD, BOS, EOS, UNK]

CTRANSLATE2 = Library("launch.bench.decoding.ctranslate2", needs=("ctranslate2",))
LIBRARIES = {
    "attn": Library("launch.bench.decoding.attn"),
    "ctranslate2": CTRANSLATE2,
    "ctranslate2:one-thread": CTRANSLATE2,
}
NOTES = {
    "attn": "attn.nn.beam_search, one compiled program",
    "ctranslate2": "compute_type float32; no end mark is forced, so it has one more token "
    "to choose",
    "ctranslate2:one-thread": "the same with one thread, as two may wait for each other "
    "for longer than they save",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
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
    budget: float = 20.0
    error_words: str = "of the tokens are others than those of the first library"

    @property
    def group(self) -> str:
        """Returns the name of the table that the case is in."""
        return f"batch-{self.batch}"

    @property
    def column(self) -> str:
        """Returns the search."""
        return f"beam {self.beam}" if self.beam > 1 else "greedy"

    @property
    def name(self) -> str:
        """Returns the name by which --cases picks it."""
        return f"{self.group}-{self.column.replace(' ', '-')}"

    @property
    def title(self) -> str:
        """Returns what heads the table of the group."""
        sizes = f"{self.tokens} tokens into {self.tokens}"
        return f"{self.group}: {self.described}; {sizes}; float32"

    @property
    def work(self) -> int:
        """Returns the tokens that are written."""
        return self.batch * self.tokens

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
TINY = tuple(Case(batch=5, beam=beam, turn=0.0, **_TINY) for beam in (3, 1))

BENCHMARK = timing(
    "decoding",
    CASES,
    TINY,
    LIBRARIES,
    compared=tuple(LIBRARIES),
    notes=NOTES,
    packages=("ctranslate2",),
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
    # By name, as that module imports this one.
    model = importlib.import_module("launch.bench.decoding.attn").transformer(case)
    row = jax.ShapeDtypeStruct((1, 2), "int32")
    key = jax.eval_shape(lambda: jax.random.key(0))
    shapes = jax.eval_shape(model.init, key, row, row, Context(), Context())["params"]
    # Another seed than that of the sentences, so that nothing is drawn twice.
    generator = np.random.default_rng(1)

    def draw(path, leaf):
        name = path[-1].key
        if name in ("scale", "bias"):
            return np.full(leaf.shape, name == "scale", np.float32)
        is_wide = name in ("embedding", "w_o")
        fan = case.d_model if is_wide else leaf.shape[0]
        # Sharp attention: else a model that has learned nothing repeats one token, and
        # searches agree too easily.
        size = np.float32((6 if name == "w_q" else 1) * fan**-0.5)
        return size * generator.standard_normal(leaf.shape, np.float32)

    tree = jax.tree_util.tree_map_with_path(draw, shapes)
    tree["embedding"][MARKS] = 0
    return tree


def positions(case: Case) -> np.ndarray:
    """Returns a table (tokens + 1, d_model) as if learned.

    It is large for the same reason as the queries.
    """
    generator = np.random.default_rng(2)
    shape = (case.tokens + 1, case.d_model)
    return 2 * generator.standard_normal(shape, np.float32)
