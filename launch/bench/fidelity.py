"""Holds the Transformer to torch.nn.Transformer of the same weights: logits and every gradient, padding included.

PyTorch's weights are drawn, go through `attn.interop`, and both compute in both precisions. In float64 they must agree.
In float32 each is held to PyTorch's float64: rounding is all that is between them when attn's error is no more than
`SLACK` times PyTorch's own.
"""

import importlib
import importlib.util
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rich.console

from attn import Design, Mask, Shape, Transformer
from attn.interop import Names, from_torch, to_torch
from experiments.files import write_json, write_text
from launch.bench import attention
from launch.bench.grids import Grid, markdown, show
from launch.bench.peers import BenchError

SHAPE = Shape(N=2, d_model=96, d_ff=160, h=4, d_k=24, d_v=24)
VOCABULARY, LENGTH = 211, 29
SOURCE_LENGTHS, TARGET_LENGTHS = (29, 7, 1, 19), (5, 23, 11, 1)
NAMES = Names("transformer.")
SLACK = 2.0
AGREED = 1e-12
"""The most that two may differ in float64, as a part of the largest number of an array."""


class Case(NamedTuple):
    """A form of nn.Transformer; "post" is without the final LayerNorms, which the paper does not have."""

    norm: str
    biases: bool
    tied: bool
    activation: str


CASES = (Case("post", True, True, "relu"), Case("post_final", False, False, "relu"), Case("pre", True, False, "gelu"))


class Batch(NamedTuple):
    """Pieces (B, N) and (B, M), where they are real, and what the logits (B, M, Y) are weighted by in the loss."""

    source: np.ndarray
    target: np.ndarray
    source_real: np.ndarray
    target_real: np.ndarray
    pull: np.ndarray


def draw() -> Batch:
    """Padding is of real pieces: whoever looks at it is found out."""
    rng = np.random.default_rng(0)
    real = [np.arange(max(lengths))[None] < np.array(lengths)[:, None] for lengths in (SOURCE_LENGTHS, TARGET_LENGTHS)]
    source, target = (rng.integers(VOCABULARY, size=where.shape) for where in real)
    return Batch(source, target, *real, rng.normal(size=(*target.shape, VOCABULARY)) * real[1][..., None])


def run(directory: Path, console: rich.console.Console) -> tuple[list[Path], bool]:
    """Shows the table, writes it into `directory`; returns the files, and whether all agree.

    Raises BenchError where PyTorch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise BenchError("fidelity is to PyTorch: pip install '.[bench]'")
    theirs, batch, found = importlib.import_module("launch.bench.fidelity_torch"), draw(), {}
    for seed, case in enumerate(CASES):
        with console.status(_name(case)):
            weights = theirs.draw(case, seed)
            found[case] = compare(*(function(case, weights, batch, dtype) for function in (theirs.run, ours)
                                    for dtype in (np.float64, np.float32)))
    table, agree = grid(found), all(map(agrees, found.values()))
    show(table, console)
    written = [directory / "fidelity.md", directory / "fidelity.json"]
    write_text(written[0], f"# Fidelity\n\n{attention.where()}\n\n{markdown(table)}")
    write_json(written[1], {**attention.circumstances("fidelity"), "agree": agree, "cases": [
        {**case._asdict(), "errors": errors} for case, errors in found.items()]})
    return written, agree


def ours(case: Case, weights: dict[str, np.ndarray], batch: Batch, dtype: type) -> dict[str, np.ndarray]:
    """The logits of real pieces, and the gradients by PyTorch's names."""
    with jax.enable_x64(dtype == np.float64):
        given = {name: x.astype(dtype) for name, x in weights.items()}
        told = Design("pre" if case.norm == "pre" else "post", activation=case.activation, norm_epsilon=1e-5)
        model, variables = from_torch(given, SHAPE.h, told, names=NAMES)
        logits, gradients = jax.jit(_logits_and_gradients, static_argnums=0)(model, variables, *map(jnp.asarray, batch))
        return {"logits": np.asarray(logits)[batch.target_real], **to_torch(model, gradients, NAMES)}


def _logits_and_gradients(model, variables, source, target, source_real, target_real, pull):
    def loss(variables):
        places = [jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape) for ids in (source, target)]
        seen, own = Mask.dense(source_real[:, None, None]), Mask.dense(target_real[:, None, None])
        hidden = model.apply(variables, source, target, *places, source_mask=seen, cross_mask=seen,
                             target_mask=own & Mask.causal())
        logits = model.apply(variables, hidden, method=Transformer.logits)
        return (logits * pull.astype(logits.dtype)).sum(), logits

    gradients, logits = jax.grad(loss, has_aux=True)(variables)
    return logits, gradients


def compare(exact: dict, peer: dict, own_exact: dict, own: dict) -> dict[str, dict]:
    """The largest errors of the logits, and of whichever gradient is worst, as parts of the largest of that array."""
    def worst(found, names):
        errors = {name: float(np.abs(found[name] - exact[name]).max() / np.abs(exact[name]).max()) for name in names}
        return max(errors.items(), key=lambda item: item[1])

    return {part: {"arrays": len(names), **{
        who: dict(zip(("array", "error"), worst(found, names), strict=True))
        for who, found in (("float64", own_exact), ("float32", own), ("torch float32", peer))}}
        for part, names in {"logits": ["logits"], "gradients": exact.keys() - {"logits"}}.items()}


def agrees(errors: dict[str, dict]) -> bool:
    return all(part["float64"]["error"] <= AGREED
               and part["float32"]["error"] <= SLACK * part["torch float32"]["error"] for part in errors.values())


def grid(found: dict[Case, dict]) -> Grid:
    table = Grid("Largest error, to torch.nn.Transformer in float64",
                 ("", "of", "attn, float64", "attn, float32", "PyTorch, float32", "agree"))
    for case, errors in found.items():
        for name, part in errors.items():
            shown = [table.noted(f"{part[who]['error']:.1e}", part[who]["array"])
                     if name == "gradients" else f"{part[who]['error']:.1e}"
                     for who in ("float64", "float32", "torch float32")]
            what = name if name == "logits" else f"{part['arrays']} gradients"
            table.rows.append((_name(case), what, *shown, "yes" if agrees({name: part}) else "NO"))
    return table


def _name(case):
    return ", ".join((f"{case.norm.replace('_', ' and ')} norm", "biases" if case.biases else "no biases",
                      "tied" if case.tied else "untied", case.activation))
