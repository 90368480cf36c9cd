"""Attention sinks on bigram-backcopy, by what stands in softmax's place.

    python -m launch.sweep --config=experiments/configs/sinks.py --sweep=normaliser --seeds=3 \
      --workdir=runs/sinks
    python -m launch.sweep --config=experiments/configs/sinks.py --sweep=gate --seeds=3 \
      --workdir=runs/sinks-gate

The claim: a head that has nothing to copy puts its weight on the first token where its weights
must sum to 1, and no such sink arises with ReLU in softmax's place, which learns the task as
well (Guo et al. 2024, "Active-dormant attention heads", arXiv 2410.13835). One more than the
exponentials in the denominator (Miller 2023, "Attention is off by one"), a learned sink and
sigmoid attention should need none either, nor softmax with a gate on a head's output (Qiu et
al. 2025, arXiv 2505.06708). Read `first-token mass`, the weight of the first token in the mean
over queries, beside `entropy`; heads.npz has both for each head.

One layer of one head, which is needed at 3 of 64 symbols only. Accuracy has the draws of the
Markov chain among its answers, which no model can know: those that are copied are the
`accuracy_by` at distance 1. Unlike in the paper, the chain is drawn and not that of English
letters.
"""

from experiments.configs import tasks

NORMALISERS = ("softmax", "off_by_one", "sink", "sigmoid", "relu")


def get_config():
    config = tasks.get_config("backcopy")
    config.data.update(length=64, symbols=64, triggers=3)
    config.model.update(N=1, h=1, d_k=64, d_v=64)
    config.training.steps = 1500
    config.evaluation.head_importance = True
    config.update(tasks.sized(config))
    return config


def sweep_normaliser():
    for normaliser in NORMALISERS:
        yield {"model.normaliser": normaliser}


def sweep_gate():
    """Softmax with a gate on what heads give."""
    for gate in ("none", "head", "element"):
        yield {"model.gate": gate}


def sweep_layers():
    """The paper has 1 to 3."""
    for layers in (1, 2, 3):
        yield {"model.N": layers}
