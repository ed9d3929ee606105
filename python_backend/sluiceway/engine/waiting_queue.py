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
    NEW: never ran. LATE: its client fell behind once and now waits again. LIGHT: its client has plenty unread.
    """

    READY = 0
    COLD = 1
    NEW = 2
    LATE_READY = 3
    LATE_COLD = 4
    LIGHT_READY = 5
    LIGHT_COLD = 6


_URGENT = (Lane.READY, Lane.COLD, Lane.NEW, Lane.LATE_READY, Lane.LATE_COLD)

_Entry = tuple[float, int, int, Sequence]  # key, arrival, ticket


class WaitingQueue:
    """Started sequences first (their client waits for the next token), by arrival. Then new ones and late
    ones by how long their clients have waited, of which ``aging_steps`` do not count for a late one: whose
    client did not read when it could must not hold up others now. Last the light ones (weight below 1),
    longest overdue first.

    A light one is due after ``aging_steps`` for each halving of its weight; then it counts as late. So it
    waits at most 5 * aging_steps for its turn among the new ones, whoever comes after it.

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
        return sum(self._live[lane] for lane in _URGENT)

    @property
    def has_new(self) -> bool:
        return self._live[Lane.NEW] > 0

    def push(self, sequence: Sequence, step: int) -> None:
        """Queue it from ``step`` on. A queued one is put where it belongs now and keeps its waiting time."""
        was_urgent = sequence.lane in _URGENT
        if sequence.ticket is None:
            sequence.queued_at = step
        else:
            self.remove(sequence)
        self._insert(sequence, step, was_urgent=was_urgent)

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
        if entry is None:
            first_new = self._first(Lane.NEW)
            entry = self._earlier(Lane.LATE_READY, Lane.LATE_COLD if cold else None)
            if first_new is not None and (entry is None or first_new < entry):
                # Not let in now, it is next all the same: only a light one, which gives the place back, may fill it.
                entry = first_new if new else None
        if entry is None:
            entry = self._earlier(Lane.LIGHT_READY, Lane.LIGHT_COLD if cold else None)
        return None if entry is None else entry[3]

    def _insert(self, sequence: Sequence, step: int, *, was_urgent: bool) -> None:
        key = -sequence.weight
        sequence.is_aged = False
        is_ready = sequence.is_decoding
        if sequence.ever_computed == 0:
            lane = Lane.NEW
            if sequence.waits_since is None:
                sequence.waits_since = step
            key = -sequence.weight if sequence.weight > 1 else sequence.waits_since
        elif sequence.weight < 1 and not self._is_due(sequence, step):
            lane = Lane.LIGHT_READY if is_ready else Lane.LIGHT_COLD
            key = self._due_at(sequence)
        elif sequence.has_lagged:
            lane = Lane.LATE_READY if is_ready else Lane.LATE_COLD
            sequence.is_aged = sequence.weight < 1
            if not was_urgent or sequence.waits_since is None:
                sequence.waits_since = step
            key = sequence.waits_since + self._aging_steps
        else:
            lane = Lane.READY if is_ready else Lane.COLD
        sequence.ticket, sequence.lane = next(self._tickets), lane
        self._live[lane] += 1
        heap = self._heaps[lane]
        heapq.heappush(heap, (key, sequence.arrival, sequence.ticket, sequence))
        if len(heap) > 2 * self._live[lane] + 64:
            heap[:] = [entry for entry in heap if entry[3].ticket == entry[2]]
            heapq.heapify(heap)

    def _due_at(self, sequence: Sequence) -> float:
        return sequence.queued_at + self._aging_steps * min(_LIGHTEST, -math.log2(sequence.weight))

    def _is_due(self, sequence: Sequence, step: int) -> bool:
        return self._due_at(sequence) <= step

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
