"""Reads results back from files, judges their differences, and writes reports."""


def load(workdir, base="", within=(), pairs=()):
    """Returns DataFrames (trials, comparisons) of a workdir: `experiments.report.frames.load`."""
    from experiments.report import frames

    return frames.load(workdir, base, within, pairs)
