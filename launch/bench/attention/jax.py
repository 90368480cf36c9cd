"""Adapts the JAX libraries: attn and its kernels, jax.nn, flax.linen, and the textbook.

Each is a function `attend(x, call)`, see `call`. `Jax` makes of it timed programs, and
the values and derivatives that conformance looks at.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attn import Additive, Bilinear, Mask, ScaledDot, attention
from attn.jax_versions import enable_x64, jax_nn_gives_lse, jax_nn_takes_window
from attn.normalisers import normaliser_init
from launch.bench.attention import cases
from launch.bench.attention.call import Call
from launch.bench.attention.normalisers import NORMALISERS
from launch.bench.harness.libraries import Unsupported
from launch.bench.harness.process import check_room
from launch.bench.harness.program import Program


@dataclasses.dataclass(eq=False)
class Jax:
    """Adapts an `attend` written in JAX.

    Arrays come in and go out as numpy's, whatever the precision between.
    """

    attend: Callable
    by_hand: dict[str, Callable] = dataclasses.field(default_factory=dict)
    """For the timing: what a user writes for a score that the library lacks."""
    silent: dict[str, Callable[[], bool]] = dataclasses.field(default_factory=dict)
    """Uses of the library that may ignore an argument. Each function returns whether
    the argument has an effect, or raises where the library refuses it."""
    program: Any = None
    normaliser: str = "softmax"
    """What `attend` makes weights of scores by."""

    def compile(self, case: cases.Case) -> Program:
        """Builds the forward pass or the gradient of a case."""
        # Programs of earlier cases would hold their constants in memory.
        jax.clear_caches()
        attend = self.by_hand.get(case.score, self.attend)
        forward = case.direction == "forward"
        x, g = cases.inputs(case)
        arrays = (x, g, cases.checked(case, g))
        x, g, g_checked = jax.tree.map(lambda a: jnp.asarray(a, case.dtype), arrays)

        def output(x, g):
            return {"out": attend(x, case.call)[0]}

        def gradient(x, g):
            def loss(x):
                return (attend(x, case.call)[0] * g).sum()

            return jax.value_and_grad(loss)(x)

        # Now, so that no turn compiles.
        compiled = jax.jit(output if forward else gradient).lower(x, g).compile()
        # Refused before it runs, for the kernel would end the process midway.
        memory = compiled.memory_analysis()
        check_room(memory.temp_size_in_bytes + memory.output_size_in_bytes)

        def sample():
            # The very program that is timed, with a sparser g.
            results = compiled(x, g_checked)
            arrays = results if forward else results[1]
            return cases.sample(case, _numpy(arrays))

        return Program(
            run=lambda: compiled(x, g),
            sample=sample,
            wait=jax.block_until_ready,
            result_bytes=memory.output_size_in_bytes,
            temporary_bytes=memory.temp_size_in_bytes,
            by_hand=case.score in self.by_hand,
        )

    def value(self, x, call: Call, dtype="float32"):
        """Returns (output, LSE or None, the names of their dtypes)."""
        out, lse = self._run(_value, call, dtype, x)
        dtypes = tuple(None if a is None else a.dtype.name for a in (out, lse))
        return _numpy(out), _numpy(lse), dtypes

    def gradient(self, x, call: Call, g=None, h=None, dtype="float32"):
        """Returns the gradient of Σ g · output + Σ h · LSE, by reverse mode."""
        return _numpy(self._run(_gradient, call, dtype, x, g, h))

    def forward(self, x, dx, call: Call, dtype="float32"):
        """Returns the output's derivative along dx, by forward mode."""
        return _numpy(self._run(_forward, call, dtype, x, dx))

    def second(self, x, dx, call: Call, g, dtype="float32"):
        """Returns the gradient's derivative along dx, by reverse over reverse mode."""
        return _numpy(self._run(_second, call, dtype, x, dx, g))

    def mapped(self, xs, call: Call, g, dtype="float32"):
        """Returns `gradient` under vmap, over a leading axis of all arrays of xs."""
        return _numpy(self._run(_mapped, call, dtype, xs, g))

    def memory(self, x, call: Call) -> int:
        """Returns the bytes of temporaries of the compiled gradient."""
        function = _jitted(_gradient, self.attend, call)
        arrays = jax.tree.map(jnp.float32, x)
        compiled = function.lower(arrays, jnp.float32(1)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    def _run(self, function, call, dtype, *trees):
        # JAX makes float32 of float64 otherwise, without a word.
        with enable_x64(dtype == "float64"):
            cast = jax.tree.map(lambda a: jnp.asarray(a, dtype), trees)
            return _jitted(function, self.attend, call)(*cast)


# Probes call the same program many times, and compiling takes longer than running.
@functools.lru_cache(maxsize=64)
def _jitted(function, attend, call):
    return jax.jit(functools.partial(function, attend, call))


def _value(attend, call, x):
    return attend(x, call)


def _loss(attend, call, x, g, h=None):
    out, lse = attend(x, call)
    total = 0.0 if g is None else (out * g).sum()
    return total if h is None else total + (lse * h).sum()


def _gradient(attend, call, x, g, h=None):
    return jax.grad(lambda x: _loss(attend, call, x, g, h))(x)


def _forward(attend, call, x, dx):
    return jax.jvp(lambda x: attend(x, call)[0], (x,), (dx,))[1]


def _second(attend, call, x, dx, g):
    def along(x):
        gradients = _gradient(attend, call, x, g)
        return sum(jnp.vdot(a, dx[name]) for name, a in gradients.items())

    return jax.grad(along)(x)


def _mapped(attend, call, xs, g):
    return jax.vmap(lambda x: _gradient(attend, call, x, g))(xs)


def _numpy(tree):
    """Returns float64, which holds every number of the other precisions."""
    return jax.tree.map(lambda a: np.asarray(a).astype(np.float64), tree)


def attn(x, call, implementation=None, normaliser="softmax"):
    """Calls attn.attention, with the kernel of this name or the one that it picks.

    The normaliser is the one of this name with its initial parameters.
    """
    h = x["q"].shape[-2]
    out = attention(
        x["q"],
        x["k"],
        x["v"],
        score=_score(x, call),
        normaliser=normaliser_init(normaliser)(jax.random.key(0), h),
        mask=_mask(call),
        bias=x.get("bias"),
        dropout_rate=call.rate,
        dropout_key=_key(call),
        implementation=implementation,
        return_lse=call.lse,
    )
    return out if call.lse else (out, None)


def _score(x, call):
    if call.score == "additive":
        return Additive(x["w_q"], x["w_k"], x["w_v"])
    return Bilinear(x["w"]) if call.score == "bilinear" else ScaledDot()


def _mask(call):
    mask = Mask()
    if call.mask is not None:
        mask &= Mask.dense(call.mask)
    if call.lengths is not None:
        mask &= Mask.padding(call.lengths)
    if call.causal is not None:
        mask &= Mask.causal(call.causal)
    if call.window is not None:
        mask &= Mask.window(*call.window)
    return mask


def _key(call):
    return None if call.seed is None else jax.random.key(call.seed)


def jax_nn(x, call):
    """Calls jax.nn.dot_product_attention."""
    _dot_only(call)
    _no_offset(call)
    if call.rate or call.seed is not None:
        raise Unsupported("no dropout")
    if call.lse and not jax_nn_gives_lse():
        raise Unsupported("no LSE before jax 0.8.1")
    if call.window is not None and not jax_nn_takes_window():
        raise Unsupported("ignores a window without another mask before jax 0.10")
    lengths = call.lengths
    if lengths is not None:
        # It refuses integers of any other type.
        lengths = jnp.asarray(lengths, jnp.int32)
    # Before jax 0.8.1 it has no such argument, not even for False.
    residual = dict(return_residual=True) if call.lse else {}
    out = jax.nn.dot_product_attention(
        x["q"],
        x["k"],
        x["v"],
        bias=x.get("bias"),
        mask=call.mask,
        key_value_seq_lengths=lengths,
        is_causal=call.causal is not None,
        local_window_size=call.window,
        **residual,
    )
    return out if call.lse else (out, None)


def flax_linen(x, call):
    """Calls flax.linen.dot_product_attention."""
    _dot_only(call)
    _no_offset(call)
    if call.lse:
        raise Unsupported("no LSE")
    out = nn.dot_product_attention(
        x["q"],
        x["k"],
        x["v"],
        bias=x.get("bias"),
        mask=_visible(x, call),
        dropout_rate=call.rate,
        dropout_rng=_key(call),
    )
    return out, None


def flax_dropout_has_an_effect(attention_fn):
    """Returns whether flax's module with a dropout of half uses its random key."""
    module = nn.MultiHeadDotProductAttention(
        num_heads=2, dropout_rate=0.5, deterministic=False, attention_fn=attention_fn
    )
    x = jnp.linspace(-1, 1, 40).reshape(1, 5, 8)
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(0)}
    parameters = module.init(keys, x)
    # Under two keys: where both outputs are equal, no dropout has drawn.
    first = module.apply(parameters, x, rngs={"dropout": jax.random.key(1)})
    second = module.apply(parameters, x, rngs={"dropout": jax.random.key(2)})
    return bool((first != second).any())


