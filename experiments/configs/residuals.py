"""What layers take over from those before, and a temperature that falls, on CLDR phrases.

    python -m launch.sweep --config=experiments/configs/residuals.py --sweep=rows --seeds=3 \
      --workdir=runs/residuals

Value residuals are said to lower the loss of deep models at equal steps (Zhou et al. 2024, arXiv
2410.17897), residual scores to train better and attend more sparsely (He et al. 2020, RealFormer,
arXiv 2012.11747). A high temperature at first keeps attention from settling before values are
any good. Six layers a stack, as fewer have little to take over. Each row has base's parameters, a
number a layer more at most. Results: experiments/results/residuals/.
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
    yield {
        "label": "temperature 4 to 1",
        "model.score": "annealed(start=4.0, end=1.0, steps=300)",
    }
