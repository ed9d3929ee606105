"""How far one stream's frames got: framed, sent, forwarded, delivered."""

from __future__ import annotations

from collections import deque

from sluiceway.core.commands import Frame
from sluiceway.core.limits import Size


class Levels:
    """Turns frame counts into sizes (bytes as on the wire). Counts are absolute and never fall.

    Memory: one Size for each frame that has not reached every level.
    """

    def __init__(self) -> None:
        self.framed = self.sent = self.forwarded = self.delivered = Size.ZERO
        self._totals: deque[Size] = deque()  # everything up to and with frame _passed, _passed + 1, ...
        self._passed = 0

    @property
    def unconfirmed(self) -> Size:
        """Handed out and not known to be delivered."""
        return self.framed - self.delivered

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

    def reach_confirmed(self, forwarded_frames: int, delivered_frames: int) -> bool:
        """Answer whether either level grew."""
        forwarded, delivered = self.forwarded, self.delivered
        self.forwarded = self._at_least(forwarded, max(forwarded_frames, delivered_frames))
        self.delivered = self._at_least(delivered, delivered_frames)
        self._forget()
        return self.forwarded is not forwarded or self.delivered is not delivered

    def _at_least(self, level: Size, frames: int) -> Size:
        return self._totals[frames - 1 - self._passed] if frames > level.frames else level

    def _forget(self) -> None:
        reached = min(self.sent.frames, self.delivered.frames)
        while self._passed < reached:
            self._totals.popleft()
            self._passed += 1
