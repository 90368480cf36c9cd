"""Is a small gain more than the spread of seeds? Exclusive attention, in a language model.

    python -m launch.sweep --config=experiments/configs/exclusive.py --sweep=heads --seeds=10 \
      --workdir=runs/exclusive

The claim: what a token's own value says, taken out of its output, lowers the loss of a language
model at no cost (Zhai 2026, arXiv 2603.09078). Speedruns took it over for a gain of 0.0018 bits
a byte, twice the standard deviation of their seeds, without a test.

CLDR's German phrases, two layers of width 64, ten seeds; read bits per character.
"""

from experiments.configs import language


def get_config():
    return language.get_config()


def sweep_heads():
    for label, heads in (("separate", "separate"), ("exclusive", "exclusive")):
        yield {"label": label, "model.heads": heads}


sweep_heads.question = {"base": "separate"}
