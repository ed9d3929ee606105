"""The open streams of the process: who may come in, and whose deadline is next."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from sluiceway.core.sender import BoundedSender


class AdmissionRefused(Exception):  # noqa: N818 - an answer, not a fault
    """No room for another stream. ``limit`` names the setting, ``value`` what admission would need."""

    def __init__(self, limit: str, value: int, maximum: int, retry_after_s: float) -> None:
        super().__init__(f"{limit}: {value} needed, {maximum} allowed; try again in {retry_after_s:g} s")
        self.limit = limit
        self.value = value
        self.maximum = maximum
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryTotals:
    """``reserved_bytes``: worst case of the open streams; ``buffered_bytes``: their backlog now."""

    accepted: int
    refused: int
    open_streams: int
    peak_open_streams: int
    reserved_bytes: int
    buffered_bytes: int


class Registry:
    """Admits a stream only if its worst case fits: what is admitted can never exceed ``max_buffered_bytes``.

    max_streams: open streams at once. max_buffered_bytes: process-wide budget.
    per_stream_bytes: worst case of one stream (Limits.max_stream_bytes).
    Raises ValueError if a limit is not positive, or not even one stream fits.
    """

    def __init__(
        self, max_streams: int, max_buffered_bytes: int, per_stream_bytes: int, retry_after_s: float = 1.0
    ) -> None:
        for name, value in (("max_streams", max_streams), ("per_stream_bytes", per_stream_bytes)):
            if value < 1:
                raise ValueError(f"{name} is {value}, must be 1 or more")
        if max_buffered_bytes < per_stream_bytes:
            raise ValueError(
                f"max_buffered_bytes is {max_buffered_bytes}, less than one stream may need ({per_stream_bytes})"
            )
        self._max_streams = max_streams
        self._max_buffered_bytes = max_buffered_bytes
        self._per_stream_bytes = per_stream_bytes
        self._retry_after_s = retry_after_s
        self._streams: dict[str, BoundedSender] = {}
        # Lazy: an entry counts only while _armed still holds it; late ones are thrown away at the top.
        self._heap: list[tuple[float, str]] = []
        self._armed: dict[str, float] = {}
        self._accepted = self._refused = self._peak_open_streams = 0

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._streams

    def __iter__(self) -> Iterator[tuple[str, BoundedSender]]:
        """A copy: streams may be removed on the way."""
        return iter(list(self._streams.items()))

    def check_room(self) -> None:
        """Raises AdmissionRefused if another stream would not be admitted now."""
        wanted_streams = len(self._streams) + 1
        if wanted_streams > self._max_streams:
            raise self._refusal("max_streams", wanted_streams, self._max_streams)
        wanted_bytes = wanted_streams * self._per_stream_bytes
        if wanted_bytes > self._max_buffered_bytes:
            raise self._refusal("max_buffered_bytes", wanted_bytes, self._max_buffered_bytes)

    def admit(self, request_id: str, sender: BoundedSender) -> None:
        """Raises AdmissionRefused, or ValueError for an id that is open already."""
        if request_id in self._streams:
            raise ValueError(f"request_id {request_id!r} is open already")
        self.check_room()
        self._streams[request_id] = sender
        self._accepted += 1
        self._peak_open_streams = max(self._peak_open_streams, len(self._streams))
        self.touch(request_id)

    def get(self, request_id: str) -> BoundedSender | None:
        return self._streams.get(request_id)

    def remove(self, request_id: str) -> None:
        """Give the slot and its bytes back, at StreamClosed; an unknown id is ignored."""
        self._streams.pop(request_id, None)
        self._armed.pop(request_id, None)

    def touch(self, request_id: str) -> None:
        """Call after every event a sender has handled: its deadline may have moved."""
        sender = self._streams.get(request_id)
        deadline = None if sender is None else sender.next_deadline()
        if deadline is None:
            self._armed.pop(request_id, None)
            return
        armed = self._armed.get(request_id)
        # A deadline that moved away needs no new entry: the old one is looked at when it comes to the top.
        if armed is None or deadline < armed:
            self._armed[request_id] = deadline
            heapq.heappush(self._heap, (deadline, request_id))

    def next_deadline(self) -> float | None:
        """The earliest deadline of all streams, in the clock's seconds; amortised O(log n) per touch."""
        while self._heap:
            armed, request_id = self._heap[0]
            if self._armed.get(request_id) != armed:
                heapq.heappop(self._heap)
                continue
            deadline = self._streams[request_id].next_deadline()
            if deadline == armed:
                return armed
            heapq.heappop(self._heap)
            del self._armed[request_id]
            self.touch(request_id)
        return None

    def due(self, now: float) -> list[str]:
        """The streams whose deadline has passed: each gets DeadlineReached, then touch().

        Each is named once; without touch() it would not be named again.
        """
        due = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            _, request_id = heapq.heappop(self._heap)
            del self._armed[request_id]
            due.append(request_id)
        return due

    def totals(self) -> RegistryTotals:
        return RegistryTotals(
            accepted=self._accepted,
            refused=self._refused,
            open_streams=len(self._streams),
            peak_open_streams=self._peak_open_streams,
            reserved_bytes=len(self._streams) * self._per_stream_bytes,
            buffered_bytes=sum(sender.backlog.bytes for sender in self._streams.values()),
        )

    def _refusal(self, limit: str, value: int, maximum: int) -> AdmissionRefused:
        self._refused += 1
        return AdmissionRefused(limit, value, maximum, self._retry_after_s)
