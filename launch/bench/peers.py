"""The libraries that are compared, each behind an adapter of one form.

Those of training and decoding are `timing.Adapter`s. For attention, `attend(x, call)` asks its library for exactly what
`call` says and returns (output, LSE or None). `x` is a dict of the arrays that have gradients: q (B, N, H, K),
k (B, M, H, K), v (B, M, H, V); the score's parameters, w (H, K, K) of "bilinear" or w_q, w_k (H, K, A) and w_v (H, A)
of "additive"; bias (B, H, N, M) where there is one.
"""

import dataclasses
import importlib
import importlib.metadata
import importlib.util

import numpy as np

_ATTENTION = {
    **dict.fromkeys(("attn", "attn:tiled", "attn:reference", "attn:jax_nn", "jax.nn", "flax", "textbook"),
                    "launch.bench.jax_peers"),
    "torch": "launch.bench.torch_peers"}
ADAPTERS = {
    "attention": _ATTENTION,
    "conformance": _ATTENTION,
    "train": {**dict.fromkeys(("attn", "attn:as-torch", "flax", "flax:as-torch"), "launch.bench.training_jax"),
              **dict.fromkeys(("torch", "torch:as-paper"), "launch.bench.training_torch")},
    "decode": {"attn": "launch.bench.decoding_attn", "transformers": "launch.bench.decoding_transformers",
               "ctranslate2": "launch.bench.decoding_ctranslate2"},
}
"""The module of each peer of a command; its PEERS has the adapter by name."""

NEEDS = {"launch.bench.torch_peers": ("torch",), "launch.bench.training_torch": ("torch",),
         "launch.bench.decoding_transformers": ("torch", "transformers"),
         "launch.bench.decoding_ctranslate2": ("ctranslate2",)}
"""What a module imports that attn does not itself need."""

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


def check(command: str, names: list[str]) -> list[str]:
    """`names`, once each. Raises BenchError for one that `command` does not know."""
    known = ADAPTERS[command]
    for name in names:
        if name not in known:
            raise BenchError(f"unknown peer {name!r}; known: {', '.join(known)}")
    if not names:
        raise BenchError(f"--peers names nobody; known: {', '.join(known)}")
    return list(dict.fromkeys(names))


def installed(module: str) -> bool:
    """Whether the libraries are there that an adapter's module imports."""
    return all(importlib.util.find_spec(package) for package in NEEDS.get(module, ()))


def load(module: str, name: str):
    """The adapter of a peer, its library imported."""
    return importlib.import_module(module).PEERS[name]


def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str | None]:
    """Of the libraries compared; None for one that is not installed."""
    def version(package):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    return {package: version(package) for package in packages}
