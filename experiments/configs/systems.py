"""What came before the Transformer, beside it: recurrent encoder-decoders without and with
attention by each score.

    python -m launch.sweep --config=experiments/configs/systems.py --sweep=systems --seeds=3 \
      --workdir=runs/systems
    python -m launch.sweep --config=experiments/configs/systems.py:multi30k \
      --config.data.directory=DIR --sweep=systems --seeds=3 --workdir=runs/systems-multi30k

The question: what does attention give a recurrent translator, which score is best, and what
does the Transformer add at equal parameters? The literature has: no attention loses, the
more the longer the sentences (Bahdanau et al. 2015, figure 2); bilinear is better than dot,
which is better than none (Luong et al. 2015, table 4: "general" is best for global
attention); additive is a little better than products (Britz et al. 2017, table 5); the
Transformer is better than all of them (Vaswani et al. 2017, table 2).

Each recurrent row has the even d_model with which its parameters come nearest to the
Transformer's: `--dry_run` shows them. One layer of LSTM cells, on the Transformer's
learning rate schedule times a factor of its own, see RATES.
"""

import bisect

import jax

import attn
from experiments.configs import multi30k, quick
from experiments.configs.scores import SCORES

CORPORA = ("cldr", "multi30k")
RATES = {
    "cldr": {"transformer": 0.35, "rnn": 0.35},
    "multi30k": {"transformer": 0.85, "rnn": 0.65},
}
"""Factors on the schedule. On CLDR for each kind of model the best of a few on validation;
on Multi30k they peak at 0.005 for the Transformer, as in multi30k.py, and for the RNN at
what was best for it on CLDR, 0.0034."""


def get_config(corpus="cldr"):
    if corpus not in CORPORA:
        raise ValueError(f"unknown corpus {corpus!r}; known: {', '.join(CORPORA)}")
    if corpus == "cldr":
        config = quick.get_config()
    else:
        config = multi30k.get_config()
        config.model.update(N=2, d_model=96, d_ff=192, h=4, d_k=24, d_v=24, P_drop=0.2)
        config.data.update(vocabulary_size=4000)
        config.training.update(
            steps=800,
            schedule="paper(warmup=300)",
            batch_size=24,
            evaluate_every=400,
            save_every=400,
            average=0,
        )
        config.evaluation.update(weights="raw", sentences=200, beam=4)
    config.training.learning_rate = RATES[corpus]["transformer"]
    return config


def sweep_systems(config):
    yield {"label": "Transformer"}
    # A config does not say which preset made it, but its corpus does.
    corpus = "multi30k" if config.data.corpus == "files" else "cldr"
    for score in ("none", *SCORES):
        yield {
            "label": "RNN without attention" if score == "none" else f"RNN, {score}",
            "model.kind": "rnn",
            "model.score": score,
            "model.N": 1,
            "model.d_model": width(config, score),
            "training.learning_rate": RATES[corpus]["rnn"],
        }


def width(config, score) -> int:
    """The even d_model of a recurrent model whose parameters are nearest to the Transformer's."""
    m = config.model
    tokens = config.data.vocabulary_size
    # Three attentions, two feed-forward layers with biases, five LayerNorms.
    transformer = tokens * m.d_model + m.N * (
        6 * m.d_model * m.h * (m.d_k + m.d_v)
        + 4 * m.d_model * m.d_ff
        + 2 * m.d_ff
        + 12 * m.d_model
    )
    # Even, because each direction of the encoder has half of the features.
    widths = range(2, 2 * m.d_model + 512, 2)
    # The count grows with the width, so the nearest is one of two neighbours.
    i = bisect.bisect_left(
        widths, transformer, key=lambda d: parameters(d, score, tokens)
    )
    return min(
        widths[max(0, i - 1) : i + 1],
        key=lambda d: abs(parameters(d, score, tokens) - transformer),
    )


def parameters(d, score, tokens) -> int:
    """Returns those of an RNN, see `attn.RNN`: a layer of LSTM cells, tied embeddings."""
    return tokens * d + 17 * d**2 + 10 * d + tokens + score_parameters(d, score)


def score_parameters(d, score) -> int:
    """Returns the number of a score's own parameters, by shape."""
    if score == "none":
        return 0
    key = jax.eval_shape(lambda: jax.random.key(0))
    shapes = jax.eval_shape(lambda key: attn.SCORES[score].init(key, 1, d, d), key)
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))
