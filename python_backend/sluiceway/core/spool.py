"""What is kept of streams whose client may come back: bounded per stream, per tenant and in all.

Frames that were delivered are kept too, up to ``retained_bytes``: what a client really has, nobody but the
client knows. Room is made by forgetting those first, then whole answers that were read to their end.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from sluiceway.core.commands import Frame
from sluiceway.core.events import FinishReason
from sluiceway.core.spool_budget import ReadStreams, SpoolBudget
from sluiceway.core.spool_errors import (
    FrameExpired,
    FrameUnknown,
    SpoolFull,
    StreamComplete,
    StreamExpired,
    StreamForeign,
    StreamUnknown,
)
from sluiceway.core.spool_record import cost_bytes, pack, unpack
from sluiceway.core.spooled_stream import SpooledStream


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolLimits:
    """ttl_s: how long a stream is kept after its client left. max_tombstones: ids remembered as expired."""

    max_stream_bytes: int = 2**20
    max_tenant_bytes: int = 64 * 2**20
    max_bytes: int = 64 * 2**20
    retained_bytes: int = 256 * 1024
    ttl_s: float = 300.0
    max_tombstones: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolPosition:
    """Where a client goes on: its next frame, and the index of that frame's first token."""

    sequence: int
    first_token_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolTotals:
    """used_bytes: frames kept. charged_bytes: with what is reserved. Counters never fall."""

    streams: int
    complete: int
    used_bytes: int
    charged_bytes: int
    peak_charged_bytes: int
    free_bytes: int
    granted_bytes: int
    expired: int
    evicted: int
    refused: int


