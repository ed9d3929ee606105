"""What may not last for ever in one stream, and which of it is due."""

from __future__ import annotations

from enum import Enum, auto

from sluiceway.core.events import FinishReason
from sluiceway.core.limits import Limits
from sluiceway.core.outlet import Outlet
from sluiceway.core.span import Span


class Due(Enum):
    """Listed in the order in which they count if several are due at once."""

    DRAIN = auto()  # asked to end, and the queue did not leave in drain_timeout_s
    SILENCE = auto()  # no progress for max_silence_s
    SIGNAL = auto()  # stuck, and no signal for signal_timeout_s
    DEGRADE = auto()  # out of the batch, and no progress for degrade_after_s


ENDS_WITH = {
    Due.DRAIN: FinishReason.STALLED,  # an abort's own reason stands
    Due.SILENCE: FinishReason.STALLED,
    Due.SIGNAL: FinishReason.NO_SIGNAL,
}


class Deadlines:
    """One span for each condition: its time runs while it holds. Times in seconds on the caller's clock.

    is_resumable: of such a stream, the answer is never replaced.
    """

    def __init__(self, limits: Limits, *, is_resumable: bool) -> None:
        self._drain = Span(limits.drain_timeout_s)
        self._silence = Span(limits.max_silence_s)
        self._signal = Span(limits.signal_timeout_s)
        self._degrade = Span(None if is_resumable else limits.degrade_after_s)
        self._spans = {
            Due.DRAIN: self._drain,
            Due.SILENCE: self._silence,
            Due.SIGNAL: self._signal,
            Due.DEGRADE: self._degrade,
        }

    @property
    def earliest(self) -> float | None:
        return min((span.deadline for span in self._spans.values() if span.deadline is not None), default=None)

    def due(self, now: float) -> Due | None:
        return next((due for due, span in self._spans.items() if span.is_over(now)), None)

    def asked_to_end(self, now: float) -> None:
        """From the first time on, however often it is asked."""
        self._drain.start(now)

    def progressed(self) -> None:
        """The reader took something: its time runs anew from the next observe()."""
        self._silence.stop()
        self._degrade.stop()

    def observe(self, outlet: Outlet, *, has_signal: bool, is_out: bool, now: float) -> None:
        """After every event. is_out: of the batch."""
        is_blocked = outlet.is_blocked
        waits_for_news = is_blocked or outlet.levels.unconfirmed.frames > 0
        # A stream without a signal may be read perfectly well: only being stuck counts against it.
        self._silence.follow(has_signal and waits_for_news, now)
        self._signal.follow(not has_signal and (is_blocked or is_out), now)
        self._degrade.follow(is_out, now)
