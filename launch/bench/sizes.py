"""The model that training and decoding are timed with. Imports nothing, for the sake of other libraries' starts."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """The "Tiny" of Wu et al. (2021), in the paper's letters."""

    N: int = 4
    """Layers on each side."""
    d_model: int = 128
    d_ff: int = 256
    h: int = 4
    vocabulary: int = 10_000
