"""A promise: one figure, its limit, and whether it holds."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Promise:
    """``name`` is the one in the README. A value that could not be measured (NaN) never holds."""

    name: str
    value: float
    limit: float
    unit: str
    holds: bool

    @classmethod
    def at_most(cls, name: str, value: float, limit: float, unit: str) -> Promise:
        return cls(name, value, limit, unit, not math.isnan(value) and value <= limit)

    @classmethod
    def at_least(cls, name: str, value: float, limit: float, unit: str) -> Promise:
        return cls(name, value, limit, unit, not math.isnan(value) and value >= limit)

    @classmethod
    def exactly(cls, name: str, value: float, limit: float, unit: str) -> Promise:
        return cls(name, value, limit, unit, value == limit)
