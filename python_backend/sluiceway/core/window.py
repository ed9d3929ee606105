"""The ledger of one client-facing RPC: what was handed out, and what Envoy's records and acks confirm of it.

Several requests may share an RPC. Their frames stand in one queue in the order in which they were sent,
which is the order on the wire, so two counters of the RPC are enough to know each request's levels.
Formulas, bounds and proofs: docs/delivery-signal.md.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from sluiceway.core.acks import Acks
from sluiceway.core.commands import Frame
from sluiceway.core.events import Progress
from sluiceway.core.limits import Size
from sluiceway.core.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStatistics:
    """``lag_bytes``: estimate of what Envoy still holds. ``foreign_messages``: messages that are not ours."""

    in_flight: Size
    sent_frames: int
    forwarded_frames: int
    delivered_frames: int
    lag_bytes: int
    foreign_messages: int
    has_signal: bool


class FrameWindow(Protocol):
    """What a stream's machine needs of a window; DeliveryWindow and whatever books frames in one."""

    @property
    def has_signal(self) -> bool: ...

    def admits(self, wire_bytes: int, tokens: int) -> bool:
        """Whether a frame of that size may be sent now."""

    def sent(self, request_id: str, frame: Frame) -> None:
        """Book a frame, before it is handed to the pump."""


@dataclass(slots=True)
class Entry:
    """One frame. ``end``: where it ends in the RPC's body, in bytes; known once it is forwarded.

    awaits_ack: its client acknowledges frames and has not acknowledged this one. is_in_flight: it still takes
    its part of the window.
    """

    request_id: str
    size: Size
    awaits_ack: bool
    end: float = 0.0
    is_delivered: bool = False
    is_in_flight: bool = True


