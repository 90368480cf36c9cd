"""What attention compares by, against d_k: "additive attention outperforms dot product
attention without scaling for larger values of d_k" (section 3.2.1, after Britz et al.
2017), and dividing by √d_k is the paper's cure.

    python -m launch.sweep --config=experiments/configs/scores.py --sweep=score,d_k --seeds=5 \
      --workdir=runs/scores
    python -m launch.sweep --config=experiments/configs/scores.py --config.model.d_k=256 \
      --sweep=score --seeds=5 --workdir=runs/scores-256

The question: does the plain dot product fall behind additive attention as d_k grows, and
does scaling bring it back? The first command gives the whole grid, and compares each score
with additive attention, which is what the paper compares with, at the same d_k. The second
does so at one d_k. If the paper is right, `dot` is no worse at d_k 4 and worse at 256, and
`scaled_dot` shows no difference at either.

CLDR phrases, two heads of d_v 32, half a minute to a minute a trial on one CPU core.
"""

from experiments.configs import quick

SCORES = ("dot", "scaled_dot", "bilinear", "additive")
"""Those of the paper and of what came before it; others wrap them."""


def get_config():
    config = quick.get_config()
    # d_v = d_model / h, and stays when d_k changes: only the comparison differs.
    config.model.update(h=2, d_k=16, d_v=32, score="additive")
    return config


def sweep_score():
    for score in SCORES:
        yield {"model.score": score}


sweep_score.question = {"base": "score=additive", "within": ["d_k"]}


def sweep_d_k():
    for d_k in (4, 16, 64, 256):
        yield {"model.d_k": d_k}
