"""How wide a model must be to recall: systems × d_model × length.

    python -m launch.sweep --config=experiments/configs/recall.py \
      --sweep=systems,d_model,length --seeds=2 --workdir=runs/recall
    python -m launch.sweep --config=experiments/configs/recall.py \
      --sweep=cousins,d_model,length --seeds=2 --workdir=runs/recall-cousins

The claim: attention solves multi-query associative recall at a small width whatever the
length, while the width that recurrences and convolutions need grows with the length and its
number of keys (Arora et al. 2023, "Zoology", arXiv 2312.04927, figure 2). Read accuracy along
d_model for each system, one length at a time; result.json has it by the distance from key to
question. The second command has attention's linear relatives: the state of linear attention is
as small, and the delta rule uses it better (Yang et al. 2024, arXiv 2406.06484).

As there, two layers read texts of 32, 64 and 128 symbols with 2, 4 and 8 pairs of key and value.
Unlike there, symbols are 64 and not 8192, the learning rate is the same in all rows, attention
has rotary positions, with which it learns in minutes, and a convolution reaches over half of
the longest text in each layer. A row that has not learned says so by its perplexity: where one
looks badly trained, `--tune=training.learning_rate:0.1,0.35,1.0` asks.
"""

from experiments.configs import tasks

LENGTHS = {32: 2, 64: 4, 128: 8}
"""Pairs of key and value by length."""

SYSTEMS = {
    "attention": "attention",
    "recurrence": "recurrence(cell=gru)",
    "convolution": "separable(radius=64)",
}
COUSINS = {
    "attention": "attention",
    "linear attention": "linear_attention",
    "DeltaNet": "deltanet",
}


def get_config():
    config = tasks.get_config("recall")
    config.data.update(length=64, key_values=4, symbols=64)
    config.model.positions = "rotary"
    config.training.update(steps=2000, evaluate_every=500)
    config.update(tasks.sized(config))
    return config


def sweep_systems():
    yield from _mixed(SYSTEMS)


def sweep_cousins():
    yield from _mixed(COUSINS)


QUESTION = {"base": "decoder_mixing=attention", "within": ["d_model", "length"]}
sweep_systems.question = sweep_cousins.question = QUESTION


def sweep_d_model():
    for d_model in (16, 32, 64):
        yield {
            "model.d_model": d_model,
            "model.d_ff": 4 * d_model,
            "model.d_k": d_model // 4,
            "model.d_v": d_model // 4,
        }


def sweep_length(config):
    """As many tokens and answers a batch at each length."""
    for length, key_values in LENGTHS.items():
        yield {
            **tasks.point(config, length=length, key_values=key_values),
            "training.batch_size": 64 * 64 // length,
        }


def _mixed(mixers):
    for label, mixer in mixers.items():
        # Others know where a symbol stands by what they are.
        positions = "rotary" if mixer == "attention" else "none"
        yield {
            "label": label,
            "model.decoder_mixing": mixer,
            "model.positions": positions,
        }
