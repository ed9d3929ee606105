"""What may not last for ever in one stream, and which of it is due."""

from __future__ import annotations

from enum import Enum, auto

from sluiceway.core.limits import Limits
from sluiceway.core.span import Span


class Due(Enum):
    """Listed in the order in which they count if several are due at once."""

    DRAIN = auto()  # asked to end, and the queue did not leave in drain_timeout_s
    SILENCE = auto()  # no progress for max_silence_s
    SIGNAL = auto()  # stuck, and no signal for signal_timeout_s
    DEGRADE = auto()  # out of the batch, and no progress for degrade_after_s


class Deadlines:
    """One span for each condition; times in seconds on the caller's clock."""

    def __init__(self, limits: Limits) -> None:
        self._spans = {
            Due.DRAIN: Span(limits.drain_timeout_s),
            Due.SILENCE: Span(limits.max_silence_s),
            Due.SIGNAL: Span(limits.signal_timeout_s),
            Due.DEGRADE: Span(limits.degrade_after_s),
        }

    @property
    def earliest(self) -> float | None:
        return min((span.deadline for span in self._spans.values() if span.deadline is not None), default=None)

    def due(self, now: float) -> Due | None:
        return next((due for due, span in self._spans.items() if span.is_over(now)), None)

    def follow(self, due: Due, holds: bool, now: float) -> None:
        """Say whether the condition holds now: its time runs from the first True on, and stops at False."""
        if holds:
            self._spans[due].start(now)
        else:
            self._spans[due].stop()

    def restart(self, due: Due) -> None:
        """Something moved: the time runs anew from the next follow()."""
        self._spans[due].stop()