def textbook(x, call):
    """Computes scores of all pairs, a mask by a finite minimum, softmax, and a sum."""
    s = _all_scores(x, call)
    if "bias" in x:
        # Before the mask, which must win.
        s = s + x["bias"]
    visible = _visible(x, call)
    if visible is not None:
        # The finite minimum is the textbook's: −inf in a whole row would give NaN.
        s = jnp.where(visible, s, jnp.finfo(s.dtype).min)
    weights = jax.nn.softmax(s, axis=-1)
    if call.rate:
        remains = jax.random.bernoulli(_key(call), 1 - call.rate, weights.shape)
        weights = jnp.where(remains, weights / (1 - call.rate), 0)
    out = jnp.einsum("bhnm,bmhv->bnhv", weights, x["v"])
    if not call.lse:
        return out, None
    return out, jnp.moveaxis(jax.nn.logsumexp(s, axis=-1), 1, 2)


def _all_scores(x, call):
    q = x["q"]
    k = x["k"]
    if call.score == "scaled_dot":
        # A scale of the queries' dtype, so that bfloat16 scores stay bfloat16.
        scale = jnp.sqrt(jnp.asarray(q.shape[-1], q.dtype))
        return jnp.einsum("bnhd,bmhd->bhnm", q, k) / scale
    if call.score == "bilinear":
        q_w = jnp.einsum("bnhd,hde->bhne", q, x["w"])
        return jnp.einsum("bhne,bmhe->bhnm", q_w, k)
    a = jnp.einsum("bnhd,hda->bhna", q, x["w_q"])
    b = jnp.einsum("bmhd,hda->bhma", k, x["w_k"])
    hidden = jnp.tanh(a[:, :, :, None] + b[:, :, None])
    return jnp.einsum("bhnma,ha->bhnm", hidden, x["w_v"])


