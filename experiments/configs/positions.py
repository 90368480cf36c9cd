"""What a Transformer knows of positions, trained on short sentences and tested on all lengths.

    python -m launch.sweep --config=experiments/configs/positions.py --sweep=positions \
      --seeds=5 --workdir=runs/positions

The question: which ways of telling positions carry over to sentences longer than any in
training? The paper hoped that of sinusoids (section 3.5), Press et al. (2022) show it of
ALiBi. Training has single phrases and two in a row, of 20 tokens at most, end mark
included; the held-out sentences one to six, so that all lengths have the same kinds of
phrases. Read the figure of perplexity and exact match by source length, up to four times
that of training and beyond. Perplexity is told the right tokens so far, translations find
their own.

Learned positions beyond the training sentences keep their initial random values, as nothing
ever trains them; so do the values that t5 and relative have for distances which no training
sentence spans.

CLDR phrases; about a minute a trial on one CPU core.
"""

from attn import POSITIONS
from experiments.configs import quick


def get_config():
    config = quick.get_config()
    # max_length drops training pairs only, so the held-out ones may be longer.
    config.data.update(max_length=20, concatenate=6, heldout=1750)
    config.evaluation.max_length = 98
    return config


def sweep_positions():
    for positions in POSITIONS:
        yield {"model.positions": positions}
