"""The libraries that are compared, each behind an adapter of one form.

An adapter's `attend(x, call)` asks its library for exactly what `call` says and returns (output, LSE or None). `x` is a
dict of the arrays that have gradients: q (B, N, H, K), k (B, M, H, K), v (B, M, H, V); the score's parameters, w
(H, K, K) of "bilinear" or w_q, w_k (H, K, A) and w_v (H, A) of "additive"; bias (B, H, N, M) where there is one.
"""

import dataclasses
import importlib
import importlib.metadata
import importlib.util

import numpy as np

ADAPTERS = {"attn": "launch.bench.jax_peers", "attn:tiled": "launch.bench.jax_peers",
            "attn:reference": "launch.bench.jax_peers", "attn:jax_nn": "launch.bench.jax_peers",
            "jax.nn": "launch.bench.jax_peers", "flax": "launch.bench.jax_peers",
            "textbook": "launch.bench.jax_peers", "torch": "launch.bench.torch_peers"}
"""The module of each peer; its PEERS has the adapter by name."""

PACKAGES = ("jax", "jaxlib", "flax", "numpy", "torch")


class Unsupported(Exception):
    """The library does not offer what is asked; the message says what."""


class BenchError(Exception):
    """A user's mistake in naming what to compare."""


@dataclasses.dataclass(frozen=True, eq=False)  # a key of caches by identity, as its mask is an array
class Call:
    """What is asked of attention, beside the arrays."""

    score: str = "scaled_dot"
    """Or "bilinear", qᵀ W k, or "additive", vᵀ tanh(W_q q + W_k k)."""
    mask: np.ndarray | None = None
    """Boolean, broadcastable to (B, H, N, M), True = may attend."""
    lengths: np.ndarray | None = None
    """(B,): an example's keys are real below its length."""
    causal: int | None = None
    """Query i sees key j when j ≤ i + causal."""
    window: tuple[int, int] | None = None
    """(left, right): query i sees key j when i − left ≤ j ≤ i + right."""
    rate: float = 0.0
    """Dropout of the weights, drawn from `seed`; without a seed, as the library does it when given none."""
    seed: int | None = None
    lse: bool = False


def check(names: list[str]) -> list[str]:
    """`names`, once each. Raises BenchError for one that is unknown."""
    for name in names:
        if name not in ADAPTERS:
            raise BenchError(f"unknown peer {name!r}; known: {', '.join(ADAPTERS)}")
    if not names:
        raise BenchError(f"--peers names nobody; known: {', '.join(ADAPTERS)}")
    return list(dict.fromkeys(names))


def installed(name: str) -> bool:
    """PyTorch is the one library here that attn does not itself need."""
    return ADAPTERS[name] != "launch.bench.torch_peers" or importlib.util.find_spec("torch") is not None


def load(module: str, name: str):
    """The adapter of a peer, its library imported."""
    return importlib.import_module(module).PEERS[name]


def versions() -> dict[str, str | None]:
    """Of the libraries compared; None for one that is not installed."""
    def version(package):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    return {package: version(package) for package in PACKAGES}
