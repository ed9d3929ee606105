"""A ModelStreamInfer server on grpcio that streams numbered tokens: what the readers are tested against."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Self

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

TEXT = "añ👩‍🚀 "


class TokenServer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """One message a token, ``TEXT`` each, as fast as the client's window lets it out.

    ``produced`` counts messages handed to gRPC, by client id; ``cancelled`` is set when a client left.
    """

    def __init__(self) -> None:
        self.produced: dict[str, int] = {}
        self.cancelled = threading.Event()
        self.server = grpc.server(futures.ThreadPoolExecutor(16))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop(0).wait()

    def ModelStreamInfer(
        self, request_iterator: Iterator[service_pb2.ModelInferRequest], context: grpc.ServicerContext
    ) -> Iterator[service_pb2.ModelStreamInferResponse]:
        context.add_callback(self._left(context))
        context.send_initial_metadata((("x-request-id", "rpc-1"),))
        for request in request_iterator:
            inputs = dict(zip((each.name for each in request.inputs), request.raw_input_contents, strict=True))
            if "text_input" not in inputs:
                continue  # an ack
            sampling = json.loads(inputs["sampling_parameters"][4:])
            if sampling["max_tokens"] < 0:
                yield service_pb2.ModelStreamInferResponse(error_message="max_tokens: -1 is below 0")
                continue
            for index in range(sampling["max_tokens"]):
                self.produced[request.id] = index + 1
                yield response(index, last=index == sampling["max_tokens"] - 1)

    def _left(self, context: grpc.ServicerContext) -> object:
        def check() -> None:
            if context.code() is grpc.StatusCode.CANCELLED or not context.is_active():
                self.cancelled.set()

        return check


def response(index: int, *, last: bool) -> service_pb2.ModelStreamInferResponse:
    message = service_pb2.ModelStreamInferResponse()
    infer = message.infer_response
    outputs = {
        "text_output": ("BYTES", [1], _text(TEXT)),
        "token_ids": ("INT32", [1], struct.pack("<i", index)),
        "frame": ("INT64", [2], struct.pack("<qq", index, index)),
        "finish_reason": ("BYTES", [1], _text("length" if last else "")),
    }
    for name, (datatype, shape, raw) in outputs.items():
        infer.outputs.add(name=name, datatype=datatype, shape=shape)
        infer.raw_output_contents.append(raw)
    return message


def _text(value: str) -> bytes:
    raw = value.encode()
    return len(raw).to_bytes(4, "little") + raw
