"""What compilers for TPUs and GPUs say of programs stays within compiled_bounds.toml.

It needs both compilers, and for kernels of our own the newest JAX:
`make install VENV=.venv-compile PYTHON=python3.12 EXTRAS=compile-tpu,compile-cuda`.
"""

import tomllib
from pathlib import Path

import pytest

from experiments.errors import UserError
from experiments.system.compiler import Compiler
from launch.bench.compile.command import BENCHMARK, build

pytestmark = pytest.mark.ci

BOUNDS = tomllib.loads(Path(__file__).with_name("compiled_bounds.toml").read_text())
CASES = {case.name: case for case in BENCHMARK.cases}
RATIO = 20
"""The most times as long as the textbook form that `blocks` may take to compile."""


@pytest.fixture(scope="module")
def compiled():
    """Compiles a case for a device, each once."""
    compilers = {}
    known = {}

    def compile(device, name):
        if (device, name) not in known:
            if device not in compilers:
                try:
                    # Of the TPU's kernels of our own, which are few.
                    target, _, with_bundles = device.partition(" ")
                    compilers[device] = Compiler(target, bool(with_bundles))
                except UserError as error:
                    pytest.skip(str(error))
            known[device, name] = compilers[device].compile(build, CASES[name])
        return known[device, name]

    yield compile
    for compiler in compilers.values():
        compiler.stop()


def measured(compiled):
    return {
        "hbm": compiled.temporary_bytes / 2**20,
        "collectives": compiled.collectives,
        "spills": compiled.spills,
        "registers": compiled.registers,
        "bundles": compiled.bundles,
        "seconds": compiled.seconds,
        "cycles": (compiled.cycles or 0) / 1e6,
        "donated": compiled.donated_bytes / 2**20,
        "kernels": compiled.work.kernels if compiled.work else 0,
        "GB": compiled.work.bytes / 1e9 if compiled.work else 0,
        "turns": compiled.work.turns if compiled.work else 0,
    }


@pytest.mark.parametrize(
    ("device", "name"), [(device, name) for device in BOUNDS for name in BOUNDS[device]]
)
def test_a_program_stays_within_its_bounds(compiled, device, name):
    result = compiled(device, name)
    assert not result.why_not
    found = measured(result)
    for key, bound in BOUNDS[device][name].items():
        value = found[key]
        words = f"{name} for {device}: {key} {value:.4g}, the bound is {bound}"
        if key in ("collectives", "turns"):
            assert value == bound, words
        elif key == "donated":
            assert value >= bound, words
        else:
            assert value <= bound, words


@pytest.mark.parametrize("device", ["v5e", "h100"])
def test_blocks_compiles_in_a_time_like_the_textbook_form(compiled, device):
    name = "scaled_dot-causal-2048-gradient-{}-bfloat16"
    blocks, textbook = (
        compiled(device, name.format(kernel)).seconds
        for kernel in ("blocks", "reference")
    )
    assert blocks <= RATIO * textbook, (
        f"blocks compiles in {blocks:.1f} s, the textbook form in {textbook:.1f} s"
    )
