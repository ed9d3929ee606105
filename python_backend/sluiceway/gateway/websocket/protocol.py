"""One WebSocket: uvicorn's, but ``await send`` waits for the client, bytes are counted, and pongs are bounded."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

# In scope["extensions"]: a function that says how many bytes were written since the handshake, as the front counts
# them (all that follows the answer 101 is its body).
BODY_BYTES = "sluiceway.body_bytes"


class Protocol(WebSocketsSansIOProtocol):
    """The transport's write limits are those that the HTTP connection set before the upgrade (gateway/protocol.py)."""

    _body_bytes = 0

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):  # not if the handshake is refused
            self.scope["extensions"][BODY_BYTES] = {"written": lambda: self._body_bytes}

    def handle_ping(self) -> None:
        pong = b"".join(self.conn.data_to_send())
        # A client that pings and does not read would fill memory with pongs. RFC 6455, 5.5.3: only the latest ping
        # needs one, and a connection with bytes on their way needs no sign of life.
        if self.writable.is_set():
            self._body_bytes += len(pong)
            self.transport.write(pong)

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.send":
            self._body_bytes += frame_bytes(len(message["text"].encode()))
        await super().send(message)
        # uvicorn waits before it writes; what was written must be gone before it counts as written.
        await self.writable.wait()


def frame_bytes(payload_bytes: int) -> int:
    """What a server's data frame takes on the wire (RFC 6455, 5.2: it is not masked)."""
    length_bytes = 0 if payload_bytes < 126 else 2 if payload_bytes < 2**16 else 8
    return 2 + length_bytes + payload_bytes


def websocket_options(max_message_bytes: int) -> dict[str, Any]:
    """For uvicorn's Config. No pings and no compression: both would be bytes that nobody counted."""
    return {
        "ws": Protocol,
        "ws_max_size": max_message_bytes,
        "ws_ping_interval": None,
        "ws_ping_timeout": None,
        "ws_per_message_deflate": False,
    }
