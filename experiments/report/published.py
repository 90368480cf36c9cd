"""What papers printed, to be read beside our own numbers."""

from typing import NamedTuple


class Result(NamedTuple):
    """A printed row: perplexity per token, and BLEU from 0 to 100."""

    perplexity: float
    bleu: float


TABLE_3 = {
    "base": Result(4.92, 25.8),
    "(A) h=1": Result(5.29, 24.9),
    "(A) h=4": Result(5.00, 25.5),
    "(A) h=16": Result(4.91, 25.8),
    "(A) h=32": Result(5.01, 25.4),
    "(B) d_k=16": Result(5.16, 25.1),
    "(B) d_k=32": Result(5.01, 25.4),
    "(C) N=2": Result(6.11, 23.7),
    "(C) N=4": Result(5.19, 25.3),
    "(C) N=8": Result(4.88, 25.5),
    "(C) d_model=256": Result(5.75, 24.5),
    "(C) d_model=1024": Result(4.66, 26.0),
    "(C) d_ff=1024": Result(5.12, 25.4),
    "(C) d_ff=4096": Result(4.75, 26.2),
    "(D) P_drop=0.0": Result(5.77, 24.6),
    "(D) P_drop=0.2": Result(4.95, 25.5),
    "(D) eps_ls=0.0": Result(4.67, 25.3),
    "(D) eps_ls=0.2": Result(5.47, 25.7),
    "(E) learned positions": Result(4.92, 25.7),
    "big": Result(4.33, 26.4),
}
"""Vaswani et al. 2017, Table 3, by a row's label: newstest2013, beam 4, no averaging of checkpoints.

Each row is one run: without other seeds, the paper's own differences have no interval.
"""
