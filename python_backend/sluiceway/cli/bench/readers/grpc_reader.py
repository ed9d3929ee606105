"""A client on grpcio, as most people have one: the library reads ahead of the application."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sluiceway.cli.bench.readers.reading import Stream
from sluiceway.cli.bench.readers.wire import StreamRequest, from_protobuf

Options = Sequence[tuple[str, int]]
DEFAULT: Options = ()
NO_BDP_PROBE: Options = (("grpc.http2.bdp_probe", 0),)
SMALL_WINDOW: Options = (*NO_BDP_PROBE, ("grpc.http2.lookahead_bytes", 4096))


class GrpcReader(Stream):
    """One ModelStreamInfer call in a thread of its own, on a channel of its own.

    The application can stop and go on: ``stop_reading()`` keeps it from taking the next message, as a
    slow callback would. half_close=False keeps the send side open, as tritonclient does.
    """

    def __init__(
        self, target: str, request: StreamRequest, *, options: Options = DEFAULT, half_close: bool = True
    ) -> None:
        super().__init__(request.client_id)
        self._request = request
        self._half_close = half_close
        # A pool shared between channels would put all readers on one connection.
        self._channel = grpc.insecure_channel(target, options=[*options, ("grpc.use_local_subchannel_pool", 1)])
        self._reads = threading.Event()
        self._reads.set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._read, name="grpc-reader", daemon=True)

    def start(self) -> GrpcReader:
        self._thread.start()
        return self

    def stop_reading(self) -> float:
        """Take no further message; returns the time."""
        self._reads.clear()
        return time.monotonic()

    def go_on(self) -> None:
        self._reads.set()

    def leave(self) -> float:
        """Cancel the call (RST_STREAM) and close the channel; returns the time."""
        self.reading.left = self.reading.left or "cancel"
        self._closing.set()
        at = time.monotonic()
        self._channel.close()
        self._reads.set()
        return at

    def _requests(self) -> Iterator[service_pb2.ModelInferRequest]:
        yield self._request.protobuf()
        if not self._half_close:
            self._closing.wait()

    def _read(self) -> None:
        reading = self.reading
        try:
            call = service_pb2_grpc.GRPCInferenceServiceStub(self._channel).ModelStreamInfer(self._requests())
            reading.opened_at = time.monotonic()
            reading.add_headers({str(k): str(v) for k, v in call.initial_metadata()}, time.monotonic())
            for response in call:
                now = time.monotonic()
                reading.last_data_at = now
                reading.data_bytes += response.ByteSize() + 5
                reading.add(from_protobuf(response), now)
                self._reads.wait()
            reading.grpc_status = call.code().value[0]
        except (grpc.RpcError, ValueError) as problem:  # ValueError: the channel was closed under us
            if not reading.left:
                code = problem.code() if isinstance(problem, grpc.Call) else None
                reading.grpc_status = code.value[0] if code is not None else None
                reading.error = problem.details() if isinstance(problem, grpc.Call) else str(problem)
        finally:
            self._closing.set()
            self.finish(time.monotonic())
