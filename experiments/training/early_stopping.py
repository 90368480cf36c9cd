"""Says when a trial's validation perplexity has stopped falling, for training.until=flat.

It has when the last third of the evaluations has hardly a lower cross-entropy than the two
thirds before: training half as long again has bought less than TOLERANCE of it.

    min(x_{n-k+1}, …, x_n) ≥ (1 − TOLERANCE) · min(x_1, …, x_{n-k}),  x = ln perplexity, k = ⌊n / 3⌋

Early stopping elsewhere (Keras, Lightning, fairseq, Marian, Sockeye) waits for a fixed number of
evaluations without a better one. A third in its place means the same however often a trial
evaluates, and grows with the trial: what creeps downwards late is not cut off by a patience
that was meant for its beginning. The best of a third, and not the last evaluation, is what
a single bad one cannot change.
"""

import math
from collections.abc import Mapping

from experiments.settings import Training
from experiments.settings.schema import FLAT_EVALUATIONS

TOLERANCE = 0.02
"""Less than this share of the cross-entropy is no fall.

Evaluated every 25, 50, 100 or 150 steps, one run of quick.py ends so after 1,150 to 1,300 steps,
and one of table3.py:tiny after 1,650 to 1,775; their lowest cross-entropy is then at most 3 %
above that of 2,400 steps. With 0.05 it is up to 10 % above, after 950 to 1,700 steps; with 0.005
they end after 1,200 to 1,975 steps, by chance as much as by what they learn: one evaluation
differs from the next by about 2 %.
"""


def has_stopped_falling(perplexities: Mapping[int, float]) -> bool:
    """Returns whether {step: validation perplexity} is flat at its last step.

    Fewer than FLAT_EVALUATIONS say nothing yet.
    """
    losses = [_cross_entropy(perplexities[step]) for step in sorted(perplexities)]
    if len(losses) < FLAT_EVALUATIONS:
        return False
    before = len(losses) - len(losses) // 3
    return min(losses[before:]) >= (1 - TOLERANCE) * min(losses[:before])


def ending(steps: int, training: Training) -> str:
    """Says how a trial with until=flat has ended."""
    if steps < training.steps:
        return f"ended at step {steps}: validation perplexity has stopped falling"
    return (
        f"ended at training.steps={steps}, the most it may take: validation perplexity was "
        "still falling"
    )


def _cross_entropy(perplexity):
    # NaN is worse than any number.
    return math.log(perplexity) if perplexity < math.inf else math.inf
