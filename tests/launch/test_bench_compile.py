"""What launch.bench compile builds, compiled for the CPU that is here."""

import dataclasses

import jax
import pytest

from attn import platforms
from experiments.configs import table3
from experiments.errors import UserError
from experiments.sweep.plan import plan_trials
from experiments.system.compiler import Compiled, Target, check_target, compile_for
from experiments.system.gpu_kernels import Work
from experiments.trial.cost import program_without_corpus
from experiments.trial.program import initial_state
from launch import fit
from launch.bench.compile.attention import AttentionCase
from launch.bench.compile.command import BENCHMARK, build, table
from launch.bench.compile.programs import ProgramCase, config_of, every_config
from tests.cases import the_rest_in_ci

CONFIG = "tests/experiments/tiny_config.py"


@dataclasses.dataclass(frozen=True)
class Here(Target):
    """Stands in for a target by the devices that there are."""

    def devices(self):
        return jax.devices()[:1]


@pytest.fixture
def compiled():
    """Compiles a case for the CPU; a case that does not compile fails the test."""

    def compile(case):
        result = compile_for(Here("cpu", 0, ""), build, case)
        assert not result.why_not
        return result

    yield compile
    platforms.compile_for(None)


@pytest.mark.parametrize("direction", ["forward", "gradient"])
def test_attention_compiles_with_its_memory(compiled, direction):
    sizes = dict(n=64, direction=direction, dtype="float32", b=1, h=2, d=8)
    case = AttentionCase("additive", mask="padding", **sizes)
    result = compiled(case)
    array = 4 * 64 * 2 * 8
    # q, k and v, the score's parameters, and one length.
    parameters = 4 * 2 * (8 * 8 + 8 * 8 + 8)
    assert result.argument_bytes == 3 * array + parameters + 4
    gradients = 3 * array + parameters
    assert result.output_bytes == pytest.approx(
        array if direction == "forward" else gradients, abs=64
    )
    assert result.temporary_bytes > 0 and result.collectives == 0


@pytest.mark.parametrize("mask", ["full", "causal", "window", "local", "segments"])
@pytest.mark.parametrize("score", ["dot", "scaled_dot", "bilinear"])
def test_every_form_can_be_traced(score, mask):
    case = AttentionCase(score, 16, mask, b=1, h=2, d=8)
    function, arguments = case.build(jax.devices())
    (out,) = jax.tree.leaves(jax.eval_shape(function, *arguments))
    assert out.shape == (1, 16, 2, 8) and out.dtype == "bfloat16"


@pytest.mark.parametrize("lanes", the_rest_in_ci([2, 1], first=1))
def test_a_step_writes_its_state_over_the_old_one(compiled, lanes):
    point = (("training.strategy", "shard_map"),)
    result = compiled(ProgramCase(CONFIG, point, lanes=lanes))
    settings = ProgramCase(CONFIG).settings()
    state = jax.eval_shape(
        lambda: initial_state(program_without_corpus(settings), settings)
    )
    size = sum(4 * leaf.size for leaf in jax.tree.leaves(state))
    assert result.donated_bytes == lanes * size
    assert result.bytes > result.temporary_bytes > 0


@pytest.mark.parametrize("part", ["losses", "search"])
@pytest.mark.ci
def test_evaluation_compiles(compiled, part):
    assert compiled(ProgramCase(CONFIG, part=part)).output_bytes > 0


def test_every_config_is_listed_with_its_arguments():
    configs = every_config()
    for preset in table3.PRESETS:
        assert f"experiments/configs/table3.py:{preset}" in configs
    assert "experiments/configs/quick.py" in configs
    # It needs a text of the user's own.
    assert not any("files.py" in config for config in configs)
    names = [case.name for case in BENCHMARK.cases]
    assert len(set(names)) == len(names)
    programs = [case for case in BENCHMARK.cases if isinstance(case, ProgramCase)]
    assert {case.config for case in programs} == {*configs}


def test_what_a_compiler_refuses_is_a_reason():
    def refuse(devices):
        raise RuntimeError("Used 17.2G of 15.75G hbm. Exceeded hbm capacity by 1.4G")

    refused = compile_for(Here("cpu", 0, ""), refuse)
    platforms.compile_for(None)
    assert refused.why_not == "needs 17.2G of 15.75G hbm"


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("v1", "unknown device 'v1'; known: v5e, v5e-4"),
        ("v5e", "install '.[compile-tpu]'"),
    ],
)
def test_a_device_that_nothing_compiles_for_is_named(device, message, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError) as raised:
        check_target(device)
    assert message in str(raised.value)


class Refusing:
    """Stands in for the process of a device that has room for some lanes only."""

    def __init__(self, most):
        self.most = most
        self.asked = []

    def compile(self, build, settings, lanes):
        assert build is fit.step
        self.asked.append(lanes)
        if lanes > self.most:
            return Compiled(why_not="needs 17.2G of 15.75G hbm")
        return Compiled(temporary_bytes=lanes * 2**30)

    def stop(self):
        self.asked.append("stop")


@pytest.mark.parametrize(
    ("most", "asked", "said"),
    [
        (8, [8], "fits with 8 lanes: 8.0 GiB of 16.0 GiB a device"),
        (5, [8, 4], "fits with 4 lanes: 4.0 GiB of 16.0 GiB a device"),
        (3, [8, 4, 1], "fits with 1 trial at a time: 1.0 GiB of 16.0 GiB a device"),
        (0, [8, 4, 1], "does not fit: needs 17.2G of 15.75G hbm"),
    ],
)
def test_fewer_lanes_are_tried_until_they_fit(monkeypatch, most, asked, said):
    worker = Refusing(most)
    monkeypatch.setattr(fit, "Compiler", lambda device: worker)
    points = [{"seed": seed} for seed in range(5)]
    # 5 trials on 4 devices are 2 lanes of each.
    group = plan_trials(config_of(CONFIG), points)
    (line,) = fit.fits("v5e-4", [group])
    assert line == f"v5e-4: {group[0].name}: {said}"
    assert worker.asked == [*asked, "stop"]


def test_what_a_step_moves_is_said_where_it_is_known(monkeypatch):
    worker = Refusing(8)
    work = Work(kernels=1234, bytes=5_670_000_000)
    worker.compile = lambda *_: Compiled(temporary_bytes=2**30, work=work)
    monkeypatch.setattr(fit, "Compiler", lambda device: worker)
    (line,) = fit.fits("h100", [plan_trials(config_of(CONFIG), [{}])])
    assert line.endswith("a device; a step moves 5.67 GB in 1,234 kernels")


def test_what_compiles_and_is_too_large_does_not_fit(monkeypatch):
    worker = Refusing(8)
    worker.compile = lambda *_: Compiled(temporary_bytes=80 * 2**30)
    monkeypatch.setattr(fit, "Compiler", lambda device: worker)
    trials = plan_trials(config_of(CONFIG), [{}])
    (line,) = fit.fits("h100", [trials])
    assert line.endswith("does not fit: needs 80.0 GiB of 79.0 GiB a device")


def test_a_refusal_is_a_note():
    case = ProgramCase(CONFIG)
    refused = Compiled(why_not="needs 17.2G of 15.75G hbm")
    filled = table("v5e", {case: refused})
    (row,) = filled.rows
    assert row[0] == case.name and "no [" in row[2]
    assert "needs 17.2G of 15.75G hbm" in filled.notes
