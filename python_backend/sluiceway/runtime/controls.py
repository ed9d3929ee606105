"""Carries out what clients say about their open streams; what cannot be true is answered with an error."""

from __future__ import annotations

import json
from collections.abc import Callable

from sluiceway.core.events import AbortRequested, Event, FinishReason
from sluiceway.core.refusal import ControlRefused
from sluiceway.runtime.clients import Clients
from sluiceway.runtime.control import Ack, AskLevels, Cancel
from sluiceway.runtime.errors import ErrorCode
from sluiceway.runtime.messages import Control
from sluiceway.runtime.outbox import Outbox
from sluiceway.runtime.statistics import levels_json
from sluiceway.runtime.stream import Stream


class Controls:
    """tell(stream, event, now): what happened to a stream by its client. refused: control requests with an error."""

    def __init__(self, clients: Clients, outbox: Outbox, tell: Callable[[Stream, Event, float], None]) -> None:
        self._clients = clients
        self._outbox = outbox
        self._tell = tell
        self.refused = 0

    def take(self, message: Control, now: float) -> None:
        """A stream that ended, or never was, is no fault: its client could not know yet."""
        request, path = message.request, message.path
        try:
            stream = self._find(request.rpc_id, request.client_id)
            answer = None if stream is None else self._do(stream, request.control, now)
        except ControlRefused as refusal:
            self.refused += 1
            self._outbox.refuse(request.rpc_id, path, str(refusal), ErrorCode.INVALID_ARG)
        else:
            self._outbox.answer(request.rpc_id, path, answer)

    def _find(self, rpc_id: str | None, client_id: str) -> Stream | None:
        if rpc_id is None:
            raise ControlRefused("x-request-id: missing; without it no stream can be found")
        found = self._clients.streams_of(rpc_id, client_id)
        if len(found) > 1:
            raise ControlRefused(f"id: {len(found)} open streams of this RPC have it; give each its own")
        return found[0] if found else None

    def _do(self, stream: Stream, control: Ack | Cancel | AskLevels, now: float) -> str | None:
        """The answer, if one was asked for."""
        match control:
            case Ack(frame, body_bytes):
                if not stream.request.acks:
                    raise ControlRefused("ack_frame: the stream was not opened with acks true")
                frames = stream.sender.frames_acknowledged_by(frame)
                self._clients.acknowledge(stream, frames, body_bytes, now)
            case Cancel():
                self._tell(stream, AbortRequested(FinishReason.CANCELLED), now)
            case AskLevels():  # pragma: no branch - there is no other control
                return json.dumps(levels_json(stream.sender.statistics(now)))
        return None
