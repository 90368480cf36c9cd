"""How many keys a query needs: the best k, a few blocks, and all, on recall.

    python -m launch.sweep --config=experiments/configs/sparse.py --sweep=keys --seeds=3 \
      --workdir=runs/sparse

Results: experiments/results/sparse/.

The claim: attention to a fraction of the keys is as good as to all of them, whether a small
indexer picks them, which learns what attention sees, or the mean key of a block picks the block
(DeepSeek-AI 2025, "DeepSeek-V3.2", arXiv 2512.02556; Lu et al. 2025, "MoBA", arXiv 2502.13189);
the keys of the best scores are what both stand for. An eighth of the keys is 8 of the 64 of a
text here, in which four pairs of key and value are asked for.

Two layers of width 64, rotary positions; read the accuracy.
"""

from experiments.configs import recall

KEYS = {
    "all": {},
    "best 16": {"model.normaliser": "top_k(k=16)"},
    "best 8": {"model.normaliser": "top_k(k=8)"},
    "best 4": {"model.normaliser": "top_k(k=4)"},
    "best 1": {"model.normaliser": "top_k(k=1)"},
    "8 by an indexer": {"model.heads": "indexed(k=8)"},
    "2 blocks of 4": {"model.heads": "blocks(size=4, count=2)"},
    "1 block of 8": {"model.heads": "blocks(size=8, count=1)"},
    "last 8": {"model.decoder_mixing": "restricted(radius=7)"},
}


def get_config():
    config = recall.get_config()
    config.training.update(steps=800, evaluate_every=400)
    return config


def sweep_keys():
    for label, changes in KEYS.items():
        yield {"label": label, **changes}


sweep_keys.question = {"base": "all"}
