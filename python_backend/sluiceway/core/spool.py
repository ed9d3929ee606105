"""What is kept of streams whose client may come back: bounded per stream, per tenant and in all.

Frames that were delivered are kept too, up to ``retained_bytes``: what a client really has, nobody but the
client knows. Room is made by forgetting those first, then whole answers that were read to their end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from sluiceway.core.commands import Frame
from sluiceway.core.events import FinishReason
from sluiceway.core.spool_budget import SpoolBudget
from sluiceway.core.spool_errors import (
    FrameExpired,
    FrameUnknown,
    SpoolFull,
    StreamComplete,
    StreamExpired,
    StreamForeign,
    StreamUnknown,
)
from sluiceway.core.spool_expiry import SpoolExpiry
from sluiceway.core.spool_limits import SpoolLimits
from sluiceway.core.spool_record import cost_bytes, pack
from sluiceway.core.spool_totals import SpoolTotals
from sluiceway.core.spooled_stream import SpooledStream


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolPosition:
    """Where a client goes on: its next frame, and the index of that frame's first token."""

    sequence: int
    first_token_index: int


class Spool:
    """The ledger, and the store in memory. Times in seconds on the caller's clock.

    Raises SpoolFull where something does not fit; then nothing has changed but delivered frames, which
    may be gone.
    """

    def __init__(self, limits: SpoolLimits) -> None:
        self._limits = limits
        self._streams: dict[str, SpooledStream] = {}
        self._budget = SpoolBudget(limits, self.remove)
        self._tombstones: OrderedDict[str, str] = OrderedDict()  # and whose they were
        self._expiry = SpoolExpiry()
        self._expired = self._refused = 0

    def __contains__(self, stream_id: str) -> bool:
        return stream_id in self._streams

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    @property
    def free_bytes(self) -> int:
        """What may still be charged, counting answers read to the end as free."""
        return self._budget.free_bytes

    def open(self, stream_id: str, tenant: str, floor_bytes: int) -> None:
        """A stream begins, with its client. ``floor_bytes`` are reserved for it until it is complete.

        Raises ValueError for an id that is known.
        """
        if stream_id in self._streams or stream_id in self._tombstones:
            raise ValueError(f"stream {stream_id!r} is known already")
        stream = SpooledStream(stream_id, tenant, floor_bytes)
        try:
            self._budget.make_room(tenant, stream.charge(), stream.charge())
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
        stream.retain(self._limits.retained_bytes)
        while True:
            charge = stream.charge(size, completes=completes)
            try:
                self._budget.make_room(stream.tenant, charge - stream.charged, charge)
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
            self._budget.make_room(stream.tenant, stream.charge() - stream.charged, stream.charge())
        except SpoolFull:
            stream.floor_bytes = before
            return False
        self._recharge(stream)
        return True

    def grant(self, key: str, tenant: str, granted_bytes: int) -> bool:
        """Room for what a stream makes beyond its own limits (run ahead); replaces an earlier grant."""
        return self._budget.grant(key, tenant, granted_bytes)

    def revoke(self, key: str) -> None:
        """Give a grant back; unknown keys are ignored."""
        self._budget.revoke(key)

    def confirm(self, stream_id: str, sequence: int) -> None:
        """Every frame below ``sequence`` was delivered to the client that is there now."""
        stream = self._streams.get(stream_id)
        if stream is None or not stream.is_attached:
            return
        stream.confirm(sequence)
        stream.retain(self._limits.retained_bytes)
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
        self._budget.read.discard(stream_id)
        stream.rewind(sequence)
        stream.is_attached = True
        self._expiry.discard(stream_id)

    def leave(self, stream_id: str, now: float, *, is_read: bool) -> None:
        """The client left; is_read: with all of it. From now on it expires."""
        if (stream := self._streams.get(stream_id)) is None:
            return
        stream.is_attached = False
        self._expiry.set(stream_id, now + self._limits.ttl_s)
        if is_read and stream.is_complete:
            self._budget.read.add(stream_id, stream.tenant, stream.charged)

    def read(self, stream_id: str, sequence: int, max_bytes: int) -> tuple[Frame, ...]:
        """Frames from ``sequence`` on, up to ``max_bytes`` but at least one if there is one.

        Raises StreamExpired, StreamUnknown or FrameExpired if it went away meanwhile.
        """
        try:
            return self._known(stream_id).read(sequence, max_bytes)
        except IndexError as error:
            raise FrameExpired(str(error)) from None

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
        self._budget.read.discard(stream_id)
        self._expiry.discard(stream_id)
        self._budget.charge(stream.tenant, -stream.charged)
        self._tombstones[stream_id] = stream.tenant
        if len(self._tombstones) > self._limits.max_tombstones:
            self._tombstones.popitem(last=False)

    def expire(self, now: float) -> list[str]:
        """Remove the streams whose time is over; answers which."""
        gone = []
        while (stream_id := self._expiry.take_due(now)) is not None:
            self.remove(stream_id)
            self._expired += 1
            gone.append(stream_id)
        return gone

    def next_deadline(self) -> float | None:
        """When expire() has something to do."""
        return self._expiry.first()

    def totals(self) -> SpoolTotals:
        return SpoolTotals(
            streams=len(self._streams),
            complete=sum(stream.is_complete for stream in self._streams.values()),
            used_bytes=sum(stream.bytes for stream in self._streams.values()),
            charged_bytes=self._budget.charged,
            peak_charged_bytes=self._budget.peak_charged,
            free_bytes=self.free_bytes,
            granted_bytes=self._budget.granted,
            expired=self._expired,
            evicted=self._budget.evicted,
            refused=self._refused,
        )

    def _known(self, stream_id: str) -> SpooledStream:
        if (stream := self._streams.get(stream_id)) is not None:
            return stream
        if stream_id in self._tombstones:
            raise StreamExpired("the stream is no longer kept")
        raise StreamUnknown("no stream has this id")

    def _recharge(self, stream: SpooledStream) -> None:
        charge = stream.charge()
        self._budget.charge(stream.tenant, charge - stream.charged)
        stream.charged = charge
