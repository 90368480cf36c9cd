"""A small classifier: an encoder, attention pooling over it, and a label for each text.

    python -m launch.train --config=experiments/configs/labels.py --workdir=runs/labels
    python -m launch.sweep --config=experiments/configs/labels.py --sweep=pooling --seeds=2 \
      --workdir=runs/pooling
    python -m launch.train --config=experiments/configs/labels.py:tsv --config.data.directory=DIR \
      --workdir=runs/mine

The first learns which of four markers comes first in a text, where a guess is right in 25 %
and so is whoever knows no places: sweep `positions` shows it. It takes half a minute on one
CPU core. The third reads DIR/train.tsv, val.tsv and test.tsv, a text and its label on each
line, with a tab between; csv and jsonl are read likewise. The labels are those of training.
result.json has accuracy, macro-F1 and the cross-entropy of validation.
"""

from experiments.configs import quick, tasks
from experiments.settings import override

CORPORA = ("first", "tsv", "csv", "jsonl")


def get_config(corpus="first"):
    if corpus not in CORPORA:
        raise ValueError(f"unknown corpus {corpus!r}; known: {', '.join(CORPORA)}")
    if corpus == "first":
        config = tasks.get_config(corpus)
        config.training.update(
            steps=400,
            # Rows of three texts, and of longer ones where another corpus has such.
            batch_size=16,
            sequence_length=64,
            evaluate_every=100,
            save_every=200,
        )
        return config
    # Through `override`, because another kind and corpus have other settings.
    config = override(
        quick.get_config(), {"model.kind": "classifier", "data.corpus": corpus}
    )
    config.data.update(objective="label", directory="text", max_length=64)
    config.model.update(P_drop=0.1)
    return config


def sweep_pooling():
    """The score by which the pooling weighs tokens."""
    for score in ("additive", "scaled_dot", "bilinear"):
        yield {"model.pooling_score": score}


def sweep_positions():
    for positions in ("sinusoidal", "rotary", "none"):
        yield {"model.positions": positions}


def sweep_layers():
    """What mixes positions."""
    for mixer in ("attention", "recurrence(cell=gru)", "separable(radius=4)"):
        yield {"model.encoder_mixing": mixer}
