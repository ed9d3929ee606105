"""Stream one answer through Envoy with plain grpcio: python examples/generate.py "a prompt" [host:port]."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

# Without these two, grpcio reads up to 4 MB ahead of you and nobody can see that you stopped reading.
SMALL_WINDOWS = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4096)]


def bytes_tensor(value: bytes) -> bytes:
    """Triton's BYTES encoding: 4-byte little-endian length, then the value."""
    return len(value).to_bytes(4, "little") + value


def request(prompt: str) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name="llm", id="example")
    sampling = json.dumps({"max_tokens": 128, "temperature": 0})
    for name, value in (("text_input", prompt), ("sampling_parameters", sampling)):
        message.inputs.add(name=name, datatype="BYTES", shape=[1])
        message.raw_input_contents.append(bytes_tensor(value.encode()))
    for name in ("stream", "return_finish_reason"):
        message.inputs.add(name=name, datatype="BOOL", shape=[1])
        message.raw_input_contents.append(b"\x01")
    return message


def stream(prompt: str, address: str) -> Iterator[tuple[str, str]]:
    """Yield (text, finish_reason); the reason is empty until the last frame."""
    with grpc.insecure_channel(address, options=SMALL_WINDOWS) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for response in stub.ModelStreamInfer(iter([request(prompt)])):
            if response.error_message:
                raise SystemExit(response.error_message)
            infer = response.infer_response
            outputs = {
                output.name: raw[4:].decode()
                for output, raw in zip(infer.outputs, infer.raw_output_contents, strict=True)
            }
            yield outputs["text_output"], outputs["finish_reason"]


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    address = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1:8080"
    for text, reason in stream(sys.argv[1], address):
        print(text, end="", flush=True)
        if reason:
            print(f"\n[{reason}]")


if __name__ == "__main__":
    main()
