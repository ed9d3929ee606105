"""When kept streams without a client expire."""

from __future__ import annotations

import heapq


class SpoolExpiry:
    """By stream id. Times in seconds on the caller's clock; every call is O(log n) amortised."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []  # lazy: what moved is thrown away at the top

    def set(self, stream_id: str, at: float) -> None:
        """Replaces an earlier time."""
        self._at[stream_id] = at
        heapq.heappush(self._heap, (at, stream_id))

    def discard(self, stream_id: str) -> None:
        """It does not expire; unknown ids are ignored."""
        self._at.pop(stream_id, None)

    def first(self) -> float | None:
        """When the next one expires."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now: float) -> str | None:
        """One whose time has come, which then is unknown here; None if there is none."""
        if (at := self.first()) is None or at > now:
            return None
        stream_id = heapq.heappop(self._heap)[1]
        del self._at[stream_id]
        return stream_id