class DeliveryWindow:
    """At most ``limit`` unconfirmed content at once, but always at least one frame.

    The estimate never over-states what Envoy still holds, so a reader that keeps up is never held back
    by it; it under-states by at most 9 bytes per DATA frame let out since the stream was last drained.

    A frame of a client that sends acks is confirmed by its ack. Where Envoy counts the RPC's messages it must
    also be delivered: a client that acknowledges what it did not read gains nothing.
    """

    def __init__(self, limit: Size) -> None:
        self._limit = limit
        self._open: dict[str, Progress] = {}
        self._acks = Acks()
        self._sent: deque[Entry] = deque()  # and not forwarded, oldest first
        self._forwarded: deque[Entry] = deque()  # and not delivered
        self._in_flight = Size.ZERO
        self._sent_frames = self._forwarded_frames = self._delivered_frames = 0
        self._foreign_messages = 0
        self._body_bytes = self._wire_bytes = 0
        self._surplus_bytes = 0  # body - (wire - header)
        self._lowest_surplus_bytes = 0
        self._has_records: bool | None = None  # None: there was never any
        self._counts_messages = False

    @property
    def has_signal(self) -> bool:
        """The last record was a live one; or acks come, and no record ever did."""
        return self._acks.were_heard if self._has_records is None else self._has_records

    @property
    def in_flight(self) -> Size:
        """Sent and not known to be with the client."""
        return self._in_flight

    @property
    def lag_bytes(self) -> int:
        """Lower bound of the bytes that passed Envoy's filters and have not been let out to the client."""
        return self._surplus_bytes - self._lowest_surplus_bytes

    @property
    def let_out_bytes(self) -> int:
        """Upper bound of the body's bytes that were let out to the client."""
        return self._body_bytes - self.lag_bytes

    def open(self, request_id: str, *, acks: bool = False) -> None:
        """acks: its client acknowledges frames. Raises ValueError if the request is open already."""
        if request_id in self._open:
            raise ValueError(f"request {request_id!r} is open on this RPC already")
        self._open[request_id] = Progress(0, 0)
        if acks:
            self._acks.open(request_id)

    def close(self, request_id: str) -> None:
        """No more progress for it, and no acks. Its frames stay in the queue: those behind them wait for them."""
        self._open.pop(request_id, None)
        for entry in self._acks.close(request_id):
            self._settle(entry)
        self._trim()

    def admits(self, wire_bytes: int, tokens: int) -> bool:
        """Whether a frame of that size may be sent now; alone, any frame may."""
        after = self._in_flight + Size(bytes=wire_bytes, tokens=tokens, frames=1)
        return self._in_flight.frames == 0 or not after.exceeds(self._limit)

    def sent(self, request_id: str, frame: Frame) -> None:
        """Book a frame, before send() runs: Envoy may count the message before send() returns."""
        size = Size(bytes=frame.wire_bytes, tokens=len(frame.token_ids), frames=1)
        entry = Entry(request_id, size, awaits_ack=self._acks.is_open(request_id))
        if entry.awaits_ack:
            self._acks.sent(entry)
        self._sent.append(entry)
        self._in_flight += size
        self._sent_frames += 1

    def acknowledge(self, request_id: str, frames: int, body_bytes: int | None = None) -> dict[str, Progress]:
        """The client of ``request_id`` has its first ``frames`` frames; answer each open request's progress.

        body_bytes: not yet, but once so much of the RPC's body has been let out. Raises ValueError if the request
        was not opened with acks.
        """
        self._acks.acknowledge(request_id, frames, body_bytes)
        self._take_acks()
        return dict(self._open)

    def observe(self, record: Record) -> dict[str, Progress]:
        """Take a record in; answer each open request's progress, also where nothing grew."""
        self._has_records = not record.expired
        self._counts_messages |= record.counts_messages
        if record.wire_bytes < self._wire_bytes or record.body_bytes < self._body_bytes:
            return dict(self._open)  # an older record, come late: what Envoy held then is not what it holds now
        self._foreign_messages = max(self._foreign_messages, record.messages - self._sent_frames)
        self._forward(record.messages - self._foreign_messages, record.body_bytes)
        self._wire_bytes = record.wire_bytes
        self._surplus_bytes = record.body_bytes - (record.wire_bytes - record.header_bytes)
        self._lowest_surplus_bytes = min(self._lowest_surplus_bytes, self._surplus_bytes)
        self._deliver()
        self._take_acks()
        return dict(self._open)

    def statistics(self) -> WindowStatistics:
        return WindowStatistics(
            in_flight=self._in_flight,
            sent_frames=self._sent_frames,
            forwarded_frames=self._forwarded_frames,
            delivered_frames=self._delivered_frames,
            lag_bytes=self.lag_bytes,
            foreign_messages=self._foreign_messages,
            has_signal=self.has_signal,
        )

    def _forward(self, frames: int, body_bytes: int) -> None:
        """Frames since the last record share the body's growth in proportion to their booked sizes.

        So a wrong ``frame_overhead_bytes`` shifts ends within one record's batch and never adds up.
        """
        batch = [self._sent.popleft() for _ in range(frames - self._forwarded_frames)]
        booked = sum(entry.size.bytes for entry in batch)
        growth = body_bytes - self._body_bytes
        passed = 0
        for entry in batch:
            passed += entry.size.bytes
            # At least the last end is exact: nothing is left behind in a drained stream.
            entry.end = body_bytes if passed == booked else self._body_bytes + growth * passed / booked
            self._advance(entry.request_id, forwarded=1)
        self._forwarded.extend(batch)
        self._forwarded_frames += len(batch)
        self._body_bytes = body_bytes

    def _deliver(self) -> None:
        while self._forwarded and self._forwarded[0].end <= self.let_out_bytes:
            entry = self._forwarded.popleft()
            entry.is_delivered = True
            self._delivered_frames += 1
            self._advance(entry.request_id, delivered=1)
            self._settle(entry)

    def _take_acks(self) -> None:
        for entry in self._acks.take(self.let_out_bytes):
            self._advance(entry.request_id, consumed=1)
            self._settle(entry)
        self._trim()

    def _settle(self, entry: Entry) -> None:
        """Free its part of the window, if all that is to be known of it is."""
        is_confirmed = not entry.awaits_ack and (entry.is_delivered or not self._counts_messages)
        if is_confirmed and entry.is_in_flight:
            entry.is_in_flight = False
            self._in_flight -= entry.size

    def _trim(self) -> None:
        """Without messages to count, no record takes frames off the queue: their acks do."""
        while not self._counts_messages and self._sent and not self._sent[0].is_in_flight:
            entry = self._sent.popleft()
            self._forwarded_frames += 1
            self._delivered_frames += 1
            self._advance(entry.request_id, forwarded=1, delivered=1)

    def _advance(self, request_id: str, *, forwarded: int = 0, delivered: int = 0, consumed: int = 0) -> None:
        if (levels := self._open.get(request_id)) is not None:
            self._open[request_id] = Progress(
                levels.forwarded_frames + forwarded,
                levels.delivered_frames + delivered,
                levels.consumed_frames + consumed,
            )
