"""Fits a power of size to what is measured at several sizes."""

import numpy as np


def exponent(values: dict[int, float]) -> tuple[float, float]:
    """Returns the slope of log value over log size, and its standard error."""
    x = np.log(list(values))
    y = np.log(list(values.values()))
    slope, level = np.polyfit(x, y, 1)
    residuals = y - slope * x - level
    variance = (residuals**2).sum() / max(1, len(x) - 2)
    error = (variance / ((x - x.mean()) ** 2).sum()) ** 0.5
    return float(slope), float(error)
