"""What is measured at growing sizes; each function measures one size."""

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from attn import Mask, attention
from experiments import settings
from experiments.data.dataset import prepare
from experiments.report.comparison import compare
from experiments.report.rows import rows_of
from experiments.report.trial_files import Results, TrialResult
from experiments.sweep.plan import plan_trials
from experiments.system import machine
from experiments.training import speed
from launch.bench.compile.configs import config_of
from launch.bench.compile.training import step
from launch.bench.growth.curve import Cost, Curve
from launch.bench.harness import device
from launch.bench.harness.process import peak_growth
from launch.bench.runner import data

CONFIG = "experiments/configs/quick.py"
H = 4
D = 64
WINDOW = 64
SEEDS = 5
"""Seeds of each row in the tables that are judged."""
BATCH = 64
"""Rows of a step's batch, however many devices share it."""

HEADS = f"{H} heads of {D}, forward and backward; temporary memory"
LANES = f"lanes of one program, of {CONFIG} with batches of {BATCH} rows, on one device"
TABLES = f"of tables of three metrics and {SEEDS} seeds a row"
DEVICES = (
    f"of {CONFIG}, a batch of {BATCH} rows for all devices, which are made of the CPU's "
    "cores; the memory of one"
)


def measure_attention(mask: Mask, n: int) -> Cost:
    """Measures attention of n tokens with its gradients, by the kernel that it picks.

    The bytes are temporary ones, by the compiler's account.
    """
    q, k, v, g = jax.random.normal(jax.random.key(0), (4, n, H, D))

    def loss(q, k, v):
        return jnp.vdot(attention(q, k, v, mask=mask), g)

    program = jax.jit(jax.grad(loss, (0, 1, 2))).lower(q, k, v).compile()
    jax.block_until_ready(program(q, k, v))
    begin = time.perf_counter()
    jax.block_until_ready(program(q, k, v))
    seconds = time.perf_counter() - begin
    return Cost(seconds, program.memory_analysis().temp_size_in_bytes)


def measure_lanes(trials: int) -> Cost:
    """Measures a training step of so many trials in one program, on one device."""
    return _step(trials, jax.devices()[:1])


def measure_devices(devices: int) -> Cost:
    """Measures a training step of one trial whose batch so many devices share.

    The devices are made of the CPU's cores, so that no step can be faster than on one; the
    bytes are those of one device.
    """
    # Both are read once, when JAX starts. A device holds a thread while it waits for the others.
    jax.config.update("jax_num_cpu_devices", devices)
    os.environ["NPROC"] = "32"
    return _step(1, jax.devices())


def _step(trials, devices):
    """Returns seconds of a step, and the bytes of its arguments and temporary arrays."""
    machine.use_compile_cache()
    config = config_of(CONFIG)
    config.training.batch_size = BATCH
    resolved = settings.resolve(config)
    seconds = speed.measure(resolved, prepare(resolved.data), trials).step
    function, arguments = step(resolved, trials, devices)
    memory = function.lower(*arguments).compile().memory_analysis()
    return Cost(seconds, memory.argument_size_in_bytes + memory.temp_size_in_bytes)


def measure_plan(trials: int) -> Cost:
    """Measures the plan of a sweep of so many trials: their settings, checked."""
    config = config_of(CONFIG)
    points = [{"seed": seed} for seed in range(trials)]
    return _called(lambda: plan_trials(config, points))


def measure_verdicts(trials: int) -> Cost:
    """Measures the verdicts of a table of so many finished trials, in all its metrics."""
    rng = np.random.default_rng(0)
    finished = [
        _finished(row, seed, *rng.normal(size=2))
        for row in range(trials // SEEDS)
        for seed in range(SEEDS)
    ]
    rows = rows_of(Results(Path(), tuple(finished)))
    return _called(lambda: compare(rows, lambda trial: {}))


def _finished(row, seed, first, second):
    result = dict(
        status="finished",
        perplexity=4 + 0.1 * first,
        bleu=30 + second,
        chrf=50 + second,
    )
    return TrialResult(
        name=f"{row},{seed}",
        point={"model.d_k": row, "seed": seed} if row else {"seed": seed},
        seed=seed,
        directory=Path(),
        config={},
        record={},
        metrics=(),
        result=result,
        status="finished",
    )


def _called(function):
    """Returns the seconds of a call that others went before, and the bytes it grows by."""
    growth = peak_growth(function)
    begin = time.perf_counter()
    function()
    return Cost(time.perf_counter() - begin, growth)


def measure_text(stage: Callable, pairs: int) -> Cost:
    """Measures `data.first` or `data.epoch`, a stage of so many pairs' way to batches."""
    resolved = settings.resolve(config_of(CONFIG))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data.write_corpus(folder, pairs)
        sized = data.on_files(resolved, temporary)
        timing = data.in_process(folder, data.first, sized.data)
        if stage is data.epoch:
            timing = data.in_process(folder, data.epoch, sized)
    return Cost(timing.seconds, timing.memory)


def _curves(tokens, lanes, trials, pairs, devices):
    masks = {
        "attention": Mask(),
        "causal": Mask.causal(),
        f"window of {WINDOW} + 1 + {WINDOW}": Mask.window(WINDOW, WINDOW),
    }
    stages = {"at first sight": data.first, "an epoch's batches": data.epoch}
    return (
        *(
            Curve(name, "tokens", tokens, partial(measure_attention, mask), HEADS)
            for name, mask in masks.items()
        ),
        Curve("a step of all", "trials", lanes, measure_lanes, LANES),
        Curve("the plan", "trials", trials, measure_plan),
        Curve("the verdicts", "trials", trials, measure_verdicts, TABLES),
        *(
            Curve(name, "pairs", pairs, partial(measure_text, stage))
            for name, stage in stages.items()
        ),
        Curve("a step of one batch", "devices", devices, measure_devices, DEVICES),
    )


CURVES = _curves(
    tokens=(1024, 2048, 4096, 8192, 16384),
    # A CPU is full with one; the sizes of an accelerator end where a sweep's do.
    lanes=(1, 2, 4, 8, 16) if device.platform() == device.CPU else (1, 4, 16, 64),
    trials=(40, 160, 640, 2560),
    pairs=(20_000, 80_000, 320_000, 1_280_000),
    devices=(1, 2, 4, 8),
)

TINY = _curves(
    tokens=(128, 256), lanes=(1, 2), trials=(10, 20), pairs=(300, 600), devices=(1, 2)
)
