"""How many bytes a response takes on the wire: gRPC prefix and Triton's protobuf, as Envoy counts them.

Field numbers from Triton's grpc_service.proto: ModelStreamInferResponse{infer_response=2},
ModelInferResponse{model_name=1, model_version=2, id=3, parameters=4, outputs=5, raw_output_contents=6},
InferOutputTensor{name=1, datatype=2, shape=3}. All are below 16, so every tag takes one byte.
"""

from __future__ import annotations

from sluiceway.core.commands import Frame
from sluiceway.runtime.codec import Outputs

GRPC_PREFIX_BYTES = 5
BYTES_ELEMENT_PREFIX = 4  # Triton's length before each BYTES element
# parameters: {"triton_final_response": bool_param}. A map entry is a message of key and value; Triton
# sets the parameter on every response of a decoupled model, and a set oneof is written also when false.
FINAL_PARAMETER_BYTES = 29


def varint_bytes(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)


def field_bytes(length: int) -> int:
    """A length-delimited field: tag, length, content."""
    return 1 + varint_bytes(length) + length


def response_bytes(
    frame: Frame, outputs: Outputs, *, model: str, version: str, client_id: str, stream_id: str = ""
) -> int:
    """Size of ``frame`` as one message of ModelStreamInfer, gRPC's 5-byte prefix included.

    stream_id: of a frame that carries it.
    """
    reason = "" if frame.finish_reason is None else frame.finish_reason.value
    text = BYTES_ELEMENT_PREFIX + len(frame.text.encode())
    body = field_bytes(len(model)) + field_bytes(len(version)) + FINAL_PARAMETER_BYTES
    body += field_bytes(len(client_id.encode())) if client_id else 0
    body += _output("text_output", "BYTES", 1, text)
    if outputs.token_ids:
        body += _output("token_ids", "INT32", len(frame.token_ids), 4 * len(frame.token_ids))
    if outputs.frame:
        body += _output("frame", "INT64", 2, 16)
    if outputs.has_reason(frame):
        body += _output("finish_reason", "BYTES", 1, BYTES_ELEMENT_PREFIX + len(reason))
    body += stream_id_bytes(stream_id)
    return GRPC_PREFIX_BYTES + field_bytes(body)


def _output(name: str, datatype: str, elements: int, content: int) -> int:
    shape = varint_bytes(elements)
    description = field_bytes(len(name)) + field_bytes(len(datatype)) + field_bytes(shape)
    return field_bytes(description) + field_bytes(content)


def stream_id_bytes(stream_id: str) -> int:
    """What the output takes in a frame that carries it."""
    return _output("stream_id", "BYTES", 1, BYTES_ELEMENT_PREFIX + len(stream_id)) if stream_id else 0


def frame_overhead_bytes(outputs: Outputs, *, model: str, version: str, client_id: str) -> int:
    """What a one-token frame takes beside its text."""
    frame = Frame(sequence=0, first_token_index=0, token_ids=(0,), text="", wire_bytes=0)
    return response_bytes(frame, outputs, model=model, version=version, client_id=client_id)
