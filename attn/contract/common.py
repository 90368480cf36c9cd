"""What the checks of every kind share: sizes, inputs, masks, and how results are compared."""

import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attn.attention import attention
from attn.config import Attention
from attn.context import Context, Decoding
from attn.masks import Mask
from attn.nn.attention import MultiHeadAttention
from attn.positions import NoPositions

# All differ, so that no axis can be taken for another. K and D are even, as rotary
# positions and sinusoids need.
B = 2
N = 5
M = 7
H = 3
K = 6
V = 4
D = 8
BEFORE = 600
"""Tokens before a text in a packed row: more than any threshold of a bias of ours."""


LAYERS = (1, 2, 3)
"""The places in a stack that are tried: what is wrong from the second on shows."""

HOME = Path(__file__).parents[2]
LIBRARIES = (
    *(f"{HOME / folder}{os.sep}" for folder in ("attn", "experiments", "launch")),
    "site-packages",
    "<frozen",
)
"""Parts of paths of code that is not the user's."""


class Row(NamedTuple):
    """The result of one check."""

    what: str
    ok: bool
    detail: str
    """The error that was found, or its size."""


def run(checks: Mapping[str, Callable]) -> Iterator[Row]:
    """Yields the rows of checks that return a detail, or raise."""
    for what, check in checks.items():
        try:
            # An accelerator rounds the factors of products otherwise, to TF32 or bfloat16.
            with jax.default_matmul_precision("float32"):
                detail = check()
        # Whatever one's own code raises is the row's result.
        except Exception as error:
            yield Row(what, False, f"{describe(error)}{place_of(error)}")
        else:
            yield Row(what, True, detail if isinstance(detail, str) else "")


class LayerError(ValueError):
    """Raised for what fails in one layer; says in which."""


def describe(error: Exception) -> str:
    """Returns an error's type and message; of a LayerError its message, which has the type."""
    if isinstance(error, LayerError):
        return str(error)
    if isinstance(error, jax.errors.UnexpectedTracerError):
        # JAX's own message is a page, of what a tracer is.
        return "a call finds in a variable what an earlier one has left there"
    if "custom_vjp function" in str(error):
        return (
            "kernels take forward mode too: give a derivative of your own by jax.custom_jvp, "
            "not jax.custom_vjp"
        )
    return f"{type(error).__name__}: {error}"


def place_of(error: BaseException) -> str:
    """Returns the last line of the user's own code that an error passed, " (my_score.py:7)"."""
    # An error in a layer has passed it on the way to what says so.
    error = error.__cause__ or error
    lines = [
        f" ({Path(frame.filename).name}:{frame.lineno})"
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(part in frame.filename for part in LIBRARIES)
    ]
    return lines[-1] if lines else ""


def in_layers(check: Callable[[int], str | None]) -> str:
    """Returns what `check(number)` says of the last of LAYERS.

    Raises LayerError for the first layer that fails.
    """
    detail = None
    for number in LAYERS:
        try:
            detail = check(number)
        except Exception as error:
            raise LayerError(f"{describe(error)} in layer {number}") from error
    return detail or ""


def by_arguments_alone(
    compute: Callable[[int, float], jax.Array], layers: Sequence[int] = LAYERS
) -> None:
    """Raises ValueError where `compute(layer, shift)` depends on earlier calls.

    All layers are computed in turn, then with shifted inputs, then as at first in reverse.
    """
    before = {number: compute(number, 0.0) for number in layers}
    for number in layers:
        compute(number, 1.0)
    for number in reversed(layers):
        if not jnp.array_equal(compute(number, 0.0), before[number], equal_nan=True):
            raise ValueError(
                f"layer {number} gave other outputs of the same inputs and parameters after "
                "other calls: it finds in a variable what these have left there"
            )


def masks() -> dict[str, tuple[Mask, np.ndarray]]:
    """Returns {name: (mask, the keys that each query sees (B, H, N, M))} of every kind."""
    i = np.arange(N)[:, None]
    j = np.arange(M)[None]
    lengths = np.array([4, M])
    real = j < lengths[:, None, None, None]
    q_ids = np.array([[1, 1, 2, 2, 0], [1, 2, 3, 3, 3]])
    k_ids = np.array([[1, 1, 2, 2, 2, 0, 0], [3, 3, 2, 2, 1, 1, 1]])
    dense = np.random.default_rng(1).random((B, H, N, M)) < 0.5
    pairs = {
        "none": (Mask(), True),
        "causal": (Mask.causal(), j <= i),
        "nothing is seen": (Mask.causal(offset=-N), False),
        "window": (Mask.window(1, 2), (i - 1 <= j) & (j <= i + 2)),
        "padding": (Mask.padding(lengths), real),
        "segments": (
            Mask.segments(q_ids, k_ids),
            (q_ids[:, :, None] == k_ids[:, None])[:, None],
        ),
        "dense": (Mask.dense(dense), dense),
        "causal & padding": (
            Mask.causal(2) & Mask.padding(lengths),
            (j <= i + 2) & real,
        ),
    }
    shape = (B, H, N, M)
    return {
        name: (mask, np.broadcast_to(seen, shape))
        for name, (mask, seen) in pairs.items()
    }


def inputs(dtype: Any, n: int = N, m: int = M) -> list[Array]:
    """Returns queries, keys and values, normal random numbers."""
    draw = np.random.default_rng(0).normal
    shapes = (B, n, H, K), (B, m, H, K), (B, m, H, V)
    return [jnp.asarray(draw(size=shape), dtype) for shape in shapes]


