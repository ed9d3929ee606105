"""A real Envoy between an upstream whose every message is ours and a client whose every window byte is ours."""

from __future__ import annotations

import bisect
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings

from sluiceway.cli.envoy import EnvoyOverrides, command, write_config
from sluiceway.cli.ports import LOOPBACK, Ports
from sluiceway.cli.setup import Tools
from sluiceway.core.record import Record
from sluiceway.delivery.source import DeliverySource

SERVICE, METHOD = "inference.GRPCInferenceService", "ModelStreamInfer"
PREFIX_BYTES = 5  # gRPC's, before every message
SETTLED_S = 0.45  # four records, and the buffers' flush intervals


class Call:
    """One RPC as the upstream sees it. ``sent``: sizes of the messages with their prefix."""

    def __init__(self, rpc_id: str) -> None:
        self.rpc_id = rpc_id
        self.sent: list[int] = []
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def send(self, payload_bytes: int) -> None:
        self.sent.append(payload_bytes + PREFIX_BYTES)
        self._messages.put(b"x" * payload_bytes)

    def end(self) -> None:
        self._messages.put(None)

    def messages(self) -> Iterator[bytes]:
        while (message := self._messages.get()) is not None:
            yield message


class Upstream(grpc.GenericRpcHandler):
    """Stands for Triton: bytes in, bytes out, one Call per RPC."""

    def __init__(self, port: int) -> None:
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self.open: list[Call] = []
        self.server = grpc.server(ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
        self.server.add_generic_rpc_handlers((self,))
        self.server.add_insecure_port(f"{LOOPBACK}:{port}")
        self.server.start()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.stream_stream_rpc_method_handler(self._serve)

    def next_call(self) -> Call:
        return self._calls.get(timeout=10)

    def stop(self) -> None:
        for call in self.open:
            call.end()
        self.server.stop(0).wait()

    def _serve(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        call = Call(dict(context.invocation_metadata())["x-request-id"])
        self.open.append(call)
        self._calls.put(call)
        context.add_callback(call.end)
        yield from call.messages()


class Client:
    """A raw HTTP/2 client with one stream. Gives window back only when told; keeps what arrived when."""

    def __init__(self, port: int, window: int) -> None:
        self.sock = socket.create_connection((LOOPBACK, port), timeout=10)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lock = threading.Lock()
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self._h2.local_settings = h2.settings.Settings(
            client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
        )
        self._times: list[float] = [0.0]
        self._received: list[int] = [0]
        self.data_frames = 0
        self.ended = threading.Event()
        self.is_greedy = False  # gives back at once what comes
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(1 << 24)
        self._h2.send_headers(
            1,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", f"/{SERVICE}/{METHOD}"),
                (":authority", "edge"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
            ],
        )
        self._flush()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def received(self) -> int:
        return self._received[-1]

    def received_at(self, at: float) -> int:
        return self._received[bisect.bisect_right(self._times, at) - 1]

    def grant(self, size: int) -> None:
        with self._lock:
            self._h2.increment_flow_control_window(size, 1)
            self._flush()

    def half_close(self) -> None:
        with self._lock:
            self._h2.end_stream(1)
            self._flush()

    def reset(self) -> None:
        with self._lock:
            self._h2.reset_stream(1, h2.errors.ErrorCodes.CANCEL)
            self._flush()

    def abort(self) -> None:
        """A TCP RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.shutdown(socket.SHUT_RD)  # wakes the reading thread, sends nothing
        self._thread.join(5)
        self.sock.close()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Answer nothing, not even a PING; the socket stays open."""
        with self._lock:
            yield

    def close(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # gone already
        self.sock.close()
        self._thread.join(5)

    def _flush(self) -> None:
        self.sock.sendall(self._h2.data_to_send())

    def _read(self) -> None:
        self.sock.settimeout(None)
        while True:
            try:
                data = self.sock.recv(1 << 16)
            except OSError:
                return
            if not data:
                return
            with self._lock:
                for event in self._h2.receive_data(data):
                    self._take(event)
                try:
                    self._flush()
                except OSError:
                    return

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived):
            self.data_frames += 1
            self._times.append(time.monotonic())
            self._received.append(self.received + len(event.data))
            if event.flow_controlled_length:
                self._h2.increment_flow_control_window(event.flow_controlled_length)
                if self.is_greedy and event.stream_ended is None:
                    self._h2.increment_flow_control_window(event.flow_controlled_length, 1)
        elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
            self.ended.set()


class Edge:
    """``history``: every record that the source handed on, with its arrival time."""

    def __init__(self, ports: Ports, record_timeout_s: float) -> None:
        self.ports = ports
        self.history: list[tuple[float, Record]] = []
        self._grown = threading.Condition()
        self.upstream = Upstream(ports.triton_grpc)
        self.source = DeliverySource(f"{LOOPBACK}:{ports.als}", record_timeout_s, self._on_records, sys.executable)

    def connect(self, window: int) -> tuple[Client, Call]:
        return Client(self.ports.envoy, window), self.upstream.next_call()

    def records(self, rpc_id: str) -> list[tuple[float, Record]]:
        with self._grown:
            return [(at, record) for at, record in self.history if record.rpc_id == rpc_id]

    def last(self, rpc_id: str) -> Record:
        return self.records(rpc_id)[-1][1]

    def wait_for_end(self, rpc_id: str, timeout_s: float = 10.0) -> Record:
        """The end or expiry record. Raises TimeoutError."""
        return self.wait_for(rpc_id, lambda record: record.ended or record.expired, timeout_s)

    def wait_for(self, rpc_id: str, wanted: Callable[[Record], bool], timeout_s: float = 10.0) -> Record:
        deadline = time.monotonic() + timeout_s
        with self._grown:
            while True:
                for _, record in self.history:
                    if record.rpc_id == rpc_id and wanted(record):
                        return record
                if not self._grown.wait(deadline - time.monotonic()):
                    raise TimeoutError(f"no such record of {rpc_id} in {timeout_s} s")

    def kill_listener(self) -> None:
        pid = self.source.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def _on_records(self, records: list[Record]) -> None:
        at = time.monotonic()
        with self._grown:
            self.history += [(at, record) for record in records]
            self._grown.notify_all()


@contextmanager
def running_edge(
    run_dir: Path, record_timeout_s: float = 1.0, overrides: EnvoyOverrides | None = None
) -> Iterator[Edge]:
    overrides = overrides or EnvoyOverrides()
    ports = Ports.free()
    edge = Edge(ports, record_timeout_s)
    edge.source.start()
    config = write_config(run_dir, ports, overrides)
    with (run_dir / "envoy.log").open("wb") as log:
        envoy = subprocess.Popen(command(Tools.find(), config, overrides), stdout=log, stderr=log)
    try:
        wait_until_open(ports.envoy)
        yield edge
    finally:
        edge.upstream.stop()
        envoy.terminate()
        envoy.wait(10)
        edge.source.stop()


def wait_until_open(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection((LOOPBACK, port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
