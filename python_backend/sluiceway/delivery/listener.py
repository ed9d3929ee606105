"""The access log service: ``python -m sluiceway.delivery.listener --listen HOST:PORT --record-timeout-s S``.

Receives Envoy's records, writes only news to stdout (delivery/pipe_format.py). Lives as long as its
stdin: the parent's death closes it. See docs/adr/0002-listener-process.md for why it is a process.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
from envoy.service.accesslog.v3 import als_pb2, als_pb2_grpc

from sluiceway.delivery.entry import read_entry
from sluiceway.delivery.pipe_format import Batch, encode
from sluiceway.delivery.tracker import TooMuchNewsError, Tracker

_MAX_ENVOY_WORKERS = 512  # one long-lived stream, so one thread, per Envoy worker; made when needed
_MAX_STATUS_PERIOD_S = 1.0
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # Envoy's buffer_size_bytes is 1 MiB; a flush may exceed it by an entry
EXIT_CANNOT_LISTEN, EXIT_TOO_MUCH_NEWS = 3, 4


class Listener(als_pb2_grpc.AccessLogServiceServicer):
    """Feeds the tracker from any number of Envoy streams and wakes the writer."""

    def __init__(self, tracker: Tracker, status_period_s: float) -> None:
        self._tracker = tracker
        self._status_period_s = status_period_s
        self._lock = threading.Lock()
        self._news = threading.Event()

    def StreamAccessLogs(  # noqa: N802 - the service's own name
        self, request_iterator: Iterator[als_pb2.StreamAccessLogsMessage], context: grpc.ServicerContext
    ) -> als_pb2.StreamAccessLogsResponse:
        del context
        for message in request_iterator:
            records = [record for entry in message.http_logs.log_entry if (record := read_entry(entry)) is not None]
            now = time.monotonic()
            try:
                with self._lock:
                    for record in records:
                        self._tracker.take(record, now)
            except TooMuchNewsError as error:
                _say(str(error))
                os._exit(EXIT_TOO_MUCH_NEWS)  # the parent's next listener starts empty; its roll finds the ends
            self._news.set()
        return als_pb2.StreamAccessLogsResponse()

    def write_forever(self, out: int) -> None:
        """Write news as it comes and the status when there was none. Returns when the pipe is closed.

        While the pipe is full, news wait in the tracker, where they replace each other.
        """
        status_at = time.monotonic()
        lag_s = 0.0
        while True:
            self._news.wait(max(0.0, status_at - time.monotonic()))
            self._news.clear()
            begin = time.monotonic()
            with self._lock:
                self._tracker.expire(begin)
                news = self._tracker.take_news()
                batch = Batch(self._tracker.records, self._tracker.open_rpcs, round(1000 * lag_s), news)
            if not news and begin < status_at:
                continue
            status_at = begin + self._status_period_s
            try:
                _write_all(out, encode(batch))
            except BrokenPipeError:
                return
            lag_s = time.monotonic() - begin


def _write_all(out: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(out, view) :]


def _say(what: str) -> None:
    print(f"sluiceway listener: {what}", file=sys.stderr, flush=True)


def _exit_with_parent() -> None:
    sys.stdin.buffer.read()  # returns when the other end is closed, however the parent died
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--record-timeout-s", type=float, required=True)
    arguments = parser.parse_args()
    if not 0 < arguments.record_timeout_s < float("inf"):
        parser.error(f"--record-timeout-s: {arguments.record_timeout_s} is not a number of seconds above 0")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end is ours
    status_period_s = min(_MAX_STATUS_PERIOD_S, arguments.record_timeout_s / 4)  # Tracker.expire wants to be asked
    listener = Listener(Tracker(arguments.record_timeout_s), status_period_s)
    server = grpc.server(
        ThreadPoolExecutor(_MAX_ENVOY_WORKERS, thread_name_prefix="als"),
        # Without so_reuseport 0 a second listener would silently share the port and take half the records.
        options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES)],
    )
    als_pb2_grpc.add_AccessLogServiceServicer_to_server(listener, server)
    try:
        port = server.add_insecure_port(arguments.listen)
    except RuntimeError:
        port = 0
    if port == 0:
        _say(f"cannot listen on {arguments.listen}: taken, or not an address of this machine")
        sys.exit(EXIT_CANNOT_LISTEN)
    server.start()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    listener.write_forever(sys.stdout.fileno())
    os._exit(0)


if __name__ == "__main__":
    main()
