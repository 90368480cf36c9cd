"""Adapts the JAX libraries: attn and its kernels, jax.nn, flax.linen, and the textbook.

Each is a function `attend(x, call)`, see `cases`. `Jax` makes of it timed programs, and
the values and derivatives that `conformance` looks at.
"""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attn import (
    Additive,
    ALiBiBias,
    Bilinear,
    Mask,
    RelativeBias,
    ScaledDot,
    Sink,
    Softcap,
    Softmax,
    attention,
)
from attn.attention import IMPLEMENTATIONS
from attn.contract import oracle
from attn.jax_versions import enable_x64, jax_nn_gives_lse, jax_nn_takes_window
from launch.bench.attention import cases
from launch.bench.attention.cases import Call
from launch.bench.harness.libraries import Program, Unsupported


@dataclasses.dataclass(eq=False)
class Jax:
    """Adapts an `attend` written in JAX.

    Arrays come in and go out as numpy's, whatever the precision between.
    """

    attend: Callable
    by_hand: dict[str, Callable] = dataclasses.field(default_factory=dict)
    """For the timing: what a user writes for a score that the library lacks."""
    program: Program | None = None

    def compile(self, case: cases.Case) -> Program:
        """Builds the forward pass or the gradient of a case."""
        # Programs of earlier cases would hold their constants in memory.
        jax.clear_caches()
        attend = self.by_hand.get(case.score, self.attend)
        is_gradient = case.direction == "gradient"
        x, g = cases.inputs(case)
        arrays = (x, g, cases.checked(case, g))
        x, g, g_checked = jax.tree.map(lambda a: jnp.asarray(a, case.dtype), arrays)

        def run(x, g):
            if not is_gradient:
                return {"out": attend(x, case.call)[0]}
            # The value too, as in training.
            return jax.value_and_grad(_loss, argnums=2)(attend, case.call, x, g)

        # Now, so that no turn compiles.
        compiled = jax.jit(run).lower(x, g).compile()
        memory = compiled.memory_analysis()

        def sample():
            # The very program that is timed, with a sparser g.
            results = compiled(x, g_checked)
            return cases.sample(case, _numpy(results[1] if is_gradient else results))

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
    return jax.grad(_loss, argnums=2)(attend, call, x, g, h)


def _numpy(tree):
    """Returns float64, which holds every number of the other precisions."""
    return jax.tree.map(lambda a: np.asarray(a).astype(np.float64), tree)


def exact(x, call):
    """Computes the oracle's output and LSE; with float64 they are exact."""
    q, k, v = (jnp.moveaxis(x[name], 1, 2) for name in "qkv")
    parameters = {"scaled_dot": {}, "bilinear": {"w": "w"}}.get(
        call.score, {"w_q": "w_q", "w_k": "w_k", "v": "w_v"}
    )
    own = {theirs: x[ours] for theirs, ours in parameters.items()}
    s = oracle.SCORES[call.score](q, k, **own)
    s = _capped(s, call)
    visible = call.visible(q.shape[2], k.shape[2])
    visible = np.broadcast_to(True if visible is None else visible, s.shape)
    bias = x.get("bias", 0.0)
    if "table" in x:
        bias = x["table"][None, :, call.places(q.shape[2], k.shape[2])]
    if call.sink is not None:
        s, v, visible, bias = _with_sink(call.sink, s, v, visible, bias)
    out, lse, _ = oracle.attention(s, v, visible, bias)
    return jnp.moveaxis(out, 1, 2), jnp.moveaxis(lse, 1, 2) if call.lse else None


def _capped(s, call):
    return s if call.cap is None else call.cap * jnp.tanh(s / call.cap)


def _with_sink(sink, s, v, visible, bias):
    """Returns all with one more key, of the score `sink` and the value 0."""

    def with_key(x, value):
        return jnp.concatenate([x, jnp.full_like(x[..., :1], value)], -1)

    bias = with_key(jnp.broadcast_to(bias, s.shape), 0)
    v = jnp.concatenate([v, jnp.zeros_like(v[:, :, :1])], 2)
    return with_key(s, sink), v, with_key(visible, True), bias


EXACT = Jax(exact)