def cast(tree: Any, dtype: Any) -> Any:
    """Returns the value with its floating-point arrays in a dtype; plain numbers stay."""

    def in_dtype(leaf):
        is_array = isinstance(leaf, jax.Array | np.ndarray)
        is_float = is_array and jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(leaf, dtype) if is_float else leaf

    return jax.tree.map(in_dtype, tree)


def close(a: Any, b: Any, tolerance: float, name: str = "results") -> str:
    """Returns the greatest difference, as a text; raises where it is too large."""
    a = np.asarray(a, np.float64)
    b = np.asarray(b, np.float64)
    if a.shape != b.shape:
        raise ValueError(f"{name} have shapes {a.shape} and {b.shape}")
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):  # −inf − (−inf), where both are right
        differences = np.abs(a - b)
    error = float(np.where(same, 0, differences).max(initial=0))
    finite = b[np.isfinite(b)]
    scale = max(1.0, float(np.abs(finite).max(initial=0)))
    if not error <= tolerance * scale:
        raise ValueError(f"{name} differ by {error:.2g}")
    return f"error {error:.1g}"


def on_cudnn(qkv: Sequence[Any], **options: Any) -> str:
    """Compares the kernel cudnn, output and LSE, with the reference under a causal mask."""
    lengths = np.full(len(qkv[1]), qkv[1].shape[1] - 1)
    options |= dict(mask=Mask.causal() & Mask.padding(lengths))
    ours, exact = (
        attention(*qkv, **options, return_lse=True, implementation=kernel)
        for kernel in ("cudnn", "reference")
    )
    close(ours[0], exact[0], 1e-4, "outputs of the kernel cudnn")
    return close(ours[1], exact[1], 1e-4, "LSEs of the kernel cudnn")


def is_a(value: Any, cls) -> None:
    """Raises TypeError for a value of another class."""
    if not isinstance(value, cls):
        raise TypeError(f"{value!r} is no {cls.__name__}")


def description(**options: Any) -> Attention:
    """Returns an attention of the sizes of this file."""
    return Attention(D, H, K, V, **{"positions": NoPositions(), **options})


def steps(layer: int = 1, **options: Any) -> str:
    """Compares causal self-attention step by step with the full pass."""
    module = MultiHeadAttention(description(**options), causal=True)
    x = jnp.asarray(np.random.default_rng(3).normal(size=(B, N, D)), jnp.float32)
    full = Context(Mask.causal(), layer=layer)
    params = module.init(jax.random.key(1), x, full)
    whole, _ = module.apply(params, x, full)

    @jax.jit
    def step(x, ctx):
        return module.apply(params, x, ctx.replace(layer=layer))

    return in_steps(
        step, lambda entries: module.empty_cache(B, entries, x.dtype), x, whole
    )


def packed(mix: Callable, mask: Mask) -> str:
    """Compares a text that stands behind another in its row with the same alone in one.

    `mix(x, ctx)` gives the outputs (2, T, D) of tokens x; `mask` hides nothing of a text.
    """
    x = np.random.default_rng(3).normal(size=(BEFORE + N, D))
    # Rolled, the text is the first of its row.
    both = jnp.asarray([x, np.roll(x, N, axis=0)], jnp.float32)
    is_last = np.arange(BEFORE + N) >= BEFORE
    texts = np.array([is_last, np.roll(is_last, N)]).astype(int)
    counted = np.arange(BEFORE + N)
    place = np.where(is_last, counted - BEFORE, counted)
    places = jnp.asarray([place, np.roll(place, N)])
    row, alone = mix(both, Context(mask & Mask.segments(texts, texts), places))
    return close(row[BEFORE:], alone[:N], 1e-4)


def in_steps(step: Callable, empty: Callable, x: Array, whole: Array) -> str:
    """Compares the outputs of steps (x, ctx) -> (y, ctx) with those of the full pass.

    `empty(entries)` makes a cache. Of each text there is one hypothesis; then there are two,
    of which the second is another text, and which from the third position on stand in each
    other's place, as in beam search.
    """
    alone = jnp.stack([x], axis=2)
    detail = close(_all_steps(step, alone, empty(N), [[0]] * N)[:, :, 0], whole, 1e-4)
    order = [[0, 1]] * 2 + [[1, 0]] * (N - 2)
    both = jnp.stack([x, jnp.roll(x, 1, axis=0)], axis=2)
    found = _all_steps(step, both, empty(2 * N), order)
    rolled = jnp.roll(whole, 1, axis=0)
    close(found, jnp.stack([whole, rolled], axis=2), 1e-4, "outputs of two hypotheses")
    return detail


def _all_steps(step: Callable, x: Array, cache: Any, order: Sequence) -> Array:
    """Returns the outputs (B, N, K, D) of N steps for K hypotheses x (B, N, K, D) of each text.

    At position t the i-th hypothesis is that of `order[t][i]`, as it is its own inverse.
    """
    outputs = []
    k = x.shape[2]
    seen = np.zeros((k, N * k), bool)
    for t, of_place in enumerate(map(np.asarray, order)):
        # Each sees what it wrote, in whatever place it stood.
        seen[of_place, t * k + np.arange(k)] = True
        at = Decoding(jnp.int32(t), jnp.broadcast_to(seen[of_place], (B, k, N * k)))
        y, ctx = step(x[:, t, of_place], Context(decoding=at, cache=cache))
        cache = ctx.cache
        outputs.append(y[:, of_place])
    return jnp.stack(outputs, axis=1)
