"""States the training step that is timed: the model, the batch, and what passes.

Nothing here imports a library that is compared, for the sake of their cold starts.
"""

import dataclasses

import numpy as np

from experiments.data.vocabulary import BOS, EOS
from launch.bench.harness.libraries import Library, Program, Unsupported

# The paper's, sections 5.3 and 5.4.
BETAS = (0.9, 0.98)
EPSILON = 1e-9
EPS_LS = 0.1
STEPS = 4
"""Steps before the timing; the loss must have fallen then."""
FIRST_WORD = 4
"""The first id that is no mark."""

JAX = Library("launch.bench.training.jax")
TORCH = Library("launch.bench.training.torch", needs=("torch",))
LIBRARIES = {
    "attn": JAX,
    "attn:as-torch": JAX,
    "flax": JAX,
    "flax:as-torch": JAX,
    "torch": TORCH,
    "torch:as-paper": TORCH,
    "torch:compiled": TORCH,
}
NOTES = {
    "attn": "dropout in the paper's places: sub-layer outputs and sums of embeddings "
    "and positions. Its own step, as launch.train runs it: packed rows, here of one "
    "sentence",
    "attn:as-torch": "dropout also of attention weights and hidden units, as "
    "torch.nn.Transformer has it",
    "torch": "torch.nn.Transformer, eager, the causal mask announced and no padding "
    "mask; its own dropout places and a LayerNorm after each stack; torch.optim.Adam",
    "torch:as-paper": "dropout of attention weights and hidden units turned off",
    "torch:compiled": "the same by torch.compile, Adam fused",
    "flax": "flax.linen, jitted: MultiHeadDotProductAttention, Dropout in the paper's "
    "places, one-hot labels, optax.adam",
    "flax:as-torch": "dropout also of attention weights (one mask for all heads and "
    "sentences, flax's default) and hidden units",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Holds the sizes of a Transformer in the paper's letters.

    The defaults are the "Tiny" of Wu et al. (2021).
    """

    N: int = 4
    """Layers on each side."""
    d_model: int = 128
    d_ff: int = 256
    h: int = 4
    vocabulary: int = 10_000
    only: None = None
    budget: float = 90.0

    @property
    def described(self) -> str:
        """Returns the sizes as the title of a table has them."""
        return (
            f"{self.N}+{self.N} layers, d_model {self.d_model}, d_ff {self.d_ff}, "
            f"h {self.h}, vocabulary {self.vocabulary:,}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case(Sizes):
    """Holds a model, and the sizes of a batch of sentence pairs.

    All sentences have one length, so that no library works on padding.
    """

    name: str = "step"
    pairs: int = 64
    tokens: int = 64
    """Tokens of a sentence, one mark included: 4,096 + 4,096 in all."""
    P_drop: float = 0.3
    rate: float = 5e-4
    """Adam's learning rate."""
    precision: str = "float32"
    """Or "bfloat16", in which a step computes from parameters in float32."""
    lanes: int = 1
    """Trials that attn trains in one program; other libraries take part with one alone."""
    column: str = "step"
    turn: float = 0.05
    error_words: str = ""

    @property
    def group(self) -> str:
        """Returns the name: each case has a table of its own."""
        return self.name

    @property
    def title(self) -> str:
        """Returns what heads the table."""
        return (
            f"{self.name}: {self.described}, dropout {self.P_drop}, Adam, "
            f"{self.precision}; {self.pairs} pairs of {self.tokens} + {self.tokens} tokens"
        )

    @property
    def work(self) -> int:
        """Returns the tokens of source and target in a step."""
        return 2 * self.lanes * self.pairs * self.tokens

    def check(
        self, samples: dict[str, dict[str, np.ndarray]], name: str
    ) -> tuple[float, str]:
        """Returns the loss after `STEPS` on the one batch, and a complaint.

        The loss must begin near that of a guess, and fall.
        """
        first, *_, last = samples[name]["losses"]
        start = np.log(self.vocabulary)
        # At first all tokens are about equally likely, so another loss is a mistake.
        right = abs(first - start) < 0.15 * start and last < first
        complaint = f"the loss goes from {first:.2f} to {last:.2f}"
        return float(last), "" if right else complaint


CASE = Case()
# With little dropout and a high rate so small a model learns in STEPS steps too.
_TINY = {"pairs": 6, "tokens": 7, "P_drop": 0.01, "rate": 0.01, "turn": 0.0}
TINY = Case(N=1, d_model=12, d_ff=10, h=3, vocabulary=500, **_TINY)


def check_lanes(case: Case) -> None:
    """Raises Unsupported where a case has several trials in one program."""
    if case.lanes > 1:
        raise Unsupported("trains one trial at a time")


def sentences(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids of source and target without marks, the same in every process."""
    shape = (2, case.pairs, case.tokens - 1)
    generator = np.random.default_rng(0)
    source, target = generator.integers(FIRST_WORD, case.vocabulary, shape, np.int32)
    return source, target


def padded(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns source, decoder input and expected output, (pairs, tokens) each.

    That is the batch of a library that packs no rows.
    """
    source, target = sentences(case)
    begin = np.full((case.pairs, 1), BOS, np.int32)
    end = np.full((case.pairs, 1), EOS, np.int32)
    return (
        np.hstack([source, end]),
        np.hstack([begin, target]),
        np.hstack([target, end]),
    )


def program(step, **options) -> Program:
    """Returns the program of `step()`, which makes a step and returns its loss."""

    def sample():
        return {"losses": np.array([step() for _ in range(STEPS)])}

    return Program(step, sample, **options)
