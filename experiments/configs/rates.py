"""Learning-rate tolerance: rates × what attention compares by × place of LayerNorm.

    python -m launch.sweep --config=experiments/configs/rates.py --sweep=rate,score --seeds=3 \
      --workdir=runs/rates
    python -m launch.sweep --config=experiments/configs/rates.py --sweep=rate,norm --seeds=3 \
      --workdir=runs/rates-norm

The claim: at high learning rates attention's scores grow until training diverges, which shows
in small models too, and normalised queries and keys widen the range of rates that train well
(Wortsman et al. 2023, "Small-scale proxies for large-scale Transformer training
instabilities", arXiv 2309.14322, figure 1). Read perplexity along the rate: the claim is of
how flat the line is, not of its lowest point. The second command asks the same of LayerNorm's
place: after the sum, training needs a warm-up and tolerates less (Xiong et al. 2020, arXiv
2002.04745).

A rate is data of the compiled program, so that all rates and seeds of a row are its lanes.
A language model on CLDR's German phrases, with LayerNorm before each sub-layer as in the
paper. Rates are factors on the schedule, which peaks at 0.0125 times that. A trial takes half
a minute on one CPU core; one that diverges less.
"""

from experiments.configs import language

RATES = (0.02, 0.08, 0.32, 1.28, 5.12, 20.48)
"""Peaks from 0.00025 to 0.26, four times the one before each."""


def get_config():
    config = language.get_config()
    config.model.update(norm="pre", P_drop=0.0)
    config.training.eps_ls = 0.0
    return config


def sweep_rate():
    for rate in RATES:
        yield {"training.learning_rate": rate}


def sweep_score():
    for score in ("scaled_dot", "qk_norm"):
        yield {"model.score": score}


sweep_score.question = {"base": "score=scaled_dot", "within": ["learning_rate"]}


def sweep_norm():
    for norm in ("pre", "post"):
        yield {"model.norm": norm}


sweep_norm.question = {"base": "norm=pre", "within": ["learning_rate"]}
