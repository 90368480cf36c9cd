"""What a model knows of positions, and the commands of SCAN longer than those of training.

    python -m launch.sweep --config=experiments/configs/scan.py --sweep=positions --seeds=3 \
      --workdir=runs/scan
    python -m launch.sweep --config=experiments/configs/scan.py:22 --sweep=positions --seeds=3 \
      --workdir=runs/scan-22

A model reads a command, as "jump around left twice and walk", and writes its actions, of which
training has 26 at most and the test more, up to 48; with :22 training has 22, as in the first
paper (Lake and Baroni 2018, arXiv 1711.00350), which reaches 20.8 % there. A command is right
where all its actions and their end are.

The claim: Transformers with absolute positions fail at it, and those that read the distance
between tokens solve it where training has 26 actions (Csordás et al. 2021, arXiv 2108.12284);
much of what fails is that models end too early (Newman et al. 2020, arXiv 2010.07174).

A language model of two layers, width 64; read exact match. Validation has commands of training,
as nothing else is of its lengths: its perplexity says how well these are known.
"""

from attn import POSITIONS
from experiments.configs import tasks
from experiments.settings.tasks import SCAN_CUTOFFS


def get_config(cutoff="26"):
    if cutoff not in map(str, SCAN_CUTOFFS):
        known = ", ".join(map(str, SCAN_CUTOFFS))
        raise ValueError(f"unknown cutoff {cutoff!r}; known: {known}")
    config = tasks.get_config("scan")
    config.data.update(split="length", cutoff=int(cutoff), pairs=60_000)
    config.training.update(
        steps=2000,
        batch_size=32,
        evaluate_every=500,
        # With the paper's schedule one command in ten of training's length is still wrong.
        schedule="cosine(warmup=100)",
        learning_rate=0.004,
    )
    config.update(tasks.sized(config))
    return config


def sweep_positions():
    for positions in POSITIONS:
        yield {"model.positions": positions}
