"""The body of one streamed response: one write at a time, its bytes counted."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from sluiceway.gateway.clock import Clock
from sluiceway.gateway.disconnect import ClientGone


class BodyWriter:
    """Writes to ``send``; every method raises ClientGone if the server says so by an OSError.

    started: the status is out. body_bytes: written so far, without what HTTP puts around them.
    """

    def __init__(self, start: Message, scope: Scope, receive: Receive, send: Send, clock: Clock) -> None:
        self.started = False
        self.body_bytes = 0
        self.last_write_at = clock.now()
        self._is_complete = False
        self._start = start
        self._scope = scope
        self._receive = receive
        self._send = send
        self._clock = clock
        self._lock = asyncio.Lock()

    @property
    def is_writing(self) -> bool:
        """A write is outstanding: it waits for the client."""
        return self._lock.locked()

    async def write(self, data: bytes) -> int:
        """Returns ``body_bytes`` with ``data`` in them, once the server took it."""
        async with self._lock:
            if not self.started:
                self.started = True
                await self._pass_on(self._start)
            self.body_bytes += len(data)
            body_bytes = self.body_bytes
            await self._pass_on({"type": "http.response.body", "body": data, "more_body": True})
            self.last_write_at = self._clock.now()
        return body_bytes

    async def answer_instead(self, response: Response) -> bool:
        """Answer with ``response``, whole; False, and nothing is done, if the status is out already."""
        async with self._lock:
            if self.started:
                return False
            self.started = self._is_complete = True
            await response(self._scope, self._receive, self._send)
            return True

    async def finish(self) -> None:
        """End the body, if it is not ended."""
        async with self._lock:
            if self._is_complete:
                return
            self._is_complete = True
            if not self.started:
                self.started = True
                await self._pass_on(self._start)
            await self._pass_on({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass_on(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:
            raise ClientGone from None
