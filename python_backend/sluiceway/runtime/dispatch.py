"""Passes a stream's commands on: to the engine thread, or to the pump."""

from __future__ import annotations

from functools import partial

from sluiceway.core.commands import (
    AbortGeneration,
    CloseSilently,
    Command,
    PauseGeneration,
    ReleaseKv,
    ResumeGeneration,
    SendFrame,
)
from sluiceway.engine.protocol import Engine
from sluiceway.runtime.engine_loop import EnginePort
from sluiceway.runtime.outbox import Outbox
from sluiceway.runtime.stream import Stream


class Dispatch:
    """``aborts``: AbortGeneration commands so far, one per stream at most."""

    def __init__(self, engine: EnginePort, outbox: Outbox) -> None:
        self._engine = engine
        self._outbox = outbox
        self.aborts = 0

    def execute(self, stream: Stream, command: Command) -> None:
        """Never blocks. StreamClosed is the driver's own."""
        request_id = stream.request_id
        match command:
            case SendFrame(frame):
                stream.is_final_queued = frame.finish_reason is not None
                self._outbox.send(stream, stream.complete(frame))
            case CloseSilently():
                stream.is_final_queued = True
                self._outbox.close(stream)
            case PauseGeneration():
                self._engine.post(lambda engine: engine.pause(request_id))
            case ResumeGeneration():
                self._engine.post(lambda engine: engine.resume(request_id))
            case ReleaseKv():
                self._engine.post(lambda engine: engine.release_kv(request_id))
            case AbortGeneration():
                self.aborts += 1
                self.cut_short(request_id)

    def cut_short(self, request_id: str) -> None:
        """End the request in the engine, which answers with its last event."""
        self._engine.post(partial(_abort, request_id))


def _abort(request_id: str, engine: Engine) -> None:
    engine.abort(request_id)
