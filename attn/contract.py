"""Checks that hold one's own score, positions or mixer to the contract of the library.

    for row in attn.contract.check_score(Cosine):
        print(row.what, "ok" if row.ok else row.detail)

Each function returns all its rows, whatever fails. B batch, N queries, M keys, H heads,
K = d_k, V = d_v, D = d_model.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attn.attention import attention
from attn.jax_versions import enable_x64
from attn.kernels.cached import as_cached, over_cache
from attn.masks import Mask
from attn.models.design import Design, Shape
from attn.models.mixers import Mixer
from attn.models.multihead import MultiHeadAttention
from attn.normalisers import Softmax
from attn.positions import Positions
from attn.scores import Dot, score_init

# All differ, so that no axis can be taken for another. K and D are even, as rotary
# positions and sinusoids need.
B = 2
N = 5
M = 7
H = 3
K = 6
V = 4
D = 8
LONG = 300
"""Queries of two blocks of the tiled kernel."""
TOLERANCES = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 0.1}
"""The greatest error, as a share of the greatest number or of 1."""


class Row(NamedTuple):
    """The result of one check."""

    what: str
    ok: bool
    detail: str
    """The error that was found, or its size."""


def check_score(
    score: str | type | Callable,
    dtypes: Sequence[str] = tuple(TOLERANCES),
) -> list[Row]:
    """Checks that a score meets the contract of `attn.scores`.

    Args:
      score: as for `MultiHeadAttention`: a name of SCORES, a class of scores, or a
        function (key, h, d_q, d_k) -> score.
      dtypes: the precisions in which the kernels are compared.

    Returns:
      Rows on its form, `prepare`, every kernel in every precision and under every mask,
      its gradients, its heads, and a decoder's cache.
    """
    checks = {
        "can be a field of Design: it has a hash": lambda: hash(score),
        "init gives each parameter a leading axis of heads": lambda: _form(score),
        "scores are (N, M), float32 at least": lambda: _dtypes(score),
        "prepare equals __call__": lambda: _prepare(score),
        "is_product is true only where prepare gives Dot()": lambda: _product(score),
        "heads are independent of each other": lambda: _heads(score),
        "gradients are finite and equal on every kernel": lambda: _gradients(score),
        "long inputs in blocks equal the reference": lambda: _long(score),
        "the kernel of decoding equals the reference": lambda: _cached(score),
        "steps over a cache equal the full pass": lambda: _steps(score=score),
    }
    for dtype in dtypes:
        # Each mask and each precision; the rest of their pairs would take minutes.
        masks = _masks() if dtype == "float64" else ("none", "causal & padding")
        for mask in masks:
            what = f"reference and tiled in {dtype}, mask {mask}"
            checks[what] = functools.partial(_kernels, score, mask, dtype)
    return list(_run(checks))


def check_positions(positions: Positions) -> list[Row]:
    """Checks that a value meets the contract of `attn.positions`.

    Returns:
      Rows on its form, its table, rotation and bias, and a decoder's cache.
    """
    checks = {
        "it is a Positions": lambda: _is_a(positions, Positions),
        "can be a field of Design: it has a hash": lambda: hash(positions),
        "it fits the widths": lambda: positions.check(D, K),
        "the table is (L, D) and finite": lambda: _table(positions),
        "rotate keeps shape, dtype and finite numbers": lambda: _rotate(positions),
        "any tile of the bias is cut from the whole": lambda: _tiles(positions),
        "gradients of the bias are finite": lambda: _bias_gradients(positions),
        "steps over a cache equal the full pass": lambda: _steps(positions=positions),
    }
    return list(_run(checks))


def check_mixer(mixer: Mixer) -> list[Row]:
    """Checks that a value meets the contract of `attn.models.mixers`.

    Returns:
      Rows on its form, on what a position sees, and on a decoder's cache.
    """
    checks = {
        "it is a Mixer": lambda: _is_a(mixer, Mixer),
        "can be a field of Design: it has a hash": lambda: hash(mixer),
        "it fits the width": lambda: mixer.check(D),
        "a position sees none behind it in a decoder": lambda: _causal(mixer),
        "padding is not seen": lambda: _padding(mixer),
        "steps over a cache equal the full pass": lambda: _mixer_steps(mixer),
    }
    return list(_run(checks))


def _run(checks) -> Iterator[Row]:
    """Yields the rows of checks that return a detail, or raise."""
    for what, check in checks.items():
        try:
            detail = check()
        # Whatever one's own code raises is the row's result.
        except Exception as error:
            yield Row(what, False, f"{type(error).__name__}: {error}")
        else:
            yield Row(what, True, detail if isinstance(detail, str) else "")


def _masks():
    """Returns masks of every kind, by name."""
    lengths = np.array([4, M])
    q_ids = np.array([[1, 1, 2, 2, 0], [1, 2, 3, 3, 3]])
    k_ids = np.array([[1, 1, 2, 2, 2, 0, 0], [3, 3, 2, 2, 1, 1, 1]])
    dense = np.random.default_rng(1).random((B, H, N, M)) < 0.5
    return {
        "none": Mask(),
        "causal": Mask.causal(),
        "nothing is seen": Mask.causal(offset=-N),
        "window": Mask.window(1, 2),
        "padding": Mask.padding(lengths),
        "segments": Mask.segments(q_ids, k_ids),
        "dense": Mask.dense(dense),
        "causal & padding": Mask.causal(2) & Mask.padding(lengths),
    }


def _inputs(dtype, n=N, m=M):
    draw = np.random.default_rng(0).normal
    shapes = (B, n, H, K), (B, m, H, K), (B, m, H, V)
    return [jnp.asarray(draw(size=shape), dtype) for shape in shapes]


def _make(score, dtype=jnp.float32, h=H):
    """Makes a score of h heads whose parameters are of a dtype."""
    return _cast(score_init(score)(jax.random.key(0), h, K, K), dtype)


def _cast(tree, dtype):
    def cast(leaf):
        is_float = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        return jnp.asarray(leaf, dtype) if is_float else leaf

    return jax.tree.map(cast, tree)


def _close(a, b, tolerance, name="results"):
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


def _is_a(value, cls):
    if not isinstance(value, cls):
        raise TypeError(f"{value!r} is no {cls.__name__}")


def _form(score):
    for leaf in jax.tree.leaves(_make(score)):
        shape = jnp.shape(leaf)
        if shape and shape[0] != H:
            raise ValueError(f"a parameter of shape {shape} for {H} heads")


def _one_head(function, score, q, k):
    """Maps `function(score, q, k)` over the heads of q and k (N, H, K)."""

    def for_each_head(leaf):
        return jnp.broadcast_to(leaf, (H, *jnp.shape(leaf)[1:]))

    score = jax.tree.map(for_each_head, score)
    return jax.vmap(function, (0, 1, 1))(score, q, k)


def _dtypes(score):
    for dtype, wide in (("bfloat16", "float32"), ("float32", "float32")):
        q, k, _ = _inputs(dtype)
        s = _one_head(lambda score, q, k: score(q, k), _make(score, dtype), q[0], k[0])
        if s.shape != (H, N, M) or s.dtype != wide:
            raise ValueError(
                f"of {dtype} inputs the scores are {s.dtype} of shape {s.shape[1:]}, "
                f"not {wide} of shape {(N, M)}"
            )


def _prepare(score):
    def prepared(score, q, k):
        score, q, k = score.prepare(q, k)
        return score(q, k)

    # In float64 rounding cannot hide a difference between the formulas.
    with enable_x64(True):
        value = _make(score, jnp.float64)
        q, k, _ = _inputs(jnp.float64)
        direct = _one_head(lambda score, q, k: score(q, k), value, q[0], k[0])
        return _close(_one_head(prepared, value, q[0], k[0]), direct, 1e-9)


def _product(score):
    value = _make(score)
    kinds = []

    def prepared(score, q, k):
        inner, q, k = score.prepare(q, k)
        # vmap returns arrays only, so the type is noted on the side.
        kinds.append(type(inner))
        return inner(q, k)

    q, k, _ = _inputs(jnp.float32)
    _one_head(prepared, value, q[0], k[0])
    if value.is_product and kinds[0] is not Dot:
        raise ValueError(f"is_product, but prepare gives {kinds[0].__name__}")
    return "a product" if value.is_product else "no product"


def _kernels(score, mask, dtype):
    """Compares kernels in a precision with the reference in float64 of the same numbers."""
    mask = _masks()[mask]
    details = []
    with enable_x64(True):
        inputs = _inputs(dtype)
        value = _make(score, dtype)
        wide_inputs = [x.astype(jnp.float64) for x in inputs]
        wide_value = _cast(value, jnp.float64)
        call = functools.partial(attention, mask=mask, return_lse=True)
        exact = call(*wide_inputs, score=wide_value, implementation="reference")
        for kernel in ("reference", "tiled"):
            results = call(*inputs, score=value, implementation=kernel)
            for name, a, b in zip(("outputs", "LSEs"), results, exact, strict=True):
                named = f"{name} of {kernel}"
                details.append(_close(a, b, TOLERANCES[dtype], named))
    # The last two are of the tiled kernel; of them the output's is shown.
    return details[-2]


def _long(score):
    with enable_x64(True):
        inputs = _inputs(jnp.float64, LONG, LONG)
        call = functools.partial(
            attention, *inputs, score=_make(score, jnp.float64), mask=Mask.causal()
        )
        return _close(
            call(implementation="tiled"), call(implementation="reference"), 1e-9
        )


def _heads(score):
    """Compares all heads together with each head alone, with its own parameters."""
    with enable_x64(True):
        q, k, v = _inputs(jnp.float64)
        value = _make(score, jnp.float64)
        together = attention(q, k, v, score=value)
        for i in range(H):

            def of_head(leaf, i=i):
                return leaf[i : i + 1] if jnp.ndim(leaf) else leaf

            head = [x[:, :, i : i + 1] for x in (q, k, v)]
            alone = attention(*head, score=jax.tree.map(of_head, value))
            _close(together[:, :, i : i + 1], alone, 1e-9, f"outputs of head {i}")


def _gradients(score):
    with enable_x64(True):
        inputs = _inputs(jnp.float64)
        value = _make(score, jnp.float64)
        leaves, tree = jax.tree.flatten(value)
        weights = jnp.asarray(np.random.default_rng(2).normal(size=(B, N, H, V)))

        def loss(leaves, inputs, kernel):
            out = attention(
                *inputs,
                score=tree.unflatten(leaves),
                mask=Mask.causal(1),
                implementation=kernel,
            )
            return (out * weights).sum()

        gradient = jax.grad(loss, argnums=(0, 1))
        exact = jax.tree.leaves(gradient(leaves, inputs, "reference"))
        tiled = jax.tree.leaves(gradient(leaves, inputs, "tiled"))
        for a, b in zip(tiled, exact, strict=True):
            if not jnp.isfinite(b).all():
                raise ValueError("a gradient is NaN or Inf")
            _close(a, b, 1e-8, "gradients of tiled and reference")
        return f"{len(leaves)} parameters"


def _cached(score):
    with enable_x64(True):
        q, k, v = _inputs(jnp.float64)
        value = _make(score, jnp.float64)
        visible = np.arange(M)[None, None] < np.array([4, M])[:, None, None]
        exact = attention(q, k, v, score=value, mask=Mask.dense(visible[:, None]))
        keys, values = as_cached(k, v)
        shown = jnp.asarray(visible)
        rest = dict(score=value, normaliser=Softmax(), visible=shown)
        out = over_cache(q, keys, values, **rest)
        return _close(out, exact, 1e-9)


def _steps(**options):
    """Compares causal self-attention step by step with the full pass."""
    module = MultiHeadAttention(D, H, K, V, causal=True, **options)
    x = jnp.asarray(np.random.default_rng(3).normal(size=(B, N, D)), jnp.float32)
    params = module.init(jax.random.key(1), x, x, Mask.causal())
    whole = module.apply(params, x, x, Mask.causal())

    def step(x, t, cache, visible):
        return module.apply(params, x, t, cache, visible, method="decode_step")

    cache = module.empty_cache((B,), N, x.dtype)
    return _close(_all_steps(jax.jit(step), x, cache), whole, 1e-4)


def _all_steps(step, x, cache):
    outputs = []
    for t in range(N):
        visible = jnp.broadcast_to(jnp.arange(N) <= t, (B, 1, N))
        y, cache = step(x[:, t : t + 1], jnp.int32(t), cache, visible)
        outputs.append(y)
    return jnp.concatenate(outputs, axis=1)


def _table(positions):
    table = positions.table(jax.random.key(0), N, D)
    if table.shape != (N, D) or not jnp.isfinite(table).all():
        raise ValueError(f"a table of shape {table.shape} for {N} positions, width {D}")


def _rotate(positions):
    for dtype in ("float32", "bfloat16"):
        q, _, _ = _inputs(dtype)
        turned = positions.rotate(q, jnp.arange(N))
        if turned.shape != q.shape or turned.dtype != q.dtype:
            raise ValueError(f"{dtype} {q.shape} became {turned.dtype} {turned.shape}")
        if not jnp.isfinite(turned).all():
            raise ValueError("a turned number is NaN or Inf")


def _tiles(positions):
    for causal in (False, True):
        bias = positions.bias(jax.random.key(0), H, causal)
        if bias is None:
            return "no bias"
        leaves, tree = jax.tree.flatten(bias)
        axes = [0 if jnp.ndim(leaf) else None for leaf in leaves]
        i = jnp.arange(LONG)
        j = jnp.arange(LONG + 1)

        def tile(leaves, i=i, j=j, tree=tree):
            return tree.unflatten(leaves).tile(i, j)

        def heads(leaves, i, j, tile=tile, axes=axes):
            mapped = jax.vmap(functools.partial(tile, i=i, j=j), (axes,), axis_size=H)
            return mapped(leaves)

        whole = heads(leaves, i, j)
        part = heads(leaves, i[37:45], j[11:32])
        _close(part, whole[:, 37:45, 11:32], 1e-6, "a tile and its part of the whole")


def _bias_gradients(positions):
    bias = positions.bias(jax.random.key(0), H, True)
    if bias is None:
        return "no bias"
    inputs = _inputs(jnp.float32)
    leaves, tree = jax.tree.flatten(_cast(bias, jnp.float32))
    places = [at for at, leaf in enumerate(leaves) if jnp.ndim(leaf)]

    def loss(arrays, kernel):
        every = list(leaves)
        for at, array in zip(places, arrays, strict=True):
            every[at] = array
        out = attention(*inputs, bias=tree.unflatten(every), implementation=kernel)
        return (out**2).sum()

    arrays = [leaves[at] for at in places]
    exact = jax.grad(loss)(arrays, "reference")
    for a, b in zip(jax.grad(loss)(arrays, "tiled"), exact, strict=True):
        if not jnp.isfinite(b).all():
            raise ValueError("a gradient is NaN or Inf")
        _close(a, b, 1e-4, "gradients of tiled and reference")
    return f"{len(arrays)} parameters"


def _mixer_module(mixer, causal):
    """Returns a mixer's module, its variables, and inputs (B, N, D)."""
    shape = Shape(1, D, D, H, K, V)
    module = mixer.build(shape, Design(), causal)
    x = jnp.asarray(np.random.default_rng(3).normal(size=(B, N, D)), jnp.float32)

    def init(module, x):
        return mixer.mix(module, x, Mask.causal() if causal else Mask())

    variables = module.init(jax.random.key(1), x, method=init)
    return module, variables, x


