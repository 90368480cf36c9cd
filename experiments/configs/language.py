"""A language model: a decoder by itself, on any text file.

    python -m launch.train --config=experiments/configs/language.py --workdir=runs/language
    python -m launch.sample --workdir=runs/language --count=5 --temperature=0.8
    python -m launch.train --config=experiments/configs/language.py:text \
      --config.data.directory=DIR --config.data.train=FILE --config.data.validation=FILE \
      --config.data.test=FILE \
      --workdir=runs/mine

The first trains on German CLDR phrases, in half a minute on one CPU core; the second writes
some of its own. The third reads FILE in DIR, a text a line, and holds out its last 1,000
lines: 500 for validation, 500 for the test. Lines of more than data.max_length tokens are
cut into parts; with data.lines=stream lines are one text. Perplexity is per token, so it
compares models of one vocabulary alone; bits per character compare all.
"""

from attn import POSITIONS
from experiments.configs import quick
from experiments.settings import override

CORPORA = ("cldr", "text")


def get_config(corpus="cldr"):
    if corpus not in CORPORA:
        raise ValueError(f"unknown corpus {corpus!r}; known: {', '.join(CORPORA)}")
    # Through `override`, because another kind and corpus have other settings.
    config = override(
        quick.get_config(), {"model.kind": "language", "data.corpus": corpus}
    )
    if corpus == "text":
        config.data.update(
            directory="text",
            train="text.txt",
            validation="text.txt",
            test="text.txt",
            vocabulary_size=4000,
            max_length=128,
        )
        config.model.update(N=4, d_model=128, d_ff=512, h=4, d_k=32, d_v=32, P_drop=0.1)
        config.training.update(
            steps=5000,
            schedule="paper(warmup=1000)",
            learning_rate=1.0,
            batch_size=32,
            sequence_length=128,
            evaluate_every=500,
            save_every=500,
        )
        config.evaluation.max_length = 128
    return config


def sweep_positions():
    for positions in POSITIONS:
        yield {"model.positions": positions}


def sweep_layers():
    """What mixes positions."""
    for mixer in (
        "attention",
        "restricted(radius=4)",
        "recurrence(cell=lstm)",
        "convolution(radius=4)",
        "separable(radius=4)",
    ):
        yield {"model.decoder_mixing": mixer}


def sweep_heads(config):
    """h at constant h·d_k."""
    width = config.model.h * config.model.d_k
    for h in (1, 2, 4, 8):
        yield {"model.h": h, "model.d_k": width // h, "model.d_v": width // h}
