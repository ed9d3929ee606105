"""Messages to the client of one WebSocket: one write at a time, its bytes counted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.websockets import WebSocket, WebSocketDisconnect

from sluiceway.gateway.clock import Clock
from sluiceway.gateway.disconnect import ClientGone
from sluiceway.gateway.errors import Problem, encode_json, openai_body
from sluiceway.gateway.websocket.protocol import BODY_BYTES

_CLOSE_COMPLETE = 1000
_CLOSE_POLICY_VIOLATION = 1008
_CLOSE_INTERNAL_ERROR = 1011
_CLOSE_TRY_AGAIN_LATER = 1013


class Channel:
    """Writes to ``websocket``, which is accepted; its methods raise ClientGone."""

    def __init__(self, websocket: WebSocket, clock: Clock) -> None:
        self.last_write_at = clock.now()
        self._websocket = websocket
        self._written = websocket.scope["extensions"][BODY_BYTES]["written"]
        self._clock = clock
        self._lock = asyncio.Lock()

    @property
    def is_writing(self) -> bool:
        return self._lock.locked()

    async def say(self, message: Mapping[str, object]) -> int:
        """Returns the bytes written since the handshake, with this message in them, once the server took it."""
        text = encode_json(message).decode()
        async with self._lock:
            await self._pass_on({"type": "websocket.send", "text": text})
            self.last_write_at = self._clock.now()
            return int(self._written())

    async def close(self, problem: Problem | None = None) -> None:
        """End the connection: the answer is complete, or ``problem`` is said first."""
        if problem is not None:
            await self.say(error_message(problem))
        async with self._lock:
            await self._pass_on({"type": "websocket.close", "code": _close_code(problem), "reason": ""})

    async def _pass_on(self, message: dict[str, object]) -> None:
        try:
            await self._websocket.send(message)
        except (OSError, WebSocketDisconnect):
            raise ClientGone from None


def error_message(problem: Problem) -> dict[str, object]:
    """OpenAI's error object, and when another try is worth it."""
    message: dict[str, object] = {"type": "error", **openai_body(problem)}
    return message if problem.retry_after_s is None else message | {"retry_after_s": problem.retry_after_s}


def _close_code(problem: Problem | None) -> int:
    """Of RFC 6455, 7.4.1 and its registry."""
    if problem is None:
        return _CLOSE_COMPLETE
    if problem.status in (429, 503):
        return _CLOSE_TRY_AGAIN_LATER
    return _CLOSE_POLICY_VIOLATION if problem.status < 500 else _CLOSE_INTERNAL_ERROR
