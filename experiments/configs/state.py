"""What takes a state: words of A5 and the flip-flop, by attention and by recurrences.

    python -m launch.sweep --config=experiments/configs/state.py:words \
      --sweep=systems,layers --seeds=3 --workdir=runs/state-words
    python -m launch.sweep --config=experiments/configs/state.py:words \
      --sweep=systems,task --base=decoder_mixing=attention --within=group --seeds=3 \
      --workdir=runs/state-groups
    python -m launch.sweep --config=experiments/configs/state.py:flipflop --sweep=systems \
      --seeds=3 --workdir=runs/state-flipflop

The claims: with a fixed number of layers attention follows products of a group that is not
solvable, A5, over short words only, and more layers reach further, while one layer of a
recurrence follows words of any length (Merrill et al. 2024, "The illusion of state in
state-space models", arXiv 2404.08819); words of a group that is, Z60, are easier for it.
Attention solves the flip-flop on texts like those of training, and makes sporadic errors where
reads are far from writes, which LSTMs do not (Liu et al. 2023, arXiv 2306.00946, section 4).
A recurrence of matrices must change the signs of parts of its state to follow a group, which
DeltaNet does with β up to 2 (Grazzi et al. 2024, arXiv 2411.12537), and to write twice a symbol
for A5, whose turns are two reflections each (Siems et al. 2025, arXiv 2502.10297).

For the first claim read `accuracy_by` position in result.json, of a test whose words are twice
as long as those of training; for the second exact match, of a test in which 98 of 100
instructions are to be ignored.

Unlike in the first paper, words are of two generators and their inverses and not of all 60
elements, whose 3600 products no system here learns in minutes.
"""

from experiments.configs import tasks

SYSTEMS = {
    "attention": "attention",
    "LSTM": "recurrence(cell=lstm)",
    "GRU": "recurrence(cell=gru)",
    "DeltaNet": "deltanet",
    "DeltaNet, β to 2": "deltanet(beta_max=2)",
    "DeltaNet, β to 2, two writes": "deltanet(beta_max=2, householders=2)",
}


def get_config(task="words"):
    if task not in ("words", "flipflop"):
        raise ValueError(f"unknown task {task!r}; known: words, flipflop")
    config = tasks.get_config(task)
    if task == "words":
        config.data.update(
            length=16, test_length=32, letters="generators", pairs=60_000
        )
        config.training.update(steps=2000, evaluate_every=500)
    else:
        config.data.update(length=128, test_ignore=0.98)
        config.training.update(batch_size=32)
    config.update(tasks.sized(config))
    return config


def sweep_systems():
    for label, mixer in SYSTEMS.items():
        yield {"label": label, "model.decoder_mixing": mixer}


def sweep_layers():
    for layers in (1, 2, 4):
        yield {"model.N": layers}


def sweep_task(config):
    """Two groups, or how far reads are from writes in the test."""
    if config.data.corpus == "words":
        for group in ("a5", "z60"):
            yield {"data.group": group}
    else:
        for ignore in (0.8, 0.98):
            yield {"data.test_ignore": ignore}
