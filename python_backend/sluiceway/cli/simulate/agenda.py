"""What is due when in a simulation, in order of time."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from enum import IntEnum, auto
from itertools import count

from sluiceway.cli.simulate.stream import Stream


class Kind(IntEnum):
    LEAVE = auto()
    RECORD = auto()
    DEADLINE = auto()


class Agenda:
    """A heap; what is due at the same time comes in the order in which it was entered."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Kind, Stream]] = []
        self._order = count()

    @property
    def next_at(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def enter(self, at: float, kind: Kind, stream: Stream) -> None:
        heapq.heappush(self._heap, (at, next(self._order), kind, stream))

    def due(self, now: float) -> Iterator[tuple[float, Kind, Stream]]:
        """Everything up to ``now``, what is entered meanwhile included."""
        while self._heap and self._heap[0][0] <= now:
            at, _, kind, stream = heapq.heappop(self._heap)
            yield at, kind, stream
