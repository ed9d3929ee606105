"""The ledger of one client-facing RPC: what was handed out, and what Envoy's records confirm of it.

Several requests may share an RPC. Their frames stand in one queue in the order in which they were sent,
which is the order on the wire, so two counters of the RPC are enough to know each request's levels.
Formulas, bounds and proofs: docs/delivery-signal.md.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice

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


@dataclass(frozen=True, slots=True)
class _Entry:
    request_id: str
    wire_bytes: int
    tokens: int


class DeliveryWindow:
    """At most ``limit`` unconfirmed content at once, but always at least one frame.

    The estimate never over-states what Envoy still holds, so a reader that keeps up is never held back
    by it; it under-states by at most 9 bytes per DATA frame let out since the stream was last drained.
    """

    def __init__(self, limit: Size) -> None:
        self._limit = limit
        self._open: dict[str, Progress] = {}
        self._entries: deque[_Entry] = deque()  # sent and not delivered, oldest first
        self._in_flight = Size.ZERO
        self._sent_frames = 0
        self._forwarded_frames = 0
        self._delivered_frames = 0
        self._forwarded_bytes = 0  # of the entries that are forwarded and not delivered
        self._foreign_messages = 0
        self._wire_bytes = self._body_bytes = 0
        self._surplus_bytes = 0  # body - (wire - header)
        self._lowest_surplus_bytes = 0
        self.has_signal = False

    @property
    def in_flight(self) -> Size:
        """Sent and not known to be delivered."""
        return self._in_flight

    @property
    def lag_bytes(self) -> int:
        """Lower bound of the bytes that passed Envoy's filters and have not been let out to the client."""
        return self._surplus_bytes - self._lowest_surplus_bytes

    def open(self, request_id: str) -> None:
        """Raises ValueError if the request is open already."""
        if request_id in self._open:
            raise ValueError(f"request {request_id!r} is open on this RPC already")
        self._open[request_id] = Progress(0, 0)

    def close(self, request_id: str) -> None:
        """No more progress for it. Its frames stay in the queue: those behind them wait for them."""
        self._open.pop(request_id, None)

    def admits(self, wire_bytes: int, tokens: int) -> bool:
        """Whether a frame of that size may be sent now; alone, any frame may."""
        after = self._in_flight + Size(bytes=wire_bytes, tokens=tokens, frames=1)
        return not self._entries or not after.exceeds(self._limit)

    def sent(self, request_id: str, frame: Frame) -> None:
        """Book a frame, before send() runs: Envoy may count the message before send() returns."""
        entry = _Entry(request_id, frame.wire_bytes, len(frame.token_ids))
        self._entries.append(entry)
        self._in_flight += Size(bytes=entry.wire_bytes, tokens=entry.tokens, frames=1)
        self._sent_frames += 1

    def observe(self, record: Record) -> dict[str, Progress]:
        """Take a record in; answer each open request's progress, also where nothing grew."""
        self.has_signal = not record.expired
        if record.wire_bytes < self._wire_bytes or record.body_bytes < self._body_bytes:
            return dict(self._open)  # an older record, come late: what Envoy held then is not what it holds now
        self._wire_bytes, self._body_bytes = record.wire_bytes, record.body_bytes
        self._foreign_messages = max(self._foreign_messages, record.messages - self._sent_frames)
        self._forward(record.messages - self._foreign_messages)
        self._surplus_bytes = record.body_bytes - (record.wire_bytes - record.header_bytes)
        self._lowest_surplus_bytes = min(self._lowest_surplus_bytes, self._surplus_bytes)
        self._deliver()
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

    def _forward(self, frames: int) -> None:
        waiting = self._forwarded_frames - self._delivered_frames
        for entry in islice(self._entries, waiting, max(waiting, frames - self._delivered_frames)):
            self._forwarded_frames += 1
            self._forwarded_bytes += entry.wire_bytes
            if (levels := self._open.get(entry.request_id)) is not None:
                self._open[entry.request_id] = Progress(levels.forwarded_frames + 1, levels.delivered_frames)

    def _deliver(self) -> None:
        """Confirm forwarded frames, oldest first, as long as the ones behind still cover the lag."""
        while self._delivered_frames < self._forwarded_frames:
            entry = self._entries[0]
            if self._forwarded_bytes - entry.wire_bytes < self.lag_bytes:
                return
            self._entries.popleft()
            self._delivered_frames += 1
            self._forwarded_bytes -= entry.wire_bytes
            self._in_flight -= Size(bytes=entry.wire_bytes, tokens=entry.tokens, frames=1)
            if (levels := self._open.get(entry.request_id)) is not None:
                self._open[entry.request_id] = Progress(levels.forwarded_frames, levels.delivered_frames + 1)
