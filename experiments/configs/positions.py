"""What a Transformer knows of positions, trained on short sentences and tested on all lengths.

    python -m launch.sweep --config=experiments/configs/positions.py --sweep=positions --seeds=5 \
      --workdir=runs/positions

The question: which ways of telling positions carry over to sentences longer than any in training? The paper hoped that
of sinusoids (section 3.5), Press et al. (2022) show it of ALiBi. Read the figure of perplexity by source length: up to
10 pieces is what training had, the longest test sentences have more than 20. Read test BLEU and exact match beside it:
perplexity is told the right pieces so far, translations find their own.

Learned positions beyond the training sentences keep their initial random values, as nothing ever trains them; so do
the values that t5 and relative have for distances which no training sentence spans. Longer CLDR phrases are also of
other kinds than short ones, so every row loses beyond 10 pieces, not by its positions alone: compare rows with each
other, not lengths.

CLDR phrases of 10 pieces at most, end mark included, which is half of them; half a minute a trial on one CPU core.
"""

from experiments.configs import quick

POSITIONS = ("sinusoidal", "learned", "none", "rotary", "alibi", "relative", "t5")


def get_config():
    config = quick.get_config()
    config.data.update(max_pieces=10)
    return config


def sweep_positions():
    for positions in POSITIONS:
        yield {"model.positions": positions}
