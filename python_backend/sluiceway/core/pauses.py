"""How often and how long a stream was out of the batch."""

from __future__ import annotations

from sluiceway.core.span import Span


class Pauses:
    """Times in seconds on the caller's clock."""

    def __init__(self) -> None:
        self.count = 0
        self.kv_releases = self.swaps = self.run_aheads = 0
        self._ended_s = 0.0
        self._present = Span()

    def begin(self, now: float) -> None:
        self.count += 1
        self._present.start(now)

    def end(self, now: float) -> None:
        """No pause: nothing happens."""
        self._ended_s += self._present.length(now)
        self._present.stop()

    def length(self, now: float) -> float:
        """All pauses together, a running one included."""
        return self._ended_s + self._present.length(now)
