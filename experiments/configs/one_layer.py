"""What one layer can do: recall and the flip-flop, by what mixes positions and what says them.

    python -m launch.sweep --config=experiments/configs/one_layer.py:recall --sweep=systems \
      --seeds=3 --tune=training.learning_rate:0.1,0.3,1.0 --workdir=runs/one-recall
    python -m launch.sweep --config=experiments/configs/one_layer.py:recall --sweep=rate,narrow \
      --seeds=2 --workdir=runs/one-rates
    python -m launch.sweep --config=experiments/configs/one_layer.py:flipflop \
      --sweep=positions --seeds=3 --tune=training.learning_rate:0.3,1.0 \
      --workdir=runs/one-flipflop

The claims. One layer of attention stays at chance on recall whatever its learning rate, while
one of a modern recurrence learns it, within a narrow range of rates (Okpekpe and Orvieto 2025,
"When recalling in-context, Transformers are not SSMs", arXiv 2508.19029). A short convolution
before a layer lets one layer recall, and no positions are then as good as rotary ones (Allen-Zhu
2025, "Canon layers", arXiv 2512.17351). One layer of attention with PaTH solves the flip-flop,
where rotary positions and forget gates do not (Yang et al. 2025, arXiv 2505.16381).

Read accuracy: of recall over texts of 64 symbols with four keys, where a guess among a
text's values is right in 25 %;
of the flip-flop over texts in which 98 of 100 instructions are to be ignored. Width 64.
"""

from experiments.configs import tasks

SYSTEMS = {
    "attention, rotary": ("attention", "rotary"),
    "attention, none": ("attention", "none"),
    "short convolution, attention, rotary": ("short(inner=attention)", "rotary"),
    "short convolution, attention, none": ("short(inner=attention)", "none"),
    "DeltaNet": ("deltanet", "none"),
    "short convolution, DeltaNet": ("short(inner=deltanet)", "none"),
    "Mamba-2": ("mamba2", "none"),
}
POSITIONS = ("rotary", "none", "alibi", "forget", "cope", "path")


def get_config(task="recall"):
    if task not in ("recall", "flipflop"):
        raise ValueError(f"unknown task {task!r}; known: recall, flipflop")
    config = tasks.get_config(task)
    config.model.update(N=1, positions="rotary")
    if task == "recall":
        config.data.update(length=64, key_values=4, symbols=64)
        config.training.update(steps=2000, evaluate_every=500)
    else:
        config.data.update(length=128, test_ignore=0.98)
        config.training.update(batch_size=32)
    config.update(tasks.sized(config))
    return config


def sweep_systems():
    yield from tasks.mixed(SYSTEMS)


sweep_systems.question = {"base": "attention, rotary"}


def sweep_narrow():
    """Three that differ in how wide a range of rates they learn in."""
    for label in ("attention, rotary", "DeltaNet", "Mamba-2"):
        mixer, positions = SYSTEMS[label]
        yield {"model.decoder_mixing": mixer, "model.positions": positions}


sweep_narrow.question = {
    "base": "decoder_mixing=attention",
    "within": ["learning_rate"],
}


def sweep_rate():
    for rate in (0.03, 0.1, 0.3, 1.0, 3.0):
        yield {"training.learning_rate": rate}


def sweep_positions():
    for positions in POSITIONS:
        yield {"model.positions": positions}
