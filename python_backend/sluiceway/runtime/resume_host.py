"""What clients that come back need of the driver."""

from __future__ import annotations

from typing import Protocol

from sluiceway.core.events import Event
from sluiceway.core.spool import SpoolPosition
from sluiceway.runtime.errors import ErrorCode
from sluiceway.runtime.messages import Admit
from sluiceway.runtime.spool_source import SpoolSource


class Host(Protocol):
    """The driver's streams, as far as they are opened, told and ended from outside."""

    def apply_to(self, request_id: str, event: Event, now: float) -> None:
        """Unknown ids are ignored."""

    def attach(self, message: Admit, position: SpoolPosition, source: SpoolSource, now: float) -> str | None:
        """Open a stream that goes on at ``position``, fed from ``source``; its request id, or None: refused."""

    def attached(self, request_id: str, now: float) -> None:
        """We know the stream now: it may hear that its client has left already."""

    def refuse(self, message: Admit, text: str, code: ErrorCode) -> None: ...
