"""Server-sent events to one client: counted bytes, heartbeats, and a disconnect seen while nothing is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sluiceway.gateway.body_writer import BodyWriter
from sluiceway.gateway.clock import Clock, RealClock
from sluiceway.gateway.disconnect import ClientGone, end, until_disconnect
from sluiceway.gateway.errors import ErrorBody, encode_json, openai_body, problem_of, respond
from sluiceway.gateway.event_format import HEARTBEAT, Event, encode
from sluiceway.gateway.heartbeat import beat

__all__ = ["EVENT_STREAM_HEADERS", "Event", "EventStream"]

EVENT_STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # nginx: pass it on as it comes
}


class EventStream(Response):
    """An ASGI response that writes ``events``, one at a time.

    Nothing is committed until the first event or, after ``heartbeat_s``, the first heartbeat: an error before that
    is answered with its own status; after it, with an event whose data is the error object, and the body ends.
    A heartbeat (a comment) is written whenever nothing else was for ``heartbeat_s``.

    on_written(frame, body_bytes): after the write of an event with a frame returned; body_bytes: all bytes of the
    body so far. on_disconnect: the client left before the body was complete; called at once, at most once.
    ``events`` is closed on every path before this returns. error_body: the shape of errors.
    """

    def __init__(
        self,
        events: AsyncIterator[Event],
        *,
        heartbeat_s: float,
        on_written: Callable[[int, int], None] = lambda _frame, _body_bytes: None,
        on_disconnect: Callable[[], None] = lambda: None,
        headers: Mapping[str, str] | None = None,
        error_body: ErrorBody = openai_body,
        clock: Clock | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(EVENT_STREAM_HEADERS | dict(headers or {}))
        # No length: the body ends when the answer does.
        self.raw_headers = [header for header in self.raw_headers if header[0] != b"content-length"]
        self._events = events
        self._heartbeat_s = heartbeat_s
        self._on_written = on_written
        self._on_disconnect = on_disconnect
        self._error_body = error_body
        self._clock = RealClock() if clock is None else clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        body = BodyWriter(start, scope, receive, send, self._clock)
        writing = asyncio.create_task(self._write_all(body))
        gone = asyncio.create_task(until_disconnect(receive))
        beating = asyncio.create_task(beat(body, self._clock, self._heartbeat_s, lambda: body.write(HEARTBEAT)))
        try:
            await asyncio.wait({writing, gone, beating}, return_when=asyncio.FIRST_COMPLETED)
            if not writing.done() or isinstance(writing.exception(), ClientGone):
                self._on_disconnect()
            else:
                writing.result()
        finally:
            await end(writing, gone, beating)
            await close(self._events)

    async def _write_all(self, body: BodyWriter) -> None:
        try:
            async for event in self._events:
                body_bytes = await body.write(encode(event))
                if event.frame is not None:
                    self._on_written(event.frame, body_bytes)
        except ClientGone:
            raise
        except Exception as error:
            problem = problem_of(error)
            if not await body.answer_instead(respond(problem, self._error_body)):
                data = encode_json(self._error_body(problem)).decode()
                await body.write(encode(Event(data=data)))
        await body.finish()


async def close(events: AsyncIterator[Any]) -> None:
    """Close an async generator; other iterators have nothing to close."""
    aclose = getattr(events, "aclose", None)
    if aclose is not None:
        await aclose()
