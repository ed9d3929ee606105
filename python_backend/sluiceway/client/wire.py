"""Requests and answers as Triton's gRPC messages. Raw contents are little endian, BYTES with a 4-byte length before."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

from tritonclient.grpc import service_pb2

from sluiceway.client.ack_batch import Ack
from sluiceway.client.errors import MalformedAnswer
from sluiceway.client.frames import Frame, GenerateRequest

_FLAGS = ("stream", "acks", "return_token_ids", "return_frame", "return_finish_reason")


def generate(request: GenerateRequest, request_id: str) -> service_pb2.ModelInferRequest:
    """Opens the stream."""
    message = _message(request.model, request_id)
    if request.resume_stream_id:
        _bytes(message, "resume_stream_id", request.resume_stream_id)
        _integer(message, "resume_frame", request.resume_frame or 0)
    else:
        _bytes(message, "text_input", request.prompt)
        _bytes(message, "sampling_parameters", json.dumps(dict(request.sampling)))
    for name in _FLAGS:
        _flag(message, name)
    if request.resumable and not request.resume_stream_id:
        _flag(message, "resumable")
    return message


def ack(model: str, request_id: str, value: Ack) -> service_pb2.ModelInferRequest:
    message = _message(model, request_id)
    _integer(message, "ack_frame", value.sequence)
    if value.body_bytes is not None:
        _integer(message, "ack_body_bytes", value.body_bytes)
    return message


def control(model: str, request_id: str, name: str) -> service_pb2.ModelInferRequest:
    """name: "cancel" or "levels"."""
    message = _message(model, request_id)
    _flag(message, name)
    return message


def parse(response: service_pb2.ModelInferResponse) -> Frame | dict[str, object] | None:
    """A frame, what a ``levels`` request asked for, or None: a message without outputs.

    Raises MalformedAnswer if it is not what our model answers.
    """
    raw = {output.name: data for output, data in zip(response.outputs, response.raw_output_contents, strict=False)}
    if not raw:
        return None
    try:
        if "levels" in raw:
            levels: dict[str, object] = json.loads(_text(raw["levels"]))
            return levels
        return _frame(raw)
    except (KeyError, ValueError, struct.error) as error:
        names = sorted(output.name for output in response.outputs)
        raise MalformedAnswer(f"the model answered {names}, which is no frame: {type(error).__name__}") from None


def _frame(raw: Mapping[str, bytes]) -> Frame:
    sequence, first_token_index = struct.unpack("<2q", raw["frame"])
    token_ids = raw["token_ids"]
    return Frame(
        text=_text(raw["text_output"]),
        token_ids=struct.unpack(f"<{len(token_ids) // 4}i", token_ids),
        sequence=sequence,
        first_token_index=first_token_index,
        finish_reason=_text(raw["finish_reason"]) or None if "finish_reason" in raw else None,
        stream_id=_text(raw["stream_id"]) if "stream_id" in raw else "",
    )


def _text(raw: bytes) -> str:
    (length,) = struct.unpack_from("<I", raw)
    if length != len(raw) - 4:
        raise ValueError("length")
    return raw[4:].decode()


def _message(model: str, request_id: str) -> service_pb2.ModelInferRequest:
    return service_pb2.ModelInferRequest(model_name=model, id=request_id)


def _bytes(message: service_pb2.ModelInferRequest, name: str, value: str) -> None:
    data = value.encode()
    _add(message, name, "BYTES", struct.pack("<I", len(data)) + data)


def _integer(message: service_pb2.ModelInferRequest, name: str, value: int) -> None:
    _add(message, name, "INT64", struct.pack("<q", value))


def _flag(message: service_pb2.ModelInferRequest, name: str) -> None:
    _add(message, name, "BOOL", b"\x01")


def _add(message: service_pb2.ModelInferRequest, name: str, datatype: str, raw: bytes) -> None:
    message.inputs.add(name=name, datatype=datatype, shape=[1])
    message.raw_input_contents.append(raw)
