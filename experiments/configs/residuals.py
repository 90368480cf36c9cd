"""What layers take over from those before, and a temperature that falls, on CLDR phrases.

    python -m launch.sweep --config=experiments/configs/residuals.py --sweep=rows --seeds=3 \
      --workdir=runs/residuals

Value residuals are said to lower the loss of deep models at equal steps (Zhou et al. 2024, arXiv
2410.17897), residual scores to train better and attend more sparsely (He et al. 2020, RealFormer,
arXiv 2012.11747), and sub-layers that read a trained mean of all outputs before them to have the
loss of 1.25 times the compute (Kimi Team 2026, arXiv 2603.15031; block=6 sums six). A high
temperature at first keeps attention from settling before values are any good. Six layers a stack,
as fewer have little to take over. Each row has base's parameters, and at most d_model more a
sub-layer. Results: experiments/results/residuals/.
"""

from experiments.configs import quick


def get_config():
    config = quick.get_config()
    config.model.update(N=6, d_model=48, d_ff=192, h=4, d_k=12, d_v=12, norm="pre")
    return config


def sweep_rows():
    yield {"label": "base"}
    yield {"label": "value residual", "model.residual": "values"}
    yield {"label": "score residual", "model.residual": "scores"}
    yield {"label": "attention residual", "model.norm": "attnres"}
    yield {"label": "attention residual, block=6", "model.norm": "attnres(block=6)"}
    yield {
        "label": "temperature 4 to 1",
        "model.score": "annealed(start=4.0, end=1.0, steps=300)",
    }
