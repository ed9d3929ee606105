"""How a client reads: when it gives the server's flow-control window back.

A policy is a pure function of the stream's ``Flow``; the connection asks it after every DATA frame and
when the time that it named has come. Bytes are HTTP/2 flow-controlled bytes, times are monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

TICK_S = 0.05
# Envoy closes a connection that sends more than about 20 WINDOW_UPDATEs for each DATA frame.
UPDATES_PER_DATA_FRAME = 8


@dataclass(slots=True)
class Flow:
    """What one stream received and gave back so far. ``since`` is when the oldest unread byte came."""

    window: int
    opened_at: float
    received: int = 0
    acknowledged: int = 0
    data_frames: int = 0
    updates: int = 0
    since: float = 0.0

    @property
    def unread(self) -> int:
        return self.received - self.acknowledged

    @property
    def taken(self) -> int:
        """What the program has, given back or not."""
        return self.received

    @property
    def due(self) -> int:
        """What a client that reads at once gives back now: in halves of the window, as most do."""
        return self.unread if 2 * self.unread >= self.window else 0


class Allowance(NamedTuple):
    """``bytes`` to acknowledge now; ``again_at``: ask again then (None: at the next DATA frame)."""

    bytes: int
    again_at: float | None = None


class ReadingPolicy(Protocol):
    """``parses``: False in a stream's first policy leaves its messages undecoded for good."""

    @property
    def parses(self) -> bool: ...

    def allowance(self, flow: Flow, now: float) -> Allowance: ...


@dataclass(frozen=True)
class Normal:
    """Reads at once."""

    parses: bool = True

    def allowance(self, flow: Flow, now: float) -> Allowance:  # noqa: ARG002 - the protocol's
        return Allowance(flow.due)


@dataclass(frozen=True)
class Never:
    """Takes what its window holds and gives nothing back. The socket is read: PINGs are answered."""

    parses: bool = False

    def allowance(self, flow: Flow, now: float) -> Allowance:  # noqa: ARG002 - the protocol's
        return Allowance(0)


@dataclass(frozen=True)
class Rate:
    """Reads ``bytes_per_s``, in lumps of ``TICK_S``; what it did not read is not saved up as credit."""

    bytes_per_s: float
    parses: bool = True

    def allowance(self, flow: Flow, now: float) -> Allowance:
        if not flow.unread:
            return Allowance(0)
        earned = int(self.bytes_per_s * (now - flow.since))
        if earned < min(flow.unread, self.bytes_per_s * TICK_S):
            return Allowance(0, now + TICK_S)
        taken = min(earned, flow.unread)
        return Allowance(taken, now + TICK_S if taken < flow.unread else None)


@dataclass(frozen=True)
class StopAfter:
    """Reads normally until ``bytes`` have come, then never again."""

    bytes: int
    parses: bool = True

    def allowance(self, flow: Flow, now: float) -> Allowance:
        if flow.taken >= self.bytes:
            return Allowance(0)
        return Normal().allowance(flow, now)


@dataclass(frozen=True)
class Dribble:
    """Gives the window back one byte at a time, so a backlogged server sends 1-byte DATA frames.

    ``bytes_per_s`` caps it; bytes beyond what the flood protection allows wait for the next DATA frame.
    """

    bytes_per_s: float = 2000.0
    parses: bool = True

    def allowance(self, flow: Flow, now: float) -> Allowance:
        if not flow.unread or flow.updates >= 5 + UPDATES_PER_DATA_FRAME * flow.data_frames:
            return Allowance(0)
        wait = 1 / self.bytes_per_s - (now - flow.since)
        return Allowance(0, now + wait) if wait > 0 else Allowance(1, now + 1 / self.bytes_per_s)


@dataclass(frozen=True)
class Bursts:
    """Reads nothing until ``bytes`` wait (at most its window), then all of it at once.

    ``max_wait_s`` ends a wait that the server cannot fill (the tail of an answer).
    """

    bytes: int
    max_wait_s: float = 10.0
    parses: bool = True

    def allowance(self, flow: Flow, now: float) -> Allowance:
        if not flow.unread:
            return Allowance(0)
        until = flow.since + self.max_wait_s
        if flow.unread >= min(self.bytes, flow.window) or now >= until:
            return Allowance(flow.unread)
        return Allowance(0, until)


@dataclass(frozen=True)
class Alternate:
    """Reads normally for ``read_s``, then not at all for ``stop_s``, over and over."""

    read_s: float
    stop_s: float
    parses: bool = True

    def allowance(self, flow: Flow, now: float) -> Allowance:
        phase = (now - flow.opened_at) % (self.read_s + self.stop_s)
        if phase < self.read_s:
            return Normal().allowance(flow, now)
        return Allowance(0, now + self.read_s + self.stop_s - phase)
