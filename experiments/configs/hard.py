"""Hard attention against soft: the value of one key, the best or a random one, in place of
the mean of all.

    python -m launch.sweep --config=experiments/configs/hard.py:rnn --sweep=choice --seeds=3 \
      --workdir=runs/hard-rnn
    python -m launch.sweep --config=experiments/configs/hard.py --sweep=choice --seeds=3 \
      --workdir=runs/hard

The question: does a model that may look at one word at a time learn where to look, and what
does it lose? `argmax` takes the best key and the gradient of soft attention
(straight-through); `sampled` draws a key and learns by REINFORCE, with a baseline for each
target token and a bonus for entropy, after Xu et al. (2015, section 4.1); both take the
best key when they translate. In the recurrent model that is its one attention; in the
Transformer the last layer's attention to the source, here of one layer with one head, for
REINFORCE cannot tell which of several heads that draw at once was right. Read the alignment
error rate beside perplexity: CLDR's phrases come with alignments. REINFORCE is the slowest
to learn, so one row has three times the steps; an entropy bonus of 0.1 is better on
validation than one of 0.01.

CLDR phrases, half a minute to a minute a trial on one CPU core.
"""

from experiments.configs import quick, systems
from experiments.settings import override

MODELS = ("transformer", "rnn")


def get_config(model="transformer"):
    if model not in MODELS:
        raise ValueError(f"unknown model {model!r}; known: {', '.join(MODELS)}")
    config = quick.get_config()
    config.model.update(N=1, h=1, d_k=64, d_v=64)
    if model == "rnn":
        # So wide it has about the parameters of quick.py's Transformer, see systems.py.
        rnn = {"model.kind": "rnn", "model.score": "bilinear", "model.d_model": 104}
        config = override(config, rnn)
        config.training.learning_rate = systems.RATES["cldr"]["rnn"]
    config.training.entropy_bonus = 0.1
    return config


def sweep_choice():
    for choice in ("soft", "argmax", "sampled"):
        yield {"model.selection": choice}
    yield {
        "label": "sampled, 3 times the steps",
        "model.selection": "sampled",
        # Three times quick.py's 600.
        "training.steps": 1800,
    }


def sweep_entropy():
    for entropy in (0.0, 0.01, 0.1):
        yield {"model.selection": "sampled", "training.entropy_bonus": entropy}
