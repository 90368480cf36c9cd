"""Beyond the lengths of training: positions × what stands in softmax's place, in a decoder.

    python -m launch.sweep --config=experiments/configs/lengths.py:copy --sweep=positions \
      --seeds=3 --workdir=runs/lengths-copy
    python -m launch.sweep --config=experiments/configs/lengths.py:recall \
      --sweep=positions,normaliser --seeds=2 --workdir=runs/lengths-recall

The claims: in decoders, no positions at all carry over to longer texts as well as ALiBi, T5's
bias and rotary, or better (Kazemnejad et al. 2023, arXiv 2305.19466); ALiBi carries over where
sinusoids do not (Press et al. 2022, arXiv 2108.12409), and FIRE better than either (Li et al.
2023, arXiv 2310.04418); softmax scaled by the log of the number of keys, and entmax so scaled,
whose weights may be 0, keep what softmax spreads over more keys (Nakanishi 2025, arXiv
2501.19399; Vasylenko et al. 2025, arXiv 2506.16640). Forget gates carry over (Lin et al. 2025,
arXiv 2503.02130), and so do decays of each feature of queries and keys, Wall, at many times the
length.

Training and validation have up to 16 symbols to copy, or texts of 64 symbols with 4 keys; the
test eight and four times as many, so that perplexity says what was learned and accuracy what
carries over. Read the figure of accuracy by length for the first, the table for the second.
"""

from experiments.configs import tasks

LENGTHS = {
    "copy": dict(length=16, test_length=128),
    "reverse": dict(length=16, test_length=128),
    "sort": dict(length=16, test_length=128),
    "recall": dict(length=64, test_length=256),
}
POSITIONS = (
    *("sinusoidal", "none", "alibi", "rotary", "t5", "fire"),
    *("forget", "path", "wall"),
)


def get_config(task="copy"):
    if task not in LENGTHS:
        raise ValueError(f"unknown task {task!r}; known: {', '.join(LENGTHS)}")
    config = tasks.get_config(task)
    config.data.update(LENGTHS[task])
    if task == "recall":
        # Until 2,000 steps or so attention may be at a guess, whatever its positions.
        config.training.update(batch_size=32, steps=2000, evaluate_every=500)
    config.update(tasks.sized(config))
    return config


def sweep_positions():
    for positions in POSITIONS:
        yield {"model.positions": positions}


def sweep_normaliser():
    for normaliser in ("softmax", "scalable_softmax", "asentmax"):
        yield {"model.normaliser": normaliser}
