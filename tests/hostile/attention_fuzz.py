"""Holds attn.attention to a float64 oracle in random cases.

    python -m tests.hostile.attention_fuzz --cases=20000 --seed=0 --processes=2
    python -m tests.hostile.attention_fuzz --seed=0 --case=1234
    python -m tests.hostile.attention_fuzz --corners

The first prints its progress, how many cases and comparisons there were, and the failures
grouped by structure, each group with a command that repeats one of its cases. The exit
status is 1 where a case fails. A case whose arguments cannot be served is to be refused
with ValueError or NotImplementedError.
"""

import argparse
import collections
import dataclasses
import functools
import multiprocessing
import os
import sys
import time
import traceback
import warnings

# Most of the time would be LLVM's optimisation of programs that run ten times.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

from attn import Additive, Bilinear, Dot, Mask, ScaledDot, attention
from attn.jax_versions import enable_x64
from attn.map_heads import heads_at_once
from attn.positions.biases import ALiBiBias, BucketBias, RelativeBias
from tests.hostile import attention_oracle as oracle
from tests.hostile.attention_cases import REPEATS, corners, draw_case, draw_structure

REFUSALS = (ValueError, NotImplementedError)


@dataclasses.dataclass
class Tally:
    """What came of some cases."""

    cases: int = 0
    refused: int = 0
    comparisons: int = 0
    values: int = 0
    failures: list = dataclasses.field(default_factory=list)  # (kind, line, words)

    def add(self, other):
        """Adds the counts and failures of another."""
        for field in dataclasses.fields(self):
            total = getattr(self, field.name) + getattr(other, field.name)
            setattr(self, field.name, total)


def make_score(structure, parameters):
    """Returns attn's score of a structure, with these parameters."""
    kind, *options = structure.score
    if kind == "dot":
        return Dot()
    if kind == "scaled":
        static = [x for x in options if isinstance(x, float)]
        return ScaledDot(*static, **parameters)
    if kind == "additive":
        return Additive(**parameters)
    return Bilinear(**parameters)


def make_mask(structure, data):
    """Returns attn's mask of a structure, with these arrays."""
    mask = Mask()
    for (kind, *numbers), arrays in zip(structure.mask, data, strict=True):
        if kind == "causal_at":
            mask &= Mask.causal(**arrays)
        elif arrays:
            mask &= getattr(Mask, kind)(**arrays)
        else:
            mask &= getattr(Mask, kind)(*numbers)
    return mask


def make_bias(structure, array):
    """Returns attn's bias of a structure, with this array."""
    if structure.bias is None:
        return None
    kind, *options, offset = structure.bias
    if kind == "dense":
        return array
    if kind == "bucket":
        both, longest = options
        return BucketBias(array, offset, bidirectional=both, max_distance=longest)
    return {"alibi": ALiBiBias, "relative": RelativeBias}[kind](array, offset)


def compute(structure, trained, mask, cotangents):
    """Returns attn's results by name, and the gradients of `trained` where asked for."""

    def results(trained):
        outputs = attention(
            trained["q"],
            trained["k"],
            trained["v"],
            score=make_score(structure, trained["score"]),
            mask=make_mask(structure, mask) if structure.mask else None,
            bias=make_bias(structure, trained.get("bias")),
            implementation=structure.kernel,
            return_lse=structure.lse,
            return_weights=structure.weights,
        )
        names = ["out"] + ["lse"] * structure.lse + ["weights"] * structure.weights
        outputs = outputs if len(names) > 1 else (outputs,)
        return dict(zip(names, outputs, strict=True))

    if not structure.gradients:
        return results(trained), {}
    values, pull = jax.vjp(results, trained)
    cotangents = {name: cotangents[f"g_{name}"] for name in values}
    # As what comes from further operations of the same dtype.
    cotangents = {name: x.astype(values[name].dtype) for name, x in cotangents.items()}
    return values, pull(cotangents)[0]


