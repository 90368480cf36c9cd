"""Adapts PyTorch's scaled_dot_product_attention and FlexAttention, as `jax` the JAX libraries."""

import contextlib
import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from launch.bench.attention import cases
from launch.bench.attention.cases import Call
from launch.bench.harness.libraries import Program, Unsupported
from launch.bench.harness.torch_device import DEVICE, growth, wait

HEADS = ("q", "k", "v", "out")
"""Arrays that are (B, N, H, d) here and (B, H, N, d) in PyTorch."""


def attend(x, call, **options):
    """Returns the output (B, H, N, V); `x` is laid out as PyTorch does."""
    _check_plain(call)
    if call.rate and call.seed is None:
        raise Unsupported("no key: dropout draws from the global generator")
    if call.seed is not None:
        # PyTorch has no key of one call: its global generator stands in for it.
        torch.manual_seed(call.seed)
    sizes = (x["q"].shape[2], x["k"].shape[2])
    # Causality is an argument of its own, which may have a kernel of its own.
    causal = call.causal is not None
    mask = dataclasses.replace(call, causal=None).visible(*sizes)
    bias = x.get("bias")
    if call.slopes is not None:
        bias = torch.tensor(call.losses(*sizes), dtype=x["q"].dtype, device=DEVICE)
    if "table" in x:
        places = torch.tensor(call.places(*sizes), device=DEVICE)
        bias = x["table"][:, places][None]
    if causal and (mask is not None or bias is not None):
        # It takes no other mask beside that argument.
        causal = False
        mask = call.visible(*sizes)
    if mask is not None:
        mask = torch.tensor(mask, device=DEVICE)
    if bias is not None:
        # attn_mask is one argument, which a mask and a bias have to share.
        mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
    return torch.nn.functional.scaled_dot_product_attention(
        x["q"],
        x["k"],
        x["v"],
        attn_mask=mask,
        dropout_p=call.rate,
        is_causal=causal,
        **options,
    )


def flex(x, call):
    """Returns the output by FlexAttention, compiled, its mask in blocks."""
    _check_score(call)
    if call.rate or "bias" in x or call.mask is not None:
        raise Unsupported("written here without dropout, and masks of rules alone")
    lengths, texts, slopes = (
        None if a is None else torch.tensor(a, device=DEVICE)
        for a in (call.lengths, call.texts, call.slopes)
    )

    def sees(b, h, i, j):
        seen = j >= 0
        if call.causal is not None:
            seen = seen & (j <= i)
        if call.window is not None:
            seen = seen & (i - call.window[0] <= j) & (j <= i + call.window[1])
        if lengths is not None:
            seen = seen & (j < lengths[b])
        if texts is not None:
            seen = seen & (texts[b, i] == texts[b, j])
        return seen

    def changed(s, b, h, i, j):
        if call.cap is not None:
            s = call.cap * torch.tanh(s / call.cap)
        if slopes is not None:
            s = s - slopes[h].to(s.dtype) * (i - j).abs()
        if "table" in x:
            s = (
                s
                + x["table"][h, (j - i).clamp(-cases.REACH, cases.REACH) + cases.REACH]
            )
        return s

    masks = (call.causal, call.window, lengths, texts)
    block_mask = None
    if any(x is not None for x in masks):
        examples = None if lengths is None and texts is None else len(x["q"])
        sizes = (x["q"].shape[2], x["k"].shape[2])
        block_mask = create_block_mask(sees, examples, None, *sizes, device=DEVICE)
    has_score = call.cap is not None or slopes is not None or "table" in x
    options = dict(score_mod=changed if has_score else None, block_mask=block_mask)
    if call.sink is None:
        return _compiled_flex(x["q"], x["k"], x["v"], **options)
    out, lse = _compiled_flex(x["q"], x["k"], x["v"], return_lse=True, **options)
    return out * torch.sigmoid(lse - call.sink)[..., None].to(out.dtype)


# FlexAttention is a kernel only where it is compiled.
_compiled_flex = torch.compile(flex_attention)


def bilinear(x, call):
    """Writes a bilinear score around dot products."""
    plain = dataclasses.replace(call, score="scaled_dot")
    # PyTorch divides by √d_k unless it is told otherwise.
    return attend({**x, "q": x["q"] @ x["w"]}, plain, scale=1.0)


