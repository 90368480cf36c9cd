"""Adapts PyTorch's scaled_dot_product_attention, as `jax` does the JAX libraries."""

import contextlib
import functools
import warnings

import numpy as np
import torch

from launch.bench.attention import cases
from launch.bench.attention.call import Call
from launch.bench.harness.libraries import Unsupported
from launch.bench.harness.program import Program
from launch.bench.harness.torch_device import DEVICE, growth, wait

HEADS = ("q", "k", "v", "out")
"""Arrays that are (B, N, H, d) here and (B, H, N, d) in PyTorch."""


def attend(x, call):
    """Returns the output (B, H, N, V); `x` is laid out as PyTorch does."""
    if call.score != "scaled_dot":
        raise Unsupported(f"no {call.score} score")
    return _sdpa(x, call)


def bilinear(x, call):
    """Writes a bilinear score around dot products."""
    # PyTorch divides by √d_k unless it is told otherwise.
    return _sdpa({**x, "q": x["q"] @ x["w"]}, call, scale=1.0)


def additive(x, call):
    """Computes the textbook form: the scores of all pairs, hidden width and all."""
    a = x["q"] @ x["w_q"]
    b = x["k"] @ x["w_k"]
    hidden = torch.tanh(a[:, :, :, None] + b[:, :, None])
    s = (hidden @ x["w_v"][:, None, :, None]).squeeze(-1)
    return torch.softmax(s, -1) @ x["v"]


def _sdpa(x, call, **options):
    if call.causal:
        raise Unsupported("no offset of a causal mask")
    if call.lse:
        raise Unsupported("no LSE")
    if call.rate and call.seed is None:
        raise Unsupported("no key: dropout draws from the global generator")
    if call.seed is not None:
        # PyTorch has no key of one call: its global generator stands in for it.
        torch.manual_seed(call.seed)
    return torch.nn.functional.scaled_dot_product_attention(
        x["q"],
        x["k"],
        x["v"],
        attn_mask=_mask(x, call),
        dropout_p=call.rate,
        is_causal=call.causal is not None,
        **options,
    )


def _mask(x, call):
    """Returns attn_mask: mask, lengths and window as one array, None without any.

    It is boolean, or float where there is a bias.
    """
    i = torch.arange(x["q"].shape[2], device=DEVICE)[:, None]
    j = torch.arange(x["k"].shape[2], device=DEVICE)[None]
    parts = [] if call.mask is None else [torch.tensor(call.mask, device=DEVICE)]
    if call.lengths is not None:
        lengths = torch.tensor(call.lengths, device=DEVICE)
        parts.append(j < lengths[:, None, None, None])
    if call.window is not None:
        parts.append((i - call.window[0] <= j) & (j <= i + call.window[1]))
    visible = functools.reduce(torch.logical_and, parts) if parts else None
    if "bias" not in x:
        return visible
    bias = x["bias"]
    # attn_mask is one argument, which a mask and a bias have to share.
    return bias if visible is None else bias.masked_fill(~visible, -torch.inf)


class Torch:
    """Adapts PyTorch. Arrays come in and go out as numpy's, laid out (B, N, H, d).

    Its methods are those of `launch.bench.attention.jax.Jax`.
    """

    def __init__(self):
        self.by_hand = {"bilinear": bilinear, "additive": additive}
        self.silent = {}
        self.program = None
        self.normaliser = "softmax"

    def compile(self, case: cases.Case) -> Program:
        """Builds the forward pass or the gradient of a case."""
        function = self.by_hand.get(case.score, attend)
        gradient = case.direction == "gradient"
        x, g = cases.inputs(case)
        g_checked = _tensors({"out": cases.checked(case, g)}, case.dtype)["out"]
        g = _tensors({"out": g}, case.dtype)["out"]
        x = _tensors(x, case.dtype)
        # Without gradients PyTorch keeps nothing for a backward pass.
        for a in x.values():
            a.requires_grad_(gradient)

        def call(g):
            out = function(x, case.call)
            return _gradients((out * g).sum(), x) if gradient else {"out": out}

        def run(g=g):
            with contextlib.nullcontext() if gradient else torch.no_grad():
                return call(g)

        results = x.values() if gradient else [x["v"]]
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
        out = attend(_tensors(x, dtype), call)
        name = str(out.dtype).removeprefix("torch.")
        return _arrays({"out": out})["out"], None, (name, None)

    def gradient(self, x, call: Call, g=None, h=None, dtype="float32"):
        """Returns the gradient of Σ g · output, by reverse mode."""
        x = _leaves(x, dtype)
        return _arrays(_gradients(_loss(call, g)(x), x))

    def forward(self, x, dx, call: Call, dtype="float32"):
        """Returns the output's derivative along dx, by forward mode."""
        primals = (_tensors(x, dtype),)
        tangents = (_tensors(dx, dtype),)
        out = torch.func.jvp(lambda x: attend(x, call), primals, tangents)[1]
        return _arrays({"out": out})["out"]

    def second(self, x, dx, call: Call, g, dtype="float32"):
        """Returns the gradient's derivative along dx, by reverse over reverse mode."""
        x = _leaves(x, dtype)
        dx = _tensors(dx, dtype)
        # Without its graph a gradient could not be differentiated again.
        first = _gradients(_loss(call, g)(x), x, create_graph=True)
        along = sum((a * dx[name]).sum() for name, a in first.items())
        return _arrays(_gradients(along, x))

    def mapped(self, xs, call: Call, g, dtype="float32"):
        """Returns `gradient` under vmap, over a leading axis of all arrays of xs."""
        examples = []
        for i in range(len(xs["q"])):
            example = {name: a[i] for name, a in xs.items()}
            examples.append(_tensors(example, dtype))
        stacked = {}
        for name in xs:
            stacked[name] = torch.stack([example[name] for example in examples])
        with warnings.catch_warnings():
            # PyTorch warns that it works off a batch in a loop.
            warnings.simplefilter("ignore")
            gradients = torch.func.vmap(torch.func.grad(_loss(call, g)))(stacked)
        parts = []
        for i in range(len(examples)):
            parts.append(_arrays({name: a[i] for name, a in gradients.items()}))
        results = {}
        for name in xs:
            results[name] = np.stack([part[name] for part in parts])
        return results

    def memory(self, x, call: Call) -> int | None:
        """Returns how far memory grows in a gradient, less the gradient itself."""
        x = _leaves(x, "float32")
        # Eager PyTorch has no compiler that could be asked.
        peak = growth(lambda: _gradients(attend(x, call).sum(), x))
        if peak is None:
            return None
        return max(0, peak - sum(a.nbytes for a in x.values()))


def _loss(call, g):
    def loss(x):
        out = attend(x, call)
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


ADAPTERS = {"torch": Torch()}