class Spool:
    """The ledger, and the store in memory. Times in seconds on the caller's clock.

    Raises SpoolFull where something does not fit; then nothing has changed but delivered frames, which
    may be gone.
    """

    def __init__(self, limits: SpoolLimits) -> None:
        self._limits = limits
        self._streams: dict[str, SpooledStream] = {}
        self._budget = SpoolBudget(limits.max_tenant_bytes, limits.max_bytes)
        self._grants: dict[str, tuple[str, int]] = {}
        self._granted = 0
        self._read = ReadStreams()
        self._tombstones: OrderedDict[str, str] = OrderedDict()  # and whose they were
        self._expiries: list[tuple[float, str]] = []  # lazy: what moved is thrown away at the top
        self._expired = self._evicted = self._refused = 0

    def __contains__(self, stream_id: str) -> bool:
        return stream_id in self._streams

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    @property
    def free_bytes(self) -> int:
        """What may still be charged, counting answers read to the end as free."""
        return self._budget.free_bytes + self._read.bytes

    def open(self, stream_id: str, tenant: str, floor_bytes: int) -> None:
        """A stream begins, with its client. ``floor_bytes`` are reserved for it until it is complete.

        Raises ValueError for an id that is known.
        """
        if stream_id in self._streams or stream_id in self._tombstones:
            raise ValueError(f"stream {stream_id!r} is known already")
        stream = SpooledStream(stream_id, tenant, floor_bytes)
        try:
            self._make_room(tenant, stream.charge(), stream.charge())
        except SpoolFull:
            self._refused += 1
            raise
        self._streams[stream_id] = stream
        self._recharge(stream)

    def append(self, stream_id: str, frame: Frame) -> None:
        """Keep the next frame. Raises StreamComplete, StreamExpired, StreamUnknown; ValueError out of turn."""
        stream = self._known(stream_id)
        if stream.is_complete:
            raise StreamComplete("the stream has its last frame already")
        if frame.sequence != stream.next_sequence:
            raise ValueError(f"frame {frame.sequence} is out of turn, {stream.next_sequence} is next")
        record = pack(frame)
        size, completes = cost_bytes(record), frame.finish_reason is not None
        while stream.delivered_bytes > self._limits.retained_bytes and stream.drop_oldest():
            pass
        while True:
            charge = stream.charge(size, completes=completes)
            try:
                self._make_room(stream.tenant, charge - stream.charged, charge)
                break
            except SpoolFull:
                if not stream.drop_oldest():
                    raise
        stream.append(frame, record)
        self._recharge(stream)

    def cut(self, stream_id: str, reason: FinishReason) -> Frame:
        """End a stream whose next frame did not fit: an empty last one, for which there always is room."""
        stream = self._known(stream_id)
        sequence = stream.next_sequence
        frame = Frame(sequence, stream.token_index(sequence), (), "", 0, reason)
        self.append(stream_id, frame)
        return frame

    def reserve(self, stream_id: str, more_bytes: int) -> bool:
        """Set room aside for what is still to come, so that others cannot take it; False if there is none."""
        stream = self._known(stream_id)
        before = stream.floor_bytes
        stream.floor_bytes = max(before, min(self._limits.max_stream_bytes, stream.bytes + more_bytes))
        try:
            self._make_room(stream.tenant, stream.charge() - stream.charged, stream.charge())
        except SpoolFull:
            stream.floor_bytes = before
            return False
        self._recharge(stream)
        return True

    def grant(self, key: str, tenant: str, granted_bytes: int) -> bool:
        """Room for what a stream makes beyond its own limits (run ahead); replaces an earlier grant."""
        self.revoke(key)
        try:
            self._make_room(tenant, granted_bytes, 0)
        except SpoolFull:
            return False
        self._grants[key] = (tenant, granted_bytes)
        self._granted += granted_bytes
        self._budget.charge(tenant, granted_bytes)
        return True

    def revoke(self, key: str) -> None:
        """Give a grant back; unknown keys are ignored."""
        tenant, granted_bytes = self._grants.pop(key, ("", 0))
        self._granted -= granted_bytes
        self._budget.charge(tenant, -granted_bytes)

    def confirm(self, stream_id: str, sequence: int) -> None:
        """Every frame below ``sequence`` was delivered to the client that is there now."""
        stream = self._streams.get(stream_id)
        if stream is None or not stream.is_attached:
            return
        stream.confirm(sequence)
        while stream.delivered_bytes > self._limits.retained_bytes and stream.drop_oldest():
            pass
        self._recharge(stream)

    def look_up(self, stream_id: str, tenant: str, sequence: int) -> SpoolPosition:
        """Where a client of ``tenant`` goes on. Raises one of spool_errors' ResumeRefused."""
        stream = self._streams.get(stream_id)
        owner = self._tombstones.get(stream_id) if stream is None else stream.tenant
        if owner is not None and owner != tenant:
            raise StreamForeign("the stream is not yours")
        stream = self._known(stream_id)
        if sequence < stream.first_sequence:
            raise FrameExpired(f"frame {sequence} is no longer kept, the oldest is {stream.first_sequence}")
        if sequence >= stream.next_sequence and stream.is_complete:
            raise StreamComplete(f"the answer is complete, its last frame is {stream.next_sequence - 1}")
        if sequence > stream.next_sequence:
            raise FrameUnknown(f"frame {sequence} cannot be next, so far there are {stream.next_sequence}")
        return SpoolPosition(sequence=sequence, first_token_index=stream.token_index(sequence))

    def attach(self, stream_id: str, sequence: int) -> None:
        """A client is there and wants ``sequence`` next: the stream does not expire while it is."""
        stream = self._known(stream_id)
        self._read.discard(stream_id)
        stream.rewind(sequence)
        stream.is_attached, stream.expires_at = True, None

    def leave(self, stream_id: str, now: float, *, is_read: bool) -> None:
        """The client left; is_read: with all of it. From now on it expires."""
        if (stream := self._streams.get(stream_id)) is None:
            return
        stream.is_attached, stream.expires_at = False, now + self._limits.ttl_s
        heapq.heappush(self._expiries, (stream.expires_at, stream_id))
        if is_read and stream.is_complete:
            self._read.add(stream_id, stream.tenant, stream.charged)

    def read(self, stream_id: str, sequence: int, max_bytes: int) -> tuple[Frame, ...]:
        """Frames from ``sequence`` on, up to ``max_bytes`` but at least one if there is one.

        Raises StreamExpired, StreamUnknown or FrameExpired if it went away meanwhile.
        """
        try:
            records = self._known(stream_id).records(sequence)
        except IndexError as error:
            raise FrameExpired(str(error)) from None
        frames: list[Frame] = []
        left = max_bytes
        for record in records:
            left -= cost_bytes(record)
            if frames and left < 0:
                break
            frames.append(unpack(record))
        return tuple(frames)

    def undelivered_bytes(self, stream_id: str) -> int:
        """Kept and not delivered; 0 for a stream that is not here."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else stream.undelivered_bytes

    def is_complete(self, stream_id: str) -> bool:
        """Its last frame is here; False for a stream that is not."""
        stream = self._streams.get(stream_id)
        return stream is not None and stream.is_complete

    def first_sequence(self, stream_id: str) -> int:
        """Of the oldest frame kept; 0 for a stream that is not here."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else stream.first_sequence

    def remove(self, stream_id: str) -> None:
        """Forget a stream now, and remember that it was here."""
        if (stream := self._streams.pop(stream_id, None)) is None:
            return
        self._read.discard(stream_id)
        self._budget.charge(stream.tenant, -stream.charged)
        self._tombstones[stream_id] = stream.tenant
        if len(self._tombstones) > self._limits.max_tombstones:
            self._tombstones.popitem(last=False)

    def expire(self, now: float) -> list[str]:
        """Remove the streams whose time is over; answers which."""
        gone = []
        while (at := self.next_deadline()) is not None and at <= now:
            _, stream_id = heapq.heappop(self._expiries)
            self.remove(stream_id)
            self._expired += 1
            gone.append(stream_id)
        return gone

    def next_deadline(self) -> float | None:
        """When expire() has something to do."""
        while self._expiries:
            at, stream_id = self._expiries[0]
            stream = self._streams.get(stream_id)
            if stream is not None and stream.expires_at == at:
                return at
            heapq.heappop(self._expiries)
        return None

    def totals(self) -> SpoolTotals:
        return SpoolTotals(
            streams=len(self._streams),
            complete=sum(stream.is_complete for stream in self._streams.values()),
            used_bytes=sum(stream.bytes for stream in self._streams.values()),
            charged_bytes=self._budget.charged,
            peak_charged_bytes=self._budget.peak_charged,
            free_bytes=self.free_bytes,
            granted_bytes=self._granted,
            expired=self._expired,
            evicted=self._evicted,
            refused=self._refused,
        )

    def _known(self, stream_id: str) -> SpooledStream:
        if (stream := self._streams.get(stream_id)) is not None:
            return stream
        if stream_id in self._tombstones:
            raise StreamExpired("the stream is no longer kept")
        raise StreamUnknown("no stream has this id")

    def _make_room(self, tenant: str, more_bytes: int, stream_bytes: int) -> None:
        """Forget read answers until ``more_bytes`` fit. Raises SpoolFull, naming the limit in the way."""
        if stream_bytes > self._limits.max_stream_bytes:
            raise SpoolFull("max_stream_bytes", stream_bytes, self._limits.max_stream_bytes)
        while (full := self._budget.tenant_obstacle(tenant, more_bytes)) is not None:
            self._evict(self._read.first(tenant), full)
        while (full := self._budget.obstacle(more_bytes)) is not None:
            self._evict(self._read.first(), full)

    def _evict(self, stream_id: str | None, full: SpoolFull) -> None:
        if stream_id is None:
            raise full
        self.remove(stream_id)
        self._evicted += 1

    def _recharge(self, stream: SpooledStream) -> None:
        charge = stream.charge()
        self._budget.charge(stream.tenant, charge - stream.charged)
        stream.charged = charge