def _mixed(mixer, module, variables, x, mask):
    def mix(module, x):
        return mixer.mix(module, x, mask)

    return module.apply(variables, x, method=mix)


def _causal(mixer):
    module, variables, x = _mixer_module(mixer, causal=True)
    for i in range(1, N):
        later = x.at[:, i:].add(1.0)
        before = _mixed(mixer, module, variables, x, Mask.causal())[:, :i]
        after = _mixed(mixer, module, variables, later, Mask.causal())[:, :i]
        _close(after, before, 1e-6, f"outputs before position {i}")


def _padding(mixer):
    module, variables, x = _mixer_module(mixer, causal=False)
    mask = Mask.padding(jnp.full(B, 3))
    longer = x.at[:, 3:].add(1.0)
    before = _mixed(mixer, module, variables, x, mask)[:, :3]
    after = _mixed(mixer, module, variables, longer, mask)[:, :3]
    return _close(after, before, 1e-6)


def _mixer_steps(mixer):
    module, variables, x = _mixer_module(mixer, causal=True)
    whole = _mixed(mixer, module, variables, x, Mask.causal())

    @jax.jit
    def step(x, t, cache, visible):
        def one(module, *args):
            return mixer.decode_step(module, *args)

        return module.apply(variables, x, t, cache, visible, method=one)

    def empty(module):
        return module.empty_cache((B,), N, x.dtype)

    cache = module.apply(variables, method=empty)
    return _close(_all_steps(step, x, cache), whole, 1e-4)
