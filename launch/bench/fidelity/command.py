"""Holds the Transformer to torch.nn.Transformer of the same weights.

Logits and every gradient are compared, padding included, in both precisions. In float64
they must agree. In float32 each is held to PyTorch's float64: only rounding differs when
attn's error is at most `SLACK` times PyTorch's own. Without PyTorch the command ends with
status 2, as nothing was compared.
"""

import importlib
import importlib.util
from collections.abc import Mapping

import numpy as np

from launch.bench.fidelity import attn
from launch.bench.fidelity.case import CASES, Case, batch
from launch.bench.harness import report
from launch.bench.harness.benchmark import Benchmark, Outcome, Request
from launch.bench.harness.report import Table

SLACK = 2.0
AGREED = 1e-12
"""The most that two may differ in float64, in parts of the largest of an array."""
MISSING = "fidelity is to PyTorch: pip install '.[bench]'"

Results = Mapping[str, np.ndarray]
"""Logits and gradients, by name."""
Errors = dict[str, dict]
"""For "logits" and "gradients": the number of arrays, and for each implementation the
array with the largest error, and that error."""


def measure(request: Request) -> Outcome:
    """Compares all cases; shows the table and writes it. The status is 1 if they differ."""
    if importlib.util.find_spec("torch") is None:
        return Outcome([], status=2, problem=MISSING)
    # By name, as this module must load without PyTorch.
    torch = importlib.import_module("launch.bench.fidelity.torch")
    errors = {}
    for case in request.cases:
        with request.console.status(case.name):
            # Each case has weights of its own, and the same in every run.
            errors[case] = compare(torch, case, seed=CASES.index(case))
    agree = all(map(agrees, errors.values()))
    filled = table(errors)
    report.show(filled, request.console)
    entries = [{**case._asdict(), "errors": errors[case]} for case in errors]
    numbers = {"agree": agree, "cases": entries}
    files = report.write(request.directory, "fidelity", [filled], numbers)
    return Outcome(files, status=0 if agree else 1)


def compare(torch, case: Case, seed: int) -> Errors:
    """Returns the errors of attn and of PyTorch's float32, to PyTorch's float64."""
    variables = attn.draw(case, seed)
    weights = attn.to_torch(case, variables)
    results = {
        "float64": attn.run(case, variables, batch(), np.float64),
        "float32": attn.run(case, variables, batch(), np.float32),
        "torch float32": torch.run(case, weights, batch(), np.float32),
    }
    return largest_errors(torch.run(case, weights, batch(), np.float64), results)


def largest_errors(exact: Results, results: Mapping[str, Results]) -> Errors:
    """Returns the errors of the logits, and of the worst gradient.

    Each is in parts of the largest number of that array.
    """
    # Apart, so that the larger errors of one do not hide those of the other.
    parts = {"logits": ["logits"], "gradients": exact.keys() - {"logits"}}
    errors = {}
    for part, names in parts.items():
        errors[part] = {"arrays": len(names)}
        for who, arrays in results.items():
            of = {name: _error(arrays[name], exact[name]) for name in names}
            worst = max(of, key=of.get)
            errors[part][who] = {"array": worst, "error": of[worst]}
    return errors


def _error(actual, exact):
    largest = float(np.abs(actual - exact).max() / np.abs(exact).max())
    # NaN compares as smaller than nothing and larger than nothing.
    return largest if np.isfinite(largest) else float("inf")


def agrees(errors: Errors) -> bool:
    """Returns whether only rounding differs."""
    return all(map(_part_agrees, errors.values()))


def _part_agrees(part):
    rounding = SLACK * part["torch float32"]["error"]
    same = part["float64"]["error"] <= AGREED
    return same and part["float32"]["error"] <= rounding


def table(errors: dict[Case, Errors]) -> Table:
    """Returns the table, a row for the logits of a case and one for its gradients."""
    headings = ("", "of", "attn, float64", "attn, float32", "PyTorch, float32", "agree")
    filled = Table("Largest error, to torch.nn.Transformer in float64", headings)
    for case, parts in errors.items():
        for name, part in parts.items():
            texts = []
            for who in ("float64", "float32", "torch float32"):
                text = f"{part[who]['error']:.1e}"
                is_named = name == "gradients"
                texts.append(
                    filled.noted(text, part[who]["array"]) if is_named else text
                )
            of = name if name == "logits" else f"{part['arrays']} gradients"
            verdict = "yes" if _part_agrees(part) else "NO"
            filled.rows.append((case.name, of, *texts, verdict))
    return filled


BENCHMARK = Benchmark(name="fidelity", run=measure, cases=CASES, tiny=CASES[:1])
