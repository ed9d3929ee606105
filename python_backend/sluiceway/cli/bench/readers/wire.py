"""ModelStreamInfer on the wire: requests out, length-prefixed gRPC messages in."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonclient.grpc import service_pb2

PATH = "/inference.GRPCInferenceService/ModelStreamInfer"
PREFIX = struct.Struct(">BI")  # compressed flag, length
FRAME = struct.Struct("<qq")
DETAILS = ("return_token_ids", "return_frame", "return_finish_reason")


@dataclass(frozen=True, kw_only=True)
class StreamRequest:
    """One generation. ``sampling`` is merged over ``max_tokens`` into sampling_parameters.

    details: ask for token_ids, frame and finish_reason too (the naive arm's model has none of them).
    resumable: the client may come back. resume: it does, to this stream id, and wants this frame next.
    """

    prompt: str
    max_tokens: int = 64
    sampling: Mapping[str, Any] = field(default_factory=dict)
    client_id: str = ""
    model: str = "llm"
    details: bool = True
    resumable: bool = False
    resume: tuple[str, int] | None = None

    def protobuf(self) -> service_pb2.ModelInferRequest:
        message = service_pb2.ModelInferRequest(model_name=self.model, id=self.client_id)
        texts = {"text_input": self.prompt, "sampling_parameters": self._sampling()}
        if self.resume is not None:
            stream_id, frame = self.resume
            texts = {"resume_stream_id": stream_id}
            message.inputs.add(name="resume_frame", datatype="INT64", shape=[1])
            message.raw_input_contents.append(frame.to_bytes(8, "little", signed=True))
        for name, text in texts.items():
            raw = text.encode()
            message.inputs.add(name=name, datatype="BYTES", shape=[1])
            message.raw_input_contents.append(len(raw).to_bytes(4, "little") + raw)
        for name in ("stream", *(DETAILS if self.details else ()), *(("resumable",) if self.resumable else ())):
            message.inputs.add(name=name, datatype="BOOL", shape=[1])
            message.raw_input_contents.append(b"\x01")
        return message

    def _sampling(self) -> str:
        return json.dumps({"max_tokens": self.max_tokens, **self.sampling})

    def body(self) -> bytes:
        """The gRPC-framed request message."""
        raw: bytes = self.protobuf().SerializeToString()
        return PREFIX.pack(0, len(raw)) + raw


def request_id(request: StreamRequest) -> list[tuple[str, str]]:
    """Names the stream over HTTP in the backend's statistics, if the stack's Envoy keeps it (EnvoyOverrides)."""
    return [("x-request-id", request.client_id)] if request.client_id else []


@dataclass(frozen=True, slots=True)
class Message:
    """One response message; ``frame`` is (sequence, first token index). Fields not sent are empty."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    frame: tuple[int, int] | None = None
    finish_reason: str = ""
    error: str = ""
    stream_id: str = ""


class MessageAssembler:
    """Cuts a stream of DATA payloads back into gRPC messages."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Whole messages that ``data`` completes, in order, without their 5-byte prefix."""
        pending = self._pending
        pending += data
        messages: list[bytes] = []
        start = 0
        while len(pending) - start >= PREFIX.size:
            compressed, length = PREFIX.unpack_from(pending, start)
            if compressed:
                raise ValueError("a compressed gRPC message arrived; the reader asked for none")
            end = start + PREFIX.size + length
            if len(pending) < end:
                break
            messages.append(bytes(pending[start + PREFIX.size : end]))
            start = end
        del pending[:start]
        return messages


def decode(raw: bytes) -> Message:
    """Read a serialised ModelStreamInferResponse."""
    return from_protobuf(service_pb2.ModelStreamInferResponse.FromString(raw))


def from_protobuf(response: service_pb2.ModelStreamInferResponse) -> Message:
    """Read the outputs of the model; an output that the model did not send stays empty."""
    if response.error_message:
        return Message(error=response.error_message)
    infer = response.infer_response
    raw = {output.name: content for output, content in zip(infer.outputs, infer.raw_output_contents, strict=True)}
    frame = raw.get("frame")
    ids = raw.get("token_ids", b"")
    return Message(
        text=_text(raw.get("text_output", b"")),
        token_ids=struct.unpack(f"<{len(ids) // 4}i", ids),
        frame=FRAME.unpack(frame) if frame else None,
        finish_reason=_text(raw.get("finish_reason", b"")),
        stream_id=_text(raw.get("stream_id", b"")),
    )


def _text(content: bytes) -> str:
    return content[4:].decode() if content else ""