def prepare(structure):
    """Returns the compiled function of a structure's arrays, blocks set as it says."""
    blocks = sys.modules["attn.kernels.query_blocks"]
    blocks.BLOCK = structure.block
    blocks.RUNS = structure.runs
    maps = sys.modules["attn.map_heads"]
    maps.heads_at_once = heads_at_once
    if structure.at_once is not None:
        maps.heads_at_once = lambda n, m, score: structure.at_once
    # What was compiled before has other blocks in it.
    jax.clear_caches()
    return jax.jit(functools.partial(compute, structure))


def check(function, case, tally) -> list[str]:
    """Returns what is wrong with a case, nothing where it is right."""
    structure = case.structure
    data = case.data
    tally.cases += 1
    trained = {name: data[name] for name in ("q", "k", "v", "score")}
    if structure.bias is not None:
        trained["bias"] = data["bias"]
    cotangents = {name: x for name, x in data.items() if name.startswith("g_")}
    try:
        values, gradients = jax.device_get(function(trained, data["mask"], cotangents))
    except REFUSALS as error:
        tally.refused += 1
        if structure.expect == "served":
            return [f"refused: {first_line(error)}"]
        return []
    except Exception as error:
        if os.environ.get("FUZZ_TRACEBACK"):
            traceback.print_exc()
        return [f"{type(error).__name__}: {first_line(error)}"]
    if structure.expect == "refused":
        return ["accepted"]
    judged = structure
    if structure.integers and structure.dtype == "float64":
        # Integers count as float32, and a score may then be computed in it.
        judged = dataclasses.replace(structure, dtype="float32")
    expected, tainted = oracle.attention(judged, data)
    return compare(structure, values, gradients, expected, tainted, tally)


def compare(structure, values, gradients, expected, tainted, tally) -> list[str]:
    """Returns the names of the results that differ from the oracle's beyond its bounds."""
    actual = dict(values)
    # Of a NaN that is seen, the gradients are NaN, and which of them is not stated.
    if gradients and not tainted.any():
        for name in ("q", "k", "v", "bias"):
            if name in gradients:
                actual[f"d {name}"] = gradients[name]
        for name, x in gradients["score"].items():
            actual[f"d score.{name}"] = x
    wrong = []
    for name, x in actual.items():
        tally.comparisons += 1
        rows = None
        if name in ("out", "lse", "weights"):
            rows = tainted.reshape(*structure.batch, structure.h, structure.n)
            if name != "weights":
                rows = np.moveaxis(rows, -1, -2)
        fault = difference(np.asarray(x), expected[name], rows, tally)
        if fault:
            wrong.append(f"{name} {fault}")
    dtype = str(values["out"].dtype)
    if not structure.integers and dtype != structure.dtype:
        wrong.append(f"out is {dtype}")
    return wrong


def difference(actual, expected, tainted, tally) -> str:
    """Returns what is wrong with an array: its shape, NaN, or beyond its bound."""
    value, error = expected
    if actual.shape != value.shape:
        return f"has shape {actual.shape}, not {value.shape}"
    actual = actual.astype(np.float64)
    ok = np.ones(actual.shape, bool)
    known = np.isfinite(value)
    tally.values += actual.size
    with np.errstate(all="ignore"):
        ok = np.where(known, np.abs(actual - value) <= error, ok)
    ok = np.where(value == -np.inf, actual == -np.inf, ok)
    if tainted is not None:
        shape = (*tainted.shape, *[1] * (actual.ndim - tainted.ndim))
        ok = np.where(tainted.reshape(shape), ~np.isfinite(actual), ok)
    if ok.all():
        return ""
    at = np.unravel_index(np.argmin(ok), ok.shape)
    if tainted is not None and tainted[at[: tainted.ndim]]:
        return "hides a NaN that is seen"
    if np.isnan(actual[at]):
        return "is NaN"
    ratio = abs(actual[at] - value[at]) / error
    return f"is off by {ratio:.1f} of what rounding may do"


def symptom(faults) -> str:
    """Returns what the faults of a case have in common, for its group."""
    for word in ("NaN", "is off", "shape"):
        if any(word in fault for fault in faults):
            return {"NaN": "NaN", "is off": "wrong numbers", "shape": "shape"}[word]
    return faults[0]


