"""The access log service: ``python -m sluiceway.delivery.listener --listen HOST:PORT --record-timeout-s S``.

Receives Envoy's records, writes only news to stdout (delivery/pipe_format.py). Lives as long as its
stdin: the parent's death closes it. See docs/adr/0002-listener-process.md for why it is a process.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
from envoy.service.accesslog.v3 import als_pb2, als_pb2_grpc

from sluiceway.delivery.entry import read_entry
from sluiceway.delivery.pipe_format import Status, encode
from sluiceway.delivery.tracker import TooManyRpcsError, Tracker

_MAX_ENVOY_WORKERS = 64  # one long-lived stream, so one thread, per Envoy worker
_STATUS_PERIOD_S = 1.0
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # Envoy's buffer_size_bytes is 1 MiB; a flush may exceed it by an entry
EXIT_PORT_TAKEN, EXIT_TOO_MANY = 3, 4


class Listener(als_pb2_grpc.AccessLogServiceServicer):
    """Feeds the tracker from any number of Envoy streams and wakes the writer."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._lock = threading.Lock()
        self._news = threading.Event()

    def StreamAccessLogs(  # noqa: N802 - the service's own name
        self, request_iterator: Iterator[als_pb2.StreamAccessLogsMessage], _context: grpc.ServicerContext
    ) -> als_pb2.StreamAccessLogsResponse:
        for message in request_iterator:
            records = [record for entry in message.http_logs.log_entry if (record := read_entry(entry)) is not None]
            now = time.monotonic()
            with self._lock:
                try:
                    for record in records:
                        self._tracker.take(record, now)
                except TooManyRpcsError as error:
                    print(f"sluiceway listener: {error}", file=sys.stderr, flush=True)
                    os._exit(EXIT_TOO_MANY)  # the parent starts a new one; counters are absolute
            self._news.set()
        return als_pb2.StreamAccessLogsResponse()

    def write_forever(self, out: int) -> None:
        """Write news as it comes, the status once a second. Returns when the pipe is closed."""
        status_at = time.monotonic()
        while True:
            self._news.wait(max(0.0, status_at - time.monotonic()))
            self._news.clear()
            now = time.monotonic()
            with self._lock:
                self._tracker.expire(now)
                lines = [encode(record) for record in self._tracker.take_news()]
                status = Status(self._tracker.records, self._tracker.open_rpcs)
            if now >= status_at:
                lines.append(encode(status))
                status_at = now + _STATUS_PERIOD_S
            try:
                _write_all(out, b"".join(lines))
            except BrokenPipeError:
                return


def _write_all(out: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(out, view) :]


def _exit_with_parent() -> None:
    sys.stdin.buffer.read()  # returns when the other end is closed, however the parent died
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--record-timeout-s", type=float, required=True)
    arguments = parser.parse_args()
    listener = Listener(Tracker(arguments.record_timeout_s))
    server = grpc.server(
        ThreadPoolExecutor(_MAX_ENVOY_WORKERS, thread_name_prefix="als"),
        # Without so_reuseport 0 a second listener would silently share the port and take half the records.
        options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES)],
    )
    als_pb2_grpc.add_AccessLogServiceServicer_to_server(listener, server)
    try:
        server.add_insecure_port(arguments.listen)
    except RuntimeError:
        print(f"sluiceway listener: cannot listen on {arguments.listen}: is it taken?", file=sys.stderr, flush=True)
        sys.exit(EXIT_PORT_TAKEN)
    server.start()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    listener.write_forever(sys.stdout.fileno())
    os._exit(0)


if __name__ == "__main__":
    main()
