"""A client whose flow control is ours: HTTP/2 frames by the h2 library over a plain socket.

Everything here runs on one asyncio loop thread; ``ReaderLoop`` is the way in from other threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import h2.events
import h2.exceptions
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings

from sluiceway.cli.bench.readers.dialects import Dialect
from sluiceway.cli.bench.readers.policy import ReadingPolicy
from sluiceway.cli.bench.readers.raw_stream import RawStream
from sluiceway.cli.bench.readers.transport import DEFAULT_WINDOW, ConnectionSettings, Leave, leave_socket
from sluiceway.cli.bench.readers.wire import StreamRequest, request_id


class RawConnection(asyncio.BufferedProtocol):
    """One TCP connection with any number of streams on it."""

    def __init__(self, settings: ConnectionSettings, dialect: Dialect) -> None:
        self.settings = settings
        self._dialect = dialect
        self.received_bytes = 0
        self._buffer = bytearray(settings.recv_bytes)
        self._streams: dict[int, RawStream] = {}
        self._unacknowledged = 0
        self._h2 = H2Connection(
            H2Configuration(client_side=True, header_encoding="utf-8", validate_outbound_headers=False)
        )
        # Set after the constructor: h2 would take the value for the connection's window as well.
        self._h2.local_settings = Settings(
            client=True,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: settings.stream_window,
            },
        )

    @classmethod
    async def connect(cls, settings: ConnectionSettings, dialect: Dialect) -> RawConnection:
        """Raises OSError when nobody listens."""
        connection = cls(settings, dialect)
        await asyncio.get_running_loop().create_connection(lambda: connection, sock=settings.socket())
        return connection

    # --- streams -----------------------------------------------------------------------------------

    def open(self, request: StreamRequest, policy: ReadingPolicy, *, half_close: bool = True) -> RawStream:
        """Send one request. half_close=False keeps the send side open, as tritonclient does."""
        stream_id = self._h2.get_next_available_stream_id()
        window = self.settings.stream_window
        stream = RawStream(stream_id, request, policy, window, self._dialect, half_close=half_close)
        self._streams[stream_id] = stream
        if self._transport.is_closing():
            stream.reading.error = "the connection is closed"
            self._end(stream)
            return stream
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", self._dialect.path),
            (":authority", f"{self.settings.host}:{self.settings.port}"),
            *self._dialect.headers,
            *request_id(request),
        ]
        self._h2.send_headers(stream_id, headers)
        self._push(stream)
        self._flush()
        stream.reading.opened_at = time.monotonic()
        return stream

    def set_policy(self, stream: RawStream, policy: ReadingPolicy) -> float:
        """Read differently from now on; returns the time of the change."""
        stream.policy = policy
        self._acknowledge(stream, time.monotonic())
        self._flush()
        return time.monotonic()

    def leave(self, stream: RawStream, how: Leave) -> float:
        """Leave as ``how`` says (all but RST_STREAM and HALF_CLOSE take the whole connection along).

        Returns the time right after the system call that the server can notice.
        """
        stream.reading.left = how
        if how in (Leave.RST_STREAM, Leave.HALF_CLOSE):
            if not stream.ended and not self._transport.is_closing():
                self._leave_alone(stream, how)
            return time.monotonic()
        leave_socket(self._transport, how)
        at = time.monotonic()
        for each in list(self._streams.values()):
            each.reading.left = how
            if how is not Leave.SHUTDOWN_WR:
                self._end(each)
        return at

    def close(self) -> None:
        """Close the connection (FIN); streams still open end without an error."""
        for stream in list(self._streams.values()):
            stream.reading.left = stream.reading.left or Leave.FIN
            self._end(stream)
        self._transport.close()

    def _leave_alone(self, stream: RawStream, how: Leave) -> None:
        if how is Leave.RST_STREAM:
            self._h2.reset_stream(stream.stream_id, ErrorCodes.CANCEL)
        else:
            self._h2.end_stream(stream.stream_id)
        self._flush()
        if how is Leave.RST_STREAM:
            self._end(stream)

    # --- asyncio --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._h2.initiate_connection()
        extra = self.settings.connection_window - DEFAULT_WINDOW
        if extra:
            self._h2.increment_flow_control_window(extra)
        self._flush()

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - asyncio's signature
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        now = time.monotonic()
        self.received_bytes += nbytes
        try:
            events = self._h2.receive_data(bytes(self._buffer[:nbytes]))
        except h2.exceptions.ProtocolError as problem:
            self._fail(f"HTTP/2: {problem}")
            self._transport.abort()
            return
        for event in events:
            self._handle(event, now)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc or "connection closed by the server"))

    # --- HTTP/2 events -------------------------------------------------------------------------------

    def _handle(self, event: h2.events.Event, now: float) -> None:
        if isinstance(event, h2.events.ConnectionTerminated):
            self._fail(f"GOAWAY, error code {event.error_code}")
            return
        if isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            for stream in self._streams.values():
                self._push(stream)
            return
        found = self._streams.get(getattr(event, "stream_id", None) or 0)
        if found is not None:
            self._handle_on(found, event, now)

    def _handle_on(self, stream: RawStream, event: h2.events.Event, now: float) -> None:
        if isinstance(event, h2.events.DataReceived):
            self._data(stream, event, now)
        elif isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            headers = {str(name): str(value) for name, value in event.headers or ()}
            stream.reading.add_headers(headers, now)
        elif isinstance(event, h2.events.StreamReset):
            stream.reading.error = stream.reading.error or f"RST_STREAM, error code {event.error_code}"
            self._end(stream)
        elif isinstance(event, h2.events.StreamEnded):
            self._end(stream)

    def _data(self, stream: RawStream, event: h2.events.DataReceived, now: float) -> None:
        reading, flow = stream.reading, stream.flow
        size = event.flow_controlled_length or 0
        if not flow.unread:
            flow.since = now
        flow.received += size
        flow.data_frames += 1
        reading.data_bytes += len(event.data or b"")
        reading.data_frames += 1
        reading.last_data_at = now
        if stream.parses:
            for message in stream.decoder.feed(event.data or b""):
                reading.add(message, now)
        self._unacknowledged += size
        if 2 * self._unacknowledged >= DEFAULT_WINDOW:
            self._h2.increment_flow_control_window(self._unacknowledged)
            self._unacknowledged = 0
        if event.stream_ended is None:
            self._acknowledge(stream, now)

    # --- flow control --------------------------------------------------------------------------------

    def _acknowledge(self, stream: RawStream, now: float) -> None:
        if stream.ended or self._transport.is_closing():
            return
        count, again_at = stream.policy.allowance(stream.flow, now)
        if count:
            # h2 is ahead of our events: the end may have come in the same read.
            with contextlib.suppress(h2.exceptions.StreamClosedError):
                self._h2.increment_flow_control_window(count, stream.stream_id)
            stream.flow.acknowledged += count
            stream.flow.updates += 1
            stream.flow.since = now
            stream.reading.acknowledged_bytes = stream.flow.acknowledged
        if stream.timer is not None:
            stream.timer.cancel()
            stream.timer = None
        if again_at is not None:
            delay = max(0.0, again_at - now)
            stream.timer = asyncio.get_running_loop().call_later(delay, self._on_timer, stream)

    def _on_timer(self, stream: RawStream) -> None:
        stream.timer = None
        self._acknowledge(stream, time.monotonic())
        self._flush()

    def _push(self, stream: RawStream) -> None:
        """Send as much of the request as the server's window takes; then half-close if asked to."""
        if stream.ended:
            return
        while stream.unsent:
            room = min(self._h2.local_flow_control_window(stream.stream_id), self._h2.max_outbound_frame_size)
            if room <= 0:
                return
            chunk = bytes(stream.unsent[:room])
            del stream.unsent[:room]
            last = stream.half_close and not stream.unsent
            self._h2.send_data(stream.stream_id, chunk, end_stream=last)

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def _end(self, stream: RawStream) -> None:
        self._streams.pop(stream.stream_id, None)
        if stream.timer is not None:
            stream.timer.cancel()
            stream.timer = None
        stream.finish(time.monotonic())

    def _fail(self, why: str) -> None:
        for stream in list(self._streams.values()):
            if not stream.reading.left:
                stream.reading.error = stream.reading.error or why
            self._end(stream)
