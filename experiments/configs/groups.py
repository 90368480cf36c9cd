"""What one layer has to do to follow a group: parity, S3, S4 and A5, by mixers and positions.

    python -m launch.sweep --config=experiments/configs/groups.py --sweep=systems --seeds=3 \
      --tune=training.learning_rate:0.3,1.0 --workdir=runs/parity
    python -m launch.sweep --config=experiments/configs/groups.py:s3 --sweep=systems --seeds=3 \
      --tune=training.learning_rate:0.3,1.0 --workdir=runs/s3

After each letter of a word the product so far is asked: of parity whether the number of ones is
odd, of the others which permutation the letters make. Words of training have 32 letters, of S4
and A5, which take longer to learn, 16; those of the test four times as many, all letters of
the group's two generators and their inverses. One layer, width 64.

The claims: a recurrence of matrices needs factors below 0 for parity, which β up to 2 gives it
(Grazzi et al. 2024, arXiv 2411.12537); and as many writes a token as a group's elements have
reflections, two for S3 and A5 (Siems et al. 2025, arXiv 2502.10297). One layer of attention with
PaTH solves A5's words, where rotary positions and forget gates do not (Yang et al. 2025, arXiv
2505.16381). Mamba-2, whose factors are above 0, does not solve parity, Mamba-3, whose state
turns, does (Lahoti et al. 2026, arXiv 2603.15569).

Read the accuracy in all and, in `accuracy_by`, by position: three letters of four are beyond
any of training.
"""

from experiments.configs import tasks

GROUPS = {
    "parity": ("z2", 32, 1000),
    "s3": ("s3", 32, 1000),
    "s4": ("s4", 16, 4000),
    "a5": ("a5", 16, 4000),
}
"""Of each the corpus's group, the letters of a word in training, and the steps."""
SYSTEMS = {
    "attention, rotary": ("attention", "rotary"),
    "attention, forget gates": ("attention", "forget"),
    "attention, PaTH": ("attention", "path"),
    "LSTM": ("recurrence(cell=lstm)", "none"),
    "Mamba-2": ("mamba2", "none"),
    "Mamba-3": ("mamba3", "none"),
    "DeltaNet": ("deltanet", "none"),
    "DeltaNet, β to 2": ("deltanet(beta_max=2)", "none"),
    "DeltaNet, β to 2, two writes": ("deltanet(beta_max=2, householders=2)", "none"),
    "Kimi, β to 2": ("kda(beta_max=2)", "none"),
}


def get_config(group="parity"):
    if group not in GROUPS:
        raise ValueError(f"unknown group {group!r}; known: {', '.join(GROUPS)}")
    config = tasks.get_config("words")
    name, length, steps = GROUPS[group]
    config.data.update(
        group=name,
        letters="generators",
        length=length,
        test_length=4 * length,
        pairs=40_000,
    )
    config.model.N = 1
    config.training.update(steps=steps, batch_size=32, evaluate_every=steps // 4)
    config.update(tasks.sized(config))
    return config


def sweep_systems():
    """What mixes positions, and what positions attention has."""
    yield from tasks.mixed(SYSTEMS)


sweep_systems.question = {"base": "DeltaNet"}
