"""WMT 2014 English to French as in section 5 of Vaswani et al. (2017), read through
TensorFlow Datasets.

    python -m launch.data download --config=experiments/configs/wmt14_enfr.py
    python -m launch.train --config=experiments/configs/wmt14_enfr.py:big --workdir=runs/big-fr

As wmt14_ende.py, with 36 million pairs, which tokenised take about 5 GB in
~/.cache/attn/corpora, a vocabulary of 32,000 tokens, and for big a dropout of 0.1 (section
6.1).
"""

from experiments.configs import wmt14_ende


def get_config(model="base"):
    config = wmt14_ende.get_config(model)
    # Section 5.1: 32,000 word pieces for French.
    config.data.update(
        dataset="wmt14_translate/fr-en", target="fr", vocabulary_size=32_000
    )
    # Base has it anyway; the paper's big model has 0.3 for German alone.
    config.model.P_drop = 0.1
    return config


sweep_seed = wmt14_ende.sweep_seed
