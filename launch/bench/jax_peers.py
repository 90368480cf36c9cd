"""The adapters of JAX libraries: attn and its kernels, jax.nn, flax.linen, and the form that everyone writes."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from attn import Additive, Bilinear, Mask, ScaledDot, attention
from launch.bench.on_jax import Jax
from launch.bench.peers import Unsupported


def attn(x, call, implementation=None):
    score = {"scaled_dot": lambda: ScaledDot(), "bilinear": lambda: Bilinear(x["w"]),
             "additive": lambda: Additive(x["w_q"], x["w_k"], x["w_v"])}[call.score]()
    mask = Mask()
    if call.mask is not None:
        mask &= Mask.dense(call.mask)
    if call.lengths is not None:
        mask &= Mask.padding(call.lengths)
    if call.causal is not None:
        mask &= Mask.causal(call.causal)
    if call.window is not None:
        mask &= Mask.window(*call.window)
    key = None if call.seed is None else jax.random.key(call.seed)
    found = attention(x["q"], x["k"], x["v"], score=score, mask=mask, bias=x.get("bias"), dropout_rate=call.rate,
                      dropout_key=key, implementation=implementation, return_lse=call.lse)
    return found if call.lse else (found, None)


def jax_nn(x, call):
    _dot_only(call)
    _no_offset(call)
    if call.rate or call.seed is not None:
        raise Unsupported("no dropout")
    lengths = None if call.lengths is None else jnp.asarray(call.lengths, jnp.int32)
    found = jax.nn.dot_product_attention(
        x["q"], x["k"], x["v"], bias=x.get("bias"), mask=call.mask, key_value_seq_lengths=lengths,
        is_causal=call.causal is not None, local_window_size=call.window, return_residual=call.lse)
    return found if call.lse else (found, None)


def flax_linen(x, call):
    _dot_only(call)
    _no_offset(call)
    if call.lse:
        raise Unsupported("no LSE")
    key = None if call.seed is None else jax.random.key(call.seed)
    return nn.dot_product_attention(x["q"], x["k"], x["v"], bias=x.get("bias"), mask=_visible(x, call),
                                    dropout_rate=call.rate, dropout_rng=key), None


def flax_dropout_has_an_effect(attention_fn):
    """Whether flax's module, told to drop half, gives two outputs for two random keys."""
    module = nn.MultiHeadDotProductAttention(num_heads=2, dropout_rate=0.5, deterministic=False,
                                             attention_fn=attention_fn)
    x = jnp.linspace(-1, 1, 40).reshape(1, 5, 8)
    parameters = module.init({"params": jax.random.key(0), "dropout": jax.random.key(0)}, x)
    one, other = (module.apply(parameters, x, rngs={"dropout": jax.random.key(seed)}) for seed in (1, 2))
    return bool((one != other).any())


def textbook(x, call):
    """Scores of all pairs, where(mask, scores, finite minimum), softmax, weighted sum."""
    q, k = x["q"], x["k"]
    if call.score == "scaled_dot":
        s = jnp.einsum("bnhd,bmhd->bhnm", q, k) / jnp.sqrt(jnp.asarray(q.shape[-1], q.dtype))
    elif call.score == "bilinear":
        s = jnp.einsum("bhne,bmhe->bhnm", jnp.einsum("bnhd,hde->bhne", q, x["w"]), k)
    else:
        a, b = jnp.einsum("bnhd,hda->bhna", q, x["w_q"]), jnp.einsum("bmhd,hda->bhma", k, x["w_k"])
        s = jnp.einsum("bhnma,ha->bhnm", jnp.tanh(a[:, :, :, None] + b[:, :, None]), x["w_v"])
    s = s + x["bias"] if "bias" in x else s
    visible = _visible(x, call)
    s = s if visible is None else jnp.where(visible, s, jnp.finfo(s.dtype).min)
    weights = jax.nn.softmax(s, axis=-1)
    if call.rate:
        kept = jax.random.bernoulli(jax.random.key(call.seed), 1 - call.rate, weights.shape)
        weights = jnp.where(kept, weights / (1 - call.rate), 0)
    out = jnp.einsum("bhnm,bmhv->bnhv", weights, x["v"])
    return out, jnp.moveaxis(jax.nn.logsumexp(s, axis=-1), 1, 2) if call.lse else None


def _visible(x, call):
    """The mask as the boolean array (B or 1, H or 1, N, M) that is needed where a library takes no other; or None."""
    i, j = jnp.arange(x["q"].shape[1])[None, None, :, None], jnp.arange(x["k"].shape[1])[None, None, None]
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
    """A bilinear score around a library of dot products: W goes into the queries, and 1/√d_k out of them."""
    def bilinear(x, call):
        q = jnp.einsum("bnhd,hde->bnhe", x["q"], x["w"]) * x["k"].shape[-1] ** 0.5
        return attend({**x, "q": q}, type(call)(**{**vars(call), "score": "scaled_dot"}))

    return {"bilinear": bilinear}


_SILENT = {f"dropout_rate of MultiHeadDotProductAttention with attention_fn={name}":
           functools.partial(flax_dropout_has_an_effect, function)
           for name, function in (("nn.dot_product_attention", nn.dot_product_attention),
                                  ("jax.nn.dot_product_attention", jax.nn.dot_product_attention))}

KERNELS = ("reference", "tiled", "jax_nn")

PEERS = {"attn": Jax(attn), "jax.nn": Jax(jax_nn, by_hand=_folded(jax_nn)), "textbook": Jax(textbook),
         "flax": Jax(flax_linen, by_hand=_folded(flax_linen), silent=_SILENT)}
PEERS |= {f"attn:{name}": Jax(functools.partial(attn, implementation=name)) for name in KERNELS}
