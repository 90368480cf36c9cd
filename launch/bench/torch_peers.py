"""PyTorch's adapter: scaled_dot_product_attention, and what is done with it, as `on_jax` has it for JAX."""

import contextlib
import functools
import os
import warnings

import numpy as np
import torch

from launch.bench import cases
from launch.bench.peers import Call, Unsupported
from launch.bench.timing import Program
from launch.bench.workers import peak_growth

torch.set_num_threads(int(os.environ["NPROC"]))

HEADS = ("q", "k", "v", "out")
"""Arrays (B, N, H, d) here, (B, H, N, d) in PyTorch."""


def attend(x, call):
    """`x` as PyTorch lays it out. Returns the output (B, H, N, V)."""
    if call.score != "scaled_dot":
        raise Unsupported(f"no {call.score} score")
    return _sdpa(x, call)


def bilinear(x, call):
    return _sdpa({**x, "q": x["q"] @ x["w"]}, call, scale=1.0)


def additive(x, call):
    """Textbook: the scores of all pairs, hidden width and all."""
    a, b = x["q"] @ x["w_q"], x["k"] @ x["w_k"]
    s = (torch.tanh(a[:, :, :, None] + b[:, :, None]) @ x["w_v"][:, None, :, None]).squeeze(-1)
    return torch.softmax(s, -1) @ x["v"]


def _sdpa(x, call, **options):
    if call.causal:
        raise Unsupported("no offset of a causal mask")
    if call.lse:
        raise Unsupported("no LSE")
    if call.rate and call.seed is None:
        raise Unsupported("no key: dropout draws from the global generator")
    if call.seed is not None:
        torch.manual_seed(call.seed)
    return torch.nn.functional.scaled_dot_product_attention(
        x["q"], x["k"], x["v"], attn_mask=_mask(x, call), dropout_p=call.rate, is_causal=call.causal is not None,
        **options)


def _mask(x, call):
    """attn_mask: mask, lengths and window as a boolean array, or with a bias as a float one; None without any."""
    i, j = torch.arange(x["q"].shape[2])[:, None], torch.arange(x["k"].shape[2])[None]
    parts = [] if call.mask is None else [torch.tensor(call.mask)]
    if call.lengths is not None:
        parts.append(j < torch.tensor(call.lengths)[:, None, None, None])
    if call.window is not None:
        parts.append((i - call.window[0] <= j) & (j <= i + call.window[1]))
    visible = functools.reduce(torch.logical_and, parts) if parts else None
    if "bias" not in x:
        return visible
    return x["bias"] if visible is None else x["bias"].masked_fill(~visible, -torch.inf)


class Torch:
    """An adapter, see `peers`. Arrays come in and go out as numpy's, laid out (B, N, H, d)."""

    def __init__(self):
        self.by_hand = {"bilinear": bilinear, "additive": additive}
        self.silent = {}
        self.program = None

    def compile(self, case: cases.Case) -> Program:
        function = self.by_hand.get(case.score, attend)
        x, g = cases.inputs(case)
        kept, g, x = (_tensors(a) for a in ({"out": cases.checked(case, g)}, {"out": g}, x))
        gradient = case.direction == "gradient"
        for a in x.values():
            a.requires_grad_(gradient)

        def call(g=g):
            out = function(x, case.call)
            if not gradient:
                return {"out": out}
            return dict(zip(x, torch.autograd.grad((out * g["out"]).sum(), list(x.values())), strict=True))

        def run(g=g):
            with contextlib.nullcontext() if gradient else torch.no_grad():
                return call(g)

        results = (x.values() if gradient else [x["v"]])
        return Program(run, lambda: cases.sample(case, _arrays(run(kept))), sum(a.nbytes for a in results), None,
                       case.score in self.by_hand)

    def value(self, x, call: Call, dtype="float32"):
        out = attend(_tensors(x, dtype), call)
        return _arrays({"out": out})["out"], None, (str(out.dtype).removeprefix("torch."), None)

    def gradient(self, x, call: Call, g=None, h=None, dtype="float32"):
        x = _leaves(x, dtype)
        return _arrays(dict(zip(x, torch.autograd.grad(_loss(call, g)(x), list(x.values())), strict=True)))

    def forward(self, x, dx, call: Call, dtype="float32"):
        out = torch.func.jvp(lambda x: attend(x, call), (_tensors(x, dtype),), (_tensors(dx, dtype),))[1]
        return _arrays({"out": out})["out"]

    def second(self, x, dx, call: Call, g, dtype="float32"):
        x, dx = _leaves(x, dtype), _tensors(dx, dtype)
        first = torch.autograd.grad(_loss(call, g)(x), list(x.values()), create_graph=True)
        along = sum((a * dx[name]).sum() for name, a in zip(x, first, strict=True))
        return _arrays(dict(zip(x, torch.autograd.grad(along, list(x.values())), strict=True)))

    def mapped(self, xs, call: Call, g, dtype="float32"):
        each = [_tensors({name: a[i] for name, a in xs.items()}, dtype) for i in range(len(xs["q"]))]
        stacked = {name: torch.stack([x[name] for x in each]) for name in xs}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a batch is worked off in a loop is no concern here
            found = torch.func.vmap(torch.func.grad(_loss(call, g)))(stacked)
        every = [_arrays({name: a[i] for name, a in found.items()}) for i in range(len(each))]
        return {name: np.stack([one[name] for one in every]) for name in xs}

    def memory(self, x, call: Call) -> int | None:
        x = _leaves(x, "float32")
        growth = peak_growth(lambda: torch.autograd.grad(attend(x, call).sum(), list(x.values())))
        return None if growth is None else max(0, growth - sum(a.nbytes for a in x.values()))


def _loss(call, g):
    def loss(x):
        out = attend(x, call)
        return (out * torch.as_tensor(np.swapaxes(g, 1, 2).copy(), dtype=out.dtype)).sum()

    return loss


def _tensors(x, dtype="float32"):
    return {name: torch.tensor(np.swapaxes(a, 1, 2).copy() if name in HEADS else np.asarray(a),
                               dtype=getattr(torch, dtype)) for name, a in x.items()}


def _leaves(x, dtype):
    return {name: a.requires_grad_() for name, a in _tensors(x, dtype).items()}


def _arrays(x):
    """numpy's, in float64, which holds every number of the other precisions."""
    found = {name: a.detach().to(torch.float64).numpy() for name, a in x.items()}
    return {name: np.swapaxes(a, 1, 2) if name in HEADS else a for name, a in found.items()}


PEERS = {"torch": Torch()}
