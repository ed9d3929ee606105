"""Envoy's side of the access log service, with records of our own making."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

import grpc
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.extensions.filters.http.grpc_stats.v3 import config_pb2
from envoy.service.accesslog.v3 import als_pb2, als_pb2_grpc

from sluiceway.delivery.entry import GRPC_STATS, STREAM_PATH

MESSAGE_BYTES = 200


class EnvoyClient:
    """One stream of records to a listener."""

    def __init__(self, listen: str) -> None:
        self._channel = grpc.insecure_channel(listen)
        self._messages: queue.SimpleQueue[als_pb2.StreamAccessLogsMessage | None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        grpc.channel_ready_future(self._channel).result(timeout=20)
        stub = als_pb2_grpc.AccessLogServiceStub(self._channel)
        self._rpc = stub.StreamAccessLogs.future(iter(self._messages.get, None))
        return self

    def __exit__(self, *_: object) -> None:
        self._messages.put(None)
        self._channel.close()

    def report(self, running: Mapping[str, int], *, ends: Mapping[str, int] | None = None) -> None:
        """One message with a record for each RPC: id to messages sent."""
        self.send(message((*entries(running), *entries(ends or {}, end=True))))

    def send(self, made: als_pb2.StreamAccessLogsMessage) -> None:
        self._messages.put(made)

    def finish(self) -> None:
        """Return when the listener has read everything."""
        self._messages.put(None)
        self._rpc.result(timeout=60)

    @contextmanager
    def reporting(self, running: Mapping[str, int], period_s: float = 0.1) -> Iterator[None]:
        stopped = threading.Event()

        def report() -> None:
            while not stopped.wait(period_s):
                self.report(running)

        thread = threading.Thread(target=report)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()


def message(log_entries: Iterable[accesslog_pb2.HTTPAccessLogEntry]) -> als_pb2.StreamAccessLogsMessage:
    made = als_pb2.StreamAccessLogsMessage()
    made.http_logs.log_entry.extend(log_entries)
    return made


def entries(running: Mapping[str, int], *, end: bool = False) -> Iterator[accesslog_pb2.HTTPAccessLogEntry]:
    for rpc_id, messages in running.items():
        made = accesslog_pb2.HTTPAccessLogEntry()
        made.request.path = STREAM_PATH
        common = made.common_properties
        common.stream_id = rpc_id
        common.downstream_wire_bytes_sent = 120 + messages * (MESSAGE_BYTES + 9)
        common.access_log_type = accesslog_pb2.DownstreamEnd if end else accesslog_pb2.DownstreamPeriodic
        common.filter_state_objects[GRPC_STATS].Pack(config_pb2.FilterObject(response_message_count=messages))
        made.response.response_body_bytes = messages * MESSAGE_BYTES
        made.response.downstream_header_bytes_sent = 120
        if end:
            made.response.response_code_details = "via_upstream"
        yield made
