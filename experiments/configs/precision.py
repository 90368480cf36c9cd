"""What fewer bits cost: training in bfloat16, and scoring and translating with 8-bit matrices.

    python -m launch.sweep --config=experiments/configs/precision.py --sweep=precision --seeds=5 \
      --workdir=runs/precision
    python -m launch.sweep --config=experiments/configs/precision.py:multi30k \
      --config.data.directory=DIR --sweep=precision --seeds=3 --workdir=runs/precision-multi30k

The claims: training in bfloat16 with float32 parameters, moments and loss loses nothing
(Kalamkar et al. 2019, "A study of BFLOAT16 for deep learning training"), and a Transformer
that translates loses less than 0.5 % in 8 bits (Bhandare et al. 2019, arXiv 1906.00532, whose
products are in 8 bits too; here the weights alone are). `int8` has the very models of base:
they are trained once, and compared run by run.

On CLDR phrases a trial takes about half a minute on one CPU core.
"""

from experiments.configs import multi30k, quick

CORPORA = {"cldr": quick, "multi30k": multi30k}


def get_config(corpus="cldr"):
    if corpus not in CORPORA:
        raise ValueError(f"unknown corpus {corpus!r}; known: {', '.join(CORPORA)}")
    return CORPORA[corpus].get_config()


def sweep_precision():
    bfloat16 = {"training.precision": "bfloat16"}
    int8 = {"evaluation.int8": True}
    yield {"label": "base"}
    yield {"label": "bfloat16", **bfloat16}
    yield {"label": "int8", **int8}
    yield {"label": "bfloat16, int8", **bfloat16, **int8}
