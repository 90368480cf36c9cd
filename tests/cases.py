"""Which cases of a test every `make test` runs, and which .ci/run alone."""

import pytest


def the_rest_in_ci(cases, first):
    """Returns the cases, all but the `first` of them marked ci."""
    return [*cases[:first], *map(_in_ci, cases[first:])]


def _in_ci(case):
    values = case if isinstance(case, tuple) else (case,)
    # What has been marked by itself holds its values.
    if hasattr(case, "marks"):
        values = case.values
    return pytest.param(*values, marks=pytest.mark.ci)
