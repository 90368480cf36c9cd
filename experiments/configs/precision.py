"""Whether training in bfloat16 costs quality.

    python -m launch.sweep --config=experiments/configs/precision.py --sweep=precision --seeds=5 \
      --workdir=runs/precision
    python -m launch.sweep --config=experiments/configs/precision.py:multi30k \
      --config.data.directory=DIR --sweep=precision --seeds=3 --workdir=runs/precision-multi30k

The claim: training in bfloat16 with float32 parameters, moments and loss loses nothing
(Kalamkar et al. 2019, "A study of BFLOAT16 for deep learning training").

On CLDR phrases a trial takes about half a minute on one CPU core.
"""

from experiments.configs import multi30k, quick

CORPORA = {"cldr": quick, "multi30k": multi30k}


def get_config(corpus="cldr"):
    if corpus not in CORPORA:
        raise ValueError(f"unknown corpus {corpus!r}; known: {', '.join(CORPORA)}")
    return CORPORA[corpus].get_config()


def sweep_precision():
    yield {"label": "base"}
    yield {"label": "bfloat16", "training.precision": "bfloat16"}
