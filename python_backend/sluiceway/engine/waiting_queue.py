"""Who gets the next free place in the batch."""

from __future__ import annotations

import heapq
import math
from enum import IntEnum
from itertools import count

from sluiceway.engine.sequence import Sequence

_LIGHTEST = 4  # halvings of weight that count: 1/16


class Lane(IntEnum):
    """READY: needs no prefill (its KV is on the device or on the host). COLD: began once, needs prefill.
    NEW: never ran. The LIGHT ones' clients have plenty unread.
    """

    READY = 0
    COLD = 1
    NEW = 2
    LIGHT_READY = 3
    LIGHT_COLD = 4


_Entry = tuple[float, int, int, Sequence]  # key, arrival, ticket


class WaitingQueue:
    """Started sequences first (their client waits for the next token), then new ones, each by weight (high
    first) and arrival; last those whose client has plenty unread (weight below 1), longest overdue first.

    Such a light one is due after ``aging_steps`` for each halving of its weight; then it counts as any
    started one. So it waits at most 4 * aging_steps longer than first come, first served would let it.

    Removal is lazy: a removed sequence's heap entry is dropped when it surfaces, or when stale entries
    outnumber live ones, so every operation is O(log n) amortised.
    """

    def __init__(self, aging_steps: int) -> None:
        self._aging_steps = aging_steps
        self._heaps: dict[Lane, list[_Entry]] = {lane: [] for lane in Lane}
        self._live = dict.fromkeys(Lane, 0)
        self._tickets = count()

    def __len__(self) -> int:
        return sum(self._live.values())

    @property
    def urgent(self) -> int:
        """How many are not light."""
        return self._live[Lane.READY] + self._live[Lane.COLD] + self._live[Lane.NEW]

    @property
    def has_new(self) -> bool:
        return self._live[Lane.NEW] > 0

    def push(self, sequence: Sequence, step: int) -> None:
        """Queue it from ``step`` on. A queued one is put where it belongs now and keeps its waiting time."""
        if sequence.ticket is None:
            sequence.queued_at = step
        else:
            self.remove(sequence)
        self._insert(sequence, step)

    def remove(self, sequence: Sequence) -> None:
        """Take it out; nothing happens if it is not queued."""
        if sequence.lane is not None:
            self._live[sequence.lane] -= 1
            sequence.ticket = sequence.lane = None

    def age(self, step: int) -> None:
        """Those that are overdue at ``step`` stop being light."""
        for lane in (Lane.LIGHT_READY, Lane.LIGHT_COLD):
            while (entry := self._first(lane)) is not None and entry[0] <= step:
                self.push(entry[3], step)

    def first(self, lane: Lane) -> Sequence | None:
        """The first of one lane, left in the queue."""
        entry = self._first(lane)
        return None if entry is None else entry[3]

    def head(self, *, cold: bool = True, new: bool = True) -> Sequence | None:
        """The first in line, left in the queue; without those that need prefill again or never ran."""
        entry = self._earlier(Lane.READY, Lane.COLD if cold else None)
        if entry is None and new:
            entry = self._first(Lane.NEW)
        if entry is None:
            entry = self._earlier(Lane.LIGHT_READY, Lane.LIGHT_COLD if cold else None)
        return None if entry is None else entry[3]

    def _insert(self, sequence: Sequence, step: int) -> None:
        key = -sequence.weight
        sequence.is_aged = False
        if sequence.ever_computed == 0:
            lane = Lane.NEW
        else:
            is_light = sequence.weight < 1
            if is_light:
                halvings = min(_LIGHTEST, -math.log2(sequence.weight))
                key = sequence.queued_at + self._aging_steps * halvings
                if key <= step:
                    sequence.is_aged, is_light, key = True, False, -1.0
            if sequence.is_decoding:
                lane = Lane.LIGHT_READY if is_light else Lane.READY
            else:
                lane = Lane.LIGHT_COLD if is_light else Lane.COLD
        sequence.ticket, sequence.lane = next(self._tickets), lane
        self._live[lane] += 1
        heap = self._heaps[lane]
        heapq.heappush(heap, (key, sequence.arrival, sequence.ticket, sequence))
        if len(heap) > 2 * self._live[lane] + 64:
            heap[:] = [entry for entry in heap if entry[3].ticket == entry[2]]
            heapq.heapify(heap)

    def _first(self, lane: Lane) -> _Entry | None:
        heap = self._heaps[lane]
        while heap:
            if heap[0][3].ticket == heap[0][2]:
                return heap[0]
            heapq.heappop(heap)
        return None

    def _earlier(self, lane: Lane, other: Lane | None) -> _Entry | None:
        first = self._first(lane)
        second = None if other is None else self._first(other)
        if first is None or second is None:
            return first or second
        return min(first, second)
