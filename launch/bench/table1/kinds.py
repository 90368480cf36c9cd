"""Lists the layers of Table 1, with what the paper says of each.

    per layer                complexity        sequential   path
    self-attention           O(n²·d)           O(1)         O(1)
    restricted to r          O(r·n·d)          O(1)         O(n/r)
    recurrence               O(n·d²)           O(n)         O(n)
    convolution, k taps      O(k·n·d²)         O(1)         O(n/k)
    separable convolution    O(k·n·d + n·d²)   O(1)         O(n/k)

The paths of convolutions are those of taps that are neighbours.
"""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn

from attn import Convolution, Mask, MultiHeadAttention, Recurrence

R = 16
"""Positions that restricted attention reaches on each side."""
TAPS = 3
EVERYTHING = Mask()


@dataclasses.dataclass(frozen=True)
class Kind:
    """A row of the table.

    The sizes are the (n, d) that are timed: over n at one d, over d at one n. Each form
    of attention also has 4·n·d² of projections, so n is large beside d where its own
    term is looked for.
    """

    name: str
    complexity: str
    """The paper's, as the following two."""
    sequential: str
    path: str
    expected: tuple[int, int]
    """The exponents of n and d in the term that dominates there."""
    over_n: tuple[tuple[int, int], ...]
    over_d: tuple[tuple[int, int], ...]
    build: Callable[[int], nn.Module]
    """d -> module; it is called with x, and x again where it attends, and `mask`."""
    mask: Mask = EVERYTHING
    batch: int = 1
    """Sequences at once. A recurrence of one alone waits for its matrices to come from
    memory, and measures caches."""

    lengths: tuple[int, ...] = (16, 32, 64, 128)
    """Lengths at which sequential operations are counted, all but the last for paths.
    """

    @property
    def attends(self) -> bool:
        """Returns whether the module takes queries and keys."""
        return self.build is attention


def attention(d: int) -> MultiHeadAttention:
    """Returns attention with one head."""
    return MultiHeadAttention(d_model=d, h=1, d_k=d, d_v=d)


def _over_n(ns, d):
    return tuple((n, d) for n in ns)


def _over_d(ds, n):
    return tuple((n, d) for d in ds)


KINDS = (
    Kind(
        name="self-attention",
        complexity="O(n²·d)",
        sequential="O(1)",
        path="O(1)",
        expected=(2, 1),
        over_n=_over_n((2048, 4096, 8192, 16384), d=32),
        over_d=_over_d((16, 32, 64, 128), n=4096),
        build=attention,
    ),
    Kind(
        name=f"restricted, r = {R}",
        complexity="O(r·n·d)",
        sequential="O(1)",
        path="O(n/r)",
        expected=(1, 1),
        over_n=_over_n((4096, 8192, 16384, 32768), d=32),
        over_d=_over_d((16, 32, 64), n=8192),
        build=attention,
        mask=Mask.window(R, R),
    ),
    Kind(
        name="recurrence",
        complexity="O(n·d²)",
        sequential="O(n)",
        path="O(n)",
        expected=(1, 2),
        # Short and wide: its term n·d² is then larger than a step's overhead.
        over_n=_over_n((64, 128, 256, 512), d=256),
        over_d=_over_d((256, 512, 1024, 2048), n=16),
        build=Recurrence,
        batch=16,
    ),
    Kind(
        name=f"convolution, {TAPS} taps",
        complexity="O(k·n·d²)",
        sequential="O(1)",
        path="O(n/k)",
        expected=(1, 2),
        over_n=_over_n((512, 1024, 2048, 4096), d=128),
        over_d=_over_d((256, 512, 1024, 2048), n=256),
        # A radius of r has 2·r + 1 taps.
        build=functools.partial(Convolution, radius=TAPS // 2),
    ),
    Kind(
        name=f"separable, {TAPS} taps",
        complexity="O(k·n·d + n·d²)",
        sequential="O(1)",
        path="O(n/k)",
        expected=(1, 2),
        over_n=_over_n((1024, 2048, 4096, 8192), d=128),
        over_d=_over_d((512, 1024, 2048, 4096), n=256),
        build=functools.partial(Convolution, radius=TAPS // 2, separable=True),
    ),
)
TINY = tuple(
    dataclasses.replace(
        kind,
        over_n=((16, 8), (32, 8)),
        over_d=((16, 8), (16, 16)),
        lengths=(4, 5, 6),
    )
    # One each that attends, recurs and convolves.
    for kind in KINDS[::2]
)
