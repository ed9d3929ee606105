"""What a client says on its RPC about a stream that it opened there: a control request, read and checked.

It names the stream by the request id that opened it and holds exactly one of ``ack_frame``, ``cancel``, ``levels``.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluiceway.runtime.codec import MAX_FRAME, MAX_ID_CHARACTERS, RawRequest, rpc_id_of
from sluiceway.runtime.errors import RequestError
from sluiceway.runtime.inputs import flag, integer

CONTROL_INPUTS = ("ack_frame", "ack_body_bytes", "cancel", "levels")
_MAX_BODY_BYTES = 2**62


@dataclass(frozen=True, slots=True)
class Ack:
    """The client has all frames up to and with ``frame``; with ``body_bytes``: once so much of the body is let out."""

    frame: int
    body_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """The client wants no more; the frame with the finish reason still comes."""


@dataclass(frozen=True, slots=True)
class AskLevels:
    """The client wants to know how far its stream is."""


@dataclass(frozen=True, slots=True)
class ControlRequest:
    client_id: str
    rpc_id: str | None
    control: Ack | Cancel | AskLevels


def is_control(raw: RawRequest) -> bool:
    return any(name in raw.inputs for name in CONTROL_INPUTS)


def parse_control(raw: RawRequest) -> ControlRequest:
    """Raises RequestError (INVALID_ARG) naming the input that is wrong."""
    control = _control(raw)
    for name in raw.inputs:
        if name not in CONTROL_INPUTS:
            raise RequestError(f"{name}: must be left out of a control request")
    return ControlRequest(raw.client_id[:MAX_ID_CHARACTERS], rpc_id_of(raw.parameters), control)


def _control(raw: RawRequest) -> Ack | Cancel | AskLevels:
    asked = [name for name in ("ack_frame", "cancel", "levels") if name in raw.inputs]
    if len(asked) > 1:
        raise RequestError(f"{asked[1]}: not together with {asked[0]}; one thing a request")
    if "ack_frame" in raw.inputs:
        return _ack(raw)
    if "ack_body_bytes" in raw.inputs:
        raise RequestError("ack_body_bytes: only with ack_frame")
    if not flag(raw.inputs, asked[0]):
        raise RequestError(f"{asked[0]}: must be true (or left out)")
    return Cancel() if asked[0] == "cancel" else AskLevels()


def _ack(raw: RawRequest) -> Ack:
    frame = integer(raw.inputs, "ack_frame") or 0
    body_bytes = integer(raw.inputs, "ack_body_bytes")
    if not 0 <= frame < MAX_FRAME:
        raise RequestError(f"ack_frame: must be 0 to 2**53 - 1, got {frame}")
    if body_bytes is not None and not 0 <= body_bytes < _MAX_BODY_BYTES:
        raise RequestError(f"ack_body_bytes: must be 0 to 2**62 - 1, got {body_bytes}")
    return Ack(frame, body_bytes)
