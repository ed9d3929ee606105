"""When to acknowledge: seldom enough to cost nothing, often enough that no window closes on a reader."""

from __future__ import annotations

from dataclasses import dataclass

FULL_BYTES = 4 * 1024
FULL_FRAMES = 16
"""Each a quarter of the backend's window (``flow_control.window``)."""
MIN_INTERVAL_S = 0.05
MAX_DELAY_S = 0.2


@dataclass(frozen=True, slots=True)
class Ack:
    """body_bytes: where the frame ends in an HTTP body that goes out to the reader; None: it is read."""

    sequence: int
    body_bytes: int | None = None


class AckBatch:
    """The latest ack that is not sent yet. Times are seconds of one clock.

    It is due once FULL_BYTES of content or FULL_FRAMES wait for it, else MAX_DELAY_S after the first frame that it
    covers, and never within MIN_INTERVAL_S of the one before.
    """

    def __init__(self) -> None:
        self._ack: Ack | None = None
        self._bytes = self._frames = 0
        self._since = 0.0
        self._sent_at = float("-inf")

    @property
    def due_at(self) -> float | None:
        """None: nothing waits."""
        if self._ack is None:
            return None
        is_full = self._bytes >= FULL_BYTES or self._frames >= FULL_FRAMES
        waits_until = self._since if is_full else self._since + MAX_DELAY_S
        return max(waits_until, self._sent_at + MIN_INTERVAL_S)

    def add(self, ack: Ack, frames: int, content_bytes: int, now: float) -> None:
        """frames, content_bytes: what this ack covers and the one before did not. An older ack is left out."""
        if self._ack is None:
            self._since = now
        elif ack.sequence < self._ack.sequence:
            return
        self._ack = ack
        self._bytes += content_bytes
        self._frames += frames

    def take(self, now: float) -> Ack | None:
        """The ack, if it is due; it counts as sent."""
        ack = self._ack
        if ack is None or (due_at := self.due_at) is None or due_at > now:
            return None
        self._ack = None
        self._bytes = self._frames = 0
        self._sent_at = now
        return ack
