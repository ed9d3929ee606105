"""The outermost layer of the application: counts requests, and turns faults into answers without their text."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluiceway.gateway.disconnect import ClientGone
from sluiceway.gateway.errors import body_for, problem_of, respond
from sluiceway.gateway.metrics import Metrics

_UNKNOWN = "unknown"


class Edge:
    """Passes receive and send on unwrapped where it can: what wraps ``receive`` can hide a disconnect."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        protocol = scope["type"]
        if protocol not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        started_at = time.monotonic()
        status = 0

        async def watched_send(message: Message) -> None:
            nonlocal status
            if not status:
                status = _status(message)
                if status:
                    self._metrics.first_byte.labels(route(scope)).observe(time.monotonic() - started_at)
            await send(message)

        is_open = self._metrics.open_requests.labels(protocol)
        is_open.inc()
        try:
            await self._app(scope, receive, watched_send)
        except ClientGone:
            self._metrics.disconnects.inc()
        except Exception as error:
            problem = problem_of(error)
            if protocol == "http" and not status:
                await respond(problem, body_for(scope["path"]))(scope, receive, watched_send)
            elif protocol == "http":
                raise ConnectionAbortedError from None  # the server must break off what cannot be ended well
        finally:
            is_open.dec()
            self._metrics.requests.labels(route(scope), protocol, str(status)).inc()


def route(scope: Scope) -> str:
    """The route's pattern: one of few, whatever the path is."""
    return str(getattr(scope.get("route"), "path", _UNKNOWN))


def _status(message: Message) -> int:
    kind = message["type"]
    if kind == "http.response.start":
        return int(message["status"])
    return 101 if kind == "websocket.accept" else 0
