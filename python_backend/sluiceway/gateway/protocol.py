"""HTTP/1.1 on one connection: uvicorn's, with a write buffer that is small and headers that are bounded (ADR 10)."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sluiceway.gateway.settings import ServerSettings


def protocol_of(settings: ServerSettings) -> type[asyncio.Protocol]:
    """The class that uvicorn makes an instance of for each connection."""

    class Protocol(HttpToolsProtocol):
        _header_bytes = 0
        _in_headers = True

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            # `await send` waits from here on, and until all of it is gone: what it waits for is the client.
            transport.set_write_buffer_limits(high=settings.write_buffer_bytes, low=0)

        def data_received(self, data: bytes) -> None:
            if self._in_headers:
                self._header_bytes += len(data)
                if self._header_bytes > settings.max_header_bytes + len(data):
                    self.send_400_response("The headers are too large.")
                    return
            super().data_received(data)

        def on_headers_complete(self) -> None:
            self._in_headers = False
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._in_headers, self._header_bytes = True, 0
            super().on_message_complete()

    return Protocol
