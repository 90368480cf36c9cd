"""Letters in blocks: does it take scores that are mixed with those of tokens nearby?

    python -m launch.sweep --config=experiments/configs/letters.py --sweep=heads --seeds=3 \
      --workdir=runs/letters

A text is ten blocks of five random letters, then two letters of which one block alone has both;
that block's letters are asked. To look for both at once is what softmax of single scores cannot
do in one layer.

The claim: a Transformer fails at it, and one whose scores are mixed by a kernel over queries and
keys makes almost no error (Golovneva et al. 2025, "Multi-token attention", arXiv 2504.00927,
section 4.1).

Two layers of width 64, rotary positions; read the accuracy.
"""

from experiments.configs import tasks

HEADS = {
    "separate": "separate",
    "multi-token, 2 × 11": "multi_token(queries=2, keys=11)",
    "talking": "talking",
}


def get_config():
    config = tasks.get_config("letters")
    config.data.update(length=60, block=5, symbols=26, pairs=60_000)
    config.model.positions = "rotary"
    config.training.update(steps=1500, batch_size=32, evaluate_every=500)
    config.update(tasks.sized(config))
    return config


def sweep_heads():
    for label, heads in HEADS.items():
        yield {"label": label, "model.heads": heads}
    # As many layers again.
    yield {"label": "separate, 4 layers", "model.heads": "separate", "model.N": 4}
