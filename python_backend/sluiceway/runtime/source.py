"""Where a stream's tokens come from, as the stream's commands reach it."""

from __future__ import annotations

from typing import Protocol

from sluiceway.engine.protocol import Engine
from sluiceway.runtime.engine_loop import EnginePort


class TokenSource(Protocol):
    """No call blocks. After abort() one last event comes, and nothing is heard of the source any more."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def release_kv(self) -> None: ...

    def swap_out(self) -> None: ...

    def set_weight(self, weight: float) -> None: ...

    def abort(self) -> None: ...


class EngineSource:
    """One request in the engine."""

    def __init__(self, engine: EnginePort, request_id: str) -> None:
        self._engine = engine
        self.request_id = request_id

    def pause(self) -> None:
        self._engine.post(lambda engine: engine.pause(self.request_id))

    def resume(self) -> None:
        self._engine.post(lambda engine: engine.resume(self.request_id))

    def release_kv(self) -> None:
        self._engine.post(lambda engine: engine.release_kv(self.request_id))

    def swap_out(self) -> None:
        self._engine.post(lambda engine: engine.swap_out(self.request_id))

    def set_weight(self, weight: float) -> None:
        self._engine.post(lambda engine: engine.set_weight(self.request_id, weight))

    def abort(self) -> None:
        self._engine.post(self._abort)

    def _abort(self, engine: Engine) -> None:
        engine.abort(self.request_id)
