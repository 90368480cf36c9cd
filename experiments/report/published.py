"""Numbers that papers printed, to be compared with ours."""

from typing import NamedTuple


class Published(NamedTuple):
    """Holds a printed row: perplexity per token, and BLEU from 0 to 100.

    Its fields are the keys of the metrics that are `published`.
    """

    perplexity: float
    bleu: float


# The labels are those of the sweep `rows` in experiments/configs/table3.py.
TABLE_3 = {
    "base": Published(4.92, 25.8),
    "(A) h=1": Published(5.29, 24.9),
    "(A) h=4": Published(5.00, 25.5),
    "(A) h=16": Published(4.91, 25.8),
    "(A) h=32": Published(5.01, 25.4),
    "(B) d_k=16": Published(5.16, 25.1),
    "(B) d_k=32": Published(5.01, 25.4),
    "(C) N=2": Published(6.11, 23.7),
    "(C) N=4": Published(5.19, 25.3),
    "(C) N=8": Published(4.88, 25.5),
    "(C) d_model=256": Published(5.75, 24.5),
    "(C) d_model=1024": Published(4.66, 26.0),
    "(C) d_ff=1024": Published(5.12, 25.4),
    "(C) d_ff=4096": Published(4.75, 26.2),
    "(D) P_drop=0.0": Published(5.77, 24.6),
    "(D) P_drop=0.2": Published(4.95, 25.5),
    "(D) eps_ls=0.0": Published(4.67, 25.3),
    "(D) eps_ls=0.2": Published(5.47, 25.7),
    "(E) learned positions": Published(4.92, 25.7),
    "big": Published(4.33, 26.4),
}
"""Vaswani et al. 2017, Table 3, by a row's label: newstest2013, beam 4.

Checkpoints were not averaged. Each row is one run: without other seeds, the paper's own
differences have no interval.
"""
