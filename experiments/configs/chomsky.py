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

from experiments.configs import tasks
from experiments.settings.tasks import HIERARCHY

POSITIONS = (
    "none",
    "sinusoidal",
    "learned",
    "randomised",
    "rotary",
    "alibi",
    "t5",
    "relative",
    "kerple",
    "fire",
    "forget",
    "cope",
    "path",
    "wall",
)
SYSTEMS = {
    "attention, rotary": ("attention", "rotary"),
    "LSTM": ("recurrence(cell=lstm)", "none"),
    "DeltaNet, β to 2": ("deltanet(beta_max=2)", "none"),
    "Kimi, β to 2": ("kda(beta_max=2)", "none"),
    "Mamba-2": ("mamba2", "none"),
}


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
    for label, (mixer, positions) in SYSTEMS.items():
        yield {
            "label": label,
            "model.decoder_mixing": mixer,
            "model.positions": positions,
        }
