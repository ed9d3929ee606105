"""The thread that drives raw clients, and the way in from other threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Self, TypeVar

from sluiceway.cli.bench.readers.policy import Normal, ReadingPolicy
from sluiceway.cli.bench.readers.protocols import Connection, connect
from sluiceway.cli.bench.readers.reading import Stream
from sluiceway.cli.bench.readers.transport import ConnectionSettings, Leave
from sluiceway.cli.bench.readers.wire import StreamRequest

P = ParamSpec("P")
T = TypeVar("T")
CALL_TIMEOUT_S = 30.0


class ReaderLoop:
    """One asyncio loop in one daemon thread; drives hundreds of streams.

    >>> with ReaderLoop() as loop:                                          # doctest: +SKIP
    ...     connection = loop.connect(ConnectionSettings(port=8080, stream_window=4096))
    ...     stream = loop.open(connection, StreamRequest(prompt="hello"), Never())
    ...     left_at = loop.leave(stream, Leave.RST_STREAM)
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="readers", daemon=True)
        self._connections: dict[Stream, Connection[Any]] = {}
        self._opened: list[Connection[Any]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self, settings: ConnectionSettings) -> Connection[Any]:
        """A new TCP connection. Raises OSError when nobody listens."""
        connection = self.run(connect(settings))
        self._opened.append(connection)
        return connection

    def open(
        self,
        connection: Connection[Any],
        request: StreamRequest,
        policy: ReadingPolicy | None = None,
        *,
        half_close: bool = True,
    ) -> Stream:
        """A new stream on ``connection``; its reading grows while it runs."""
        stream: Stream = self.call(connection.open, request, policy or Normal(), half_close=half_close)
        self._connections[stream] = connection
        return stream

    def set_policy(self, stream: Stream, policy: ReadingPolicy) -> float:
        """Read differently from now on; returns the monotonic time of the change."""
        return self.call(self._connections[stream].set_policy, stream, policy)

    def leave(self, stream: Stream, how: Leave) -> float:
        """Leave; returns the monotonic time right after the server could notice."""
        return self.call(self._connections[stream].leave, stream, how)

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``function`` on the loop thread and return what it returns or raises."""

        async def invoke() -> T:
            return function(*args, **kwargs)

        return self.run(invoke())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run ``coroutine`` on the loop thread and return what it returns or raises."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_TIMEOUT_S)

    def close(self) -> None:
        """Close every connection (FIN) and end the thread."""
        if self._thread.is_alive():
            self.call(self._close_connections)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()

    def _close_connections(self) -> None:
        for connection in self._opened:
            connection.close()
