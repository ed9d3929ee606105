"""How far one stream's frames got: framed, sent, forwarded, delivered, consumed."""

from __future__ import annotations

from collections import deque

from sluiceway.core.commands import Frame
from sluiceway.core.limits import Size


class Levels:
    """Turns frame counts into sizes (bytes as on the wire). Counts are absolute and never fall.

    acks: the client acknowledges frames, so only ``consumed`` is with it. Otherwise that level stays at 0.
    Memory: one Size for each frame that has not reached every level.
    """

    def __init__(self, *, acks: bool = False) -> None:
        self._acks = acks
        self.framed = self.sent = self.forwarded = self.delivered = self.consumed = Size.ZERO
        self._totals: deque[Size] = deque()  # everything up to and with frame _passed, _passed + 1, ...
        self._passed = 0

    @property
    def confirmed(self) -> Size:
        """The best level that is known: what the client has."""
        return self.consumed if self._acks else self.delivered

    @property
    def unconfirmed(self) -> Size:
        """Handed out and not known to be with the client."""
        return self.framed - self.confirmed

    @property
    def outstanding_sends(self) -> int:
        """Frames whose send has not returned."""
        return self.framed.frames - self.sent.frames

    def add(self, frame: Frame) -> None:
        self.framed += Size(bytes=frame.wire_bytes, tokens=len(frame.token_ids), frames=1)
        self._totals.append(self.framed)

    def reach_sent(self, frames: int) -> None:
        self.sent = self._at_least(self.sent, frames)
        self._forget()

    def reach_confirmed(self, forwarded_frames: int, delivered_frames: int, consumed_frames: int = 0) -> bool:
        """Answer whether a level grew. What is consumed was delivered, what is delivered was forwarded."""
        before = self.forwarded, self.delivered, self.consumed
        self.consumed = self._at_least(self.consumed, consumed_frames)
        self.delivered = self._at_least(self.delivered, max(delivered_frames, consumed_frames))
        self.forwarded = self._at_least(self.forwarded, max(forwarded_frames, delivered_frames, consumed_frames))
        self._forget()
        return (self.forwarded, self.delivered, self.consumed) != before

    def _at_least(self, level: Size, frames: int) -> Size:
        return self._totals[frames - 1 - self._passed] if frames > level.frames else level

    def _forget(self) -> None:
        reached = min(self.sent.frames, self.confirmed.frames)
        while self._passed < reached:
            self._totals.popleft()
            self._passed += 1
