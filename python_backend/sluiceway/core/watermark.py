"""Hysteresis on a backlog: above once it passes high, no longer above once it is down at low."""

from __future__ import annotations

from sluiceway.core.limits import Size


class Watermark:
    """Two marks per unit. At high exactly is not above; at low exactly is no longer above.

    A grant raises high in bytes and waives its other units, until the backlog has come down to low.

    Raises ValueError if low is above high, or negative, in any unit.
    """

    def __init__(self, high: Size, low: Size) -> None:
        for unit in ("bytes", "tokens", "frames"):
            high_value, low_value = getattr(high, unit), getattr(low, unit)
            if low_value < 0:
                raise ValueError(f"low watermark in {unit} is {low_value}, must be 0 or more")
            if low_value > high_value:
                raise ValueError(f"low watermark in {unit} is {low_value}, above high ({high_value})")
        self._high = high
        self._low = low
        self._is_above = False
        self._granted_bytes = self._limit_bytes = 0
        self._was_above_low = False  # since the grant

    @property
    def granted_bytes(self) -> int:
        return self._granted_bytes

    @property
    def is_above(self) -> bool:
        return self._is_above

    def grant(self, extra_bytes: int, backlog: Size) -> None:
        """Above no more, until the backlog has grown by ``extra_bytes``. A second grant adds to the first."""
        limit = self._limit_bytes if self._granted_bytes else self._high.bytes
        # What it has beyond the limit came while the pause was on its way; it does not use up the grant.
        self._limit_bytes = max(limit, backlog.bytes) + extra_bytes
        self._granted_bytes += extra_bytes
        self._was_above_low = False
        self._is_above = False

    def update(self, backlog: Size) -> bool:
        """Take the present backlog and answer whether it is above."""
        # One unit too many is enough to stop; every unit must be down before going on.
        if self._granted_bytes:
            # A grant may begin at low (paused with plenty unread): it has to be used before it can be over.
            is_at_low = not backlog.exceeds(self._low)
            if is_at_low and self._was_above_low:
                self._granted_bytes = 0
            self._was_above_low |= not is_at_low
        if self._is_above:
            self._is_above = backlog.exceeds(self._low)
        elif self._granted_bytes:
            self._is_above = backlog.bytes > self._limit_bytes
        else:
            self._is_above = backlog.exceeds(self._high)
        return self._is_above
