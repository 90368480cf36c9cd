"""What mixes positions: the rows of the paper's Table 1 as an ablation, each in place of
self-attention in all layers.

    python -m launch.sweep --config=experiments/configs/layers.py --sweep=layers --seeds=5 \
      --workdir=runs/layers
    python -m launch.sweep --config=experiments/configs/layers.py --sweep=layers,positions \
      --seeds=3 --workdir=runs/layers-positions
    python -m launch.sweep --config=experiments/configs/layers.py --sweep=cousins --seeds=5 \
      --workdir=runs/cousins

The question: is it self-attention that makes a Transformer good, or would a recurrence or a
convolution do as well in its place, with the same attention from decoder to encoder? The
first command compares them; the second asks as well what each knows of order by itself:
recurrence and convolution should need no positions, self-attention cannot do without. The
third has attention's linear relatives, whose state is a matrix a head. What each row of
Table 1 costs over n and d, beside its O(·), is in experiments/results/layers/table.md.

The rows have about the same number of parameters (`--dry_run` says): a layer's
self-attention has 4·d_model², as h·d_k = d_model; GRU cells have 6 (4.5 in both
directions), three taps of a convolution 3, a separable one 1. Restricted attention reaches
one position to each side, of phrases of 10 tokens on average. Linear attention has those
of self-attention, DeltaNet hardly more; with gates of outputs it is 5·d_model² and what makes
the decays, of Mamba-2 and its relatives, whose heads share queries and keys, 3.5.

CLDR phrases, half a minute to a minute a trial on one CPU core.
"""

from experiments.configs import quick

MIXERS = {
    "self-attention": "attention",
    "restricted": "restricted(radius=1)",
    "recurrence": "recurrence(cell=gru)",
    "convolution": "convolution(radius=1)",
    "separable": "separable(radius=1)",
}

COUSINS = {
    "self-attention": "attention",
    "linear attention": "linear_attention",
    "gated linear attention": "gated_linear_attention",
    "DeltaNet": "deltanet",
    "gated DeltaNet": "gated_deltanet",
    "Kimi Delta Attention": "kda",
    "Mamba-2": "mamba2",
    "Mamba-3": "mamba3",
    "log-linear attention": "log_linear",
    "short convolution, DeltaNet": "short(inner=deltanet)",
}

get_config = quick.get_config


def sweep_layers():
    """In encoder and decoder."""
    for label, mixer in MIXERS.items():
        yield {
            "label": label,
            "model.encoder_mixing": mixer,
            "model.decoder_mixing": mixer,
        }


def sweep_cousins():
    """Linear attention and its relatives, in encoder and decoder."""
    for label, mixer in COUSINS.items():
        yield {
            "label": label,
            "model.encoder_mixing": mixer,
            "model.decoder_mixing": mixer,
        }


def sweep_encoder():
    """In the encoder alone."""
    for label, mixer in MIXERS.items():
        yield {"label": label, "model.encoder_mixing": mixer}


def sweep_decoder():
    """In the decoder alone."""
    for label, mixer in MIXERS.items():
        yield {"label": label, "model.decoder_mixing": mixer}


def sweep_radius():
    """How far restricted attention has to see."""
    for radius in (1, 2, 4, 8):
        mixer = f"restricted(radius={radius})"
        yield {"model.encoder_mixing": mixer, "model.decoder_mixing": mixer}


def sweep_positions():
    for positions in ("sinusoidal", "none"):
        yield {"model.positions": positions}
