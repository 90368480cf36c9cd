"""Reads how often the answers of a task were right, by where they stand in their texts."""

from experiments.errors import one_line
from experiments.report.results import ResultsError, TrialResult

KINDS = {
    "distance": "symbols back to what decides the answer",
    "position": "number of the answer in its text",
}
"""What `experiments.evaluation.answers.accuracy_by` tells answers apart by, and what that is."""


def read_accuracies(trial: TrialResult) -> dict[str, dict[int, tuple[str, float]]]:
    """Returns {kind: {first of a bucket: (its name, accuracy in percent)}} of the test.

    Empty where the trial has no answers. Raises ResultsError for what no run writes.
    """
    result = trial.result or {}
    written = result.get("accuracy_by") or {}
    try:
        return {
            kind: dict(sorted(map(_bucket, buckets.items())))
            for kind in KINDS
            if (buckets := written.get(kind)) is not None
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ResultsError(
            f"{trial.directory}/result.json: accuracy_by has what no run writes "
            f"({one_line(error)}); restore the file"
        ) from None


def _bucket(item):
    name, values = item
    first = int(name.partition("-")[0])
    accuracy = float(values["accuracy"])
    if not 0 <= accuracy <= 1:
        raise ValueError(f"an accuracy of {accuracy}")
    return first, (one_line(name), 100 * accuracy)
