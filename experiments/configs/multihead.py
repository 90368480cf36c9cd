"""How heads become one vector: concatenated and multiplied by W_O, as in the paper, or averaged.

    python -m launch.sweep --config=experiments/configs/multihead.py --sweep=heads --seeds=5 \
      --workdir=runs/multihead
    python -m launch.sweep --config=experiments/configs/multihead.py --sweep=rank --seeds=5 \
      --workdir=runs/rank

The question: what do concatenation and W_O do for multi-head attention? Without them each
head gives a whole vector, by a W_V of its own from d_model to d_model, and the output is
the mean of the heads (`mean, full W_V`): d_model/d_v times as many numbers in W_V as in the
paper's. Written as a product of two matrices, d_model × d_v and d_v × d_model, W_V has rank
d_v (`mean, W_V of rank 16`). The paper's W_V and W_O are just that, so this row should
differ from base by its initial values alone. An activation on the output makes the two
something else.

CLDR phrases, half a minute to a minute a trial on one CPU core.
"""

from experiments.configs import quick

get_config = quick.get_config


def sweep_heads(config):
    d_v = config.model.d_v
    d_model = config.model.d_model
    yield {"label": "concat"}
    yield {"label": f"mean, W_V of rank {d_v}", "model.combine": "mean"}
    # Heads as wide as the model need no W_O to be averaged.
    yield {"label": "mean, full W_V", "model.combine": "mean", "model.d_v": d_model}
    yield {"label": "concat, ReLU after", "model.head_activation": "relu"}
    yield {
        "label": "mean, full W_V, ReLU after",
        "model.combine": "mean",
        "model.d_v": d_model,
        "model.head_activation": "relu",
    }


def sweep_rank(config):
    """The rank of W_V, up to the full matrix."""
    for d_v in (4, 16, 32, config.model.d_model):
        yield {"label": f"rank {d_v}", "model.combine": "mean", "model.d_v": d_v}
