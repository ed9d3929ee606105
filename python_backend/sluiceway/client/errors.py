"""What Triton's errors, the backend's and gRPC's mean to a client."""

from __future__ import annotations

import re

import grpc

from sluiceway.client.frames import GenerationError

_CONTROL = re.compile(r"(ack_frame|ack_body_bytes|cancel|levels|id|x-request-id): |\w+: must be left out of a control")
_CODE = re.compile(
    r"(stream_unknown|stream_foreign|stream_expired|stream_complete|frame_expired|frame_unknown"
    r"|spool_unreachable): "
)
_RETRY = re.compile(r"try again in ([0-9.]+) s")
_UNKNOWN_MODEL = re.compile(r"unknown model|is not found|is not ready", re.IGNORECASE)
_RETRY_S = 1.0


class MalformedAnswer(ValueError):  # noqa: N818 - says what came
    """A message is not what the model answers."""


def is_about_control(text: str) -> bool:
    """A control request was refused; its stream goes on."""
    return _CONTROL.match(_without_prefix(text)) is not None


def of_text(text: str) -> GenerationError:
    """Of an ``error_message`` on the stream, which has no code of its own."""
    text = _without_prefix(text)
    if named := _CODE.match(text):
        code = named.group(1)
    elif "try again" in text:
        code = "unavailable"
    elif _UNKNOWN_MODEL.search(text):
        code = "not_found"
    else:
        code = "invalid_argument"
    retry = _RETRY.search(text)
    retry_after_s = (
        float(retry.group(1)) if retry else _RETRY_S if code in ("unavailable", "spool_unreachable") else None
    )
    return GenerationError(code, text, retry_after_s=retry_after_s)


def of_rpc(error: grpc.RpcError) -> GenerationError:
    """Of an RPC that ended with a status."""
    code = error.code().name.lower()
    details = error.details() or code
    retry = _RETRY.search(details)
    retry_after_s = float(retry.group(1)) if retry else None
    return GenerationError(code, details, retry_after_s=retry_after_s)


def _without_prefix(text: str) -> str:
    """Triton puts its own words before some: "[request id: x] ..."."""
    return re.sub(r"^\[request id: [^\]]*\] ", "", text)
