"""One gateway process on its listening socket."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import signal
import socket

import uvicorn

from sluiceway.gateway.app import create_app
from sluiceway.gateway.protocol import protocol_of
from sluiceway.gateway.settings import GatewaySettings
from sluiceway.gateway.tokenizer import ChatTokenizer
from sluiceway.gateway.upstream import Upstream
from sluiceway.gateway.websocket.protocol import websocket_options

_log = logging.getLogger(__name__)
# After the streams were told to end: for their last event to be written.
_LAST_WRITES_S = 1


def listen(settings: GatewaySettings) -> socket.socket:
    """Raises OSError. Connections inherit the send buffer and keep-alive."""
    host, _, port = settings.listen.rpartition(":")
    family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.server.send_buffer_bytes)
        # A front that vanished without a word is found after 10 + 3 x 5 s.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
            listening.setsockopt(socket.IPPROTO_TCP, option, value)
        listening.bind((host, int(port)))
        listening.listen(settings.server.backlog)
    except BaseException:
        listening.close()
        raise
    listening.setblocking(False)
    return listening


class Server(uvicorn.Server):
    """Ends in bounded time: streams first get ``drain_s`` to end by themselves, then are ended with an error."""

    def __init__(self, config: uvicorn.Config, upstream: Upstream, drain_s: float) -> None:
        super().__init__(config)
        self.upstream = upstream
        self._drain_s = drain_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        draining = asyncio.create_task(self.upstream.shut_down(self._drain_s))
        await super().shutdown(sockets)
        await draining
        await self.upstream.aclose()


def make_server(settings: GatewaySettings, tokenizer: ChatTokenizer | None = None) -> Server:
    """Within a running event loop."""
    upstream = Upstream(settings)
    config = uvicorn.Config(
        create_app(settings, upstream, tokenizer),
        http=protocol_of(settings.server),
        **websocket_options(settings.websocket.max_message_bytes),
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="warning",  # below it, uvicorn logs queries
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=settings.server.backlog,
        timeout_keep_alive=settings.server.keep_alive_s,
        timeout_graceful_shutdown=int(settings.server.drain_s + 0.999) + _LAST_WRITES_S,
    )
    return Server(config, upstream, settings.server.drain_s)


def _settle() -> None:
    """Give back what loading left behind (28 MB with SmolLM2's tokenizer), and look at what stays no more."""
    gc.collect()
    gc.freeze()
    with contextlib.suppress(AttributeError):  # glibc's only
        ctypes.CDLL(None).malloc_trim(0)


def run(settings: GatewaySettings, tokenizer: ChatTokenizer | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError."""
    listening = listen(settings)
    _log.info("gateway on %s, Triton at %s", settings.listen, settings.triton)

    _settle()

    async def serve() -> None:
        await make_server(settings, tokenizer).serve(sockets=[listening])

    # uvicorn raises the signal again once it has ended; by then there is nothing left to end.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    asyncio.run(serve())
