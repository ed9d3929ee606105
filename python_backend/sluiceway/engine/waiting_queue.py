"""Who gets the next free place in the batch."""

from __future__ import annotations

import heapq
from itertools import count

from sluiceway.engine.sequence import Sequence


class WaitingQueue:
    """Started sequences first (they hold tokens a client waits for), then by weight (high first), then by arrival.

    Removal is lazy: a removed sequence's heap entry is dropped when it surfaces, or when stale entries
    outnumber live ones, so every operation is O(log n) amortised.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[bool, float, int, int, Sequence]] = []
        self._tickets = count()
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def push(self, sequence: Sequence) -> None:
        """Queue it; a queued one is queued anew (its weight may have changed)."""
        self.remove(sequence)
        sequence.ticket = next(self._tickets)
        self._live += 1
        never_started = sequence.ever_computed == 0
        entry = (never_started, -sequence.weight, sequence.arrival, sequence.ticket, sequence)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * self._live + 64:
            self._heap = [entry for entry in self._heap if entry[4].ticket == entry[3]]
            heapq.heapify(self._heap)

    def remove(self, sequence: Sequence) -> None:
        """Take it out; nothing happens if it is not queued."""
        if sequence.ticket is not None:
            sequence.ticket = None
            self._live -= 1

    def head(self) -> Sequence | None:
        """The first in line, left in the queue."""
        while self._heap:
            *_, ticket, sequence = self._heap[0]
            if sequence.ticket == ticket:
                return sequence
            heapq.heappop(self._heap)
        return None
