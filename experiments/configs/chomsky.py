"""What a model knows of positions, on tasks of the Chomsky hierarchy beyond training's lengths.

    python -m launch.sweep --config=experiments/configs/chomsky.py:even_pairs \
      --sweep=positions --seeds=3 --workdir=runs/even-pairs
    python -m launch.sweep --config=experiments/configs/chomsky.py:reverse_string \
      --sweep=systems --seeds=3 --workdir=runs/reverse-string

Texts of training have 1 to 40 symbols, those of the test 41 to 100. Delétang et al. 2023 (arXiv
2207.02098) train on 1 to 40 and test on 41 to 500, and Ruoss et al. 2023 (arXiv 2305.16843)
compare positions on the same: both give the greatest accuracy of many runs, mean over lengths;
here it is the mean over seeds, of few steps of a small model.

A language model of two layers, width 64; read the accuracy and, in
`accuracy_by` distance, accuracy by the length of what is read.
"""

from attn import POSITIONS
from experiments.configs import groups, tasks
from experiments.settings.tasks import HIERARCHY

SYSTEMS = (
    "attention, rotary",
    "LSTM",
    "DeltaNet, β to 2",
    "Kimi, β to 2",
    "Mamba-2",
)


def get_config(task="parity_check"):
    if task not in HIERARCHY:
        raise ValueError(f"unknown task {task!r}; known: {', '.join(HIERARCHY)}")
    config = tasks.get_config("chomsky")
    config.data.update(task=task, length=40, test_length=100, pairs=60_000)
    config.training.update(steps=2000, evaluate_every=500)
    config.update(tasks.sized(config))
    return config


def sweep_positions():
    for positions in POSITIONS:
        yield {"model.positions": positions}


def sweep_systems():
    """What mixes positions, as in groups.py."""
    for point in groups.sweep_systems():
        if point["label"] in SYSTEMS:
            yield point
