"""Keeps a table to the trials that one code has made.

A sweep may go on after its code has changed. Its rows then differ in their code as well as in
what the sweep varies, and a difference between them is no evidence for either.
"""

import collections
import dataclasses

from experiments.evaluation.metric_file import ENDED
from experiments.report.results import Results
from experiments.system import code

SHOWN = 3
"""Trials that are named; more are counted."""


def of_one_code(results: Results, mixed_code: bool = False) -> tuple[Results, str]:
    """Returns the results of one code alone, and a sentence on the trials of other code.

    The code is that of most trials of the base, then of most trials. With `mixed_code` all
    trials stay. Trials that have not ended stay; the sentence is "" where one code made all.
    """
    ended = [trial for trial in results.trials if trial.status in ENDED]
    counts = collections.Counter(code.of(trial.record) for trial in ended)
    if len(counts) < 2:
        return results, ""
    if mixed_code:
        return results, (
            f"The trials were made by {len(counts)} codes, and are compared as if by one "
            "(--mixed_code)."
        )
    of_base = collections.Counter(
        code.of(trial.record) for trial in ended if _is_base(results, trial)
    )
    chosen = max(counts, key=lambda name: (of_base[name], counts[name], str(name)))
    apart = [trial for trial in ended if code.of(trial.record) != chosen]
    kept = tuple(trial for trial in results.trials if trial not in apart)
    names = ", ".join(trial.name for trial in apart[:SHOWN])
    more = f" and {len(apart) - SHOWN} more" if len(apart) > SHOWN else ""
    return dataclasses.replace(results, trials=kept), (
        f"{len(apart)} of {len(ended)} trials were made by other code than the rest and are "
        f"left out ({names}{more}); --mixed_code takes them together."
    )


def _is_base(results, trial):
    return trial.label == "base" or not results.changes(trial)