def attn(x, call, implementation=None):
    """Calls attn.attention, with the kernel of this name or the one that it picks."""
    scores = {
        "scaled_dot": ScaledDot,
        "bilinear": lambda: Bilinear(x["w"]),
        "additive": lambda: Additive(x["w_q"], x["w_k"], x["w_v"]),
    }
    score = scores[call.score]()
    if call.cap is not None:
        score = Softcap(score, call.cap)
    bias = x.get("bias")
    if call.slopes is not None:
        bias = ALiBiBias(jnp.asarray(call.slopes, jnp.float32))
    if "table" in x:
        bias = RelativeBias(x["table"])
    mask = Mask()
    if call.mask is not None:
        mask &= Mask.dense(call.mask)
    if call.lengths is not None:
        mask &= Mask.padding(call.lengths)
    if call.causal is not None:
        mask &= Mask.causal(call.causal)
    if call.window is not None:
        mask &= Mask.window(*call.window)
    if call.texts is not None:
        mask &= Mask.segments(call.texts, call.texts)
    out = attention(
        x["q"],
        x["k"],
        x["v"],
        score=score,
        mask=mask,
        bias=bias,
        normaliser=Softmax() if call.sink is None else Sink(call.sink),
        dropout_rate=call.rate,
        dropout_key=_key(call),
        implementation=implementation,
        return_lse=call.lse,
    )
    return out if call.lse else (out, None)


def _key(call):
    return None if call.seed is None else jax.random.key(call.seed)


def jax_nn(x, call, implementation=None):
    """Calls jax.nn.dot_product_attention, which has cuDNN where it is asked for it."""
    _check_plain(call)
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
        bias=_bias(x, call),
        mask=dataclasses.replace(call, causal=None, window=None, lengths=None).visible(
            x["q"].shape[1], x["k"].shape[1]
        ),
        key_value_seq_lengths=lengths,
        is_causal=call.causal is not None,
        local_window_size=call.window,
        implementation=implementation,
        **residual,
    )
    return out if call.lse else (out, None)


def flax_linen(x, call):
    """Calls flax.linen.dot_product_attention."""
    _check_plain(call)
    if call.lse:
        raise Unsupported("no LSE")
    out = nn.dot_product_attention(
        x["q"],
        x["k"],
        x["v"],
        bias=_bias(x, call),
        mask=call.visible(x["q"].shape[1], x["k"].shape[1]),
        dropout_rate=call.rate,
        dropout_rng=_key(call),
    )
    return out, None


def _check_plain(call):
    if call.score != "scaled_dot":
        raise Unsupported(f"no {call.score} score")
    if call.causal:
        raise Unsupported("no offset of a causal mask")
    if call.cap is not None or call.sink is not None:
        raise Unsupported("no softcap and no sink")


def _bias(x, call):
    """Returns the bias in the dtype of q, that of slopes or of a table written down."""
    sizes = x["q"].shape[1], x["k"].shape[1]
    if "table" in x:
        return x["table"][None, :, call.places(*sizes)]
    losses = call.losses(*sizes)
    return x.get("bias") if losses is None else jnp.asarray(losses, x["q"].dtype)


def textbook(x, call):
    """Computes scores of all pairs, a mask by a finite minimum, softmax, and a sum."""
    s = _capped(_all_scores(x, call), call)
    bias = _bias(x, call)
    if bias is not None:
        # Before the mask, which must win.
        s = s + bias
    visible = call.visible(s.shape[2], s.shape[3])
    if visible is not None:
        # The finite minimum is the textbook's: −inf in a whole row would give NaN.
        s = jnp.where(visible, s, jnp.finfo(s.dtype).min)
    if call.sink is not None:
        s = jnp.concatenate([s, jnp.full_like(s[..., :1], call.sink)], -1)
    weights = jax.nn.softmax(s, axis=-1)[..., : x["k"].shape[1]]
    if call.rate:
        remains = jax.random.bernoulli(_key(call), 1 - call.rate, weights.shape)
        weights = jnp.where(remains, weights / (1 - call.rate), 0)
    out = jnp.einsum("bhnm,bmhv->bnhv", weights, x["v"])
    if not call.lse:
        return out, None
    return out, jnp.moveaxis(jax.nn.logsumexp(s, axis=-1), 1, 2)


def _all_scores(x, call):
    q, k = x["q"], x["k"]
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


def _folded(attend):
    """Returns a bilinear score written around a library of dot products.

    W goes into the queries, and the library's 1/√d_k comes out of them.
    """

    def bilinear(x, call):
        # A product for each query, which takes little time beside those of the scores.
        q = jnp.einsum("bnhd,hde->bnhe", x["q"], x["w"]) * x["k"].shape[-1] ** 0.5
        return attend({**x, "q": q}, dataclasses.replace(call, score="scaled_dot"))

    return {"bilinear": bilinear}


ADAPTERS = {
    "attn": Jax(attn),
    "jax.nn": Jax(jax_nn, by_hand=_folded(jax_nn)),
    "jax.nn:cudnn": Jax(functools.partial(jax_nn, implementation="cudnn")),
    "textbook": Jax(textbook),
    "flax": Jax(flax_linen, by_hand=_folded(flax_linen)),
}
for _name in IMPLEMENTATIONS:
    ADAPTERS[f"attn:{_name}"] = Jax(functools.partial(attn, implementation=_name))
