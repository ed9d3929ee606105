"""A client over HTTP/1.1 that reads its socket as its policy says: what it leaves there fills its receive buffer.

Everything here runs on one asyncio loop thread; ``ReaderLoop`` is the way in from other threads.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass

from sluiceway.cli.bench.readers.conversation import Conversation
from sluiceway.cli.bench.readers.policy import Flow, Normal, ReadingPolicy
from sluiceway.cli.bench.readers.reading import Stream
from sluiceway.cli.bench.readers.transport import ConnectionSettings, Leave
from sluiceway.cli.bench.readers.wire import StreamRequest

POLL_S = 0.02  # nobody tells that a socket has more bytes than it had
Speak = Callable[[StreamRequest, str], Conversation]


@dataclass(slots=True)
class SocketFlow(Flow):
    """received: what the kernel has, read or not; acknowledged: what was taken from it."""

    @property
    def taken(self) -> int:
        return self.acknowledged

    @property
    def due(self) -> int:
        return self.unread


class SocketStream(Stream):
    """One request on a socket of its own."""

    def __init__(
        self,
        sock: socket.socket,
        request: StreamRequest,
        policy: ReadingPolicy,
        conversation: Conversation,
        window: int,
    ) -> None:
        super().__init__(request.client_id)
        self.sock = sock
        self.policy = policy
        self.conversation = conversation
        self.flow = SocketFlow(window=window, opened_at=self.reading.opened_at)
        self.timer: asyncio.TimerHandle | None = None


class SocketConnection:
    """Any number of streams, each on a socket of its own: HTTP/1.1 has one answer at a time on one."""

    def __init__(self, settings: ConnectionSettings, speak: Speak) -> None:
        self.settings = settings
        self._speak = speak
        self._loop = asyncio.get_running_loop()
        self._spare: socket.socket | None = settings.socket()
        self._open: set[SocketStream] = set()

    def open(self, request: StreamRequest, policy: ReadingPolicy, *, half_close: bool = True) -> SocketStream:  # noqa: ARG002 - as RawConnection's
        """Ask at once."""
        sock, self._spare = self._spare or self.settings.socket(), None
        conversation = self._speak(request, f"{self.settings.host}:{self.settings.port}")
        window = self.settings.receive_buffer or self.settings.stream_window
        stream = SocketStream(sock, request, policy, conversation, window=window)
        self._open.add(stream)
        self._say(stream)
        stream.reading.opened_at = time.monotonic()
        self._loop.add_reader(sock, self._read, stream)
        return stream

    def set_policy(self, stream: SocketStream, policy: ReadingPolicy) -> float:
        """Read differently from now on; returns the time of the change."""
        stream.policy = policy
        if not stream.ended:
            self._read(stream)
        return time.monotonic()

    def leave(self, stream: SocketStream, how: Leave) -> float:
        """Leave as ``how`` says; what would leave a stream alone (RST_STREAM) closes its socket.

        Returns the time right after the system call that the server can notice.
        """
        stream.reading.left = how
        if stream.ended:
            return time.monotonic()
        if how is Leave.SILENT:
            self._loop.remove_reader(stream.sock)
        elif how is Leave.SHUTDOWN_WR:
            stream.sock.shutdown(socket.SHUT_WR)
        else:
            if how is Leave.TCP_RST:
                stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:  # unread bytes in the receive buffer turn close() into a RST: the FIN first
                with contextlib.suppress(OSError):
                    stream.sock.shutdown(socket.SHUT_WR)
            self._end(stream)
        return time.monotonic()

    def close(self) -> None:
        """Close all sockets (FIN); streams still open end without an error."""
        for stream in list(self._open):
            self.leave(stream, Leave.FIN)
        if self._spare is not None:
            self._spare.close()

    def _read(self, stream: SocketStream) -> None:
        """Take what the policy allows now, and look again when it says, or when more comes."""
        now, flow = time.monotonic(), stream.flow
        available = _unread_bytes(stream.sock)
        if available and not flow.unread:
            flow.since = now
        flow.received = flow.acknowledged + available
        # A handshake is read whatever the policy is: there is no answer to leave unread before it.
        policy = stream.policy if stream.conversation.is_asked else Normal()
        count, again_at = policy.allowance(flow, now)
        if available and not count:
            self._loop.remove_reader(stream.sock)
            self._look_again(stream, now + POLL_S if again_at is None else min(again_at, now + POLL_S))
            return
        self._loop.add_reader(stream.sock, self._read, stream)
        try:
            data = stream.sock.recv(min(max(1, count), self.settings.recv_bytes))
        except BlockingIOError:
            return
        except OSError as problem:
            self._fail(stream, str(problem))
            return
        if not data:
            self._fail(stream, "connection closed by the server")
            return
        self._take(stream, data, now)

    def _take(self, stream: SocketStream, data: bytes, now: float) -> None:
        reading, flow, conversation = stream.reading, stream.flow, stream.conversation
        flow.acknowledged += len(data)
        flow.data_frames += 1
        flow.updates = 0  # nothing here protects itself against many small reads
        flow.since = now
        reading.data_bytes += len(data)
        reading.data_frames += 1
        reading.acknowledged_bytes = flow.acknowledged
        reading.last_data_at = now
        messages = conversation.feed(data)
        if conversation.headers and reading.headers_at is None:
            reading.add_headers(conversation.headers, now)
        for message in messages:
            reading.add(message, now)
        self._say(stream)
        if conversation.is_complete:
            self._end(stream)

    def _say(self, stream: SocketStream) -> None:
        data = stream.conversation.outgoing()
        if data:
            stream.sock.settimeout(10)
            try:
                stream.sock.sendall(data)
            except OSError as problem:
                self._fail(stream, str(problem))
            else:
                stream.sock.setblocking(False)

    def _look_again(self, stream: SocketStream, at: float) -> None:
        if stream.timer is not None:
            stream.timer.cancel()
        stream.timer = self._loop.call_later(max(0.0, at - time.monotonic()), self._read, stream)

    def _fail(self, stream: SocketStream, why: str) -> None:
        if not stream.reading.left:
            stream.reading.error = stream.reading.error or why
        self._end(stream)

    def _end(self, stream: SocketStream) -> None:
        if stream not in self._open:
            return
        self._open.remove(stream)
        if stream.timer is not None:
            stream.timer.cancel()
        self._loop.remove_reader(stream.sock)
        stream.sock.close()
        stream.finish(time.monotonic())


def _unread_bytes(sock: socket.socket) -> int:
    """SIOCINQ of tcp(7)."""
    size = array.array("i", [0])
    fcntl.ioctl(sock, termios.FIONREAD, size)
    return size[0]