def additive(x, call):
    """Computes the textbook form: the scores of all pairs, hidden width and all."""
    a = x["q"] @ x["w_q"]
    b = x["k"] @ x["w_k"]
    hidden = torch.tanh(a[:, :, :, None] + b[:, :, None])
    s = (hidden @ x["w_v"][:, None, :, None]).squeeze(-1)
    return torch.softmax(s, -1) @ x["v"]


def _check_plain(call):
    _check_score(call)
    if call.cap is not None or call.sink is not None:
        raise Unsupported("no softcap and no sink")


def _check_score(call):
    if call.score != "scaled_dot":
        raise Unsupported(f"no {call.score} score")
    if call.causal:
        raise Unsupported("no offset of a causal mask")
    if call.lse:
        raise Unsupported("no LSE")


@dataclasses.dataclass(eq=False)
class Torch:
    """Adapts PyTorch. Arrays come in and go out as numpy's, laid out (B, N, H, d).

    Its methods are those of `launch.bench.attention.jax.Jax`.
    """

    attend: Callable
    by_hand: dict[str, Callable] = dataclasses.field(default_factory=dict)
    program: Program | None = None

    def compile(self, case: cases.Case) -> Program:
        """Builds the forward pass or the gradient of a case."""
        function = self.by_hand.get(case.score, self.attend)
        is_gradient = case.direction == "gradient"
        x, g = cases.inputs(case)
        g_checked = _tensors({"out": cases.checked(case, g)}, case.dtype)["out"]
        g = _tensors({"out": g}, case.dtype)["out"]
        x = _tensors(x, case.dtype)
        # Without gradients PyTorch keeps nothing for a backward pass.
        for a in x.values():
            a.requires_grad_(is_gradient)

        def run(g=g):
            with contextlib.nullcontext() if is_gradient else torch.no_grad():
                out = function(x, case.call)
                if is_gradient:
                    return _gradients((out * g).sum(), x)
                return {"out": out}

        results = x.values() if is_gradient else [x["v"]]
        return Program(
            run=run,
            sample=lambda: cases.sample(case, _arrays(run(g_checked))),
            result_bytes=sum(a.nbytes for a in results),
            by_hand=case.score in self.by_hand,
            growth=growth,
            wait=wait,
        )

    def value(self, x, call: Call, dtype="float32"):
        """Returns (output, None, the names of their dtypes)."""
        out = self.attend(_tensors(x, dtype), call)
        name = str(out.dtype).removeprefix("torch.")
        return _arrays({"out": out})["out"], None, (name, None)

    def gradient(self, x, call: Call, g=None, h=None, dtype="float32"):
        """Returns the gradient of Σ g · output, by reverse mode."""
        x = _leaves(x, dtype)
        return _arrays(_gradients(self._loss(call, g)(x), x))

    def memory(self, x, call: Call) -> int | None:
        """Returns how far memory grows in a gradient, less the gradient itself."""
        x = _leaves(x, "float32")
        # Eager PyTorch has no compiler that could be asked.
        peak = growth(lambda: _gradients(self.attend(x, call).sum(), x))
        if peak is None:
            return None
        return max(0, peak - sum(a.nbytes for a in x.values()))

    def _loss(self, call, g):
        def loss(x):
            out = self.attend(x, call)
            weights = np.swapaxes(g, 1, 2).copy()
            weights = torch.as_tensor(weights, dtype=out.dtype, device=DEVICE)
            return (out * weights).sum()

        return loss


def _gradients(total, x, **options):
    gradients = torch.autograd.grad(total, list(x.values()), **options)
    return dict(zip(x, gradients, strict=True))


def _tensors(x, dtype="float32"):
    kind = getattr(torch, dtype)
    return {
        name: torch.tensor(_swapped(name, a), dtype=kind, device=DEVICE)
        for name, a in x.items()
    }


def _swapped(name, a):
    # PyTorch takes no views of negative or unusual strides: hence the copy.
    return np.swapaxes(a, 1, 2).copy() if name in HEADS else np.asarray(a)


def _leaves(x, dtype):
    return {name: a.requires_grad_() for name, a in _tensors(x, dtype).items()}


def _arrays(x):
    """Returns numpy's float64, which holds every number of the other precisions."""
    arrays = {name: a.detach().double().cpu().numpy() for name, a in x.items()}
    return {name: _swapped(name, a) for name, a in arrays.items()}


ADAPTERS = {
    "torch": Torch(attend, by_hand={"bilinear": bilinear, "additive": additive}),
    "torch:flex": Torch(flex),
}
