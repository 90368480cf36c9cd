"""Names the rows that were still improving when their training ended.

Their verdict holds for this number of steps alone. On the log of the cross-entropy, the
measure is the share of a run's fall from its first evaluation to its last
that came in the last quarter of its steps.

While a model learns, its cross-entropy falls about as a power of the steps, which gives
ln(4/3) / ln(n) with n evaluations, whatever the power is: 21 % with 4, 9 % with 24. Measured on
a run of quick.py and one of table3.py:tiny, cut at these steps (evaluated every 25 to every 150):

    steps        300        450        600      900      1200     1500 to 2400
    quick    10 to 13 %   5 to 6 %   1 to 3 %  2 to 5 %   0 %       0 to 2 %
    tiny     31 to 38 %  13 to 15 %  7 to 9 %  1 to 4 %  2 to 3 %   0 to 1 %

The log of the perplexity itself would not do: quick.py fell by 0.1 to 0.9 % of its whole
fall between 450 and 600 steps, and by 5 % of the cross-entropy that was left.
"""

import math
from collections.abc import Sequence

import numpy as np

from experiments.report.rows import Row
from experiments.report.trial_files import TrialResult, look_up_setting

STILL_IMPROVING = 0.05
"""Rows with more than this share are named: half of what a model that still learns has, and
above what one evaluation more or less changes."""

FEWEST = 4
"""Fewer evaluations than these show no share."""


def late_share(trial: TrialResult) -> float | None:
    """Returns the share of a run's fall that came in the last quarter of its steps, 0 to 1.

    None for fewer than FEWEST evaluations, and for a run that fell nowhere.
    """
    steps, perplexities = trial.curve("validation", "perplexity")
    with np.errstate(invalid="ignore", divide="ignore"):
        entropies = np.log(perplexities)
    if not len(steps):
        steps, entropies = trial.curve("validation", "cross_entropy")
    if len(steps) < FEWEST:
        return None
    losses = _log(entropies)
    if not np.isfinite(losses).all():
        return None
    fall = losses[0] - losses[-1]
    if fall <= 0:
        return None
    # Between two evaluations it is taken to fall evenly.
    late = np.interp(0.75 * steps[-1], steps, losses) - losses[-1]
    return float(np.clip(late / fall, 0, 1))


def _log(entropies):
    # What float32 cannot tell from 0 is not below.
    return np.log(np.maximum(entropies, 1e-7))


def ended_flat(trial: TrialResult) -> bool:
    """Whether training.until=flat ended the run before all its steps."""
    steps = look_up_setting(trial.config, "training.steps")
    until = look_up_setting(trial.config, "training.until")
    return until == "flat" and (trial.result or {}).get("steps") != steps


def steps_made(rows: Sequence[Row]) -> list[str] | None:
    """Returns the steps of each row's finished runs, "1,150 to 1,300" where they differ.

    None where all rows were trained for the steps that their settings give.
    """
    if not any(ended_flat(trial) for row in rows for trial in row.finished):
        return None
    cells = []
    for row in rows:
        made = [trial.result.get("steps") for trial in row.finished]
        made = sorted({steps for steps in made if steps is not None})
        ends = dict.fromkeys(f"{steps:,.0f}" for steps in (*made[:1], *made[-1:]))
        cells.append(" to ".join(ends))
    return cells


def row_share(row: Row) -> float | None:
    """Returns the mean `late_share` of a row's finished runs; None where none has one.

    What was trained until it was flat is not still improving.
    """
    shares = []
    for trial in row.finished:
        share = 0.0 if ended_flat(trial) else late_share(trial)
        if share is not None:
            shares.append(share)
    return math.fsum(shares) / len(shares) if shares else None


ADVICE = (
    "train longer, by training.steps or with training.until=flat, before you compare"
)
"""What to do where rows were still improving."""


def improving_note(rows: Sequence[Row]) -> str:
    """Names the rows that were still improving at their end, "" where none was."""
    named = []
    for row in rows:
        share = row_share(row)
        if share is not None and share > STILL_IMPROVING:
            # The first explains the numbers of the others.
            what = "" if named else " of its fall in the last quarter of its steps"
            named.append(f"{row.name} ({100 * share:.0f} %{what})")
    if not named:
        return ""
    return f"still improving at the end: {', '.join(named)}"
