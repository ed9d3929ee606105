"""The protocols that clients speak, by name, and a connection for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from sluiceway.cli.bench.readers.conversation import EventConversation, WebSocketConversation
from sluiceway.cli.bench.readers.dialects import Completions, Dialect, GenerateStream, Grpc
from sluiceway.cli.bench.readers.policy import ReadingPolicy
from sluiceway.cli.bench.readers.raw_h1 import SocketConnection, Speak
from sluiceway.cli.bench.readers.raw_h2 import RawConnection
from sluiceway.cli.bench.readers.reading import Stream
from sluiceway.cli.bench.readers.transport import ConnectionSettings, Leave
from sluiceway.cli.bench.readers.wire import StreamRequest

_Stream = TypeVar("_Stream", bound=Stream)


class Connection(Protocol[_Stream]):
    """What every client offers, on its loop's thread. leave and set_policy return the time of the change."""

    def open(self, request: StreamRequest, policy: ReadingPolicy, *, half_close: bool = True) -> _Stream: ...
    def set_policy(self, stream: _Stream, policy: ReadingPolicy) -> float: ...
    def leave(self, stream: _Stream, how: Leave) -> float: ...
    def close(self) -> None: ...


_OVER_HTTP2: dict[str, Callable[[], Dialect]] = {"grpc": Grpc, "openai": Completions, "sse_h2": GenerateStream}
_OVER_HTTP1: dict[str, Speak] = {
    "sse": partial(EventConversation, GenerateStream()),
    "websocket": partial(WebSocketConversation, acks=True),
    "websocket_without_acks": partial(WebSocketConversation, acks=False),
}


OVER_HTTP1 = frozenset(_OVER_HTTP1)  # one stream a connection; the window is the socket's receive buffer


async def connect(settings: ConnectionSettings) -> Connection[Any]:
    """Raises OSError when nobody listens, KeyError for a protocol that nobody speaks."""
    if settings.protocol in _OVER_HTTP1:
        return SocketConnection(settings, _OVER_HTTP1[settings.protocol])
    return await RawConnection.connect(settings, _OVER_HTTP2[settings.protocol]())
