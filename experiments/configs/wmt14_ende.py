"""WMT 2014 English to German as in section 5 of Vaswani et al. (2017), read through
TensorFlow Datasets.

    python -m launch.data download --config=experiments/configs/wmt14_ende.py
    python -m launch.data describe --config=experiments/configs/wmt14_ende.py
    python -m launch.train --config=experiments/configs/wmt14_ende.py --workdir=runs/base
    python -m launch.train --config=experiments/configs/wmt14_ende.py:big --workdir=runs/big

4.5 million pairs, validation newstest2013, test newstest2014; a shared vocabulary of 37,000
tokens; batches of about 25,000 source and 25,000 target tokens, of sentences of about equal
length. `download` needs the network, and what it fetches goes to ~/tensorflow_datasets, or
to --config.data.directory.

Not run here to its end, see paper.py; on local data sets of the same form the tests train it.
"""

from experiments.configs import paper
from experiments.settings import override


def get_config(model="base"):
    # Through `override`, because another corpus has other settings than `files`.
    config = override(paper.get_config(model), {"data.corpus": "tfds"})
    config.data.update(
        dataset="wmt14_translate/de-en",
        directory="",
        train="train",
        validation="validation",
        test="test",
    )
    # Section 5.1: pairs of about equal length are batched together.
    config.training.bucket_by_length = True
    return config


sweep_seed = paper.sweep_seed
