"""Checks that every kernel does with a value what the oracle and the reference do.

`make(dtype, h)` gives the arguments of `attention()` that hold the value, with parameters
of a dtype for h heads.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attn.attention import attention
from attn.contract import oracle
from attn.contract.common import B, H, M, N, V, cast, close, inputs, masks, steps
from attn.jax_versions import enable_x64
from attn.kernels.cached import as_cached, over_cache
from attn.masks import Mask
from attn.normalisers import Softmax
from attn.platforms import platform
from attn.scores import ScaledDot

Make = Callable[[Any, int], dict[str, Any]]
"""A function (dtype, h) -> arguments of `attention()`, see above."""
LONG = 300
"""Queries of two blocks of the kernel blocks."""
STEP = 1e-5
"""Of difference quotients in float64."""
TOLERANCES = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 0.1}
"""The greatest error, as a share of the greatest number or of 1."""


def checks_of(make: Make, dtypes: Sequence[str], **options: Any) -> dict[str, Callable]:
    """Returns checks by what they say; `options` name the value to `MultiHeadAttention`."""
    checks = {
        "heads are independent of each other": lambda: _heads(make),
        "heads may share keys and values": lambda: _shared_keys(make),
        "gradients are finite, the formula's, and equal on every kernel": (
            lambda: _gradients(make)
        ),
        "long inputs in blocks equal the reference": lambda: _long(make),
        "tiles of one kernel, pallas, equal the reference": lambda: _tiles(make),
        "the kernel of decoding equals the reference": lambda: _cached(make),
        "steps over a cache equal the full pass": lambda: steps(**options),
    }
    for dtype in dtypes:
        if dtype == "bfloat16":
            what = "reference and blocks in bfloat16, forward and backward"
            checks[what] = lambda: _halves(make)
            continue
        # Each mask and each precision; the rest of their pairs would take minutes.
        names = masks() if dtype == "float64" else ("none", "causal & padding")
        for mask in names:
            what = f"reference and blocks in {dtype}, mask {mask}"
            checks[what] = functools.partial(_kernels, make, mask, dtype)
    return checks


def form(make: Make) -> None:
    """Raises ValueError for a parameter without a leading axis of heads."""
    for leaf in jax.tree.leaves(make(jnp.float32, H)):
        shape = jnp.shape(leaf)
        if shape and shape[0] != H:
            raise ValueError(f"a parameter of shape {shape} for {H} heads")


def _kernels(make: Make, name: str, dtype: str) -> str:
    """Compares kernels in a precision with the oracle in float64 of the same numbers."""
    mask, visible = masks()[name]
    details = []
    with enable_x64(True):
        qkv = inputs(dtype)
        value = make(dtype, H)
        wide = [x.astype(jnp.float64) for x in qkv]
        exact = _exact(wide, visible, **cast(value, jnp.float64))
        has_lse = exact[1] is not None
        call = functools.partial(attention, *qkv, mask=mask, return_lse=has_lse)
        for kernel in ("reference", "blocks"):
            results = call(**value, implementation=kernel)
            pairs = (
                zip(results, exact, strict=True) if has_lse else [(results, exact[0])]
            )
            for result, (a, b) in zip(("outputs", "LSEs"), pairs, strict=False):
                named = f"{result} of {kernel}"
                details.append(close(a, b, TOLERANCES[dtype], named))
    # Of the kernel blocks, the output's.
    return details[len(details) // 2]


def _exact(
    qkv: Sequence[Array],
    visible: Any,
    *,
    score: Any = ScaledDot(),
    normaliser: Any = Softmax(),
) -> tuple[Array, Array | None]:
    """Returns the output and the LSE, None where the normaliser has none, by the oracle."""
    q, k, v = (jnp.moveaxis(x, 2, 1) for x in qkv)
    s = _each_head(lambda score, q, k: score(q, k), score, q, k)
    has_lse = hasattr(normaliser, "exponents")
    weigh = _by_exponents if has_lse else lambda one, s: (one(s), s[:, 0])

    def weigh_all(s):
        return _each_head(weigh, normaliser, s)

    out, lse, _ = oracle.attention(s, v, visible, normaliser=weigh_all)
    out, lse = (jnp.moveaxis(x, 1, 2) for x in (out, lse))
    return out, lse if has_lse else None


def _by_exponents(normaliser: Any, s: Array) -> tuple[Array, Array]:
    x, rest = normaliser.exponents(s)
    if rest is None:
        return oracle.softmax(x)
    # What else is in the denominator is as a key that has no value.
    column = jnp.full((len(x), 1), rest)
    weights, lse = oracle.softmax(jnp.concatenate([x, column], axis=1))
    return weights[:, :-1], lse


def _each_head(function: Callable, value: Any, *arrays: Array) -> Any:
    """Maps `function(value of a head, *arrays of it)` over arrays (B, H, ...)."""

    def for_each_head(leaf):
        return jnp.broadcast_to(leaf, (H, *jnp.shape(leaf)[1:]))

    def of_head(one, *arrays):
        return jax.vmap(functools.partial(function, one))(*arrays)

    axes = (0, *[1] * len(arrays))
    return jax.vmap(of_head, axes, 1)(jax.tree.map(for_each_head, value), *arrays)


def _long(make: Make) -> str:
    with enable_x64(True):
        qkv = inputs(jnp.float64, LONG, LONG)
        value = make(jnp.float64, H)
        call = functools.partial(attention, *qkv, mask=Mask.causal(), **value)
        return close(
            call(implementation="blocks"), call(implementation="reference"), 1e-9
        )


def _halves(make: Make) -> str:
    """Compares outputs and gradients in bfloat16 with those of the same numbers in float64.

    The kernel blocks may err twice as much as the reference, which is the textbook form, and
    by what a result is rounded by. Inputs are long: XLA has other products for short ones.
    """
    with enable_x64(True):
        arguments = inputs("bfloat16", LONG, LONG), make("bfloat16", H)
        leaves = enumerate(jax.tree.leaves(arguments[1]))
        # Plain numbers are not trained.
        trained = [i for i, leaf in leaves if isinstance(leaf, jax.Array)]
        results = functools.partial(_outputs_and_gradients, trained=trained)
        exact = results(cast(arguments, jnp.float64), "reference")
        textbook = results(arguments, "reference")
        blocks = results(arguments, "blocks")
    most = 0.0
    for right, *both in zip(exact, textbook, blocks, strict=True):
        error, of_blocks = (np.sqrt(((x - right) ** 2).mean()) for x in both)
        scale = max(1.0, np.sqrt((right**2).mean()))
        if not error <= TOLERANCES["bfloat16"] * scale:
            raise ValueError(f"the reference errs by {error:.2g}")
        if not of_blocks <= 2 * error + 2**-8 * scale:
            raise ValueError(
                f"blocks errs by {of_blocks:.2g}, the reference by {error:.2g}"
            )
        most = max(most, of_blocks / scale)
    return f"error {most:.1g}"


def _outputs_and_gradients(
    arguments: Any, kernel: str, trained: Sequence[int]
) -> list[np.ndarray]:
    """Returns outputs and LSEs, and the gradients of their sums, as arrays of float64.

    The gradients are of inputs, and of the value's leaves of the numbers `trained`.
    """
    qkv, value = arguments
    has_lse = hasattr(value.get("normaliser", Softmax()), "exponents")
    options = dict(mask=Mask.causal(), implementation=kernel, return_lse=has_lse)
    leaves, structure = jax.tree.flatten(value)

    # Without it XLA rounds less than is written, and how much less is chance.
    @functools.partial(jax.jit, compiler_options={"xla_allow_excess_precision": False})
    def results(qkv, leaves):
        def call(qkv, arrays):
            own = dict(enumerate(leaves)) | arrays
            return attention(*qkv, **structure.unflatten(own.values()), **options)

        out, pull = jax.vjp(call, qkv, {i: leaves[i] for i in trained})
        return out, pull(jax.tree.map(jnp.ones_like, out))

    # Numbers have gradients of no type.
    leaves = jax.tree.leaves(results(qkv, leaves))
    return [np.asarray(x, np.float64) for x in leaves if x.dtype != jax.dtypes.float0]


def _heads(make: Make) -> None:
    """Compares all heads together with each head alone, with its own parameters."""
    with enable_x64(True):
        q, k, v = inputs(jnp.float64)
        value = make(jnp.float64, H)
        together = attention(q, k, v, **value)
        for i in range(H):

            def of_head(leaf, i=i):
                return leaf[i : i + 1] if jnp.ndim(leaf) else leaf

            head = [x[:, :, i : i + 1] for x in (q, k, v)]
            alone = attention(*head, **jax.tree.map(of_head, value))
            close(together[:, :, i : i + 1], alone, 1e-9, f"outputs of head {i}")


def _shared_keys(make: Make) -> str:
    """Compares one head of keys and values with the same repeated for all heads."""
    with enable_x64(True):
        q, k, v = inputs(jnp.float64)
        value = make(jnp.float64, H)
        one = k[:, :, :1], v[:, :, :1]
        each = [jnp.broadcast_to(x, (*x.shape[:2], H, x.shape[3])) for x in one]
        exact = attention(q, *each, **value)
        visible = jnp.ones((B, 1, M), bool)
        both = {"score": ScaledDot(), "normaliser": Softmax(), **value}
        out = over_cache(q, *as_cached(*one), visible=visible, **both)
        close(out, exact, 1e-9, "outputs of the kernel of decoding")
        for kernel in ("blocks", "reference"):
            out = attention(q, *one, **value, implementation=kernel)
            detail = close(out, exact, 1e-9, f"outputs of {kernel}")
        return detail


def _gradients(make: Make) -> str:
    with enable_x64(True):
        qkv = inputs(jnp.float64)
        leaves, tree = jax.tree.flatten(make(jnp.float64, H))
        weights = jnp.asarray(np.random.default_rng(2).normal(size=(B, N, H, V)))

        def loss(leaves, qkv, kernel):
            out = attention(
                *qkv,
                **tree.unflatten(leaves),
                mask=Mask.causal(1),
                implementation=kernel,
            )
            return (out * weights).sum()

        gradient = jax.grad(loss, argnums=(0, 1))
        exact = jax.tree.leaves(gradient(leaves, qkv, "reference"))
        blocks = jax.tree.leaves(gradient(leaves, qkv, "blocks"))
        for a, b in zip(blocks, exact, strict=True):
            if not jnp.isfinite(b).all():
                raise ValueError("a gradient is NaN or Inf")
            close(a, b, 1e-8, "gradients of blocks and reference")
        at = leaves, qkv
        _check_gradient(functools.partial(loss, kernel="reference"), at, exact)
        reached = "" if exact[len(leaves)].any() else ", and none for the queries"
        return f"{len(leaves)} parameters{reached}"


def _check_gradient(loss: Callable, at: Any, gradient: Sequence[Array]) -> None:
    """Raises ValueError where a gradient is not the difference quotient in a random direction."""
    leaves, tree = jax.tree.flatten(at)
    draw = np.random.default_rng(5).normal
    direction = [jnp.asarray(draw(size=jnp.shape(leaf))) for leaf in leaves]

    def along(step):
        moved = [x + step * d for x, d in zip(leaves, direction, strict=True)]
        return float(loss(*tree.unflatten(moved)))

    # The error of the quotient is about as large by rounding as by the third derivative.
    quotient = (along(STEP) - along(-STEP)) / (2 * STEP)
    ours = sum(float((g * d).sum()) for g, d in zip(gradient, direction, strict=True))
    if not abs(ours - quotient) <= 1e-4 * max(1.0, abs(quotient)):
        raise ValueError(
            f"in a random direction the gradient says {ours:.6g}, and the output changes by "
            f"{quotient:.6g}: is a rule of differentiation wrong, or a gradient stopped?"
        )


def _tiles(make: Make) -> str:
    """Compares outputs and gradients of the kernel that traces a value into its tiles.

    What it cannot trace is no failure: other kernels can, and the detail says why.
    """
    dtype = "bfloat16" if platform() == "gpu" else "float32"
    qkv = inputs(dtype)
    value = make(jnp.float32, H)

    def results(kernel):
        def call(qkv, value):
            options = dict(mask=Mask.causal(1), implementation=kernel)
            return attention(*qkv, **value, **options)

        out, pull = jax.vjp(call, qkv, value)
        leaves = [out, *jax.tree.leaves(pull(jnp.ones_like(out)))]
        return [x for x in leaves if x.dtype != jax.dtypes.float0]

    try:
        tiles = results("pallas")
    except ValueError as error:
        _, refused, why = str(error).partition("cannot serve here: ")
        if not refused:
            raise
        return why
    for a, b in zip(tiles, results("reference"), strict=True):
        detail = close(a, b, TOLERANCES[dtype])
    return detail


def _cached(make: Make) -> str:
    with enable_x64(True):
        q, k, v = inputs(jnp.float64)
        value = make(jnp.float64, H)
        visible = np.arange(M)[None, None] < np.array([4, M])[:, None, None]
        exact = attention(q, k, v, mask=Mask.dense(visible[:, None]), **value)
        keys, values = as_cached(k, v)
        both = {"score": ScaledDot(), "normaliser": Softmax(), **value}
        out = over_cache(q, keys, values, visible=jnp.asarray(visible), **both)
        return close(out, exact, 1e-9)
