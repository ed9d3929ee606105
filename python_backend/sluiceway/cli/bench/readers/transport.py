"""The socket below a raw HTTP/2 client: its buffers, and the ways of leaving it."""

from __future__ import annotations

import asyncio
import enum
import socket
import struct
from dataclasses import dataclass

DEFAULT_WINDOW = 65_535  # HTTP/2's, for streams and for the connection


class Leave(enum.StrEnum):
    """Ways out. HALF_CLOSE is the polite one: the server may finish. SILENT keeps the socket, unread."""

    RST_STREAM = "rst_stream"
    FIN = "fin"
    TCP_RST = "tcp_rst"
    SHUTDOWN_WR = "shutdown_wr"
    SILENT = "silent"
    HALF_CLOSE = "half_close"


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """protocol: one of readers/protocols.py. For HTTP/2:

    stream_window: SETTINGS_INITIAL_WINDOW_SIZE. connection_window: at least 65,535 (HTTP/2 cannot
    start lower); given back as soon as bytes arrive, so one stuck stream never blocks its neighbours.
    receive_buffer: SO_RCVBUF, bytes. recv_bytes: most bytes taken from the socket at once.
    """

    host: str = "127.0.0.1"
    port: int
    protocol: str = "grpc"
    stream_window: int = DEFAULT_WINDOW
    connection_window: int = DEFAULT_WINDOW
    receive_buffer: int | None = None
    recv_bytes: int = 65_536

    def __post_init__(self) -> None:
        if self.connection_window < DEFAULT_WINDOW:
            raise ValueError(
                f"connection_window: {self.connection_window} is below {DEFAULT_WINDOW} bytes, where HTTP/2 starts"
            )

    def socket(self) -> socket.socket:
        """A connected socket. SO_RCVBUF is set before connect(): later it no longer limits the window."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if self.receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(10)
        sock.connect((self.host, self.port))
        sock.setblocking(False)
        return sock


def leave_socket(transport: asyncio.Transport, how: Leave) -> None:
    """Leave the whole connection as ``how`` says (FIN, TCP_RST, SHUTDOWN_WR or SILENT)."""
    sock = transport.get_extra_info("socket")
    if how is Leave.SILENT:
        transport.pause_reading()
    elif how is Leave.SHUTDOWN_WR:
        sock.shutdown(socket.SHUT_WR)
    elif how is Leave.TCP_RST:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    elif how is Leave.FIN:
        # Unread bytes in the receive buffer would turn close() into a RST: send the FIN first.
        sock.shutdown(socket.SHUT_WR)
        transport.close()
    else:
        raise ValueError(f"how: {how} leaves a stream, not a connection")