def first_line(error):
    """Returns the first line of an error's message, cut."""
    return (str(error).splitlines() or [""])[0][:100]


def run_group(seed, group, only=None, structure=None, name=None) -> Tally:
    """Checks the cases of a structure, those in `only` or all."""
    # XLA tells of gradients of integers and the like; here it would hide the progress.
    warnings.simplefilter("ignore")
    tally = Tally()
    structure = structure or draw_structure(seed, group)
    with enable_x64(structure.dtype == "float64"):
        function = prepare(structure)
        numbers = range(group * REPEATS, (group + 1) * REPEATS)
        # What is refused is refused for its shapes.
        if structure.expect == "refused":
            numbers = numbers[:1]
        for number in numbers if only is None else only:
            case = draw_case(seed, number, structure)
            faults = check(function, case, tally)
            if faults:
                kind = f"{structure.kind()}: {symptom(faults)}"
                line = f"--seed={seed} --case={number}"
                if name is not None:
                    kind = f"corner {name}"
                    line = f"--corners ({name})"
                described = f"{'; '.join(faults)}\n      {structure.line()}"
                if case.flavour:
                    described += f"\n      data: {case.flavour}"
                tally.failures.append((kind, line, described))
    return tally


def run_random(cases, seed, processes, minutes=None, say=print) -> Tally:
    """Checks so many random cases in several processes, fewer where time runs out."""
    groups = range(-(-cases // REPEATS))
    tally = Tally()
    start = time.monotonic()
    job = functools.partial(run_group, seed)
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) if processes > 1 else _Here() as pool:
        for done, part in enumerate(pool.imap_unordered(job, groups), 1):
            tally.add(part)
            # At once, so that a run which is cut off has told what it saw.
            for kind, line, _ in part.failures:
                say(f"FAIL {kind}: {line}", flush=True)
            seconds = time.monotonic() - start
            if minutes is not None and seconds > 60 * minutes:
                say(f"stopped after {done}/{len(groups)} structures", flush=True)
                break
            if done % 25 == 0 or done == len(groups):
                rate = tally.cases / seconds
                say(
                    f"{done}/{len(groups)} structures, {tally.cases} cases, "
                    f"{len(tally.failures)} fail, {rate:.1f} cases/s",
                    flush=True,
                )
    return tally


class _Here:
    """Stands for a pool of this process alone."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def imap_unordered(self, job, groups):
        return map(job, groups)


def run_corners() -> Tally:
    """Checks the cases that once went wrong."""
    tally = Tally()
    for name, structure in corners().items():
        tally.add(run_group(0, 0, structure=structure, name=name))
    return tally


def report(tally, say=print):
    """Prints the counts, and the failures grouped by structure."""
    groups = collections.defaultdict(list)
    for kind, line, words in tally.failures:
        groups[kind].append((line, words))
    for kind, failures in sorted(groups.items(), key=lambda item: -len(item[1])):
        line, words = failures[0]
        say(f"FAIL {kind}\n    {len(failures)} cases, e.g. {line}\n      {words}")
    say(
        f"{tally.cases} cases ({tally.refused} refused), {tally.comparisons} comparisons "
        f"of {tally.values} values: "
        f"{len(tally.failures)} cases fail in {len(groups)} groups"
    )


def main(arguments=None) -> int:
    """Runs what the flags ask for; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=0, help="so many random cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="stop after these")
    parser.add_argument("--case", type=int, help="this case of the seed alone")
    parser.add_argument("--corners", action="store_true", help="cases once wrong")
    flags = parser.parse_args(arguments)
    start = time.monotonic()
    tally = Tally()
    if flags.corners:
        tally.add(run_corners())
    if flags.case is not None:
        case = draw_case(flags.seed, flags.case)
        print(f"{case.structure.line()}\ndata: {case.flavour or 'plain'}")
        tally.add(run_group(flags.seed, flags.case // REPEATS, only=[flags.case]))
    elif flags.cases:
        part = run_random(flags.cases, flags.seed, flags.processes, flags.minutes)
        tally.add(part)
    report(tally)
    print(f"{time.monotonic() - start:.0f} s")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
