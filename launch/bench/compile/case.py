"""States what is compiled: attention in all its forms, and the programs of trials."""

import dataclasses


# Frozen, because cases are the keys of results.
@dataclasses.dataclass(frozen=True)
class AttentionCase:
    """Holds one call of attention, of B 2, H 8, d 64 unless it says otherwise."""

    score: str
    n: int
    mask: str = "full"
    """Or "causal", "window" to both sides, "local" to the left, "padding", "segments"."""
    direction: str = "forward"
    """Or "gradient": of Σ output, to q, k, v and the parameters of the score."""
    implementation: str | None = "tiled"
    dtype: str = "bfloat16"
    b: int = 2
    h: int = 8
    d: int = 64

    @property
    def group(self) -> str:
        """Returns the table that the case stands in."""
        return "attention"

    @property
    def name(self) -> str:
        """Returns the name by which --cases picks it."""
        how = self.implementation or "none"
        words = (self.score, self.mask, self.n, self.direction, how, self.dtype)
        return "-".join(map(str, words))


@dataclasses.dataclass(frozen=True)
class ProgramCase:
    """Holds a program of a trial: its step, or a part of its evaluation."""

    config: str
    """The path of a config, with its argument."""
    point: tuple[tuple[str, object], ...] = ()
    """Settings on top of it."""
    part: str = "step"
    """Or "losses", "search"."""
    strategy: str = "pmap"
    lanes: int = 1

    @property
    def group(self) -> str:
        """Returns the table that the case stands in."""
        return "programs"

    @property
    def name(self) -> str:
        """Returns the name by which --cases picks it."""
        file = self.config.rpartition("/")[2].replace(".py", "")
        words = [file, *(f"{key}={value}" for key, value in self.point), self.part]
        if self.part == "step":
            words.append(self.strategy)
        if self.lanes > 1:
            words.append(f"{self.lanes} lanes")
        return " ".join(words)