def _visible(x, call):
    """Returns the mask as a boolean array (B or 1, H or 1, N, M), or None.

    Some libraries take no other form.
    """
    i = jnp.arange(x["q"].shape[1])[None, None, :, None]
    j = jnp.arange(x["k"].shape[1])[None, None, None]
    parts = [] if call.mask is None else [jnp.asarray(call.mask)]
    if call.lengths is not None:
        parts.append(j < jnp.asarray(call.lengths)[:, None, None, None])
    if call.causal is not None:
        parts.append(j <= i + call.causal)
    if call.window is not None:
        parts.append((i - call.window[0] <= j) & (j <= i + call.window[1]))
    return functools.reduce(jnp.logical_and, parts) if parts else None


def _dot_only(call):
    if call.score != "scaled_dot":
        raise Unsupported(f"no {call.score} score")


def _no_offset(call):
    if call.causal:
        raise Unsupported("no offset of a causal mask")


def _folded(attend):
    """Returns a bilinear score written around a library of dot products.

    W goes into the queries, and the library's 1/√d_k comes out of them.
    """

    def bilinear(x, call):
        # A product for each query, which takes little time beside those of the scores.
        q = jnp.einsum("bnhd,hde->bnhe", x["q"], x["w"]) * x["k"].shape[-1] ** 0.5
        return attend({**x, "q": q}, dataclasses.replace(call, score="scaled_dot"))

    return {"bilinear": bilinear}


_ATTENTION_FUNCTIONS = {
    "nn.dot_product_attention": nn.dot_product_attention,
    "jax.nn.dot_product_attention": jax.nn.dot_product_attention,
}
# flax calls the function that it is given with those arguments alone that the
# function's signature names, and drops the others.
_MODULE = "dropout_rate of MultiHeadDotProductAttention"
_SILENT = {
    f"{_MODULE} with attention_fn={name}": functools.partial(
        flax_dropout_has_an_effect, function
    )
    for name, function in _ATTENTION_FUNCTIONS.items()
}

KERNELS = ("reference", "tiled", "jax_nn")

ADAPTERS = {
    "attn": Jax(attn),
    "jax.nn": Jax(jax_nn, by_hand=_folded(jax_nn)),
    "textbook": Jax(textbook),
    "flax": Jax(flax_linen, by_hand=_folded(flax_linen), silent=_SILENT),
}
for _name in KERNELS:
    ADAPTERS[f"attn:{_name}"] = Jax(functools.partial(attn, implementation=_name))
for _name in NORMALISERS:
    _attend = functools.partial(attn, normaliser=_name)
    ADAPTERS[f"attn:{_name}"] = Jax(_attend, normaliser=_name)
