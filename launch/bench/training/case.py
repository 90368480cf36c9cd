"""States the training step that is timed: the model, the batch, and what passes.

Nothing here imports a library that is compared, for the sake of their cold starts.
"""

import dataclasses

import numpy as np

from experiments.data.vocabulary import BOS, EOS
from launch.bench.harness.libraries import Library
from launch.bench.harness.program import Program

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
    "products": Library("launch.bench.training.products"),
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

    @property
    def described(self) -> str:
        """Returns the sizes as the title of a table has them."""
        return (
            f"{self.N}+{self.N} layers, d_model {self.d_model}, d_ff {self.d_ff}, "
            f"h {self.h}, vocabulary {self.vocabulary:,}"
        )


@dataclasses.dataclass(frozen=True)
class Case(Sizes):
    """Holds a model, and the sizes of a batch of sentence pairs.

    All sentences have one length, so that no library works on padding.
    """

    pairs: int = 64
    tokens: int = 64
    """Tokens of a sentence, one mark included: 4,096 + 4,096 in all."""
    P_drop: float = 0.3
    rate: float = 5e-4
    """Adam's learning rate."""
    name: str = "step"
    only: None = None
    turn: float = 0.05

    def check(
        self, samples: dict[str, dict[str, np.ndarray]], name: str
    ) -> tuple[float, str]:
        """Returns the loss after `STEPS` on the one batch, and a complaint.

        The loss starts near log(vocabulary), and falls. Products alone have no loss: it is
        the error of their FLOPs.
        """
        if "flops" in samples[name]:
            compiled, expected = samples[name]["flops"]
            # Where x is read n times, the backward pass adds n − 1 gradients.
            sums = (6 * self.N - 1) * self.pairs * self.tokens * self.d_model
            right = compiled == expected + sums
            complaint = f"{compiled:,.0f} FLOPs are compiled, not {expected:,.0f}"
            return float(compiled / expected - 1), "" if right else complaint
        losses = samples[name]["losses"]
        first = losses[0]
        last = losses[-1]
        start = np.log(self.vocabulary)
        # At first all tokens are about equally likely, so another loss is a mistake.
        right = abs(first - start) < 0.15 * start and last < first
        complaint = f"the loss goes from {first:.2f} to {last:.2f}"
        return float(last), "" if right else complaint


CASE = Case()
TINY = Case(
    N=1,
    d_model=12,
    d_ff=10,
    h=3,
    vocabulary=500,
    pairs=6,
    tokens=7,
    # With little dropout and a high rate so small a model learns in STEPS steps too.
    P_drop=0.01,
    rate=0.01,
    turn=0.0,
)


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
