"""When to ask Triton whether a client is still there: only for streams that no record tells of."""

from __future__ import annotations

import heapq

_SPREAD = 16  # first polls of streams that come together are spread over one interval


class CancelPolls:
    """Every stream comes up once per ``interval_s`` (seconds) until it is not put back."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._heap: list[tuple[float, str]] = []
        self._count = 0

    @property
    def next_deadline(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def add(self, request_id: str, now: float) -> None:
        """A new stream: its first turn comes within the interval, not together with everybody's."""
        self._count += 1
        spread = (self._count % _SPREAD + 1) / _SPREAD
        heapq.heappush(self._heap, (now + self._interval_s * spread, request_id))

    def again(self, request_id: str, now: float) -> None:
        heapq.heappush(self._heap, (now + self._interval_s, request_id))

    def due(self, now: float) -> list[str]:
        """The streams whose turn has come; each is gone from here until again()."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[1])
        return due
