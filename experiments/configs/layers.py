"""What mixes positions: the rows of the paper's Table 1 as an ablation, each in place of self-attention in all layers.

    python -m launch.sweep --config=experiments/configs/layers.py --sweep=layers --seeds=5 --workdir=runs/layers
    python -m launch.sweep --config=experiments/configs/layers.py --sweep=layers,positions --seeds=3 \
      --workdir=runs/layers-positions
    python -m launch.bench layers

The question: is it self-attention that makes a Transformer good, or would a recurrence or a convolution do as well in
its place, with the same attention from decoder to encoder? The first command compares them; the second asks as well
what each knows of order by itself: recurrence and convolution should need no positions, self-attention cannot do
without. The third measures what each costs over n and d, beside Table 1's O(·).

The rows have about the same number of parameters (`--dry_run` says): a layer's self-attention has 4·d_model², as
h·d_k = d_model; GRU cells have 6 (4.5 in both directions), three taps of a convolution 3, a separable one 1. Restricted
attention reaches `radius` positions to each side, of phrases of 10 tokens on average.

CLDR phrases, half a minute to a minute a trial on one CPU core.
"""

from experiments.configs import quick

KINDS = ("attention", "restricted", "recurrence", "convolution", "separable")


def get_config():
    config = quick.get_config()
    config.model.update(radius=1, cell="gru")
    return config


def sweep_layers():
    for kind in KINDS:
        yield {
            "label": "self-attention" if kind == "attention" else kind,
            "model.encoder_mixing": kind,
            "model.decoder_mixing": kind,
        }


def sweep_encoder():
    """In the encoder alone."""
    for kind in KINDS:
        yield {"model.encoder_mixing": kind}


def sweep_decoder():
    """In the decoder alone."""
    for kind in KINDS:
        yield {"model.decoder_mixing": kind}


def sweep_radius():
    """How far restricted attention has to see."""
    for radius in (1, 2, 4, 8):
        yield {
            "model.encoder_mixing": "restricted",
            "model.decoder_mixing": "restricted",
            "model.radius": radius,
        }


def sweep_positions():
    for positions in ("sinusoidal", "none"):
        yield {"model.positions": positions}
