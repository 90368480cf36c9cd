"""Says which settings of a table's points follow from others, and need no naming."""

from collections.abc import Mapping, Sequence
from typing import Any


def leaders(points: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns {setting: the one before it that decides it} of points {dotted key: value}.

    Both are set in the same points, to two values of the leader at least, and where that has
    the same value, so has the other: of a sweep that sets d_model, d_ff and d_k together,
    d_model decides d_ff and d_k. Settings that nothing decides tell all points apart.
    """
    keys = list(dict.fromkeys(key for point in points for key in point))
    # As text, because a value may be a list; None where the base's value stays.
    columns = {
        key: [str(point[key]) if key in point else None for point in points]
        for key in keys
    }
    found: dict[str, str] = {}
    for i, key in enumerate(keys):
        for leader in keys[:i]:
            if leader not in found and _decides(columns[leader], columns[key]):
                found[key] = leader
                break
    return found


def _decides(leading, following):
    values = {}
    for one, other in zip(leading, following, strict=True):
        if (one is None) != (other is None):
            return False
        if values.setdefault(one, other) != other:
            return False
    # A single row that changes two things is no pattern, and both are news.
    return len(values.keys() - {None}) >= 2


def without_derived(
    point: Mapping[str, Any], derived: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the settings of a point that are not decided by others."""
    return {key: value for key, value in point.items() if key not in derived}
