"""The few statistics that every scenario reports."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile (0 to 100), linear between neighbours; NaN for no values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    rank = (len(ordered) - 1) * q / 100
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def summary(values: Sequence[float], *, scale: float = 1.0) -> dict[str, float]:
    """count, mean, p50, p90, p99, max; each but count times ``scale`` (1000: seconds to milliseconds)."""
    if not values:
        return {"count": 0}
    figures = {
        "mean": sum(values) / len(values),
        "p50": percentile(values, 50),
        "p90": percentile(values, 90),
        "p99": percentile(values, 99),
        "max": max(values),
    }
    return {"count": len(values), **{name: round(value * scale, 4) for name, value in figures.items()}}


def ratio(value: float, reference: float) -> float:
    """Value / reference; NaN where there is no reference."""
    return value / reference if reference else math.nan
