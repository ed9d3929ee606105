"""What the driver's inbox takes. Everything that happens in the process passes through here."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluiceway.core.commands import Frame
from sluiceway.core.events import FrameSent, SendFailed
from sluiceway.core.record import Record
from sluiceway.core.spool import SpoolPosition
from sluiceway.core.spool_errors import ResumeRefused
from sluiceway.engine.protocol import EngineLoad, TokenEvent
from sluiceway.runtime.codec import GenerateRequest
from sluiceway.runtime.control import ControlRequest
from sluiceway.runtime.errors import ErrorCode
from sluiceway.runtime.response_path import ResponsePath

if TYPE_CHECKING:
    from sluiceway.runtime.statistics import DriverSnapshot


@dataclass(frozen=True, slots=True)
class Admit:
    """A valid request that wants in."""

    request: GenerateRequest
    prompt_token_ids: tuple[int, ...]
    path: ResponsePath


@dataclass(frozen=True, slots=True)
class Control:
    """A client says something about a stream that it has open."""

    request: ControlRequest
    path: ResponsePath


@dataclass(frozen=True, slots=True)
class Refuse:
    """A request that was refused before it came here; the answer still has to be sent in order."""

    rpc_id: str | None
    path: ResponsePath
    message: str
    code: ErrorCode


@dataclass(frozen=True, slots=True)
class Tokens:
    """One engine step's events; ``at``: the clock after the step. load: as the step left it, if it is news."""

    events: list[TokenEvent]
    at: float
    load: EngineLoad | None = None


@dataclass(frozen=True, slots=True)
class SendDone:
    request_id: str
    event: FrameSent | SendFailed


@dataclass(frozen=True, slots=True)
class PollDone:
    """is_cancelled() answered. ``records_expired``: it was asked because Envoy's records stopped."""

    request_id: str
    cancelled: bool
    records_expired: bool


@dataclass(frozen=True, slots=True)
class Records:
    records: list[Record]


@dataclass(frozen=True, slots=True)
class SpoolFound:
    """Where another replica's stream goes on for the client of request ``key``, or why it cannot have it."""

    key: str
    answer: SpoolPosition | ResumeRefused


@dataclass(frozen=True, slots=True)
class SpoolRead:
    """The next frames of another replica's stream; at least one."""

    key: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class SpoolLost:
    """Another replica's stream cannot be read any more."""

    key: str
    why: str


@dataclass(frozen=True, slots=True)
class ClientElsewhere:
    """The client of one of our streams is with another replica, and has all frames below ``sequence``.

    is_new: it has just come there. Otherwise it may have left again, unnoticed.
    """

    stream_id: str
    sequence: int
    is_new: bool


@dataclass(frozen=True, slots=True)
class EngineDied:
    """No more token events will come."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Refuse what comes, end what is open with ``shutdown``; ``done`` once nothing is open."""

    done: Future[None]


@dataclass(frozen=True, slots=True)
class Snapshot:
    answer: Future[DriverSnapshot]


Message = (
    Admit
    | Control
    | Refuse
    | Tokens
    | SendDone
    | PollDone
    | Records
    | SpoolFound
    | SpoolRead
    | SpoolLost
    | ClientElsewhere
    | EngineDied
    | Drain
    | Snapshot
)
