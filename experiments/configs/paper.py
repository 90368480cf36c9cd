"""The models of "Attention Is All You Need" (Vaswani et al. 2017), every setting as
sections 3, 5 and 6.1 state it.

    python -m launch.train --config=experiments/configs/paper.py --config.data.directory=DIR \
      --workdir=runs/base
    python -m launch.train --config=experiments/configs/paper.py:big \
      --config.data.directory=DIR --workdir=runs/big
    python -m launch.sweep --config=experiments/configs/table3.py --sweep=rows --dry_run

DIR holds WMT 2014 English-German: train.en, train.de, newstest2013.* and newstest2014.*,
plain or .gz. The README's table says where in the code each statement stands. What the
paper leaves open: how sentences are put into batches (here: packed, in rows of 256 tokens)
and what happens to longer pairs (here: dropped and counted).

Not run here: base took its authors 12 hours on 8 GPUs.
"""

from experiments.settings import default_config

MODELS = ("base", "big")


def get_config(model="base"):
    if model not in MODELS:
        raise ValueError(f"unknown model {model!r}; known: {', '.join(MODELS)}")
    # The settings' own defaults are those of base.
    config = default_config(corpus="files")
    config.data.update(
        directory="wmt14",
        validation="newstest2013",
        test="newstest2014",
        vocabulary_size=37_000,
        max_length=256,
    )
    # 104 rows of 256 tokens are 26,600; packed they hold about 25,000 real ones on each side.
    config.training.update(
        batch_size=104,
        sequence_length=256,
        steps=100_000,
        log_every=100,
        evaluate_every=1500,
    )
    # The last 5 checkpoints, 10 minutes apart: 1,500 steps of 0.4 s.
    config.training.update(save_every=1500, average=5)
    config.evaluation.update(
        max_length=306, weights="average", beam=4, alpha=0.6, max_extra=50
    )
    if model == "big":
        config.model.update(d_model=1024, d_ff=4096, h=16, P_drop=0.3)
        # The last 20, 10 minutes apart: 600 steps of 1 s.
        config.training.update(
            steps=300_000, evaluate_every=3000, save_every=600, average=20
        )
    return config


def sweep_seed():
    for seed in (0, 1, 2):
        yield {"seed": seed}
