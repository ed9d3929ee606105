"""What can happen to a stream. One event goes into a machine, a tuple of commands comes out.

Counters in events are absolute and never fall, so a lost or repeated event costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sluiceway.core.decision import Decision

if TYPE_CHECKING:
    from sluiceway.core.commands import Frame


class FinishReason(StrEnum):
    """Why a stream ended; sent to the client as the output ``finish_reason``."""

    STOP = "stop"  # end-of-sequence token or stop string
    LENGTH = "length"  # max_tokens or the model's context reached
    CANCELLED = "cancelled"  # the client asked, or left
    STALLED = "stalled"  # the client read nothing for too long
    NO_SIGNAL = "no_signal"  # nobody told us what was delivered (client went round Envoy?)
    SHUTDOWN = "shutdown"  # the server is draining
    QUOTA = "quota"  # a limit of the tenant or of the spool was reached
    DETACHED = "detached"  # the answer goes on without this client, who may come back with the stream id
    DEGRADED = "degraded"  # a short answer, made anew, took the place of the one that was asked for
    ERROR = "error"  # the engine or the send path failed


@dataclass(frozen=True, slots=True)
class TokensProduced:
    """The engine made tokens. ``text`` is their raw bytes: it may end inside a UTF-8 sequence."""

    token_ids: tuple[int, ...]
    text: bytes


@dataclass(frozen=True, slots=True)
class FrameReplayed:
    """A spooled frame comes again, for a client that came back: it goes out as it is, under its own number.

    Instead of TokensProduced. The one that carries a finish_reason also stands for EngineFinished.
    """

    frame: Frame


@dataclass(frozen=True, slots=True)
class EngineFinished:
    """The engine is done with the request and its KV blocks are back in the pool. Comes exactly once."""

    reason: FinishReason


@dataclass(frozen=True, slots=True)
class FrameSent:
    """send() returned for the frame ``sequence``. Not a delivery: see docs/flow-control.md."""

    sequence: int


@dataclass(frozen=True, slots=True)
class SendFailed:
    """send() raised: the response path of this request is broken."""

    detail: str


@dataclass(frozen=True, slots=True)
class Progress:
    """What the delivery ledger now knows about this request; the counts are frames, absolute.

    ``forwarded_frames`` passed Envoy's filter chain, ``delivered_frames`` were let out to the client,
    ``consumed_frames`` were acknowledged (0 for clients that send no acks).
    Sent to every request of an RPC whenever the ledger observed anything, also without growth:
    the shared window may have opened.
    """

    forwarded_frames: int
    delivered_frames: int
    consumed_frames: int = 0


@dataclass(frozen=True, slots=True)
class SignalLost:
    """Envoy's records for this RPC stopped coming (or never came)."""


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The client left: end record, cancellation flag, or expired records. ``cause`` is Envoy's word for it."""

    cause: str


@dataclass(frozen=True, slots=True)
class AbortRequested:
    """We decided to end the stream (shutdown, operator, error elsewhere)."""

    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Decided:
    """The policy chose what to do while the stream is behind."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """``now`` passed next_deadline()."""


Event = (
    TokensProduced
    | FrameReplayed
    | EngineFinished
    | FrameSent
    | SendFailed
    | Progress
    | SignalLost
    | ClientGone
    | AbortRequested
    | Decided
    | DeadlineReached
)
